"""What is written durably is there after a power cut: files, and the folders that name them."""

from __future__ import annotations

import asyncio
import shutil
import sqlite3
from collections.abc import Callable
from contextlib import closing
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from agent.base.disk import Disk
from agent.memory.editing.memory_file_writer import MemoryFileWriter
from agent.memory.file_adoption import adopt_files
from gateway.backup import write_archive
from gateway.durable_files import write_private
from gateway.home import make_private
from gateway.journal_file import JournalMove, JournalStamp, accept_store, remove_move, write_move, write_stamp
from gateway.ports.channel import PlatformEvent
from gateway.ports.memory import HistoryEntry, NoteChange
from gateway.quarantine import QuarantineFolder
from gateway.restore import restore
from gateway.store.engine import StoreLimits
from gateway.store.file_copies import set_bytes_aside
from gateway.store.objects import DirectoryObjects
from gateway.store.sqlite import open_file
from gateway.store.sqlite.schema import copy
from tests.fakes.memory import SCOPE, FakeRecords
from tests.fakes.power_cut import PowerCut

THEN = datetime(2026, 11, 1, 9, 0, tzinfo=UTC)
EVENT = PlatformEvent(channel="relay", id="1", raw="{}")


def _run(work: Any) -> None:
    asyncio.run(work)


def _copy_journal(root: Path) -> None:
    with closing(sqlite3.connect(root.parent / "journal.db")) as source:
        copy(source, root / "old" / "copy.db")


def _have_archive(root: Path) -> None:
    home = root.parent / "home"
    for name in ("people/a/SOUL.md", "shared/memory/MEMORY.md"):
        (home / name).parent.mkdir(parents=True, exist_ok=True)
        (home / name).write_text(name)
    write_archive(home, root.parent / "backup.tar.gz", schema=13)


def _have_move(root: Path) -> None:
    write_move(root / "journal.db", JournalMove(id="1", database="d", at="2026-11-29"))


def _have_bytes(root: Path) -> None:
    (root / "people" / "a" / "bytes").mkdir(parents=True)
    (root / "people" / "a" / "bytes" / "photo").write_bytes(b"photo")
    (root / "backups").mkdir()


# What is there before, and what is done then.
WRITES: dict[str, tuple[Callable[[Path], object], Callable[[Path], object]]] = {
    "replace": (bool, lambda root: Disk().replace(root / "old/a", b"new")),
    "replace a new file": (bool, lambda root: Disk().replace(root / "new/folder/c", b"new")),
    "swap": (bool, lambda root: Disk().swap(root / "old/a", b"new", was=b"a" * 20)),
    "append": (bool, lambda root: Disk().append(root / "old/a", b"new")),
    "append to a new file": (bool, lambda root: Disk().append(root / "new/folder/c", b"new")),
    "rename": (bool, lambda root: Disk().rename(root / "old/a", root / "old/c")),
    "exchange": (bool, lambda root: Disk().exchange(root / "old/a", root / "old/b")),
    "exchange over folders": (bool, lambda root: Disk().exchange(root / "old/a", root / "other/c")),
    "remove": (bool, lambda root: Disk().remove(root / "old/a")),
    "remove a folder": (bool, lambda root: Disk().remove_folder(root / "old")),
    "make a folder": (bool, lambda root: Disk().make_folder(root / "new/folder")),
    "write a private file": (bool, lambda root: write_private(root / "old/a", "new")),
    "make a home": (bool, lambda root: make_private(root / "new/home")),
    "stamp": (
        bool,
        lambda root: write_stamp(root / "journal.db", JournalStamp(store="s", count=1, schema=1, at="2026-11-29")),
    ),
    "accept a store": (bool, lambda root: accept_store(root / "journal.db", THEN)),
    "note a move": (bool, _have_move),
    "remove the note of a move": (_have_move, lambda root: remove_move(root / "journal.db")),
    "copy a journal": (bool, _copy_journal),
    "back up": (_have_archive, lambda root: write_archive(root.parent / "home", root / "old/b.tar.gz", schema=13)),
    "restore": (_have_archive, lambda root: restore(root.parent / "backup.tar.gz", root, force=True)),
    "store bytes": (bool, lambda root: _run(DirectoryObjects(root).put("people/a/bytes/photo", b"new"))),
    "link bytes": (bool, lambda root: _run(DirectoryObjects(root).link("old/a", "people/a/bytes/photo"))),
    "remove bytes": (_have_bytes, lambda root: _run(DirectoryObjects(root).delete("people/a/bytes/photo"))),
    "set bytes aside": (_have_bytes, lambda root: set_bytes_aside(root, root / "backups" / "aside")),
    "quarantine": (bool, lambda root: QuarantineFolder(root / "old").write("e1", EVENT, "why", THEN)),
}


