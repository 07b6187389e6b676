"""What every `Documents` backend promises. A second one adds its factory to `BACKENDS`."""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Callable
from pathlib import Path

import pytest

from agent.memory.history.folder_store import FileDocumentStore
from gateway.ports.memory import DocumentStore
from tests.fakes.documents import FakeDocuments

SCOPE = "people/telegram%3a42"


BACKENDS: dict[str, Callable[[Path], DocumentStore]] = {"files": FileDocumentStore, "rows": lambda _: FakeDocuments()}


@pytest.fixture(params=list(BACKENDS))
def documents(request: pytest.FixtureRequest, tmp_path: Path) -> DocumentStore:
    """A backend with nothing in it."""
    return BACKENDS[request.param](tmp_path)


async def test_what_was_never_written_is_empty(documents: DocumentStore) -> None:
    """No text, no rev, no error."""
    document = await documents.read(SCOPE, "MEMORY.md")
    assert (document.name, document.text, document.rev) == ("MEMORY.md", "", "")


async def test_what_was_written_is_read(documents: DocumentStore) -> None:
    """The rev is the sha256 of the bytes, from the write and from the read alike."""
    text = "- likes tea\n- ü€😀\n"
    written = await documents.write(SCOPE, "MEMORY.md", text, was="", why="t1")
    assert written is not None
    assert written.rev == hashlib.sha256(text.encode()).hexdigest()
    assert await documents.read(SCOPE, "MEMORY.md") == written


async def test_whoever_is_late_changes_nothing(documents: DocumentStore) -> None:
    """A write over a text that has changed, or that is there although it was not, is refused."""
    first = await documents.write(SCOPE, "MEMORY.md", "one\n", was="", why="t1")
    assert first is not None
    assert await documents.write(SCOPE, "MEMORY.md", "two\n", was="", why="t2") is None
    assert await documents.write(SCOPE, "MEMORY.md", "two\n", was="0" * 64, why="t2") is None
    assert await documents.read(SCOPE, "MEMORY.md") == first


async def test_of_many_at_once_exactly_one_is_first(documents: DocumentStore) -> None:
    """Compare and set is one step, whoever else is at it."""
    written = await asyncio.gather(
        *(documents.write(SCOPE, "MEMORY.md", f"{n}\n", was="", why=f"t{n}") for n in range(20))
    )
    [winner] = [document for document in written if document is not None]
    assert await documents.read(SCOPE, "MEMORY.md") == winner


async def test_scopes_and_names_are_apart(documents: DocumentStore) -> None:
    """Nobody reads another's text."""
    await documents.write(SCOPE, "MEMORY.md", "mine\n", was="", why="t1")
    for scope, name in (
        (SCOPE, "USER.md"),
        ("people/telegram%3a43", "MEMORY.md"),
        ("shared", "MEMORY.md"),
        ("", "MEMORY.md"),
    ):
        assert (await documents.read(scope, name)).text == ""


@pytest.mark.parametrize("scope", ["..", "people/..", "people/a/b", "people/A"])
async def test_what_is_no_scope_is_refused(tmp_path: Path, scope: str) -> None:
    """A mistake in the caller is loud, never a file elsewhere."""
    with pytest.raises(ValueError, match="not a scope"):
        await FileDocumentStore(tmp_path).write(scope, "MEMORY.md", "x", was="", why="t1")


@pytest.mark.parametrize("name", ["../MEMORY.md", "a/b.md", ".hidden", "", "x\0"])
async def test_what_is_no_name_is_refused(tmp_path: Path, name: str) -> None:
    """The same for names."""
    with pytest.raises(ValueError, match="not a document"):
        await FileDocumentStore(tmp_path).read(SCOPE, name)
