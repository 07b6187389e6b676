"""The mirror is written again from the store, and a lost store is rebuilt from the mirror."""

from __future__ import annotations

import asyncio
import io
import logging
import os
import shutil
import sys
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import structlog
import typer

from agent.base.disk import Disk
from agent.memory.editing.document_commits import open_repo
from agent.memory.erasure.scope_files import owe_mirror, owed_scopes, pay_mirror
from gateway.commands.recovery import take_mirror
from gateway.errors import StoreUnavailable, UserError
from gateway.journal_file import STAMP, OpenChoice
from gateway.ports.memory import HistoryEntry, MarkKind, NoteChange
from gateway.store.documents import SqlDocuments
from gateway.store.history import SqlHistory
from gateway.store.transcripts import SqlTranscripts
from tests.fakes.inprocess_gateway import InProcessGateway, gateway
from tests.fakes.postgres_server import PostgresServer

SCOPE, ROOM = "people/pocket%3aann", "chats/pocket%3aroom"


async def have_a_past(parlour: InProcessGateway) -> None:
    """Fill a home: conversations that ended and that go on, documents with an undo, histories, notes and marks."""
    ask = parlour.channel.ask
    await ask("ann", "Hello.")
    await ask("ann", "/remember I like green tea")
    await ask("ann", "/remember my dog is Bello")
    (newest, *_) = await parlour.app.store.documents.log(SCOPE, limit=1)
    await ask("ann", f"/memory undo {newest.short}")
    await ask("ann", "/new")
    await ask("ann", "Hello again.")
    await ask("room", "/remember we meet in Bonn", group=True)
    history = parlour.app.store.history
    for scope in (SCOPE, ROOM):
        entries = [
            HistoryEntry(timestamp=f"2026-11-2{n} 10:00", content=f"They talked, {n}.", entry=f"e{n}") for n in (1, 2)
        ]
        await history.append(scope, *entries)
        raw = HistoryEntry(timestamp="2026-11-23 10:00", content="Raw.", entry="e3")
        await history.keep_raw(scope, raw, [{"role": "user", "content": "Raw words."}])
        await history.advance_dream(scope, 2)
        notes = {"2026-11-22.md": NoteChange(was=None, body=b"## Flush at 10:00 (session: pocket:ann)\n- tea\n")}
        await history.write(scope, notes=notes, marks={MarkKind.FLUSHED: {"pocket:ann": "2"}})
    await settle(parlour)


async def settle(parlour: InProcessGateway) -> None:
    """Return when every file of the mirror is written."""
    await parlour.idle()
    await parlour.settle_documents()
    for scope in (SCOPE, ROOM):
        await parlour.app.memory_files.settle_history(scope)


def printed(home: Path) -> Mapping[str, bytes]:
    """Return every printed file by its name, and the newest commit of each repository."""
    found: dict[str, bytes] = {}
    for scope in (SCOPE, ROOM):
        for path in sorted((home / scope).rglob("*")):
            name = path.relative_to(home)
            is_inside = {".git", ".mirror"} & set(name.parts)
            if path.is_file() and not is_inside and not path.name.startswith("index.db"):
                found[str(name)] = path.read_bytes()
        with open_repo(home / scope / "memory" / ".git", make=False) as repo:
            found[f"{scope}/.git"] = repo.head()
    return found


async def test_a_deleted_mirror_is_written_again(tmp_path: Path) -> None:
    """Conversations, archives, documents, their commits, histories and notes get the same bytes while people chat."""
    async with gateway(home=tmp_path / "home") as parlour:
        await have_a_past(parlour)
        before = printed(parlour.home)
        assert sum(name.endswith(".jsonl") and "/sessions/" in name for name in before) == 3
        for scope in (SCOPE, ROOM):
            shutil.rmtree(parlour.home / scope / "sessions")
            shutil.rmtree(parlour.home / scope / "memory")
        lines = [dict(line) async for line in parlour.app.operations["mirror rebuild"]({})]
        assert printed(parlour.home) == before
        counts: dict[str, Any] = {line["name"]: line["count"] for line in lines if line["scope"] == SCOPE}
        assert (counts["sessions"], counts["documents"], counts["history"]) == (2, 1, 3)
        assert await parlour.channel.ask("ann", "Still here?")


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The home of the commands, and nothing inherited; umask and logs as they were."""
    for name in [name for name in os.environ if name.startswith("PARLOUR_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("PARLOUR_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("PARLOUR_WEB__PORT", "0")
    before, root = os.umask(0o077), logging.getLogger()
    handlers, level = root.handlers[:], root.level
    yield tmp_path / "home"
    root.handlers[:], root.level = handlers, level
    structlog.reset_defaults()
    os.umask(before)


async def take_over(*, is_sure: bool = True) -> None:
    """Run `parlour mirror import`."""
    await asyncio.to_thread(take_mirror, OpenChoice.ANSWER, is_sure=is_sure)


async def stored(parlour: InProcessGateway) -> Mapping[str, Any]:
    """Return everything that a mirror has, from the store. A commit's time has no fraction of a second."""
    store, found = parlour.app.store, {}
    for scope in (SCOPE, ROOM):
        turns, states = await store.transcripts.scan(scope), await store.documents.states(scope)
        found[scope] = (
            [replace(turn, seq=0) for turn in turns],
            [(replace(each.change, number=0, at=each.change.at.replace(microsecond=0)), each.texts) for each in states],
            await store.history.load(scope),
        )
    return found


