"""Two homes on one PostgreSQL, in turn: each has everybody's memory, and what was forgotten in one stays forgotten."""

from __future__ import annotations

import os
import tarfile
from collections.abc import Mapping
from pathlib import Path

import pytest

from gateway.events import SessionKey
from gateway.ports.memory import FileKind
from tests.e2e.agent.test_consolidation import SCOPE, WINDOW, SummaryModel
from tests.e2e.agent.test_purge import wait_until_purged
from tests.fakes.canaries import where
from tests.fakes.earlier_database import fill_database, mark_home
from tests.fakes.inprocess_files import InProcessFilePlugin, PlatformFiles
from tests.fakes.inprocess_gateway import InProcessGateway, InstantModel, gateway
from tests.fakes.postgres_server import PostgresServer
from tests.fakes.staged_changes import erase

SECRET = "quokka"
HOMES = Path(__file__).parents[1] / "payloads" / "homes"


@pytest.fixture
def environment(postgres: PostgresServer) -> Mapping[str, str]:
    """Return the settings of a gateway on an empty database."""
    postgres.empty()
    return {**WINDOW, "PARLOUR_STORE__URL": postgres.address}


async def files_of(parlour: InProcessGateway, scope: str = SCOPE) -> dict[tuple[FileKind, str], bytes | None]:
    """Return the stored files of a scope with their bytes."""
    files = parlour.app.store.files
    return {(each.kind, each.name): await files.load(scope, each) for each in await files.files(scope)}


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
        why = await ask("ann", "/memory why TEA")
        await parlour.idle()
        stored = await files_of(parlour)
    assert large in stored.values()
    assert not [path for path in first.rglob("*") if path.is_file() and large[:999] in path.read_bytes()]
    model = SummaryModel()
    async with gateway(home=second, model=model, environment=environment) as parlour:
        ask = parlour.channel.ask
        assert await files_of(parlour) == stored
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


@pytest.mark.parametrize("words", [f"/forget {SECRET} --purge", "/forget everything yes"])
async def test_what_was_forgotten_comes_back_from_no_home(
    tmp_path: Path, environment: Mapping[str, str], words: str
) -> None:
    """A purge in one home removes the words from the database, and from the other home when it is next used."""
    first, second = tmp_path / "first", tmp_path / "second"
    for home in (first, second):  # the second has a mirror of all of it
        async with gateway(home=home, model=SummaryModel(), environment=environment) as parlour:
            await parlour.channel.ask("ann", f"/remember my {SECRET} is Bello")
            await parlour.channel.ask("ann", f"do you know my {SECRET}?")
            await parlour.idle()
            await parlour.settle_documents()
    assert where(second, SECRET)
    async with gateway(home=first, model=SummaryModel(), environment=environment) as parlour:
        if words.endswith("yes"):
            await parlour.channel.ask("ann", words)
        else:
            await erase(parlour.channel.ask, "ann", words)
        await wait_until_purged(parlour)
        assert all(SECRET.encode() not in (data or b"") for data in (await files_of(parlour)).values())
    async with gateway(home=second, model=SummaryModel(), environment=environment) as parlour:
        assert not where(second, SECRET)
        assert SECRET not in await parlour.channel.ask("ann", "/memory")


async def test_files_that_a_release_before_kept_in_the_database_are_taken_over(
    tmp_path: Path, environment: Mapping[str, str], postgres: PostgresServer
) -> None:
    """Once, into a home without any: documents with their versions, conversations, summaries, attachments, workspace.

    The tables are gone then. A home that had a copy, of which words were erased since, has them no more.
    """
    source, new, other = tmp_path / "source", tmp_path / "new", tmp_path / "other"
    with tarfile.open(HOMES / "memory.tar.gz") as archive:
        archive.extractall(source, filter="data")
    scope = "people/web%3aowner"
    (source / scope / "files").mkdir()
    (source / scope / "files" / "plan.txt").write_text("the plan")
    stored = fill_database(postgres.url, source)[scope]
    async with gateway(home=new, model=InstantModel(), environment=environment) as parlour:
        texts = await parlour.app.store.documents.texts(scope)
        assert texts["MEMORY.md"].encode() == stored["memory/MEMORY.md"]
        assert len(await parlour.app.store.documents.states(scope)) > 1
        assert await parlour.app.store.history.after(scope)
        shown = await parlour.app.memory.sessions.displayed_messages(SessionKey("web", "owner"), limit=100)
        files = await files_of(parlour, scope)
    assert shown
    assert files[FileKind.WORKSPACE, "plan.txt"] == b"the plan"
    assert {data for (kind, _), data in files.items() if kind is FileKind.TEXT} >= {
        data for path, data in stored.items() if path.startswith("blobs/")
    }
    assert postgres.query("SELECT to_regclass('scope_file')") == [(None,)]
    mark_home(other)
    copy = other / scope / "attachments"
    copy.mkdir(parents=True)
    (copy / "erased").write_text(SECRET)
    async with gateway(home=other, model=InstantModel(), environment=environment) as parlour:
        assert (await parlour.app.store.documents.texts(scope))["MEMORY.md"] == texts["MEMORY.md"]
    assert not where(other, SECRET)
