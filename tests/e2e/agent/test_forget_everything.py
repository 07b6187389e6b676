"""/forget everything and `parlour people forget`: a whole life, gone from every byte, and only what remains is left."""

from __future__ import annotations

import asyncio
import json
import logging
import os
import shutil
import sqlite3
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import structlog
from typer.testing import CliRunner

from agent.base.transcript_lines import utc_now
from agent.memory.editing.staged_changes import StagedChange
from agent.memory.editing.text_operations import AddLines
from gateway.app.composition import open_app
from gateway.app.runtime import Runtime
from gateway.cli import app as cli
from gateway.errors import UserError
from gateway.operations.memory import MemoryOperations
from gateway.settings import load_settings
from tests.e2e.agent.test_consolidation import SCOPE, WINDOW, SummaryModel
from tests.e2e.agent.test_purge import ROOM, wait_until_purged
from tests.fakes.canaries import where
from tests.fakes.documents import stored_changes, stored_states, stored_text
from tests.fakes.inprocess_files import InProcessFilePlugin, PlatformFiles
from tests.fakes.inprocess_gateway import OPEN, InProcessGateway, gateway
from tests.fakes.staged_changes import erase

ANNS, BOBS = "annsquokka", "bobsquokka"


@asynccontextmanager
async def at_work(home: Path, sources: PlatformFiles | None = None) -> AsyncIterator[InProcessGateway]:
    """Run a gateway with a small window on *home*, open to all."""
    kind = InProcessFilePlugin(sources) if sources is not None else None
    async with gateway(home=home, model=SummaryModel(), environment=WINDOW, kind=kind, policy=OPEN) as parlour:
        yield parlour


@asynccontextmanager
async def open_home(home: Path, is_running: bool) -> AsyncIterator[Runtime]:
    """Run a gateway, or own the home for a moment as a command does where none runs."""
    if is_running:
        async with at_work(home) as parlour:
            yield parlour.app
        return
    settings = load_settings({"PARLOUR_HOME": str(home), "PARLOUR_LOG__LEVEL": "error"})
    async with open_app(settings, channels=False) as app:
        yield app


async def fill_scopes(home: Path) -> None:
    """Ann alone, with settings, files and an archive; Ann and Bob in a room; Bob alone."""
    sources = PlatformFiles()
    async with at_work(home, sources) as parlour:
        ask = parlour.channel.ask
        await ask("ann", f"/remember I own a {ANNS}")
        await ask("ann", "/timezone Europe/Berlin")
        await parlour.app.store.people.prefer("pocket:ann", "model", "small")  # as /model does, for the chat
        file = sources.put(f"{ANNS}.txt", ANNS.encode(), media_type="text/plain")
        await ask("ann", f"my {ANNS}", attachments=[file])
        await ask("ann", "/new")
        await ask("ann", f"the {ANNS} again")
        for who, word in (("ann", ANNS), ("bob", BOBS)):
            await ask("room", f"/remember the {word} sings", group=True, sender=who, name=who.title())
            noted = sources.put(f"{word}.txt", f"room {word}".encode(), media_type="text/plain")
            await ask("room", f"{word}, says {who}", group=True, sender=who, attachments=[noted], name=who.title())
        await ask("bob", f"/remember my {BOBS}", sender="bob", name="Bob")
        for scope, who, word in ((SCOPE, "ann", ANNS), (ROOM, "ann", ANNS), (ROOM, "bob", BOBS)):
            waits = (AddLines(f"- {scope} waits for {word}"),)
            change = StagedChange(name=f"e{who}", why="many", at=utc_now(), operations=waits, person=f"pocket%3a{who}")
            await parlour.app.commands.staging.stage(scope, change)
        await wait_until_purged(parlour)
        await wait_until_purged(parlour, ROOM)
    event = {"channel": "pocket", "id": "9", "at": "2026-11-20T10:00:00Z", "reason": "odd"}
    (home / "quarantine").mkdir(exist_ok=True)
    (home / "quarantine" / "pocket-1.json").write_text(
        json.dumps({**event, "raw": json.dumps({"by": "ann", "t": ANNS})})
    )
    (home / "uploads" / "pocket").mkdir(parents=True)
    (home / "uploads" / "pocket" / ("u" * 24)).write_text(f'{{"who": "ann", "name": "x", "type": ""}}\n{ANNS}')


