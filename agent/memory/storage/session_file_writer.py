"""Write the turns of every conversation to `sessions/*.jsonl`, behind their commits, for people and other programs.

No turn reads these files: the rows of the store are true (docs/adr/0126-one-store.md). A file is the head of its
transcript and the bodies of its turns. Turns are appended. Where turns were changed or removed, the file is written
again, and with the next turn where it is not what was written. While the disk is full, it is retried.
"""

from __future__ import annotations

import asyncio
import errno
import glob
import re
import secrets
from collections.abc import AsyncIterator, Callable, Collection, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import partial
from io import BytesIO
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias

import structlog
from cachetools import LRUCache

from agent.base import transcript_lines as build
from agent.base.disk import Disk, error_reason, save_corrupt, wait_for_thread
from agent.base.scopes import list_scopes, scope_folder, transcript_path
from agent.base.transcript_lines import encode
from agent.memory.storage.transcript_files import archive_of, archive_path, read_head
from gateway.errors import StoreUnavailable
from gateway.events import SessionKey
from gateway.ports.journal import UnwrittenTurn
from gateway.ports.memory import MIRROR, StaleFile, StoredEnd, StoredTurn

if TYPE_CHECKING:
    from gateway.store.records import SqlTurnRecords
    from gateway.store.transcripts import SqlTranscripts


log = structlog.get_logger(__name__)

_FIRST_PAUSE = 0.5  # seconds before a file that cannot be written is tried again
_LONGEST_PAUSE = 30.0
_LONGEST_HEAD = 8 * 1024
_SYNC_PAUSE = 1.0  # seconds without a turn after which appended files are flushed to the disk
_LONGEST_UNSYNCED = 5.0  # seconds, however many turns there are
_WRITTEN_WITHIN = 2.0  # seconds behind its turn
_UNSYNCED = timedelta(minutes=1)  # before the newest turn: a power cut may have shortened files of sessions used since
_LONG_AGO = datetime(1970, 1, 2, tzinfo=UTC)
_KNOWN_FILES = 4_096  # whose length is known, so that their ends are not read again


@dataclass(frozen=True, slots=True, kw_only=True)
class FileWritePolicy:
    """The delay of a write, which gathers turns, and the most turns in it."""

    wait: timedelta = timedelta(milliseconds=100)
    records: int = 512


@dataclass(frozen=True, slots=True)
class _KnownFile:
    """A file as it was written last."""

    transcript: str
    size: int
    seq: int  # of the last turn in it


@dataclass(frozen=True, slots=True)
class _TranscriptName:
    scope: str
    key: SessionKey
    id: str

    @property
    def session(self) -> tuple[str, str]:
        """The scope and the key, of which one transcript is the current one."""
        return self.scope, str(self.key)


_Failures: TypeAlias = dict[tuple[str, str], str]  # errors by scope and session key


@dataclass(frozen=True, slots=True, kw_only=True)
class _FileAppend:
    """Bytes to append to a file of *size* bytes."""

    transcript: _TranscriptName
    path: Path
    size: int
    data: bytes
    archive: Path | None  # the name that the file gets then
    seqs: Sequence[int]


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionFile:
    """The file of a transcript, as the mirror has it."""

    scope: str
    key: SessionKey
    transcript: str
    name: str


async def list_session_files(home: Path, scope: str, transcripts: SqlTranscripts) -> Sequence[SessionFile]:
    """Return the files that the mirror of *scope* has, by name."""
    found: list[SessionFile] = []
    for head in await transcripts.heads(scope, {}):
        end = await transcripts.end(scope, head.key, head.transcript)
        path = transcript_path(home, scope, str(head.key))
        name = _archive(path, head.transcript, end.ended).name if end.ended else path.name
        found.append(SessionFile(scope=scope, key=head.key, transcript=head.transcript, name=name))
    return sorted(found, key=lambda file: file.name)


async def read_session_file(file: SessionFile, transcripts: SqlTranscripts) -> bytes:
    """Return the content of a file from the store."""
    turns = await _read_turns(transcripts, file.scope, file.key, file.transcript)
    return b"".join((_head(file.transcript, file.key, turns), *(turn.body for turn in turns)))