def kept_bytes(home: Path) -> list[bytes]:
    """Return what was moved to backups/ with the rest of a lost store."""
    return [path.read_bytes() for path in home.glob(f"backups/lost-*/{SCOPE}/bytes/*")]


def files_below(home: Path) -> list[Path]:
    """Return every path in a home."""
    return sorted(home.rglob("*"))


def lose_store(home: Path) -> None:
    """Delete the store with its log and its stamp."""
    for path in [*home.glob("journal.db*"), home / STAMP]:
        path.unlink(missing_ok=True)


async def test_a_lost_store_is_rebuilt_from_the_mirror(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Turns, documents at every version, histories and notes are equal, and the conversation goes on behind them."""
    async with gateway(home=home) as parlour:
        await have_a_past(parlour)
        before = await stored(parlour)
    files = printed(home)
    lose_store(home)
    bytes_ = home / SCOPE / "bytes" / "of-a-large-file"  # which no row names any more, so that no erasure reaches it
    bytes_.parent.mkdir(exist_ok=True)
    bytes_.write_bytes(b"photo")
    with pytest.raises(UserError, match="parlour mirror import"):
        async with gateway(home=home):
            pass
    await take_over()
    assert "the store has 7 turns, 4 changes of documents, 6 history entries and 2 notes" in capsys.readouterr().out
    assert not bytes_.exists()
    assert kept_bytes(home) == [b"photo"]
    async with gateway(home=home) as parlour:
        after = await stored(parlour)
        for scope in (SCOPE, ROOM):
            for was, now in zip(before[scope], after[scope], strict=True):
                assert now == was
        await settle(parlour)
        assert printed(home) == files
        assert await parlour.channel.ask("ann", "And now?")
        turns = await parlour.app.store.transcripts.scan(SCOPE)
        assert turns[-1].from_index == before[SCOPE][0][-1].to_index
        assert turns[-1].transcript == before[SCOPE][0][-1].transcript
    await take_over()
    assert "the store has everything" in capsys.readouterr().out


async def test_an_import_says_what_is_lost_before_it_asks(
    home: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Attachments and workspaces are in no file. A no leaves everything where it was."""
    async with gateway(home=home) as parlour:
        await parlour.channel.ask("ann", "Hello.")
        await settle(parlour)
    lose_store(home)
    before = files_below(home)
    monkeypatch.setattr(sys, "stdin", io.StringIO("n\n"))
    with pytest.raises(typer.Abort):
        await take_over(is_sure=False)
    printed_lines, question, _ = capsys.readouterr().out.partition("Rebuild the store from the files of this home?")
    assert question
    assert "attachments and files of workspaces" in printed_lines
    assert files_below(home) == before


@pytest.mark.parametrize("part", [SqlTranscripts, SqlDocuments, SqlHistory])
async def test_an_interrupted_import_goes_on(
    home: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], part: type[Any]
) -> None:
    """Wherever an import ends, the same command takes over the rest, and asks nothing again."""
    async with gateway(home=home) as parlour:
        await have_a_past(parlour)
        before = await stored(parlour)
    lose_store(home)

    async def end(*_: object, **__: object) -> None:
        raise StoreUnavailable("the process ends here")

    with monkeypatch.context() as patch:
        patch.setattr(part, "mark_adopted", end)
        with pytest.raises(StoreUnavailable):
            await take_over()
    await take_over(is_sure=False)
    assert "files are being taken over already" in capsys.readouterr().out
    async with gateway(home=home) as parlour:
        assert await stored(parlour) == before


async def grow(parlour: InProcessGateway) -> None:
    """Add to every part of the home."""
    await parlour.channel.ask("ann", "A newer message.")
    await parlour.channel.ask("ann", "/remember I like oolong")
    history = parlour.app.store.history
    await history.append(SCOPE, HistoryEntry(timestamp="2026-11-24 10:00", content="Newer.", entry="e4"))
    day = await history.note(SCOPE, "2026-11-22.md") or b""
    notes = {
        "2026-11-22.md": NoteChange(was=day, body=day + b"- oolong\n"),
        "2026-11-24.md": NoteChange(was=None, body=b"# Newer\n"),
    }
    await history.write(SCOPE, notes=notes)
    await settle(parlour)