@pytest.fixture(scope="module")
def full_home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A home in which Ann and Bob have lived."""
    home = tmp_path_factory.mktemp("everything") / "home"
    asyncio.run(fill_scopes(home))
    return home


def rows(home: Path, statement: str) -> list[Any]:
    """Return what the journal says."""
    journal = sqlite3.connect(home / "journal.db")
    try:
        return journal.execute(statement).fetchall()
    finally:
        journal.close()


async def test_everything_of_a_person_goes_after_a_yes(full_home: Path, tmp_path: Path) -> None:
    """First the question, which changes nothing; then memory, conversations, files, choices and the name in sums."""
    home = shutil.copytree(full_home, tmp_path / "home")
    async with at_work(home) as parlour:
        ask = parlour.channel.ask
        assert "/forget everything yes" in await ask("ann", "/forget everything")
        assert where(home, f"I own a {ANNS}")
        answer = await ask("ann", "/forget everything yes")
        assert answer.startswith("Done.")
        assert "your messages in groups" in answer
        await wait_until_purged(parlour)
        assert not (home / SCOPE).exists()
        assert "Full transcripts: none yet." in await ask("ann", "/privacy")
        assert "annsquokka" not in await ask("ann", "/memory")
        assert "Berlin" not in await ask("ann", "/timezone")
        assert not parlour.app.store.people.preferences("pocket:ann")
        await parlour.idle()
    found = where(home, ANNS)
    assert found  # what was said in the room is the room's
    assert all(name.startswith((ROOM, "journal.db")) for name in found)
    assert not where(home, f"I own a {ANNS}")
    assert not where(home, f"{SCOPE} waits for {ANNS}")
    assert not rows(home, "SELECT 1 FROM usage WHERE person = 'pocket%3aann' AND at < (SELECT max(at) FROM usage)")
    assert BOBS in stored_text(home, "people/pocket%3abob")


async def test_killed_after_the_yes_the_next_start_erases(full_home: Path, tmp_path: Path) -> None:
    """The yes is durable: a process that dies right behind it leaves the work to the next one."""
    home = shutil.copytree(full_home, tmp_path / "home")
    async with at_work(home) as parlour:
        parlour.app.background._long = ()
        await parlour.channel.ask("ann", "/forget everything yes")
        assert stored_text(home, SCOPE) == ""  # at once
        await parlour.idle()
        left = parlour.kill(tmp_path / "left")
    async with at_work(left) as parlour:
        await wait_until_purged(parlour)
        assert not (left / SCOPE).exists()
    assert not where(left, f"I own a {ANNS}")


async def test_in_a_group_an_admin_erases_the_chat(full_home: Path, tmp_path: Path) -> None:
    """A member may not; an admin's yes takes the room, and no private memory."""
    home = shutil.copytree(full_home, tmp_path / "home")
    async with at_work(home) as parlour:
        ask = parlour.channel.ask
        refused = await ask("room", "/forget everything yes", group=True, sender="bob")
        assert "admin" in refused
        assert (home / ROOM).exists()
        await ask("room", "/forget everything yes", group=True, sender="eve", is_admin=True)
        await wait_until_purged(parlour, ROOM)
        assert not (home / ROOM).exists()
    assert not where(home, f"the {BOBS} sings")
    assert ANNS in stored_text(home, SCOPE)


