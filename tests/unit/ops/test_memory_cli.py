"""`parlour memory …` and `parlour import …`: with a gateway that runs and without one, in words and as JSON."""

from __future__ import annotations

import asyncio
import io
import json
import logging
import os
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import structlog

from agent.base.scopes import ScopeNames, ScopeSelector, label, quote
from gateway.errors import UserError
from gateway.events import SessionKey
from gateway.home import SCHEMA
from gateway.main import main
from gateway.ports.journal import SessionRow
from tests.fakes import other_bots
from tests.fakes.inprocess_gateway import gateway
from tests.fakes.memory import START
from tests.fakes.other_bots import fingerprint, write
from tests.fakes.recording_model import RecordingModel

ANN, ROOM = "people/pocket%3aann", "chats/pocket%3aroom"


class CommandTerminal:
    """Runs commands in this process, on a home of its own."""

    def __init__(self, home: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
        self.home = home
        self._monkeypatch = monkeypatch
        self._capsys = capsys

    def make_home(self) -> None:
        """Make the home one that a gateway has opened before."""
        self.home.mkdir()
        (self.home / "schema").write_text(f"{SCHEMA}\n")

    def run(self, *words: str) -> tuple[int, str, str]:
        """Run `parlour` with these words; return exit code, output and errors."""
        self._monkeypatch.setattr(sys, "argv", ["parlour", *words])
        self._capsys.readouterr()
        with pytest.raises(SystemExit) as ended:
            main()
        told = self._capsys.readouterr()
        return int(ended.value.code or 0), told.out, told.err

    def well(self, *words: str) -> str:
        """Run a command that goes well; return its output."""
        code, out, err = self.run(*words)
        assert (code, err) == (0, "")
        return out

    def refused(self, *words: str) -> str:
        """Run a command that is a mistake; return its one line."""
        code, out, err = self.run(*words)
        assert (code, out, err.count("\n")) == (2, "", 1)
        return err

    def lines(self, *words: str) -> list[dict[str, Any]]:
        """Run a command as a program does. A gateway in this process logs to the same place."""
        return [json.loads(line) for line in self.well(*words, "--json").splitlines() if line.startswith("{")]


@pytest.fixture
def terminal(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Iterator[CommandTerminal]:
    """Nothing inherited; umask and logs as they were."""
    for name in list(os.environ):
        if name.startswith("PARLOUR_"):
            monkeypatch.delenv(name)
    home = tmp_path / "home"
    monkeypatch.setenv("PARLOUR_HOME", str(home))
    monkeypatch.setenv("PARLOUR_WEB__PORT", "0")
    before = os.umask(0o077)
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    yield CommandTerminal(home, monkeypatch, capsys)
    root.handlers[:], root.level = handlers, level
    structlog.reset_defaults()
    os.umask(before)


async def test_a_running_gateway_answers_for_its_home(terminal: CommandTerminal) -> None:
    """Through the socket: what a person had kept in the chat is seen, explained, taken back, and forgotten for good."""
    async with gateway(home=terminal.home) as parlour:
        ask, there = parlour.channel.ask, asyncio.to_thread
        await ask("ann", "/remember I like green tea")
        await ask("ann", "/remember my dog is Bello")
        await ask("room", "/remember we meet in Bonn", group=True)
        await ask("room", "/memory", group=True)
        scopes = await there(terminal.lines, "memory")
        assert [(line["scope"], line["name"]) for line in scopes] == [(ANN, "pocket:ann"), (ROOM, "pocket:room")]
        shown = await there(terminal.well, "memory", "show", "--scope", "pocket:ann")
        assert "- I like green tea\n- my dog is Bello" in shown
        assert "Bonn" not in shown
        (why,) = await there(terminal.lines, "memory", "why", "GREEN tea", "--person", "ann")
        assert why["said"]["text"] == "/remember I like green tea"
        sha = why["change"]["sha"]
        assert "+- I like green tea" in await there(terminal.well, "memory", "diff", sha, "--scope", ANN)
        assert "is undone" in await there(terminal.well, "memory", "undo", sha, "--scope", ANN)
        newest, *_ = await there(terminal.lines, "memory", "log", "--scope", ANN)
        assert newest["why"] == f"undo {sha}"
        assert "green tea" not in await ask("ann", "/memory")
        (gone,) = await there(terminal.lines, "memory", "forget", "Bello", "--chat", "pocket:ann", "--yes")
        assert gone["remembered"] == 1
        assert gone["messages"] >= 1
        assert "Bello" not in json.dumps(gone)
        assert "Bello" not in await ask("ann", "/memory")
        assert "Bonn" in await ask("room", "/memory", group=True)
        assert "a gateway is running on this home; stop it" in await there(
            terminal.refused, "import", "nanobot", str(terminal.home), "--as", "telegram:42"
        )


async def test_dream_runs_when_it_is_told_to(terminal: CommandTerminal) -> None:
    """By hand it studies what is new, and says what it changed; the change is in the log like any other."""
    entry = '{"cursor": 1, "timestamp": "2026-04-03 00:02", "content": "- Ann sails a boat", "origin": "user"}\n'
    memory = write(terminal.home / ANN / "memory" / "history.jsonl", entry).with_name("MEMORY.md")
    async with gateway(home=terminal.home, model=RecordingModel()) as parlour:
        (told,) = await asyncio.to_thread(terminal.lines, "memory", "dream")
        assert (told["entries"], len(told["changes"])) == (1, 1)
        await parlour.app.memory_files.settle(ANN)
        assert memory.read_text() == "- Ann sails a boat\n"
        assert "0 new entries reviewed" in await asyncio.to_thread(terminal.well, "memory", "dream")
        log = await asyncio.to_thread(terminal.lines, "memory", "log")
        assert log == [{**change, "first": "+ Ann sails a boat"} for change in told["changes"]]


def test_without_a_gateway_the_files_answer(terminal: CommandTerminal) -> None:
    """Under the home's lock: an edit by hand is a change like others, and the readable history can be made anew."""
    terminal.make_home()
    memory = write(terminal.home / ANN / "memory" / "MEMORY.md", "- tea\n")
    write(
        terminal.home / ANN / "memory" / "history.jsonl",
        '{"cursor": 1, "timestamp": "2026-04-03 00:02", "content": "Talked about \\u001b[2Jboats."}\n',
    )
    write(terminal.home / ANN / "memory" / "HISTORY.md", "somebody wrote this\n")
    assert terminal.lines("memory", "show") == [{"scope": ANN, "document": "MEMORY.md", "text": "- tea"}]
    listed = terminal.well("memory", "log")
    assert "edited by hand" in listed
    assert listed.endswith("\n    + tea\n")
    memory.unlink()
    shutil.rmtree(memory.with_name(".git"))
    rebuilt = terminal.lines("mirror", "rebuild")
    assert {"scope": ANN, "name": "history", "count": 1} in rebuilt
    assert {"scope": ANN, "name": "documents", "count": 1} in rebuilt
    assert memory.read_text() == "- tea\n"
    assert memory.with_name(".git").is_dir()
    history = memory.with_name("HISTORY.md")
    assert history.read_text() == "[2026-04-03 00:02] Talked about \x1b[2Jboats.\n\n"
    (kept,) = memory.parent.glob("HISTORY.md.edited-*")
    assert kept.read_text() == "somebody wrote this\n"
    assert "purge of versions, journal and archives: done" in terminal.well(
        "memory", "forget", "boats", "--purge", "-y"
    )
    assert "boats" not in history.read_text()
    assert not any(b"boats" in path.read_bytes() for path in terminal.home.rglob("*") if path.is_file())
    assert "the offline model cannot run Dream" in terminal.refused("memory", "dream")
    assert "removed: 1 remembered" in terminal.well("memory", "forget", "tea", "-y")
    assert memory.read_text() == ""


def test_forgetting_shows_what_would_go_and_asks(terminal: CommandTerminal, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whole words as in the chat; a no or the end of the input changes nothing; similar words are named."""
    memory = write(terminal.home / ANN / "memory" / "MEMORY.md", "- Likes tea\n- Likes steak\n")
    monkeypatch.setattr(sys, "stdin", io.StringIO())
    code, out, _ = terminal.run("memory", "forget", "tea")
    assert (code, memory.read_text()) == (1, "- Likes tea\n- Likes steak\n")
    assert "would be removed: 1 remembered, 0 in summaries and notes, 0 messages\n  - Likes tea\nRemove?" in out
    monkeypatch.setattr(sys, "stdin", io.StringIO("n\n"))
    assert terminal.run("memory", "forget", "tea")[0] == 1
    assert terminal.run("memory", "forget", "steek") == (0, "nothing matches; similar words: steak\n", "")
    assert memory.read_text() == "- Likes tea\n- Likes steak\n"
    monkeypatch.setattr(sys, "stdin", io.StringIO("y\n"))
    assert "removed: 1 remembered" in terminal.well("memory", "forget", "tea")
    assert memory.read_text() == "- Likes steak\n"
    monkeypatch.setattr(sys, "stdin", io.StringIO("y\n"))
    code, out, err = terminal.run("memory", "forget", "steak", "--purge", "--json")
    assert (code, json.loads(out)["remembered"]) == (0, 1)
    assert "Remove permanently, with every copy?" in err


def test_mistakes_say_what_to_do(terminal: CommandTerminal) -> None:
    """One line and exit code 2: nobody named, a near miss, changes and words that are not there."""
    write(terminal.home / ANN / "memory" / "MEMORY.md", "- tea\n")
    write(terminal.home / ROOM / "memory" / "MEMORY.md", "- tea\n")
    assert "say whose memory with --scope; there are: pocket:ann, pocket:room" in terminal.refused("memory", "show")
    assert "did you mean pocket:ann?" in terminal.refused("memory", "show", "--scope", "pocket:anne")
    assert "no change has the id 'zzzz'" in terminal.refused("memory", "undo", "zzzz", "--scope", ANN)
    assert "no remembered line contains" in terminal.refused("memory", "why", "cheese", "--scope", ANN)
    assert "at least 3 characters" in terminal.refused("memory", "forget", "x", "--scope", ANN)
    assert "there is no owner yet" in terminal.refused("import", "nanobot", str(terminal.home))
    assert "expected one of memory, sessions" in terminal.refused(
        "import", "nanobot", str(terminal.home / "people"), "--as", "telegram:42"
    )
    assert "'hermes' cannot be imported" in terminal.refused("import", "hermes", "/", "--as", "telegram:42")


def row(key: str, scope: str) -> SessionRow:
    """Return a session's row."""
    return SessionRow(key=SessionKey.parse(key), transcript="t", next_index=1, created_at=START, scope=scope)


@pytest.mark.parametrize(
    ("wish", "found"),
    [
        (ScopeSelector(scope="telegram:42"), "telegram:42"),
        (ScopeSelector(scope="people/telegram%3a42"), "telegram:42"),
        (ScopeSelector(scope="telegram-work:42"), "telegram:42"),
        (ScopeSelector(scope="discord:9"), "telegram:42"),
        (ScopeSelector(person="42"), "telegram:42"),
        (ScopeSelector(person="slack:U1"), "slack:T1:U1"),
        (ScopeSelector(chat="slack:D1"), "slack:T1:U1"),
        (ScopeSelector(scope="slack:C1"), "slack:C1"),
        (ScopeSelector(chat="slack:C1/171.2"), "slack:C1"),
        (ScopeSelector(scope="shared"), "shared"),
    ],
)
def test_scopes_have_friendly_names(wish: ScopeSelector, found: str) -> None:
    """A person by account, by id alone, by another bot's block, by a linked account; a chat by key, a thread's too."""
    ann, bob, room = f"people/{quote('telegram:42')}", f"people/{quote('slack:T1:U1')}", f"chats/{quote('slack:C1')}"
    names = ScopeNames(
        [ann, bob, room, "shared"],
        sessions=[row("slack:D1", bob)],
        person=lambda account: {quote("discord:9"): quote("telegram:42")}.get(account.name, account.name),
        kind=lambda channel: channel.removesuffix("-work"),
    )
    assert label(names.find(wish)) == found


def test_two_that_may_be_meant_are_named() -> None:
    """Nothing is guessed: neither between a person and a chat, nor between two people of one id."""
    names = ScopeNames(["people/telegram%3a7", "people/discord%3a7", "chats/telegram%3a7"])
    with pytest.raises(UserError, match="may be people/telegram%3a7, chats/telegram%3a7"):
        names.find(ScopeSelector(scope="telegram:7"))
    with pytest.raises(UserError, match="name it in full"):
        names.find(ScopeSelector(person="7"))
    assert names.find(ScopeSelector(chat="telegram:7")) == "chats/telegram%3a7"
    assert names.find(ScopeSelector(person="telegram:7")) == "people/telegram%3a7"


def test_an_import_is_the_owners(terminal: CommandTerminal, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """By default it goes to the owner's own scope; the report is that of the dry run, twice is once, theirs stays."""
    theirs = other_bots.nanobot(tmp_path / "theirs")
    before = fingerprint(theirs)
    monkeypatch.setenv("PARLOUR_OWNERS", "telegram:42")
    told = terminal.lines("import", "nanobot", str(theirs), "--dry-run")
    assert not (terminal.home / "people").exists()
    assert terminal.lines("import", "nanobot", str(theirs), "--yes") == told
    assert [line["scope"] for line in terminal.lines("memory")] == ["people/telegram%3a42"]
    assert "0 items from 7 files imported" in terminal.well("import", "nanobot", str(theirs), "--yes")
    assert "> " not in terminal.well("memory", "why", "color")
    assert fingerprint(theirs) == before
    assert "canary" not in str([path.read_bytes() for path in terminal.home.rglob("*") if path.is_file()])


def test_a_home_of_one_person_takes_it_in_itself(
    terminal: CommandTerminal, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With `memory.isolation: shared` it stands where the seeds have it, and is the one scope there is."""
    theirs = other_bots.autobot(tmp_path / "theirs")
    monkeypatch.setenv("PARLOUR_MEMORY__ISOLATION", "shared")
    terminal.well("import", "autobot", str(theirs), "--yes")
    assert (terminal.home / "memory" / "MEMORY.md").read_text() == "- CI: GitHub Actions\n"
    assert "- CI: GitHub Actions" in terminal.well("memory", "show")
    assert [(line["scope"], line["name"], line["entries"]) for line in terminal.lines("memory")] == [("", "home", 2)]
    assert "0 items" in terminal.well("import", "autobot", str(theirs), "--yes")


def test_a_conversation_goes_elsewhere_only_when_it_is_said(
    terminal: CommandTerminal, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`--as` names whose all of it becomes, `--map` the chat that goes on; what is shared with everybody is refused."""
    theirs = other_bots.nanobot(tmp_path / "theirs")
    monkeypatch.setenv("PARLOUR_CHANNELS__TELEGRAM__TOKEN", "123456789:" + "A" * 35)
    take = ("import", "nanobot", str(theirs), "--yes", "--as", "telegram:1")
    assert "the shared memory is readable by everyone" in terminal.refused(*take, "--map", "telegram:42=shared")
    assert "there is no conversation 'x:1'; conversations: cli:direct, telegram:42" in terminal.refused(
        *take, "--map", "x:1"
    )
    assert "no channel is called slack" in terminal.refused(*take, "--map", "telegram:42=slack:U1")
    terminal.well(*take, "--map", "telegram:42", "--map", "cli:direct=telegram:-100")
    assert [line["key"] for line in terminal.lines("sessions", "list")] == ["telegram:-100", "telegram:42"]
    assert "My boat is Nessie" in terminal.well("sessions", "show", "telegram:42")
    scopes = {line["name"]: (line["remembered"] > 0, line["conversations"]) for line in terminal.lines("memory")}
    assert scopes == {"telegram:1": (True, 0), "telegram:42": (False, 1), "telegram:-100": (False, 1)}
