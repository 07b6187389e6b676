"""From the journal to the transcript files: in commit order, idempotent by turn, flushed by groups.

The record in the journal is the truth until its lines are on the disk; only then its body leaves the
journal. A crash in between is a repetition, and a full disk is a delay.
"""

from __future__ import annotations

import asyncio
import contextlib
import shutil
from collections import OrderedDict
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from typing import Any, TypeVar

import structlog

from agent.memory.scopes import transcript_path
from agent.memory.storage.disk import Disk
from agent.memory.storage.message_deletion import blank_messages, deleted_ids
from agent.memory.storage.segments import SegmentChain, archive_of, archive_path
from agent.memory.storage.text_blobs import put_blobs
from agent.memory.storage.transcript_reader import read_tail
from agent.memory.storage.transcript_writer import TranscriptWriter, entry_of
from gateway.errors import StoreUnavailable
from gateway.ports import StoredRecord, TurnRecord, TurnRecordStore

log = structlog.get_logger(__name__)

T = TypeVar("T")

_FIRST_PAUSE = 0.5  # seconds before a transcript that cannot be written is tried again
_LONGEST_PAUSE = 30.0
IDLE = timedelta(minutes=1)  # after which a transcript that nothing was written to is closed


@dataclass(frozen=True, slots=True, kw_only=True)
class FlushPolicy:
    """How records are gathered before they are flushed."""

    wait: timedelta = timedelta(milliseconds=100)  # so that busy chats share an fsync
    records: int = 512  # in one hop to the thread
    open_files: int = 64
    known_files: int = 4_096  # transcripts whose end is remembered, so that their files are not read again


@dataclass(slots=True)
class _ProjectedBatch:
    """What one hop to the thread came to."""

    done: list[int] = field(default_factory=list)
    failed: dict[str, str] = field(default_factory=dict)  # key -> what the disk said
    written: list[TranscriptWriter] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class _OpenTranscript:
    """A transcript that holds a descriptor, and when it was written to."""

    file: TranscriptWriter
    at: float  # seconds of the loop's clock


