"""The files of a history: printed behind the commits, taken over once from homes of earlier releases."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from agent.base.disk import Disk
from agent.base.transcript_lines import encode
from agent.memory.adoption import adopt_histories
from agent.memory.editing.memory_file_writer import MemoryFileWriter
from agent.memory.history.history_files import printed_files, read_files
from gateway.ports.access import ScopeMove
from gateway.ports.memory import HistoryEntry, MarkKind, NoteChange, ScopeHistory
from tests.fakes.histories import SyncHistory
from tests.fakes.history_log import HistoryLog
from tests.fakes.memory import SCOPE, START, DyingDisk, FakeRecords, FaultyDisk, ProcessCrash

OTHER = "people/telegram%3a43"
NOTE = "2026-11-21-a-walk.md"
LINES = ("history.jsonl", "HISTORY.md", "raw.jsonl", ".cursor", ".dream_cursor", NOTE)


def entry(n: int, content: str = "") -> HistoryEntry:
    """Return the *n*th entry."""
    said = content or f"Talk {n}."
    return HistoryEntry(timestamp="2026-11-21 21:00", content=said, session="telegram:42", entry=f"e{n}")


def writer(home: Path, records: FakeRecords, disk: Disk | None = None) -> MemoryFileWriter:
    """Return what a process has after its start."""
    return MemoryFileWriter(home, records.documents, records.history, disk=disk)


async def fill(records: FakeRecords) -> None:
    """Store a history of every kind."""
    await records.history.append(SCOPE, entry(1), entry(2))
    await records.history.keep_raw(SCOPE, entry(3), [{"role": "user", "content": "a red kite"}])
    await records.history.advance_dream(SCOPE, 2)
    await records.history.write(SCOPE, notes={NOTE: NoteChange(was=None, body=b"We walked.\n")})


def files_in(home: Path, scope: str = SCOPE) -> dict[str, bytes]:
    """Return the files of a scope's memory."""
    folder = home / scope / "memory"
    return {path.name: path.read_bytes() for path in folder.glob("*") if path.is_file() and path.name != ".lock"}


async def test_files_are_what_is_stored(tmp_path: Path) -> None:
    """All of them, private; a second look writes nothing, a change what has changed; a scope that ends has none."""
    records = FakeRecords()
    await fill(records)
    assert await writer(tmp_path, records).flush()
    assert files_in(tmp_path) == printed_files(await records.history.load(SCOPE))
    assert set(files_in(tmp_path)) == set(LINES)
    assert {path.stat().st_mode & 0o777 for path in (tmp_path / SCOPE / "memory").iterdir() if path.is_file()} == {
        0o600
    }
    disk = FaultyDisk()
    assert await writer(tmp_path, records, disk).flush()
    assert disk.count == 0
    await records.history.rewrite(SCOPE, lambda name, body: b"" if name == NOTE else body.replace(b"Talk 1", b"-"))
    assert await writer(tmp_path, records).flush()
    assert files_in(tmp_path) == printed_files(await records.history.load(SCOPE))
    assert NOTE not in files_in(tmp_path)
    await records.history.remove(SCOPE)
    shutil.rmtree(tmp_path / SCOPE)
    assert await writer(tmp_path, records).flush()
    assert not (tmp_path / SCOPE).exists()
    assert not await records.documents.stale_paths()


class CountingDisk(Disk):
    """Counts the bytes of a history's files that are read and written."""

    def __init__(self) -> None:
        self.bytes = 0

    def read(self, path: Path, start: int, length: int) -> bytes:
        """Count what is read."""
        data = super().read(path, start, length)
        self.bytes += len(data)
        return data

    def replace(self, path: Path, data: bytes) -> None:
        """Count what is written."""
        self.bytes += len(data)
        super().replace(path, data)

    def append(self, path: Path, data: bytes) -> None:
        """Count what is appended."""
        self.bytes += len(data)
        super().append(path, data)


