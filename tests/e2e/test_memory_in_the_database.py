"""Two homes on one PostgreSQL, in turn: each has everybody's memory, and what was forgotten in one stays forgotten."""

from __future__ import annotations

import asyncio
import os
import shutil
from collections.abc import Mapping
from contextlib import closing
from pathlib import Path

import pytest

from agent.memory.privacy.export_archive import members
from agent.memory.storage.disk import Disk
from agent.memory.storage.scope_scan import scan_scope
from gateway.commands.store_migration import move_to_file
from gateway.errors import UserError
from gateway.home_migration import open_home
from gateway.ports.documents import is_mirrored
from gateway.store.postgres import schema
from gateway.store.scope_files import TABLES
from gateway.store.workers import WorkerIdentity
from tests.e2e.agent.test_consolidation import SCOPE, WINDOW, SummaryModel
from tests.e2e.agent.test_purge import wait_until_purged
from tests.fakes.canaries import where
from tests.fakes.documents import edit_by_hand
from tests.fakes.inprocess_files import InProcessFilePlugin, PlatformFiles
from tests.fakes.inprocess_gateway import InProcessGateway, gateway
from tests.fakes.postgres_server import PostgresServer
from tests.fakes.staged_changes import erase

SECRET = "quokka"


@pytest.fixture
def environment(postgres: PostgresServer) -> Mapping[str, str]:
    """Return the settings of a gateway on an empty database."""
    postgres.empty()
    return {**WINDOW, "PARLOUR_STORE__URL": postgres.address}


def contents(home: Path, scope: str = SCOPE) -> dict[str, bytes]:
    """Return the stored files of a scope in a home, by path, and MEMORY.md."""
    folder = home / scope
    stored = [path for path in scan_scope(folder, {}) if path == "memory/MEMORY.md" or not is_mirrored(path)]
    return {path: (folder / path).read_bytes() for path in stored}


async def change_of(parlour: InProcessGateway, word: str) -> str:
    """Return the name of the change that brought *word*."""
    why = await parlour.channel.ask("ann", f"/memory why {word}")
    return why.split("`")[1]


async def test_a_new_home_has_everybodys_memory(tmp_path: Path, environment: Mapping[str, str]) -> None:
    """Facts, their origin and versions, the conversation and its files, byte for byte; undo and search work there."""
    first, second = tmp_path / "first", tmp_path / "second"
    sources, large = PlatformFiles(), os.urandom(900_000)  # a file of several pieces
    kind = InProcessFilePlugin(sources)
    async with gateway(home=first, model=SummaryModel(), environment=environment, kind=kind) as parlour:
        ask = parlour.channel.ask
        await ask("ann", "/remember I like green tea")
        await ask("ann", f"/remember my {SECRET} is Bello")
        await ask("ann", "look", attachments=[sources.put("a.bin", large)])
        await ask("bob", "hello", sender="bob", name="Bob")
        why = await ask("ann", "/memory why TEA")
        await parlour.idle()
    model = SummaryModel()
    async with gateway(home=second, model=model, environment=environment) as parlour:
        ask = parlour.channel.ask
        await parlour.app.session_files.flush()
        await parlour.app.document_files.settle(SCOPE)
        assert contents(second) == contents(first)
        assert contents(second, "people/pocket%3abob") == contents(first, "people/pocket%3abob")
        assert large in contents(second).values()
        assert await ask("ann", "/memory why TEA") == why
        await ask("ann", "and now?")
        assert "green tea" in str(model.prompts[-1])
        assert "look" in str(model.prompts[-1])
        undone = await ask("ann", f"/memory undo {await change_of(parlour, SECRET)}")
        assert undone
        shown = await ask("ann", "/memory")
        assert SECRET not in shown
        assert "green tea" in shown
        await parlour.idle()
    async with gateway(home=first, model=SummaryModel(), environment=environment) as parlour:
        assert await parlour.channel.ask("ann", "/memory") == shown
        assert {path.stat().st_mode & 0o077 for path in (first / SCOPE).rglob("*")} == {0}


async def test_an_export_is_the_same_in_every_home(tmp_path: Path, environment: Mapping[str, str]) -> None:
    """What a person is given has the same files with the same bytes."""
    homes = [tmp_path / name for name in ("first", "second")]
    async with gateway(home=homes[0], model=SummaryModel(), environment=environment) as parlour:
        await parlour.channel.ask("ann", "/remember I like green tea")
        await parlour.channel.ask("ann", "hello")
        await parlour.idle()
    async with gateway(home=homes[1], model=SummaryModel(), environment=environment) as parlour:
        stored = await parlour.app.store.documents.texts(SCOPE)
        texts = {name: text.encode() for name, text in stored.items()}
    exported = [
        {each.name: each.read() for each in members(home, SCOPE, [], documents=texts, zone="UTC", disk=Disk())}
        for home in homes
    ]
    assert any(b"green tea" in (data or b"") for data in exported[0].values())
    assert exported[0] == exported[1]