@pytest.mark.parametrize("git", ["true", "false"])
async def test_an_older_store_takes_over_what_the_mirror_has(
    home: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], git: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Beside an older store, newer turns, changes, entries and notes are shown, and taken over only on a yes."""
    monkeypatch.setenv("PARLOUR_MEMORY__GIT", git)
    settings = {"PARLOUR_MEMORY__GIT": git}
    async with gateway(home=home, environment=settings) as parlour:
        await have_a_past(parlour)
    shutil.copy(home / "journal.db", tmp_path / "older.db")
    async with gateway(home=home, environment=settings) as parlour:
        await grow(parlour)
        before = await stored(parlour)
    lose_store(home)
    shutil.copy(tmp_path / "older.db", home / "journal.db")
    monkeypatch.setattr(sys, "stdin", io.StringIO("n\n"))
    with pytest.raises(typer.Abort):
        await take_over(is_sure=False)
    shown = capsys.readouterr().out
    assert "2 turns of 1 conversations" in shown
    assert "3 entries and notes of the histories of people/pocket%3aann" in shown
    assert "changes of the documents of people/pocket%3aann" in shown
    await take_over()
    async with gateway(home=home, environment=settings) as parlour:
        await settle(parlour)
        after = await stored(parlour)
        assert after[ROOM] == before[ROOM]
        assert (after[SCOPE][0], after[SCOPE][2]) == (before[SCOPE][0], before[SCOPE][2])
        assert after[SCOPE][1][-1][1] == before[SCOPE][1][-1][1]
        if git == "true":
            assert after[SCOPE][1] == before[SCOPE][1]
        assert await parlour.channel.ask("ann", "And now?")
        assert (await parlour.app.store.transcripts.scan(SCOPE))[-1].from_index == before[SCOPE][0][-1].to_index


async def test_a_store_with_a_past_has_no_faults(home: Path) -> None:
    """`parlour store check` finds nothing after undos, an erasure, a prune and an import of the files."""
    async with gateway(home=home) as parlour:
        await have_a_past(parlour)
        words = {"text": "Bello", "scope": SCOPE, "purge": True}
        assert [line async for line in parlour.app.operations["memory forget"](words)]
        async with asyncio.timeout(30):
            while owed_scopes(home):  # noqa: ASYNC110 - the purge is a job of the gateway
                await asyncio.sleep(0.01)
        assert [line async for line in parlour.app.operations["prune"]({})]
        lines = [dict(line) async for line in parlour.app.operations["store check"]({})]
        assert [line for line in lines if "counts" not in line] == []
        assert (lines[-1]["counts"]["turns"], lines[-1]["counts"]["notes"]) == (7, 2)
    lose_store(home)
    await take_over()
    async with gateway(home=home) as parlour:
        lines = [dict(line) async for line in parlour.app.operations["store check"]({})]
        assert [line for line in lines if "counts" not in line] == []


async def test_words_of_an_unfinished_erasure_are_not_brought_back(home: Path) -> None:
    """While an erasure has not reached the files, neither an older nor a lost store is filled from them."""
    async with gateway(home=home) as parlour:
        await have_a_past(parlour)
        before = printed(home)
        await parlour.channel.ask("ann", "/forget Hello --purge")
        assert owed_scopes(home) == []
        await owe_mirror(home, SCOPE, Disk(), erasure="one")
        await owe_mirror(home, SCOPE, Disk(), erasure="another")
        await pay_mirror(home, SCOPE, Disk(), erasure="another")  # which says nothing of the first
    lose_store(home)
    with pytest.raises(UserError, match="an erasure has not reached the files of people/pocket%3aann"):
        await take_over()
    assert before


async def test_a_lost_database_is_rebuilt_from_the_mirror(
    home: Path, postgres: PostgresServer, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """An empty database beside a home with files is filled after a yes, as a lost journal is."""
    postgres.empty()
    monkeypatch.setenv("PARLOUR_STORE__URL", postgres.address)
    settings = {"PARLOUR_STORE__URL": postgres.address}
    async with gateway(home=home, environment=settings) as parlour:
        await have_a_past(parlour)
        before = await stored(parlour)
    postgres.empty()
    with pytest.raises(UserError, match="has no messages of a Parlour"):
        async with gateway(home=home, environment=settings):
            pass
    await take_over()
    assert "the store has 7 turns, 4 changes of documents" in capsys.readouterr().out
    async with gateway(home=home, environment=settings) as parlour:
        assert await stored(parlour) == before
        assert await parlour.channel.ask("ann", "And now?")
