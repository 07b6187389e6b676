"""The seeds' library in a folder that a gateway writes its memory into: it reads, and refuses every write."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import pytest

from agent.memory import MemoryFlusher, MemoryStore, SessionManager, SessionMemoryWriter, VectorMemoryManager
from gateway.errors import HomeInUse
from gateway.ports.memory import MIRROR
from tests.fakes.inprocess_gateway import InstantModel, gateway

SCOPE = "people/pocket%3aann"


class NoProvider:
    """A model that must not be asked."""

    async def chat(self, **_: object) -> object:
        """Fail."""
        raise AssertionError("a model was asked for something that cannot be stored")


def files_of(folder: Path) -> Mapping[str, bytes]:
    """Return every file below *folder*."""
    return {str(path): path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file()}


@pytest.fixture
async def scope(tmp_path: Path) -> Path:
    """The folder of a person whose gateway has stopped."""
    async with gateway(home=tmp_path / "home", model=InstantModel()) as parlour:
        await parlour.channel.ask("ann", "Hello.")
        await parlour.channel.ask("ann", "/remember I like green tea")
        await parlour.idle()
        await parlour.settle_documents()
    assert (tmp_path / "home" / MIRROR).exists()
    return tmp_path / "home" / SCOPE


async def test_every_write_is_refused_in_one_line(scope: Path) -> None:
    """Sessions, documents, histories, flushes and notes; no file is changed, and no model is paid."""
    before = files_of(scope.parents[1])
    manager, store, provider = SessionManager(scope), MemoryStore(scope), NoProvider()
    session = manager.get_or_create("pocket:ann")
    messages = [{"role": "user", "content": f"message {n}"} for n in range(60)]
    session.messages += messages
    with pytest.raises(HomeInUse, match=r"^a gateway owns [^\n]*$"):
        manager.save(session)
    with pytest.raises(HomeInUse, match="a gateway owns"):
        store.write_long_term("- coffee\n")
    with pytest.raises(HomeInUse, match="a gateway owns"):
        store.append_history("They talked.")
    flusher, writer = MemoryFlusher(scope, provider, "m"), SessionMemoryWriter(scope, provider, "m")
    for asked in (
        store.consolidate(session, provider, "m"),
        flusher.maybe_flush("pocket:ann", messages, 100_000, 100_000),
        writer.write_session_memory("pocket:ann", messages),
    ):
        with pytest.raises(HomeInUse, match="a gateway owns"):
            await asked
    assert files_of(scope.parents[1]) == before


async def test_reading_works(scope: Path) -> None:
    """The conversation, MEMORY.md and the search are those of the gateway's files."""
    before = files_of(scope.parents[1])
    session = SessionManager(scope).get_or_create("pocket:ann")
    assert session.messages[0]["content"] == "Hello."
    assert MemoryStore(scope).read_long_term() == "- I like green tea\n"
    assert "green tea" in MemoryStore(scope).get_memory_context()
    search = VectorMemoryManager(scope)
    (hit,) = await search.search_memory("green tea")
    assert "green tea" in hit["snippet"]
    await search.close()
    assert files_of(scope.parents[1]) == before