async def test_what_is_added_is_appended(tmp_path: Path) -> None:
    """An entry costs a few hundred bytes, however long the history is; a change of entries writes the files whole."""
    records, disk = FakeRecords(), CountingDisk()
    await records.history.append(SCOPE, *(entry(n) for n in range(2_000)))
    files = writer(tmp_path, records, disk)
    assert await files.flush()
    assert disk.bytes > 200_000
    for n in range(2_000, 2_010):
        disk.bytes = 0
        await records.history.append(SCOPE, entry(n))
        assert await files.flush()
        assert disk.bytes < 3_000
        assert files_in(tmp_path) == printed_files(await records.history.load(SCOPE))
    await records.history.keep_raw(SCOPE, entry(3_000), [{"role": "user", "content": "a red kite"}])
    assert await files.flush()
    await records.history.append(SCOPE, entry(3_000, "It flies."), entry(3_001))
    assert await files.flush()
    assert files_in(tmp_path) == printed_files(await records.history.load(SCOPE))
    await records.history.append(SCOPE, entry(3_002))
    await records.history.rewrite(SCOPE, lambda _, body: body.replace(b"Talk 1.", b"-"))
    assert await files.flush()
    assert files_in(tmp_path) == printed_files(await records.history.load(SCOPE))
    assert not list((tmp_path / SCOPE / "memory").glob("*.edited-*"))


async def test_nothing_is_appended_to_a_file_that_was_edited(tmp_path: Path) -> None:
    """It is set aside, and the next process, which knows no file, does not take an appended one for edited."""
    records = FakeRecords()
    await fill(records)
    files, folder = writer(tmp_path, records), tmp_path / SCOPE / "memory"
    assert await files.flush()
    await records.history.append(SCOPE, entry(5))
    assert await files.flush()
    with (folder / "HISTORY.md").open("a") as edited:
        edited.write("by hand\n")
    await records.history.append(SCOPE, entry(6))
    assert await files.flush()
    (beside,) = folder.glob("HISTORY.md.edited-*")
    assert beside.read_text().endswith("by hand\n")
    beside.unlink()
    await records.history.append(SCOPE, entry(7))
    assert await files.flush()
    await records.history.append(SCOPE, entry(8))
    assert await writer(tmp_path, records).flush()
    assert files_in(tmp_path) == printed_files(await records.history.load(SCOPE))


async def test_an_edited_file_is_kept_beside_the_printed_one(tmp_path: Path) -> None:
    """With the next change, or before an erasure; a file of ours never is, also after a kill."""
    records = FakeRecords()
    await fill(records)
    files = writer(tmp_path, records)
    await files.settle_history(SCOPE)
    folder = tmp_path / SCOPE / "memory"
    (folder / "HISTORY.md").write_text("somebody wrote this\n")
    (folder / NOTE).write_text("We ran.\n")
    await records.history.append(SCOPE, entry(4))
    await files.flush()
    [kept] = folder.glob("*.edited-*")
    assert (kept.name[:18], kept.read_text()) == ("HISTORY.md.edited-", "somebody wrote this\n")
    await files.settle_history(SCOPE)
    assert sorted(path.read_text() for path in folder.glob("*.edited-*")) == ["We ran.\n", "somebody wrote this\n"]
    assert printed_files(await records.history.load(SCOPE)).items() <= files_in(tmp_path).items()


async def test_files_of_another_store_are_replaced_and_not_kept(tmp_path: Path) -> None:
    """A home that another gateway has overtaken: what was erased since is in no copy."""
    records = FakeRecords()
    await fill(records)
    await writer(tmp_path, records).flush()
    (tmp_path / SCOPE / "memory" / "history.jsonl").write_text('{"cursor": 1, "content": "erased since"}\n')
    (tmp_path / SCOPE / "memory" / "2026-11-20.md").write_text("erased since\n")
    await writer(tmp_path, records).begin(is_outdated=True)
    assert files_in(tmp_path) == printed_files(await records.history.load(SCOPE))


