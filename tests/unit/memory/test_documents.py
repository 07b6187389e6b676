"""Documents as files: private, whole or not at all, readable whatever an editor made of them."""

from __future__ import annotations

import errno
import hashlib
import stat
from pathlib import Path

import pytest

from agent.base.disk import Disk
from agent.memory.history.folder_store import FileDocumentStore, document_path
from tests.fakes.memory import SCOPE, FaultyDisk


@pytest.mark.parametrize(
    ("data", "text"),
    [
        (b"\xef\xbb\xbf- tea\r\n- milk\r\n", "- tea\n- milk\n"),
        ("- tée\n".encode("cp1252"), "- tée\n"),
        ("- tée\n".encode("utf-16"), "- tée\n"),
        (b"a\rb", "a\nb"),
        (b"\xff\xfe\xff", "�"),
        (b"", ""),
    ],
    ids=["bom-crlf", "windows", "utf-16", "old-mac", "odd", "empty"],
)
async def test_any_editors_file_is_read_and_can_be_replaced(tmp_path: Path, data: bytes, text: str) -> None:
    """The rev is of the bytes, so that a compare-and-set over such a file works."""
    path = document_path(tmp_path, SCOPE, "MEMORY.md")
    path.parent.mkdir(parents=True)
    path.write_bytes(data)
    documents = FileDocumentStore(tmp_path)
    document = await documents.read(SCOPE, "MEMORY.md")
    assert document.text == text
    assert document.rev == hashlib.sha256(data).hexdigest()
    assert await documents.write(SCOPE, "MEMORY.md", "new\n", was=document.rev, why="t1") is not None
    assert path.read_bytes() == b"new\n"


async def test_files_stand_where_the_seeds_have_them(tmp_path: Path) -> None:
    """memory/MEMORY.md, USER.md and SOUL.md beside it, for a scope and for the home itself."""
    documents = FileDocumentStore(tmp_path)
    for name in ("MEMORY.md", "USER.md", "SOUL.md"):
        await documents.write("", name, name, was="", why="t1")
    assert (tmp_path / "memory" / "MEMORY.md").read_text() == "MEMORY.md"
    assert (tmp_path / "USER.md").read_text() == "USER.md"
    assert (tmp_path / "SOUL.md").read_text() == "SOUL.md"


async def test_everything_is_private(tmp_path: Path) -> None:
    """0600 and 0700, the lock included."""
    await FileDocumentStore(tmp_path).write(SCOPE, "USER.md", "x", was="", why="t1")
    for path in (tmp_path / "people").rglob("*"):
        assert stat.S_IMODE(path.stat().st_mode) == (0o700 if path.is_dir() else 0o600), path


@pytest.mark.parametrize("at", range(4))
async def test_a_failing_disk_leaves_the_old_text(tmp_path: Path, at: int) -> None:
    """Whatever step fails, a reader sees the old bytes or the new ones, and no half file is left."""
    first = await FileDocumentStore(tmp_path).write(SCOPE, "MEMORY.md", "old\n", was="", why="t1")
    assert first is not None
    disk = FaultyDisk(at=at, error=OSError(errno.ENOSPC, "full"))
    documents = FileDocumentStore(tmp_path, disk=disk)
    try:
        await documents.write(SCOPE, "MEMORY.md", "new\n" * 100, was=first.rev, why="t2")
    except OSError:
        assert (await FileDocumentStore(tmp_path).read(SCOPE, "MEMORY.md")).text in ("old\n", "new\n" * 100)
    folder = document_path(tmp_path, SCOPE, "MEMORY.md").parent
    assert {path.name for path in folder.iterdir()} == {"MEMORY.md", ".lock"}


async def test_the_same_text_is_not_written_again(tmp_path: Path) -> None:
    """Nothing changed is nothing done; a watcher sees no change."""
    documents = FileDocumentStore(tmp_path)
    first = await documents.write(SCOPE, "MEMORY.md", "x\n", was="", why="t1")
    assert first is not None
    path = document_path(tmp_path, SCOPE, "MEMORY.md")
    before = path.stat().st_ino
    assert await documents.write(SCOPE, "MEMORY.md", "x\n", was=first.rev, why="t2") == first
    assert path.stat().st_ino == before


class EmptiedDisk(Disk):
    """A disk on which an editor has emptied a file and not written it yet, at the first look."""

    looks = 0

    def load(self, path: Path) -> bytes | None:
        """Return nothing first, then what the editor wrote."""
        self.looks += 1
        return b"" if self.looks == 1 else super().load(path)


async def test_an_editor_that_empties_a_file_before_it_writes_is_waited_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is read is never the moment in between, or a whole memory would count as taken out by hand."""
    path = document_path(tmp_path, SCOPE, "MEMORY.md")
    path.parent.mkdir(parents=True)
    path.write_text("- tea\n")
    monkeypatch.setattr("agent.memory.history.folder_store._SAVING", 3_600)  # however slow this machine is
    assert (await FileDocumentStore(tmp_path, disk=EmptiedDisk()).read(SCOPE, "MEMORY.md")).text == "- tea\n"
