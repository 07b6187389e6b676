"""Project turn records from the journal to transcript files: in commit order, idempotent by turn, in batches.

The journal keeps a record until its lines are on the disk. After a crash the projection is repeated; while the disk is
full, it is retried.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import OrderedDict
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Iterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path

import structlog

from agent.memory.scopes import transcript_path
from agent.memory.storage.disk import Disk, rewrite_raw_lines, wait_for_thread
from agent.memory.storage.message_deletion import blank_messages
from agent.memory.storage.segments import SegmentChain, archive_of, archive_path, transcripts_of
from agent.memory.storage.text_blobs import put_blobs
from agent.memory.storage.transcript_lines import deleted_ids
from agent.memory.storage.transcript_reader import read_tail
from agent.memory.storage.transcript_writer import TranscriptWriter, entry_of
from gateway.errors import ScopeBehind, StoreUnavailable
from gateway.ports import StoredRecord, TurnRecord, TurnRecordStore

log = structlog.get_logger(__name__)

_FIRST_PAUSE = 0.5  # seconds before a transcript that cannot be written is tried again
_PAUSE_BEHIND = 0.1  # seconds; what another gateway has changed is fetched meanwhile
_LONGEST_PAUSE = 30.0
_SETTLE_POLL, _LONGEST_SETTLE = 0.05, 15.0  # seconds; others write within 0.1, and are replaced after 5
IDLE = timedelta(minutes=1)  # without a write until a transcript is closed


@dataclass(frozen=True, slots=True, kw_only=True)
class FlushPolicy:
    """Batch size and delay of a flush, and how many files stay open."""

    wait: timedelta = timedelta(milliseconds=100)  # so that busy chats share an fsync
    records: int = 512  # in one batch
    open_files: int = 64
    known_files: int = 4_096  # transcripts whose end is cached, so that their files are not read again


@dataclass(slots=True)
class _ProjectedBatch:
    """Result of writing one batch of records in the thread."""

    done: list[int] = field(default_factory=list)
    failed: dict[str, str] = field(default_factory=dict)  # key -> the system's error message
    written: list[TranscriptWriter] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class _OpenTranscript:
    """A transcript with a file descriptor, and the time of its last write."""

    file: TranscriptWriter
    at: float  # seconds of the loop's clock


class TranscriptProjector:
    """Writes every transcript file of the home. `run` must run in one task; any task may call `flush`."""

    def __init__(
        self, home: Path, records: TurnRecordStore, *, grouping: FlushPolicy | None = None, disk: Disk | None = None
    ) -> None:
        self._home = home
        self._records = records
        self._grouping = grouping or FlushPolicy()
        self._disk = disk or Disk()
        self._files: OrderedDict[Path, TranscriptWriter] = OrderedDict()
        self._open: OrderedDict[Path, _OpenTranscript] = OrderedDict()  # least recently used first
        self._lock = asyncio.Lock()
        self._failing: set[str] = set()
        self._is_store_down = self._is_behind = False
        self._has_unwritten: Callable[[str], Awaitable[bool]] | None = None
        self._fetch: Callable[[str], Awaitable[object]] | None = None
        self._adopt: Callable[[TurnRecord], object] = lambda _: None

    async def run(self) -> None:
        """Project until cancelled, beginning with the records that the last run left."""
        pause = 0.0
        while True:
            is_clean = await self.flush()
            pause = 0.0 if is_clean else min(max(pause * 2, _FIRST_PAUSE), _LONGEST_PAUSE)
            if self._is_behind:
                pause = _PAUSE_BEHIND
            try:
                async with asyncio.timeout(pause or (IDLE.total_seconds() if self._open else None)):
                    await self._records.wait_unprojected()
            except TimeoutError:
                await self._close_idle()
                continue
            await asyncio.sleep(max(self._grouping.wait.total_seconds(), pause))

    async def flush(self) -> bool:
        """Write the records committed so far; return False if some had to stay in the journal."""
        async with self._lock:
            self._is_behind = False
            try:
                failed = await self._drain()
            except ScopeBehind:
                self._is_behind = True
                return False
            except StoreUnavailable:
                if not self._is_store_down:
                    log.warning("projector.store_down")
                self._is_store_down = True
                return False
        self._is_store_down = False
        self._log_outages(failed)
        return not failed

    def share(
        self,
        has_unwritten: Callable[[str], Awaitable[bool]],
        fetch: Callable[[str], Awaitable[object]],
        adopt: Callable[[TurnRecord], object],
    ) -> None:
        """Have `settle` wait for other gateways: while *has_unwritten* says so; *fetch* then brings their files.

        *adopt* is called with records of no messages, which another gateway may have made of a chat that this one has.
        """
        self._has_unwritten, self._fetch, self._adopt = has_unwritten, fetch, adopt

    async def settle(self, scope: str) -> None:
        """Return when all lines of *scope* that any gateway has committed are in this home's files.

        Call it before something is erased, with nothing of the scope changed. Raises StoreUnavailable when another
        gateway does not write its lines.
        """
        await self.flush()
        if self._has_unwritten is None or self._fetch is None:
            return
        try:
            async with asyncio.timeout(_LONGEST_SETTLE):
                while await self._has_unwritten(scope):
                    await asyncio.sleep(_SETTLE_POLL)
                    await self.flush()  # chats of a gateway that died meanwhile may be ours now
        except TimeoutError:
            raise StoreUnavailable("another gateway has not written its messages yet") from None
        await self._fetch(scope)

    async def _close_idle(self) -> None:
        now = asyncio.get_running_loop().time()
        async with self._lock:
            await wait_for_thread(asyncio.to_thread(self._close_unused, now))

    @asynccontextmanager
    async def pause_writes(self) -> AsyncIterator[None]:
        """Flush, then write nothing while the context is open."""
        await self.flush()
        async with self._lock:
            yield

    async def redact(self, folder: Path, change: Callable[[bytes], bytes]) -> int:
        """Apply *change* to every line of every transcript in *folder*; return the number of changed lines.

        *change* must keep a line's length, because other lines hold byte offsets. Files are replaced atomically.
        Raises OSError.
        """
        await self.flush()
        async with self._lock:
            return await wait_for_thread(asyncio.to_thread(self._redact, folder, change))

    async def rearrange(self, folders: Sequence[Path], change: Callable[[], None]) -> None:
        """Run *change*, which moves transcripts from and into *folders*, in a thread while no file is written."""

        def run() -> None:
            self._discard_in(folders)
            change()

        async with self._lock:
            await wait_for_thread(asyncio.to_thread(run))

    @asynccontextmanager
    async def let_go(self, folder: Path) -> AsyncIterator[set[str]]:
        """Write nothing while the context is open.

        Transcripts with files in *folder* whose paths in it are put into the yielded set are read again afterwards.
        """
        async with self._lock:
            changed = set[str]()
            try:
                yield changed
            finally:
                await wait_for_thread(asyncio.to_thread(self._discard_changed, folder / "sessions", changed))

    def _discard_changed(self, sessions: Path, changed: Collection[str]) -> None:
        if meant := transcripts_of(changed):
            own = [(path, file) for path, file in self._files.items() if path.parent == sessions]
            for path, file in own:
                if not meant.isdisjoint((path.stem, file.transcript)):
                    self._discard(path)

    def _discard_in(self, folders: Sequence[Path]) -> None:
        sessions = {folder / "sessions" for folder in folders}
        for path in [path for path in self._files if path.parent in sessions]:
            self._discard(path)

    async def remove(self, paths: Sequence[Path]) -> None:
        """Remove files and folders; later records begin new transcripts. Raises OSError."""
        await self.flush()
        async with self._lock:
            await wait_for_thread(asyncio.to_thread(self._remove, paths))

    async def close(self) -> None:
        """Flush and close every file."""
        await self.flush()
        async with self._lock:
            await wait_for_thread(asyncio.to_thread(self._close_all))

    # -- draining ----------------------------------------------------------------------------------

    async def _drain(self) -> dict[str, str]:
        failed: dict[str, str] = {}
        after = 0
        while stored := await self._records.unprojected(after, self._grouping.records):
            after = stored[-1].seq
            for each in stored:
                if each.record.to_index == each.record.from_index:
                    self._adopt(each.record)
            # Once a record of a key has failed, its later records must wait to stay in order.
            ready = [each for each in stored if str(each.record.key) not in failed]
            batch = await wait_for_thread(asyncio.to_thread(self._write, ready, asyncio.get_running_loop().time()))
            failed |= batch.failed
            if batch.done:
                await self._records.projected(batch.done)
                for file in batch.written:
                    file.confirm()
            if len(stored) < self._grouping.records:
                break
        return failed

    def _log_outages(self, failed: dict[str, str]) -> None:
        """Log each outage once when it begins and once when it is over."""
        for key in failed.keys() - self._failing:
            log.error("projector.cannot_write", key=key, error=failed[key])
        for key in self._failing - failed.keys():
            log.info("projector.writes_again", key=key)
        self._failing = set(failed)

    # -- in the thread -----------------------------------------------------------------------------

    def _write(self, records: Sequence[StoredRecord], now: float) -> _ProjectedBatch:
        batch = _ProjectedBatch()
        touched: dict[str, list[Path]] = {}
        by_key: dict[str, list[StoredRecord]] = {}
        for each in records:
            by_key.setdefault(str(each.record.key), []).append(each)
        for key, own in by_key.items():
            with self._record_failure(key, touched.setdefault(key, []), batch) as paths:
                unsure = frozenset(each.record.turn for each in own)
                for each in own:
                    paths.append(transcript_path(self._home, each.record.scope, key))
                    self._project(paths[-1], each.record, unsure, now)
                    if mids := deleted_ids(each.record.lines):
                        self._blank_messages(paths[-1], each.record, mids)
        # All writes first, then all fsyncs: the disk can combine them.
        for key, own in by_key.items():
            with self._record_failure(key, touched[key], batch) as paths:
                for path in dict.fromkeys(paths):
                    if (file := self._files.get(path)) is not None:
                        file.sync()
                        batch.written.append(file)
                if key not in batch.failed:
                    batch.done.extend(each.seq for each in own)
        self._close_unused(now)
        return batch

    @contextlib.contextmanager
    def _record_failure(self, key: str, paths: list[Path], batch: _ProjectedBatch) -> Iterator[list[Path]]:
        """Note a failure of one key; its files are read again before the next attempt, other keys go on."""
        try:
            yield paths
        except (OSError, ValueError, TypeError) as error:
            batch.failed[key] = _reason(error)
            for path in paths:
                self._discard(path)

    def _project(self, path: Path, record: TurnRecord, unsure: frozenset[str], now: float) -> None:
        put_blobs(self._disk, self._home, record.scope, record.blobs)
        file = self._files.get(path)
        if file is None or (record.transcript and record.transcript != file.transcript):
            self._discard(path)
            file = self._open_writer(path, record, unsure)
        file.append(entry_of(record))
        if file.path != path:  # the transcript was archived before a crash, and this record is a repetition
            file.sync()
            file.close()
            return
        self._files[path] = file
        self._files.move_to_end(path)
        if record.new_transcript:
            file.archive(record.turn)
            self._discard(path)
            self._files[path] = TranscriptWriter(self._disk, path, record.new_transcript, str(record.key))
        elif file.is_open:
            self._open[path] = _OpenTranscript(file, now)
            self._open.move_to_end(path)

    def _blank_messages(self, path: Path, record: TurnRecord, mids: frozenset[str]) -> None:
        """Blank messages in every file of the record's key; the current one is read again afterwards."""
        if (file := self._files.get(path)) is not None:
            file.sync()
        self._discard(path)
        blank_messages(self._disk, path, str(record.key), mids, deletion_turn=record.turn)

    def _redact(self, folder: Path, change: Callable[[bytes], bytes]) -> int:
        changed = 0
        for path in sorted(folder.glob("*.jsonl")):
            self._discard(path)
            changed += rewrite_raw_lines(self._disk, path, change)
        return changed

    def _remove(self, paths: Sequence[Path]) -> None:
        for top in paths:
            for path in [each for each in self._files if each == top or top in each.parents]:
                self._discard(path)
            if top.is_dir():
                self._disk.remove_folder(top)
            else:
                self._disk.remove(top)

    def _open_writer(self, path: Path, record: TurnRecord, unsure: frozenset[str]) -> TranscriptWriter:
        """Open the file that *record* belongs to: the current one, or an archive of its transcript."""
        transcript = record.transcript
        current = SegmentChain(self._disk, path)
        if current.head is None or not transcript or current.transcript in ("", transcript):
            archive = archive_of(path, transcript) if transcript and not current.end else None
        else:
            archive = archive_of(path, transcript)
            if archive is None:
                # The journal does not know the current transcript (an older journal was restored): archive it.
                blocks = read_tail(current, 1)
                last = blocks[-1].turn if blocks else "t0"
                self._disk.rename(path, archive_path(path, current.transcript, last))
        return TranscriptWriter(self._disk, archive or path, transcript, str(record.key), unsure=unsure)

    def _discard(self, path: Path) -> None:
        """Close a file and discard its cached position, so that it is read again."""
        self._open.pop(path, None)
        file = self._files.pop(path, None)
        if file is not None:
            file.close()

    def _close_unused(self, now: float) -> None:
        idle_since = now - IDLE.total_seconds()
        while self._open:
            oldest = next(iter(self._open.values()))
            if len(self._open) <= self._grouping.open_files and oldest.at > idle_since:
                break
            self._open.popitem(last=False)[1].file.close()
        while len(self._files) > self._grouping.known_files:
            self._discard(next(iter(self._files)))

    def _close_all(self) -> None:
        for each in self._open.values():
            each.file.close()
        self._open.clear()


def _reason(error: Exception) -> str:
    """Return an error message without paths or user text."""
    return (error.strerror or type(error).__name__) if isinstance(error, OSError) else type(error).__name__