@pytest.mark.parametrize("words", [f"/forget {SECRET} --purge", "/forget everything yes"])
async def test_what_was_forgotten_comes_back_from_no_cache(
    tmp_path: Path, environment: Mapping[str, str], postgres: PostgresServer, words: str
) -> None:
    """A purge in one home removes the words from the database, and from the other home when it is next used."""
    first, second = tmp_path / "first", tmp_path / "second"
    for home in (first, second):  # the second has a copy of all of it
        async with gateway(home=home, model=SummaryModel(), environment=environment) as parlour:
            await parlour.channel.ask("ann", f"/remember my {SECRET} is Bello")
            await parlour.channel.ask("ann", f"do you know my {SECRET}?")
            await parlour.idle()
    assert where(second, SECRET)
    async with gateway(home=first, model=SummaryModel(), environment=environment) as parlour:
        if words.endswith("yes"):
            await parlour.channel.ask("ann", words)
        else:
            await erase(parlour.channel.ask, "ann", words)
        await wait_until_purged(parlour)
        rows = postgres.query("SELECT path, data FROM scope_piece")
        assert not [path for path, data in rows if SECRET.encode() in bytes(data)]
    async with gateway(home=second, model=SummaryModel(), environment=environment) as parlour:
        assert not where(second, SECRET)
        assert SECRET not in await parlour.channel.ask("ann", "/memory")


async def test_a_killed_gateways_promises_are_in_the_database(tmp_path: Path, environment: Mapping[str, str]) -> None:
    """What was answered when a home was lost is there for the next one; the lost home itself is brought up to date."""
    first = tmp_path / "first"
    async with gateway(home=first, model=SummaryModel(), environment=environment) as parlour:
        await parlour.channel.ask("ann", "/remember I like green tea")
        await parlour.channel.ask("ann", "hello")
        await parlour.idle()
        left = parlour.kill(tmp_path / "killed")
    async with gateway(home=tmp_path / "second", model=SummaryModel(), environment=environment) as parlour:
        assert "green tea" in await parlour.channel.ask("ann", "/memory")
        await parlour.channel.ask("ann", "/remember I have a bike")
        await parlour.idle()
    edit_by_hand(left / SCOPE / "memory" / "MEMORY.md", "- never promised\n")
    async with gateway(home=left, model=SummaryModel(), environment=environment) as parlour:
        shown = await parlour.channel.ask("ann", "/memory")
        assert "never promised" not in shown
        assert "bike" in shown
        assert "green tea" in shown


async def test_an_existing_homes_memory_is_stored_by_the_first_start(
    tmp_path: Path, environment: Mapping[str, str], postgres: PostgresServer
) -> None:
    """With a database of before, the home of then brings its memory; any other home is refused with a reason."""
    first = tmp_path / "first"
    async with gateway(home=first, model=SummaryModel(), environment=environment) as parlour:
        await parlour.channel.ask("ann", "/remember I like green tea")
        await parlour.idle()
    postgres.query(f"TRUNCATE {', '.join(TABLES)}")  # as the version before left it
    for path in first.glob("memory-cache.db*"):
        path.unlink()
    with pytest.raises(UserError, match="Start it there once"):
        async with gateway(home=tmp_path / "empty", environment=environment):
            pass
    async with gateway(home=first, model=SummaryModel(), environment=environment):
        pass
    async with gateway(home=tmp_path / "second", model=SummaryModel(), environment=environment) as parlour:
        assert "green tea" in await parlour.channel.ask("ann", "/memory")
    other = tmp_path / "other"
    shutil.copytree(first / "people", other / "people")
    with pytest.raises(UserError, match="not the database's"):
        async with gateway(home=other, environment=environment):
            pass


async def test_edits_by_hand_while_no_gateway_runs_are_kept(tmp_path: Path, environment: Mapping[str, str]) -> None:
    """After a clean stop, what differs in the home was written by a person: the database gets it."""
    first = tmp_path / "first"
    async with gateway(home=first, model=SummaryModel(), environment=environment) as parlour:
        await parlour.channel.ask("ann", "/remember I like green tea")
        await parlour.idle()
    memory = first / SCOPE / "memory" / "MEMORY.md"
    edit_by_hand(memory, memory.read_text().replace("green", "black"))
    async with gateway(home=first, model=SummaryModel(), environment=environment) as parlour:
        while True:  # behind the start
            if "black" in (await parlour.app.store.documents.read(SCOPE, "MEMORY.md")).text:
                break
            await asyncio.sleep(0.01)
    async with gateway(home=tmp_path / "second", model=SummaryModel(), environment=environment) as parlour:
        assert "black tea" in await parlour.channel.ask("ann", "/memory")


async def test_only_a_home_with_the_latest_memory_is_moved_back_to_a_file(
    tmp_path: Path, environment: Mapping[str, str], postgres: PostgresServer
) -> None:
    """`parlour store migrate sqlite` refuses a stale home; from the current one a gateway goes on without a server."""
    first, second = tmp_path / "first", tmp_path / "second"
    sources = PlatformFiles()
    kind = InProcessFilePlugin(sources)
    for home, fact in ((first, "green tea"), (second, "a bike")):
        async with gateway(home=home, model=SummaryModel(), environment=environment, kind=kind) as parlour:
            await parlour.channel.ask("ann", f"/remember I like {fact}")
            await parlour.channel.ask("ann", "look", attachments=[sources.put(f"{fact}.bin", fact.encode())])
            await parlour.idle()

    def move_back(home: Path) -> None:
        with (
            open_home(home) as own,
            closing(schema.connect(postgres.url, WorkerIdentity(), wait=schema.LOCK_SECONDS)) as connection,
        ):
            move_to_file(own, connection, postgres.url)

    with pytest.raises(UserError, match="latest memory"):
        await asyncio.to_thread(move_back, first)
    await asyncio.to_thread(move_back, second)
    async with gateway(home=second, model=SummaryModel(), environment=WINDOW) as parlour:
        shown = await parlour.channel.ask("ann", "/memory")
        assert "green tea" in shown
        assert "bike" in shown