class TranscriptProjector:
    """Owns every transcript file of the home. `run` it in one task; `flush` may be called from any."""

    def __init__(
        self, home: Path, records: TurnRecordStore, *, grouping: FlushPolicy | None = None, disk: Disk | None = None
    ) -> None:
        self._home = home
        self._records = records
        self._grouping = grouping or FlushPolicy()
        self._disk = disk or Disk()
        self._files: OrderedDict[Path, TranscriptWriter] = OrderedDict()
        self._open: OrderedDict[Path, _OpenTranscript] = OrderedDict()  # the longest unused first
        self._lock = asyncio.Lock()
        self._failing: set[str] = set()
        self._is_store_down = False

    async def run(self) -> None:
        """Project until cancelled; what the last run left comes first."""
        pause = 0.0
        while True:
            is_clean = await self.flush()
            pause = 0.0 if is_clean else min(max(pause * 2, _FIRST_PAUSE), _LONGEST_PAUSE)
            try:
                async with asyncio.timeout(pause or (IDLE.total_seconds() if self._open else None)):
                    await self._records.wait_unprojected()
            except TimeoutError:
                await self._close_idle()
                continue
            await asyncio.sleep(max(self._grouping.wait.total_seconds(), pause))

    async def flush(self) -> bool:
        """Write what is committed by now; False when something had to stay in the journal."""
        async with self._lock:
            try:
                failed = await self._drain()
            except StoreUnavailable:
                if not self._is_store_down:
                    log.warning("projector.store_down")
                self._is_store_down = True
                return False
        self._is_store_down = False
        self._tell(failed)
        return not failed

    async def _close_idle(self) -> None:
        now = asyncio.get_running_loop().time()
        async with self._lock:
            await _finish(asyncio.to_thread(self._trim, now))

    @asynccontextmanager
    async def pause_writes(self) -> AsyncIterator[None]:
        """Write what is committed by now, then write nothing until the block ends."""
        await self.flush()
        async with self._lock:
            yield

    async def redact(self, folder: Path, change: Callable[[bytes], bytes]) -> int:
        """Put every line of every transcript in *folder* through *change*; return how many lines changed.

        *change* keeps a line's length, so that offsets stand. A file is replaced as a whole. Raises OSError.
        """
        await self.flush()
        async with self._lock:
            return await _finish(asyncio.to_thread(self._redact, folder, change))

    async def rearrange(self, folders: Sequence[Path], change: Callable[[], None]) -> None:
        """Run *change*, which moves transcripts from and into *folders*, while nobody writes; blocks in the thread."""

        def run() -> None:
            sessions = {folder / "sessions" for folder in folders}
            for path in [path for path in self._files if path.parent in sessions]:
                self._spend(path)
            change()

        async with self._lock:
            await _finish(asyncio.to_thread(run))

    async def remove(self, paths: Sequence[Path]) -> None:
        """Take files and folders away; what is committed later begins transcripts anew. Raises OSError."""
        await self.flush()
        async with self._lock:
            await _finish(asyncio.to_thread(self._remove, paths))

    async def close(self) -> None:
        """Flush and give every file back."""
        await self.flush()
        async with self._lock:
            await _finish(asyncio.to_thread(self._close_all))

    # -- draining ----------------------------------------------------------------------------------

    async def _drain(self) -> dict[str, str]:
        failed: dict[str, str] = {}
        after = 0
        while stored := await self._records.unprojected(after, self._grouping.records):
            after = stored[-1].seq
            # A key that failed keeps its later records back, or they would overtake.
            ready = [each for each in stored if str(each.record.key) not in failed]
            batch = await _finish(asyncio.to_thread(self._write, ready, asyncio.get_running_loop().time()))
            failed |= batch.failed
            if batch.done:
                await self._records.projected(batch.done)
                for file in batch.written:
                    file.confirmed()
            if len(stored) < self._grouping.records:
                break
        return failed

    def _tell(self, failed: dict[str, str]) -> None:
        """Say each outage once when it begins and once when it is over."""
        for key in failed.keys() - self._failing:
            log.error("projector.cannot_write", key=key, error=failed[key])
        for key in self._failing - failed.keys():
            log.info("projector.writes_again", key=key)
        self._failing = set(failed)

    # -- in the thread -----------------------------------------------------------------------------

    def _write(self, stored: Sequence[StoredRecord], now: float) -> _ProjectedBatch:
        batch = _ProjectedBatch()
        touched: dict[str, list[Path]] = {}
        by_key: dict[str, list[StoredRecord]] = {}
        for each in stored:
            by_key.setdefault(str(each.record.key), []).append(each)
        for key, mine in by_key.items():
            with self._blame(key, touched.setdefault(key, []), batch) as paths:
                unsure = frozenset(each.record.turn for each in mine)
                for each in mine:
                    paths.append(transcript_path(self._home, each.record.scope, key))
                    self._project(paths[-1], each.record, unsure, now)
                    if mids := deleted_ids(each.record.lines):
                        self._forget(paths[-1], each.record, mids)
        # All files first, then all fsyncs: the disk gets the group in one go.
        for key, mine in by_key.items():
            with self._blame(key, touched[key], batch) as paths:
                for path in dict.fromkeys(paths):
                    if (file := self._files.get(path)) is not None:
                        file.sync()
                        batch.written.append(file)
                if key not in batch.failed:
                    batch.done.extend(each.seq for each in mine)
        self._trim(now)
        return batch

    @contextlib.contextmanager
    def _blame(self, key: str, paths: list[Path], batch: _ProjectedBatch) -> Iterator[list[Path]]:
        """Let a failure cost its own key alone; its files are read again before the next try."""
        try:
            yield paths
        except (OSError, ValueError, TypeError) as error:
            batch.failed[key] = _reason(error)
            for path in paths:
                self._spend(path)

    def _project(self, path: Path, record: TurnRecord, unsure: frozenset[str], now: float) -> None:
        put_blobs(self._disk, self._home, record.scope, record.blobs)
        file = self._files.get(path)
        if file is None or (record.transcript and record.transcript != file.transcript):
            self._spend(path)
            file = self._find(path, record, unsure)
        file.append(entry_of(record))
        if file.path != path:  # it was archived before the crash that brings this record again
            file.sync()
            file.close()
            return
        self._files[path] = file
        self._files.move_to_end(path)
        if record.new_transcript:
            file.archive(record.turn)
            self._spend(path)
            self._files[path] = TranscriptWriter(self._disk, path, record.new_transcript, str(record.key))
        elif file.is_open:
            self._open[path] = _OpenTranscript(file, now)
            self._open.move_to_end(path)

    def _forget(self, path: Path, record: TurnRecord, mids: frozenset[str]) -> None:
        """Blank messages in every file of the record's key; the current one is read again afterwards."""
        if (file := self._files.get(path)) is not None:
            file.sync()
        self._spend(path)
        blank_messages(self._disk, path, str(record.key), mids, told_by=record.turn)

    def _redact(self, folder: Path, change: Callable[[bytes], bytes]) -> int:
        changed = 0
        for path in sorted(folder.glob("*.jsonl")):
            self._spend(path)
            before = (self._disk.load(path) or b"").splitlines(keepends=True)
            after = [change(raw) for raw in before]
            differences = sum(old != new for old, new in zip(before, after, strict=True))
            if differences:
                self._disk.replace(path, b"".join(after))
            changed += differences
        return changed

    def _remove(self, paths: Sequence[Path]) -> None:
        for top in paths:
            for path in [each for each in self._files if each == top or top in each.parents]:
                self._spend(path)
            if top.is_dir():
                shutil.rmtree(top)
                self._disk.sync_folder(top.parent)
            else:
                self._disk.remove(top)

    def _find(self, path: Path, record: TurnRecord, unsure: frozenset[str]) -> TranscriptWriter:
        """Open the file that *record* belongs to: the current one, or an archive of its transcript."""
        wanted = record.transcript
        current = SegmentChain(self._disk, path)
        if current.head is None or not wanted or current.transcript in ("", wanted):
            archived = archive_of(path, wanted) if wanted and not current.end else None
            return TranscriptWriter(self._disk, archived or path, wanted, str(record.key), unsure=unsure)
        archived = archive_of(path, wanted)
        if archived is None:
            # A transcript that the journal does not know (an older journal was restored): keep it beside.
            blocks = read_tail(current, 1)
            last = blocks[-1].turn if blocks else "t0"
            self._disk.rename(path, archive_path(path, current.transcript, last))
        return TranscriptWriter(self._disk, archived or path, wanted, str(record.key), unsure=unsure)

    def _spend(self, path: Path) -> None:
        """Forget what is known of a file, so that it is read again."""
        self._open.pop(path, None)
        file = self._files.pop(path, None)
        if file is not None:
            file.close()

    def _trim(self, now: float) -> None:
        idle_since = now - IDLE.total_seconds()
        while self._open:
            oldest = next(iter(self._open.values()))
            if len(self._open) <= self._grouping.open_files and oldest.at > idle_since:
                break
            self._open.popitem(last=False)[1].file.close()
        while len(self._files) > self._grouping.known_files:
            self._spend(next(iter(self._files)))

    def _close_all(self) -> None:
        for each in self._open.values():
            each.file.close()
        self._open.clear()


async def _finish(work: Coroutine[Any, Any, T]) -> T:
    """Await what runs in the thread to its end, also when cancelled: two threads never share a file."""
    task = asyncio.create_task(work, name="projector thread")
    try:
        return await asyncio.shield(task)
    except asyncio.CancelledError:
        await asyncio.wait([task])
        raise


def _reason(error: Exception) -> str:
    """Return what the system said, without a path or a text of anybody's."""
    return (error.strerror or type(error).__name__) if isinstance(error, OSError) else type(error).__name__