# Syncs that decide what is durable first, which the end does not show: of the note that a restore began, for one.
ORDERING = {"restore": 6}


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """Return a folder with a few files."""
    folder = tmp_path / "root"
    for name in ("old/a", "old/b", "other/c"):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(name.encode() * 20)
    (folder / "old/a").write_bytes(b"a" * 20)
    return folder


def _kept(tree: Any) -> Any:
    """Return *tree* without what the next start removes, and the file that processes lock."""
    return {name: each for name, each in tree.items() if name != "lock" and not name.startswith(".restore-")}


def _lost(root: Path, write: Callable[[Path], object], left_out: int = 0) -> tuple[int, bool]:
    """Return the number of syncs of a write, and whether a power cut behind it loses some of it."""
    with pytest.MonkeyPatch.context() as patch:
        power = PowerCut(root, patch, left_out)
        try:
            before = power.now()
            write(root)
            assert power.now() != before
            return power.syncs, _kept(power.image()) != _kept(power.now())
        finally:
            power.close()


@pytest.mark.parametrize("name", WRITES)
def test_every_write_is_durable_when_it_returns(root: Path, tmp_path: Path, name: str) -> None:
    """The disk after a power cut is the disk without one; of its syncs, each that is left out is missed."""
    prepare, write = WRITES[name]
    prepare(root)
    shutil.copytree(root, tmp_path / "model")
    syncs, is_lost = _lost(root, write)
    assert syncs
    assert not is_lost
    missed = []
    for number in range(1, syncs + 1):
        shutil.rmtree(root)
        shutil.copytree(tmp_path / "model", root)
        missed.append(_lost(root, write, number)[1])
    assert missed.count(False) == ORDERING.get(name, 0)


async def test_a_file_that_is_not_taken_over_is_set_aside_for_good(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What an earlier release has damaged is in backups/ before its folder is removed."""
    home = tmp_path / "home"
    damaged = home / "people/a/attachments" / ("0" * 64)
    damaged.parent.mkdir(parents=True)
    damaged.write_bytes(b"damaged")
    store = await open_file(tmp_path / "journal.db", StoreLimits())
    power = PowerCut(home, monkeypatch)
    try:
        assert await adopt_files(home, store.files) == 0
        kept: Any = power.image()
        assert kept["backups"]["not-adopted"]["people"]["a"]["attachments"] == {damaged.name: b"damaged"}
    finally:
        power.close()
        await store.close()


async def test_files_of_a_history_are_durable_before_their_debt_is_paid(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Printed whole, appended to, and removed; the store has nothing left to write then."""
    power = PowerCut(root, monkeypatch)
    records = FakeRecords()
    files = MemoryFileWriter(root, records.documents, records.history)
    for n in range(3):
        entry = HistoryEntry(timestamp="2026-11-21 21:00", content=f"Talk {n}.", entry=f"e{n}")
        await records.history.append(SCOPE, entry)
        if not n:
            note = NoteChange(was=None, body=b"We walked.\n")
            await records.history.write(SCOPE, notes={"2026-11-22-a-walk.md": note})
        assert await files.flush()
        assert power.image() == power.now()
    await records.history.rewrite(SCOPE, lambda name, body: b"" if name.endswith(".md") else body)
    assert await files.flush()
    assert power.image() == power.now()
    power.close()