async def test_a_full_disk_delays_the_files(tmp_path: Path) -> None:
    """The rows are stored; the files follow when there is room, and erasures say that they are not written."""
    records = FakeRecords()
    await fill(records)
    full = writer(tmp_path, records, FaultyDisk(at=0))
    assert not await full.flush()
    with pytest.raises(OSError, match="No space left"):
        await writer(tmp_path, records, FaultyDisk(at=0)).settle_history(SCOPE)
    assert await full.flush(SCOPE)
    assert files_in(tmp_path) == printed_files(await records.history.load(SCOPE))


async def test_killed_anywhere_the_files_are_written(tmp_path: Path) -> None:
    """Before and behind each write: the next start completes it, and takes no file of ours for an edited one."""
    at = 0
    while True:
        records, home, disk = FakeRecords(), tmp_path / str(at), DyingDisk(at=at, error=ProcessCrash())
        await fill(records)
        await writer(home, records).flush()
        await records.history.append(SCOPE, entry(5))
        await records.history.rewrite(SCOPE, lambda _, body: body.replace(b"walk", b"-").replace(b"Talk 1", b"-"))
        try:
            await writer(home, records, disk).flush()
        except ProcessCrash:
            assert await writer(home, records).flush()
        else:
            break
        assert files_in(home) == printed_files(await records.history.load(SCOPE)), at
        at += 1
    assert at > 10


def earlier_home(home: Path) -> ScopeHistory:
    """Write the files of an earlier release; return what is in them."""
    folder = home / SCOPE / "memory"
    log = HistoryLog(folder)
    log.append(entry(1), entry(2))
    log.keep_raw(entry(3), [{"role": "user", "content": "a red kite"}])
    log.dream_cursor = 2
    (folder / NOTE).write_text("We walked.\n")
    for name, record in ((".keys.json", {"abc": "tea"}), (".flushed.json", {"telegram:42": "c1"})):
        (folder / name).write_bytes(encode(record))
    (folder / ".imported").write_text(f"{'a' * 32} {'b' * 32}\n{'d' * 32}")  # the last line is torn
    (folder / "bob.imported").write_text(f"{'c' * 32}\n")  # of a scope that was linked
    return read_files(folder, Disk())


async def test_files_of_an_earlier_release_are_taken_over_byte_for_byte(tmp_path: Path) -> None:
    """Once: what is written into the files later is not."""
    records, contents = FakeRecords(), earlier_home(tmp_path)
    before = {name: data for name, data in files_in(tmp_path).items() if not name.endswith(".imported")}
    assert await adopt_histories(tmp_path, records.history, []) == 1
    assert await records.history.load(SCOPE) == contents
    assert contents.marks == {
        MarkKind.KEYS: {"abc": "tea"},
        MarkKind.FLUSHED: {"telegram:42": "c1"},
        MarkKind.IMPORTED: dict.fromkeys((32 * letter for letter in "abc"), ""),
    }
    await writer(tmp_path, records).flush()
    imported = encode(contents.marks[MarkKind.IMPORTED])
    assert files_in(tmp_path) == {**before, ".imported.json": imported}
    (tmp_path / SCOPE / "memory" / "2026-11-22.md").write_text("later\n")
    assert await adopt_histories(tmp_path, records.history, []) == 0
    assert SyncHistory(records.connection).notes == {NOTE: "We walked.\n"}


async def test_a_take_over_that_is_killed_goes_on(tmp_path: Path) -> None:
    """A scope that was stored keeps its rows; one whose folder a link has merged already is not taken twice."""
    records, contents = FakeRecords(), earlier_home(tmp_path)
    shutil.copytree(tmp_path / SCOPE, tmp_path / OTHER)
    await records.history.adopt(SCOPE, contents)
    await records.history.append(SCOPE, entry(9))
    move = ScopeMove(id="link:1", kind="link", source=OTHER, target=SCOPE, at=START)
    (tmp_path / SCOPE / "memory" / ".move").write_text("link:1")
    assert await adopt_histories(tmp_path, records.history, [move]) == 0
    assert len(SyncHistory(records.connection).after(0)) == 4
    assert await records.history.load(OTHER) == ScopeHistory()
