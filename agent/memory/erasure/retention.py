"""`memory.retention_days`: what was said leaves when it is older; what was made of it stays until somebody forgets it.

Once a day, as a durable job, beside the turns. Files that are older as a whole are removed; of a transcript that goes
on, the older lines are blanked in place, from where the last day's work ended, so that indices and offsets stand and
the cost is that of what lapses (docs/adr/0012-purge.md).
"""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, Protocol

import structlog

from agent.memory.erasure.derived_index import DerivedIndex
from agent.memory.erasure.member_data import ALL
from agent.memory.erasure.scope_files import ATTACHMENTS, BLOBS, LAPSED, SESSIONS
from agent.memory.erasure.word_match import pad_line, without_words
from agent.memory.history.history_log import LOCK, RAW_JSONL
from agent.memory.jobs.job_runner import Handler, RetryJobLater
from agent.memory.scope_names import ScopeNames
from agent.memory.scopes import scope_folder
from agent.memory.storage.disk import Disk
from agent.memory.storage.transcript_lines import decode, kind_of, parse_time
from gateway.ports import Job, JobQueue, Line, TurnRecordStore
from gateway.ports.erasure import ErasureStore

log = structlog.get_logger(__name__)

RETENTION = "retention"
_DAY = timedelta(days=1)
_TAIL = 64 * 1024
_AT_ONCE = 1024 * 1024  # bytes of a transcript that are looked at while its projection waits
_SAID = frozenset({"message", "command", "notice", "delta"})
_ASIDE = (f"{ATTACHMENTS}/*", f"{BLOBS}/*", f"{SESSIONS}/*.corrupt", f"{SESSIONS}/*.json", "memory/*.corrupt")
_NOTE = re.compile(r"(\d{4}-\d{2}-\d{2})-.+\.md\Z")  # it quotes what was said


class RetainedTranscripts(Protocol):
    """Who owns the transcript files."""

    def pause_writes(self) -> AbstractAsyncContextManager[None]:
        """Write what is committed, then nothing until the block ends."""
        ...

    async def remove(self, paths: Sequence[Path]) -> None:
        """Take files away."""
        ...


@dataclass(slots=True)
class RetentionResult:
    """What a day's work came to."""

    files: int = 0
    lines: int = 0

    @property
    def is_any(self) -> bool:
        """Something lapsed."""
        return bool(self.files or self.lines)


