"""An editor takes no lock: what it saves while our own bytes are on their way to the disk is not written over."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from agent.base.disk import Disk
from agent.memory import MemoryStore
from agent.memory.history.folder_store import FileDocumentStore

SCOPE = "people/ann"
MIND = "- ours\n"


class SlowWriteDisk(Disk):
    """A disk that takes so long for our bytes that somebody saves in between."""

    def __init__(self, path: Path, theirs: str | None) -> None:
        self._path = path
        self._theirs = theirs

    def write(self, fd: int, data: bytes) -> None:
        """Take the bytes; then the editor's file is there, whole, by another name's rename, or is gone."""
        super().write(fd, data)
        if data != MIND.encode():
            return
        if self._theirs is None:
            self._path.unlink()
        else:
            beside = self._path.with_name("editor.swp")
            beside.write_text(self._theirs)
            beside.replace(self._path)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """Return a MEMORY.md that nobody has touched for a while."""
    path = tmp_path / SCOPE / "memory" / "MEMORY.md"
    path.parent.mkdir(parents=True)
    path.write_text("- before\n")
    os.utime(path, (1, 1))
    return path


@pytest.mark.parametrize("theirs", ["- theirs\n", "- before\n- theirs\n", "", None])
async def test_a_document_is_theirs(tmp_path: Path, path: Path, theirs: str | None) -> None:
    """Our write did not happen, and says so; theirs stands."""
    documents = FileDocumentStore(tmp_path, disk=SlowWriteDisk(path, theirs))
    before = await documents.read(SCOPE, "MEMORY.md")
    assert await documents.write(SCOPE, "MEMORY.md", MIND, was=before.rev, why="dream: 1-1") is None
    assert Disk().load(path) == (None if theirs is None else theirs.encode())
    assert not list(path.parent.glob(".MEMORY.md.*.tmp"))


def test_it_is_so_in_a_workspace_without_a_gateway(tmp_path: Path, path: Path) -> None:
    """The library's MEMORY.md keeps the same promise: theirs is kept, and merged with ours."""
    store = MemoryStore(tmp_path / SCOPE, disk=SlowWriteDisk(path, "- before\n- theirs\n"))
    assert store.read_long_term() == "- before\n"
    store.write_long_term(MIND)
    assert path.read_text() == "- ours\n- theirs\n"
