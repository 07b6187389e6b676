"""What is written durably is there after a power cut: files, and the folders that name them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from agent.memory.history.history_file_writer import HistoryFileWriter
from agent.memory.storage.disk import Disk
from gateway.ports import HistoryEntry, NoteChange
from gateway.ports.durable_files import write_private
from tests.fakes.memory import SCOPE, FakeRecords
from tests.fakes.power_cut import PowerCut


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """Return a folder with a few files."""
    folder = tmp_path / "root"
    (folder / "old").mkdir(parents=True)
    for name in ("a", "b"):
        (folder / "old" / name).write_bytes(name.encode() * 20)
    return folder


@pytest.fixture
def power(root: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[PowerCut]:
    """Return the disk below the folder."""
    cut = PowerCut(root, monkeypatch)
    yield cut
    cut.close()


WRITES: dict[str, Callable[[Disk, Path], object]] = {
    "replace": lambda disk, root: disk.replace(root / "old/a", b"new"),
    "replace a new file": lambda disk, root: disk.replace(root / "new/folder/c", b"new"),
    "swap": lambda disk, root: disk.swap(root / "old/a", b"new", was=b"a" * 20),
    "append": lambda disk, root: disk.append(root / "old/a", b"new"),
    "append to a new file": lambda disk, root: disk.append(root / "new/folder/c", b"new"),
    "rename": lambda disk, root: disk.rename(root / "old/a", root / "old/c"),
    "exchange": lambda disk, root: disk.exchange(root / "old/a", root / "old/b"),
    "remove": lambda disk, root: disk.remove(root / "old/a"),
    "remove a folder": lambda disk, root: disk.remove_folder(root / "old"),
    "write a private file": lambda _, root: write_private(root / "old/a", "new"),
    "make a folder": lambda disk, root: disk.make_folder(root / "new/folder"),
}


@pytest.mark.parametrize("name", WRITES)
def test_every_write_is_durable_when_it_returns(root: Path, power: PowerCut, name: str) -> None:
    """The disk after a power cut is the disk without one."""
    before = power.image()
    assert before == power.now()
    WRITES[name](Disk(), root)
    assert power.image() == power.now() != before


class _FilesForgotten(Disk):
    """A mutation: files are not synced."""

    def sync(self, fd: int) -> None:
        """Sync nothing."""

    def sync_folder(self, path: Path) -> None:
        """Sync folders as before."""
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(_FilesForgotten, "sync", Disk.sync)
            super().sync_folder(path)


class _FoldersForgotten(Disk):
    """A mutation: folders are not synced."""

    def sync_folder(self, path: Path) -> None:
        """Sync nothing."""


@pytest.mark.parametrize("disk", [_FilesForgotten(), _FoldersForgotten()])
def test_a_sync_that_is_left_out_is_found(root: Path, power: PowerCut, disk: Disk) -> None:
    """Of a file, or of a folder after a rename: its text is lost then, or its name."""
    disk.replace(root / "old/a", b"new")
    assert power.image() != power.now()


async def test_files_of_a_history_are_durable_before_their_debt_is_paid(root: Path, power: PowerCut) -> None:
    """Printed whole, appended to, and removed; the store has nothing left to write then."""
    records = FakeRecords()
    files = HistoryFileWriter(root, records.history, records.documents)
    for n in range(3):
        entry = HistoryEntry(timestamp="2026-11-21 21:00", content=f"Talk {n}.", entry=f"e{n}")
        await records.history.append(SCOPE, entry)
        if not n:
            note = NoteChange(was=None, body=b"We walked.\n")
            await records.history.write(SCOPE, notes={"2026-11-21-a-walk.md": note})
        assert await files.flush()
        assert power.image() == power.now()
    await records.history.rewrite(SCOPE, lambda name, body: b"" if name.endswith(".md") else body)
    assert await files.flush()
    assert power.image() == power.now()