@dataclass(frozen=True, slots=True, kw_only=True)
class RetentionJob:
    """Does the job; *days* 0 is never. *reopen* lets go of what is known of a scope."""

    home: Path
    days: int
    files: RetainedTranscripts
    records: TurnRecordStore
    jobs: JobQueue
    erasing: ErasureStore
    index: DerivedIndex
    writing: asyncio.Lock
    reopen: Callable[[str], None]
    now: Callable[[], datetime]
    disk: Disk = field(default_factory=Disk)

    @property
    def long(self) -> Mapping[str, Handler]:
        """What goes through many files."""
        return {RETENTION: self.expire}

    async def plan(self) -> None:
        """Queue today's work, once; for every start."""
        if self.days:
            await self.jobs.put(self._job(self.now()))

    async def expire(self, _: Job) -> RetryJobLater | None:
        """Let go of what is older in every scope, and queue tomorrow's work."""
        if not self.days:
            return None
        cutoff = self.now() - timedelta(days=self.days)
        for scope in await asyncio.to_thread(ScopeNames(self.home).all):
            done = await self._lapse(scope, cutoff)
            if done.is_any:
                log.info("memory.lapsed", scope=scope, files=done.files, lines=done.lines)
        await self.jobs.put(self._job(self.now() + _DAY))
        return None

    # -- a scope -----------------------------------------------------------------------------------

    async def _lapse(self, scope: str, cutoff: datetime) -> RetentionResult:
        done = RetentionResult()
        keys = [each.key for each in await self.records.sessions() if each.scope == scope]
        # A conversation that is over begins anew with the next message, rather than with a window of blanks.
        await self.erasing.drop_sessions(keys, unused_since=cutoff)
        folder = scope_folder(self.home, scope)
        over, going_on = await asyncio.to_thread(self._transcripts, folder / SESSIONS, cutoff)
        await self.files.remove(over)
        for path in going_on:
            done.lines += await self._blank(path, cutoff)
        aside = await asyncio.to_thread(lambda: list(self._aside(folder, cutoff)))
        for path in aside:
            await asyncio.to_thread(self.disk.remove, path)
        async with self.writing:
            done.lines += await asyncio.to_thread(self._lapse_raw, folder / "memory", cutoff)
        done.files = len(over) + len(aside)
        if done.is_any:
            self.reopen(scope)
            await self.index.purge_stale(scope)
        return done

    def _transcripts(self, folder: Path, cutoff: datetime) -> tuple[list[Path], list[Path]]:
        """Return the transcripts that are older as a whole, and those of which something may be older."""
        over: list[Path] = []
        going_on: list[Path] = []
        for path in sorted(folder.glob("*.jsonl")):
            newest = self._newest(path)
            (over if newest is not None and newest < cutoff else going_on).append(path)
        return over, going_on

    def _newest(self, path: Path) -> datetime | None:
        """Return when the last line that says so was written; None when nothing tells."""
        size = self.disk.size(path) or 0
        data = self.disk.read(path, max(size - _TAIL, 0), _TAIL) if size else b""
        return next((at for raw in reversed(data.splitlines()) if (at := _time_of(decode(raw))) is not None), None)

    def _aside(self, folder: Path, cutoff: datetime) -> Iterator[Path]:
        """Yield what stands beside the transcripts and is older: files, stored texts, notes, what was set aside."""
        for pattern in _ASIDE:
            for path in sorted(folder.glob(pattern)):
                if path.is_file() and _changed(path) < cutoff:
                    yield path
        for path in sorted((folder / "memory").glob("*.md")):
            found = _NOTE.match(path.name)
            if found and found[1] < f"{cutoff:%Y-%m-%d}":
                yield path

    # -- a transcript that goes on -----------------------------------------------------------------

    async def _blank(self, path: Path, cutoff: datetime) -> int:
        """Blank the lines before *cutoff*; return how many."""
        state = path.parents[1] / "memory" / LAPSED
        known = await asyncio.to_thread(self._load, state)
        start, blanked, is_over = known.get(path.name, 0), 0, False
        begun = start
        while not is_over:
            async with self.files.pause_writes():
                start, count, is_over = await asyncio.to_thread(self._blank_some, path, start, cutoff)
            blanked += count
        if start != begun:
            kept = {name: at for name, at in known.items() if (path.parent / name).exists()} | {path.name: start}
            await asyncio.to_thread(self.disk.replace, state, json.dumps(kept).encode())
        return blanked

    def _load(self, state: Path) -> dict[str, int]:
        try:
            found = json.loads(self.disk.load(state) or b"{}")
        except ValueError:
            return {}
        return {str(name): at for name, at in found.items() if isinstance(at, int)} if isinstance(found, dict) else {}

    def _blank_some(self, path: Path, start: int, cutoff: datetime) -> tuple[int, int, bool]:
        """Blank whole lines from *start* on; return where to go on, how many changed, and whether that was all."""
        size = self.disk.size(path) or 0
        if start > size:  # another file bears the name now
            start = 0
        length = _AT_ONCE
        data = self.disk.read(path, start, length)
        while b"\n" not in data and start + length < size:
            length *= 2
            data = self.disk.read(path, start, length)
        position, blanked, is_over = start, 0, False
        lines: list[bytes] = []
        for raw in data.splitlines(keepends=True):
            if not raw.endswith(b"\n"):
                break
            line = decode(raw)
            at = _time_of(line)
            if at is not None and at >= cutoff:
                is_over = True
                break
            lines.append(_blanked(raw, line))
            blanked += lines[-1] != raw
            position += len(raw)
        if blanked:
            self.disk.overwrite(path, start, b"".join(lines))
        return position, blanked, is_over or position == start or position >= size

    def _lapse_raw(self, memory: Path, cutoff: datetime) -> int:
        """Take older messages out of the raw archive; return how many."""
        path = memory / RAW_JSONL
        if self.disk.size(path) is None:
            return 0
        with self.disk.lock(memory / LOCK):
            before = (self.disk.load(path) or b"").splitlines(keepends=True)
            after = [raw for raw in before if not _is_older(raw, cutoff)]
            if len(after) != len(before):
                self.disk.replace(path, b"".join(after))
        return len(before) - len(after)

    @staticmethod
    def _job(at: datetime) -> Job:
        return Job(id=f"{RETENTION}:{at:%Y-%m-%d}", kind=RETENTION, scope="", payload={}, due_at=at)


def _time_of(line: Line | None) -> datetime | None:
    """Return when a line was written."""
    return next((at for name in ("timestamp", "at") if line and (at := parse_time(line.get(name))) is not None), None)


def _is_older(raw: bytes, cutoff: datetime) -> bool:
    line = decode(raw)
    message: Any = line.get("message") if line is not None else None
    at = _time_of(message) if isinstance(message, Mapping) else None
    return at is not None and at < cutoff


def _blanked(raw: bytes, line: Line | None) -> bytes:
    """Return a line of the same length that says nothing and names nobody; what is structure stays."""
    if line is None:
        return b" " * (len(raw) - 1) + b"\n"
    if kind_of(line) not in _SAID:
        return raw
    left = decode(without_words(raw, ALL, lambda _: True, whole=True)) or {}
    nobody = {name: value for name, value in left.items() if name != "by"}
    return pad_line(nobody, nobody, len(raw))


def _changed(path: Path) -> datetime:
    return datetime.fromtimestamp(path.stat().st_mtime, UTC)