@pytest.mark.parametrize(("is_running", "has_folder"), [(True, True), (False, True), (False, False)])
async def test_the_operator_forgets_a_person_everywhere(
    full_home: Path, tmp_path: Path, is_running: bool, has_folder: bool
) -> None:
    """`parlour people forget`: in their scope, in groups, in quarantine; others' words stay; it says what remains.

    So it is for a group without a folder: another gateway, which shares the store, has it.
    """
    home = shutil.copytree(full_home, tmp_path / "home")
    async with open_home(home, is_running) as app:
        if not has_folder:
            shutil.rmtree(home / "chats")
            assert ROOM in (await MemoryOperations(app).names()).all()
        forget = app.operations["people forget"]
        [line] = [line async for line in forget({"person": "pocket:ann"})]
        [again] = [line async for line in forget({"person": "pocket:ann"})]
        with pytest.raises(UserError, match="kind:id"):
            [line async for line in forget({"person": "Ann"})]
    assert line["chats"] == [ROOM]
    assert again["chats"] == []
    assert any("platforms" in each for each in line["remains"])
    assert not where(home, ANNS)
    assert not (home / SCOPE).exists()
    transcript = str(rows(home, "SELECT body FROM record WHERE scope LIKE 'chats/%room'"))
    assert f"{BOBS}, says bob" in transcript
    assert '"Ann"' not in transcript
    assert stored_text(home, ROOM) == f"- the {BOBS} sings\n"
    assert all(version.by != "pocket%3aann" for version in stored_changes(home, ROOM))
    assert rows(home, "SELECT name FROM proposal") == [("ebob",)]
    assert not rows(home, "SELECT 1 FROM inbox WHERE sender = 'ann'")
    assert not rows(home, "SELECT 1 FROM preference WHERE subject LIKE '%ann%'")


async def test_where_the_home_is_the_scope_the_house_stays(tmp_path: Path) -> None:
    """With `memory.isolation: shared`: purge and everything reach the root's memory, and nothing else of the root."""
    home = tmp_path / "home"
    home.mkdir(mode=0o700)
    (home / "parlour.yaml").write_text(f"language: en  # {ANNS}\n")
    (home / "SOUL.md").write_text(f"You are {ANNS}.\n\nBe kind.\n")
    (home / "people" / "x" / "memory").mkdir(parents=True)
    (home / "people" / "x" / "memory" / "MEMORY.md").write_text(f"- {ANNS}\n")
    environment = {**WINDOW, "PARLOUR_MEMORY__ISOLATION": "shared"}
    async with gateway(
        home=home, model=SummaryModel(), environment=environment, policy=replace(OPEN, owners=frozenset({"ann"}))
    ) as parlour:
        ask = parlour.channel.ask
        await ask("ann", f"/remember my {ANNS}")
        await ask("ann", f"the {ANNS}")
        await ask("ann", f"/remember my {BOBS}")
        assert (await erase(ask, "ann", f"/forget {ANNS} --purge")).startswith("Done.")
        await wait_until_purged(parlour, "")
        left = [name for name in where(home, ANNS) if not name.startswith(("people/", "parlour.yaml"))]
        assert left in ([], ["journal.db"])  # that is another scope's
        assert ANNS not in str(stored_states(home, ""))
        assert where(home, BOBS)
        assert (await ask("ann", "/forget everything yes")).startswith("Done.")
        await wait_until_purged(parlour, "")
        assert not list((home / "memory").glob("[!.]*"))  # the persona's commits stay
        assert (await ask("ann", "hello")).startswith("re ")
        await parlour.idle()
    assert not where(home, BOBS)
    assert (home / "parlour.yaml").exists()
    assert "Be kind." in (home / "SOUL.md").read_text()
    assert stored_text(home, "people/x") == f"- {ANNS}\n"


@pytest.fixture
def command_line() -> Iterator[CliRunner]:
    """Run commands in this process; umask and logs are as they were afterwards."""
    root, before = logging.getLogger(), os.umask(0o077)
    handlers, level = root.handlers[:], root.level
    yield CliRunner()
    root.handlers[:], root.level = handlers, level
    structlog.reset_defaults()
    os.umask(before)


def test_the_command_asks_first_and_says_what_remains(
    full_home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, command_line: CliRunner
) -> None:
    """A no changes nothing; with a yes the lines name backups and platforms, and no word of anybody's."""
    home = shutil.copytree(full_home, tmp_path / "home")
    monkeypatch.setenv("PARLOUR_HOME", str(home))
    run = command_line.invoke
    assert run(cli, ["people", "forget", "pocket:ann"], input="n\n").exit_code != 0
    assert where(home, ANNS)
    done = run(cli, ["people", "forget", "pocket:ann", "--yes"])
    assert done.exit_code == 0, done.output
    assert "in 1 shared chats" in done.output
    assert "backups" in done.output
    assert ANNS not in done.output
    assert not where(home, ANNS)