class SessionFileWriter:
    """Writes every transcript file of the home. `run` must run in one task; any task may call the other methods."""

    def __init__(
        self,
        home: Path,
        records: SqlTurnRecords,
        transcripts: SqlTranscripts,
        *,
        is_mirroring: bool = True,
        policy: FileWritePolicy | None = None,
        disk: Disk | None = None,
    ) -> None:
        """Write nothing unless *is_mirroring*."""
        self._home = home
        self._is_mirroring = is_mirroring
        self._records = records
        self._transcripts = transcripts
        self._policy = policy or FileWritePolicy()
        self._disk = disk or Disk()
        self._files: LRUCache[Path, _KnownFile] = LRUCache(_KNOWN_FILES)
        self._unsynced: dict[Path, _TranscriptName] = {}  # appended to, and not flushed to the disk yet
        self._sync_at = 0.0  # by the event loop's clock: when they are at the latest
        self._lock = asyncio.Lock()
        self._failing: _Failures = {}
        self._is_store_down = False

    async def is_outdated(self, *, is_shared: bool) -> bool:
        """Return True if the home's mirror is not that of this store: `begin` then removes its files."""
        name = (await asyncio.to_thread(self._disk.load, self._home / MIRROR) or b"").decode("ascii", "replace")
        before = await self._transcripts.mirror()
        return (not name or name != before) and bool(before or is_shared)

    async def begin(self, *, is_shared: bool) -> None:
        """Have every file written again unless this home has the files of this store. Call it once all is adopted.

        A home that was restored has none. With *is_shared*, other gateways may have changed turns of a store before it
        knew a mirror. Without a mirror, files of an earlier time are removed: they would keep what is erased.
        """
        path = self._home / MIRROR
        name = (await asyncio.to_thread(self._disk.load, path) or b"").decode("ascii", "replace")
        if not self._is_mirroring:
            await wait_for_thread(asyncio.to_thread(self._remove_mirror))
            await self._transcripts.begin_mirror("", is_whole=True)  # no home's mirror gets what is stored from here on
            return
        before = await self._transcripts.mirror()
        if name and name == before:
            return
        is_whole = not before and not is_shared
        if not is_whole:
            await wait_for_thread(asyncio.to_thread(self._remove_mirror))
        name = secrets.token_hex(8)
        await wait_for_thread(asyncio.to_thread(self._disk.replace, path, name.encode()))
        await self._transcripts.begin_mirror(name, is_whole=is_whole)

    async def run(self) -> None:
        """Write until cancelled, beginning with what the last run has left and a power cut has shortened."""
        pause, is_checked, clock = 0.0, not self._is_mirroring, asyncio.get_running_loop().time
        while True:
            is_clean = await self.flush()
            is_checked = is_checked or (is_clean and await self._repair_ends())
            pause = 0.0 if is_clean else min(max(pause * 2, _FIRST_PAUSE), _LONGEST_PAUSE)
            if self._unsynced and clock() >= self._sync_at:
                await self.sync()
            if await self._wait_unwritten(pause):
                await asyncio.sleep(max(self._policy.wait.total_seconds(), pause))

    async def _wait_unwritten(self, pause: float) -> bool:
        """Return True when there is a commit; False after a pause, since none announces a file that became stale.

        Files are flushed to the disk meanwhile.
        """
        for seconds in (pause,) if pause else (_SYNC_PAUSE, _LONGEST_PAUSE):
            try:
                async with asyncio.timeout(seconds):
                    await self._records.wait_unwritten()
            except TimeoutError:
                await self.sync()
            else:
                return True
        return False

    async def flush(self) -> bool:
        """Write what was committed so far, and what is stale of the chats of this gateway; return False if it cannot.

        Another run is to follow then.
        """
        async with self._lock:
            try:
                failed = await self._drain()
            except StoreUnavailable:
                if not self._is_store_down:
                    log.warning("session_files.store_down")
                self._is_store_down = True
                return False
            self._is_store_down = False
            self._log_outages(failed)
            return not failed

    async def write_scope(self, scope: str) -> None:
        """Write what was committed so far, and all that is stale of *scope*, also of chats that no gateway has claimed.

        Call it behind a change of rows that no file may be without. Raises OSError when a file of the scope cannot be
        written, and StoreUnavailable; it is retried then.
        """
        async with self._lock:
            failed = await self._drain(scope)
            self._log_outages(self._failing | failed)  # the stale files of other scopes were not tried
        if reasons := {reason for (each, _), reason in failed.items() if each == scope}:
            raise OSError(errno.EIO, f"the files of conversations cannot be written: {', '.join(sorted(reasons))}")

    async def rebuild(self, scope: str) -> int:
        """Write every file of *scope* again, whatever is in its place; return their number. Raises as `write_scope`.

        Lines that are in no row, which a person wrote, are set aside.
        """
        await self.write_scope(scope)
        if not self._is_mirroring:
            return 0
        heads = await self._transcripts.heads(scope, {})
        for head in heads:
            async with self._lock:  # for each: meanwhile others may write
                transcript = _TranscriptName(scope, head.key, head.transcript)
                path = await self._place(transcript, await self._transcripts.end(scope, head.key, head.transcript))
                self._files[path] = await self._rewrite(transcript, path)
        return len(heads)

    @asynccontextmanager
    async def pause_writes(self) -> AsyncIterator[None]:
        """Flush, then write nothing while the context is open."""
        await self.flush()
        async with self._lock:
            yield

    async def rearrange(self, folders: Sequence[Path], change: Callable[[], None]) -> None:
        """Run *change*, which moves transcripts from and into *folders*, in a thread while no file is written."""
        async with self._lock:
            self._forget(lambda path, _: path.parent.parent in folders)
            await wait_for_thread(asyncio.to_thread(change))

    async def remove(self, paths: Sequence[Path]) -> None:
        """Remove files and folders. Raises OSError."""
        await self.flush()
        async with self._lock:
            self._forget(lambda path, _: any(top == path or top in path.parents for top in paths))
            await wait_for_thread(asyncio.to_thread(self._remove, paths))

    async def close(self) -> None:
        """Flush, to the disk too."""
        await self.flush()
        await self.sync()

    # -- power cuts --------------------------------------------------------------------------------

    async def sync(self) -> None:
        """Flush what was appended to the disk. A file for which that fails is written again, now or later."""
        async with self._lock:
            files = dict(self._unsynced)
            if not files:
                return
            lost = await wait_for_thread(asyncio.to_thread(lambda: [path for path in files if not self._sync(path)]))
            for path in files:
                if path in lost:  # its cached bytes may not be on the disk, and another fsync would not tell
                    try:
                        self._files[path] = await self._rewrite(files[path], path)
                    except (OSError, StoreUnavailable) as error:
                        log.warning("session_files.cannot_sync", key=str(files[path].key), error=str(error))
                        continue
                self._unsynced.pop(path, None)
            self._sync_at = asyncio.get_running_loop().time() + _LONGEST_UNSYNCED

    def _sync(self, path: Path) -> bool:
        try:
            if self._disk.size(path) is not None:  # it may have been removed, or have become an archive
                self._disk.append(path, b"")
        except OSError:
            return False
        return True

    async def _repair_ends(self) -> bool:
        """Write the files again that are not what was written, of the sessions used last; return False if it cannot."""
        try:
            used = [(row.used_at or row.created_at, row) for row in await self._records.sessions()]
            since = max((at for at, _ in used), default=_LONG_AGO) - _UNSYNCED
            for row in (row for at, row in used if at >= since):
                async with self._lock:
                    await self._repair_end(_TranscriptName(row.scope, row.key, row.transcript))
        except (OSError, ValueError, StoreUnavailable) as error:
            log.warning("session_files.cannot_check", error=str(error))
            return False
        return True

    async def _repair_end(self, transcript: _TranscriptName) -> None:
        end = await self._transcripts.end(transcript.scope, transcript.key, transcript.id)
        if not end.last:
            return
        path = await self._place(transcript, end)
        if path in self._files:  # written since the start
            return
        if await wait_for_thread(asyncio.to_thread(self._matching_size, path, end.last)) is None:
            self._files[path] = await self._rewrite(transcript, path)
            log.info("session_files.end_restored", key=str(transcript.key))

    # -- draining ----------------------------------------------------------------------------------

    async def _drain(self, scope: str | None = None) -> _Failures:
        """Write what is to be written; return the error of each session whose files cannot be."""
        failed: _Failures = {}
        after = 0
        while stored := await self._records.unwritten(after, self._policy.records):
            after = stored[-1].seq
            # Once a record of a session has failed, its later records must wait to stay in order.
            ready = [each for each in stored if (each.scope, str(each.key)) not in failed]
            done = await self._append(ready, failed) if self._is_mirroring else [each.seq for each in ready]
            if done:
                self._records.mark_written(done)
            if len(stored) < self._policy.records:
                break
        for file in await self._transcripts.stale_files(scope):
            if not self._is_mirroring:
                await self._transcripts.drop_stale(file)
            elif (file.scope, str(file.key)) not in failed:
                await self._write_again(file, failed)
        return failed

    async def _append(self, records: Sequence[UnwrittenTurn], failed: _Failures) -> list[int]:
        """Append records to their files; return the seqs of those that are written."""
        by_transcript: dict[_TranscriptName, list[UnwrittenTurn]] = {}
        for each in records:
            by_transcript.setdefault(_TranscriptName(each.scope, each.key, each.transcript), []).append(each)
        done: list[int] = []
        batch: dict[tuple[str, str], _FileAppend] = {}  # by session
        for transcript, own in by_transcript.items():
            session = transcript.session
            # A transcript that ends and the one that begins are in the same place, one after the other.
            if session in batch:
                done += await self._write_batch(batch.values(), failed)
                batch = {}
            if session in failed:
                continue
            try:
                batch[session] = await self._prepare(transcript, own)
            except (OSError, ValueError) as error:
                failed[session] = error_reason(error)
        return done + await self._write_batch(batch.values(), failed)

    async def _prepare(self, transcript: _TranscriptName, records: Sequence[UnwrittenTurn]) -> _FileAppend:
        """Return the bytes to append to the file of *transcript*, which is found or written again if need be."""
        current = path = transcript_path(self._home, transcript.scope, str(transcript.key))
        file = self._files.get(path) if transcript.id else None  # records of no transcript are in no file
        if transcript.id and (file is None or file.transcript != transcript.id):
            path, file = await self._open(transcript, records[0])
            self._files[path] = file
        reached = file.seq if file is not None else records[-1].seq
        new = [each for each in records if each.seq > reached]
        ending = next((each.turn for each in records if each.new_transcript), "")
        return _FileAppend(
            transcript=transcript,
            path=path,
            size=file.size if file is not None else 0,
            data=b"".join(each.body for each in new),
            archive=_archive(path, transcript.id, ending) if ending and transcript.id and path == current else None,
            seqs=[each.seq for each in records],
        )

    async def _write_batch(self, batch: Collection[_FileAppend], failed: _Failures) -> list[int]:
        """Write *batch* in one visit of a thread; return the seqs of the records that are written."""
        if not batch:
            return []
        done: list[int] = []
        results = await wait_for_thread(asyncio.to_thread(lambda: [self._write(each) for each in batch]))
        for each, result in zip(batch, results, strict=True):
            try:
                if isinstance(result, Exception):
                    raise result
                if not result:
                    self._files[each.path] = await self._rewrite(each.transcript, each.path)
                    if each.archive is not None:
                        await wait_for_thread(asyncio.to_thread(self._rename, each.path, each.archive))
                elif each.data:
                    self._note_appended(each)
            except (OSError, ValueError) as error:
                self._files.pop(each.path, None)
                failed[each.transcript.session] = error_reason(error)
            else:
                done += each.seqs
                if each.archive is not None:
                    self._files.pop(each.path, None)
                    self._unsynced.pop(each.path, None)
        return done

    def _note_appended(self, each: _FileAppend) -> None:
        self._files[each.path] = _KnownFile(each.transcript.id, each.size + len(each.data), each.seqs[-1])
        if not self._unsynced:
            self._sync_at = asyncio.get_running_loop().time() + _LONGEST_UNSYNCED
        self._unsynced[each.path] = each.transcript

    async def _open(self, transcript: _TranscriptName, first: UnwrittenTurn) -> tuple[Path, _KnownFile]:
        """Return the file that *transcript* is in, and its content, which is all before the record *first*."""
        end = await self._transcripts.end(transcript.scope, transcript.key, transcript.id, before=first.seq)
        path = await self._place(transcript, end)

        size = await wait_for_thread(asyncio.to_thread(self._begin_file, path, transcript, first.at, end.last))
        if size is None or not await self._is_whole(path, size, transcript, end, first.seq):
            return path, await self._rewrite(transcript, path)
        return path, _KnownFile(transcript.id, size, first.seq - 1)

    def _begin_file(self, path: Path, transcript: _TranscriptName, at: datetime, last: bytes) -> int | None:
        """Return the size of a file that ends with its *last* turn, and is begun without one; None for any other."""
        if last or self._disk.size(path):
            return self._matching_size(path, last)
        head = encode(build.head_line(transcript.id, str(transcript.key), at))
        self._disk.replace(path, head)
        return len(head)

    async def _is_whole(self, path: Path, size: int, transcript: _TranscriptName, end: StoredEnd, before: int) -> bool:
        """Return True if a file that ends with its last turn has exactly the turns before it, too.

        The sizes of thousands of turns are read only if the file was changed later than that turn was written.
        """
        head = await asyncio.to_thread(read_head, self._disk, path)
        changed_at = await asyncio.to_thread(self._disk.changed_at, path)
        if end.last_at is not None and abs(changed_at - end.last_at.timestamp()) < _WRITTEN_WITHIN:
            return not head.get("segment")
        stored = await self._transcripts.size(transcript.scope, transcript.key, transcript.id, before=before)
        return size == await asyncio.to_thread(self._head_size, path) + stored

    async def _place(self, transcript: _TranscriptName, end: StoredEnd) -> Path:
        """Return the path of *transcript*; another one that is in the place of the current one is archived first."""
        current = transcript_path(self._home, transcript.scope, str(transcript.key))
        found = await asyncio.to_thread(self._find, current, transcript.id)
        if isinstance(found, Path):
            return found
        if end.ended:
            return _archive(current, transcript.id, end.ended)
        if found:  # another transcript, which has ended
            other = await self._transcripts.end(transcript.scope, transcript.key, found)
            archive = _archive(current, found, other.ended or other.last_turn)
            self._files.pop(current, None)
            await wait_for_thread(asyncio.to_thread(self._rename, current, archive))
        return current

    def _find(self, current: Path, transcript: str) -> Path | str:
        """Return the file of *transcript*; without one the transcript in its place, "" for none."""
        head = read_head(self._disk, current) if self._disk.size(current) else {}
        if head.get("transcript") == transcript:
            return current
        return archive_of(current, transcript) or str(head.get("transcript") or "")

    def _matching_size(self, path: Path, last: bytes) -> int | None:
        """Return the size of a file that ends with the body of its *last* turn; None if it must be written again.

        The turns before it are in the file then, which is appended to in their order, unless a person has changed it.
        """
        size = self._disk.size(path) or 0
        start = size - len(last)
        head_size = self._head_size(path) if size else 0
        if not head_size or start < head_size or (start > head_size and not last):
            return None
        return size if self._disk.read(path, start, len(last)) == last else None

    def _head_size(self, path: Path) -> int:
        return self._disk.read(path, 0, _LONGEST_HEAD).find(b"\n") + 1

    async def _write_again(self, file: StaleFile, failed: _Failures) -> None:
        transcript = _TranscriptName(file.scope, file.key, file.transcript)
        try:
            end = await self._transcripts.end(file.scope, file.key, file.transcript)
            path = await self._place(transcript, end) if end.last else None
            if path is not None:
                self._files[path] = await self._rewrite(transcript, path, is_stale=True)
            else:
                current = transcript_path(self._home, file.scope, str(file.key))
                found = await asyncio.to_thread(self._find, current, file.transcript)
                if isinstance(found, Path):
                    self._files.pop(found, None)
                    await wait_for_thread(asyncio.to_thread(self._remove, [found]))
                await wait_for_thread(asyncio.to_thread(self._remove_rest, current, file.transcript))
        except (OSError, ValueError) as error:
            failed[file.scope, str(file.key)] = error_reason(error)
        else:
            await self._transcripts.drop_stale(file)

    async def _rewrite(self, transcript: _TranscriptName, path: Path, *, is_stale: bool = False) -> _KnownFile:
        """Write the whole file. Lines that are in no row, which a person wrote, are set aside unless it *is_stale*."""
        self._files.pop(path, None)
        turns = await _read_turns(self._transcripts, transcript.scope, transcript.key, transcript.id)
        last = turns[-1].seq if turns else -(2**62)
        # Asked behind the rows: what they have lost since the file was written, nobody may set aside.
        stale = () if is_stale else await self._transcripts.stale_files(transcript.scope)
        is_stale = is_stale or transcript in [_TranscriptName(each.scope, each.key, each.transcript) for each in stale]
        write = partial(self._write_file, transcript, path, turns, is_stale=is_stale)
        size = await wait_for_thread(asyncio.to_thread(write))
        return _KnownFile(transcript.id, size, last)

    def _write_file(
        self, transcript: _TranscriptName, path: Path, turns: Sequence[StoredTurn], *, is_stale: bool
    ) -> int:
        before = self._disk.load(path) or b""
        old_head, _, _ = before.partition(b"\n")
        head = _head(transcript.id, transcript.key, turns)
        old = build.decode(old_head) or {}
        if old.get("transcript") == transcript.id and not old.get("segment"):
            head = old_head + b"\n"
        data = b"".join((head, *(turn.body for turn in turns)))
        if not is_stale and not data.startswith(before):
            # Piece by piece: one split of 100 MB would hold up the event loop for most of a second.
            known = {raw for turn in turns for raw in turn.body.split(b"\n")}
            lines = (raw.rstrip(b"\n") for raw in islice(BytesIO(before), build.kind_of(old) == "head", None))
            save_corrupt(self._disk, path, [raw for raw in lines if raw not in known and _plain(raw) not in known])
        self._disk.replace(path, data)
        self._remove_segments(path, transcript.id)
        return len(data)

    def _log_outages(self, failed: _Failures) -> None:
        """Log each outage once when it begins and once when it is over."""
        for each in failed.keys() - self._failing.keys():
            log.error("session_files.cannot_write", key=each[1], error=failed[each])
        for _, key in self._failing.keys() - failed.keys():
            log.info("session_files.writes_again", key=key)
        self._failing = failed

    def _forget(self, is_meant: Callable[[Path, _KnownFile], bool]) -> None:
        for path in [path for path, file in self._files.items() if is_meant(path, file)]:
            del self._files[path]

    # -- in the thread -----------------------------------------------------------------------------

    def _write(self, each: _FileAppend) -> bool | OSError | ValueError:
        """Append to a file, which gets its other name if its transcript has ended; False if it has another size."""
        try:
            if each.data and not self._append_bytes(each.path, each.size, each.data):
                return False
            if each.archive is not None:
                self._rename(each.path, each.archive)
        except (OSError, ValueError) as error:
            return error
        return True

    def _append_bytes(self, path: Path, size: int, data: bytes) -> bool:
        """Append to a file of *size* bytes; return False, and write nothing, for any other."""
        if self._disk.size(path) != size:
            return False
        fd = self._disk.open_append(path)
        try:
            self._disk.write(fd, data)
        except OSError:
            self._disk.truncate(fd, size)
            raise
        finally:
            self._disk.close(fd)
        return True

    def _rename(self, path: Path, archive: Path) -> None:
        if self._disk.size(path) is not None:
            self._disk.append(path, b"")  # durable, as its name is then
            self._disk.rename(path, archive)

    def _remove_mirror(self) -> None:
        """Remove the files of all conversations, but not the lines that were set aside beside them."""
        for scope in ("", *list_scopes(self._home)):
            for path in sorted((scope_folder(self._home, scope) / "sessions").glob("*.jsonl")):
                self._disk.remove(path)
        self._disk.remove(self._home / MIRROR)

    def _remove(self, paths: Sequence[Path]) -> None:
        for top in paths:
            if top.is_dir():
                self._disk.remove_folder(top)
            else:
                self._disk.remove(top)

    def _remove_segments(self, path: Path, transcript: str) -> None:
        """Remove the full segments that earlier releases divided a transcript into."""
        for segment in sorted(path.parent.glob(f"{glob.escape(transcript)}.[0-9]*.jsonl")):
            self._disk.remove(segment)

    def _remove_rest(self, path: Path, transcript: str) -> None:
        """Remove what is beside the file of a transcript that has no turns any more."""
        self._remove_segments(path, transcript)
        for aside in sorted(path.parent.glob(f"{glob.escape(transcript)}.*corrupt")):
            self._disk.remove(aside)


async def _read_turns(
    transcripts: SqlTranscripts, scope: str, key: SessionKey, transcript: str
) -> Sequence[StoredTurn]:
    turns: list[StoredTurn] = []
    while page := await transcripts.since(scope, key, transcript, turns[-1].seq if turns else -(2**62)):
        turns += page
    return turns


def _head(transcript: str, key: SessionKey, turns: Sequence[StoredTurn]) -> bytes:
    return encode(build.head_line(transcript, str(key), turns[0].at if turns else datetime.now(UTC)))


def _archive(path: Path, transcript: str, turn: str) -> Path:
    """Return the archive of a transcript that *turn*, or a pointer or another note behind it, was the last of."""
    name = re.sub(r"[^a-z0-9]", "", turn)
    return archive_path(path, transcript, name if name.startswith("t") else f"t{name or 0}")


def _plain(raw: bytes) -> bytes:
    """Return a line as rows have it: earlier releases filled up blanked lines with spaces."""
    line = build.decode(raw)
    return raw if line is None else encode(line)[:-1]
