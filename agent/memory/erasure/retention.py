"""`memory.retention_days`: a daily job that deletes messages and files by age; documents and summaries are kept.

Turns that are older than the limit are removed. Those that hold a current conversation's snapshot or replay start stay
without their words, so that indices do not change (docs/adr/0012-purge.md).
"""

from __future__ import annotations

import asyncio
import re
from collections import defaultdict
from collections.abc import Awaitable, Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path
from typing import Any

import structlog

from agent.base.scopes import scope_folder
from agent.base.transcript_lines import decode, encode, kind_of, parse_time
from agent.memory.erasure.scope_files import SESSIONS, ErasureStorage, owe_mirror, pay_mirror
from agent.memory.erasure.word_match import ALL, without_words
from agent.memory.jobs.job_runner import JobKind, JobPace, RetryJobLater
from gateway.errors import StoreUnavailable
from gateway.events import SessionKey
from gateway.ports.journal import Job, Line
from gateway.ports.memory import RAW_JSONL, FileKind

log = structlog.get_logger(__name__)

RETENTION = "retention"
RETENTION_JOBS = JobKind(name=RETENTION, pace=JobPace.LONG, locks_scopes=True)
_DAY = timedelta(days=1)
_RETRY = timedelta(minutes=10)
_LAPSING_KINDS = frozenset({"message", "command", "notice", "delta"})
_OTHER_FILES = (
    f"{SESSIONS}/*.corrupt",
    f"{SESSIONS}/*.json",
    "memory/*.corrupt",
    "memory/*.edited-*",
)
_NOTE = re.compile(r"(\d{4}-\d{2}-\d{2})-.+\.md\Z")  # session notes quote messages


@dataclass(slots=True)
class RetentionResult:
    """Number of removed turns, files, and raw messages and notes of a scope."""

    turns: int = 0
    files: int = 0
    lines: int = 0

    @property
    def is_changed(self) -> bool:
        """True if something was deleted."""
        return bool(self.turns or self.files or self.lines)


@dataclass(frozen=True, slots=True, kw_only=True)
class RetentionJob:
    """Handler of the job; with *days* 0 nothing is deleted. *unlist* takes sessions out of lists of conversations."""

    storage: ErasureStorage
    days: int
    unlist: Callable[[Collection[SessionKey]], Awaitable[None]]

    async def plan(self) -> None:
        """Enqueue today's job; idempotent. Called at every start."""
        if self.days:
            await self.storage.jobs.put(self._job(self.storage.now()))

    async def expire(self, _: Job) -> RetryJobLater | None:
        """Delete older data in every scope, and enqueue tomorrow's job."""
        if not self.days:
            return None
        cutoff = self.storage.now() - timedelta(days=self.days)
        is_complete = True
        keys: dict[str, list[SessionKey]] = defaultdict(list)  # of the sessions, by scope
        for session in await self.storage.records.sessions():
            keys[session.scope].append(session.key)
        for scope in await self.storage.scopes():
            try:
                await self.storage.session_files.flush()
            except StoreUnavailable as error:  # the other scopes need not wait
                log.info("memory.retention_waits", scope=scope, reason=str(error))
                is_complete = False
                continue
            result = await self._expire_scope(scope, keys[scope], cutoff)
            if result.is_changed:
                log.info("memory.lapsed", scope=scope, turns=result.turns, files=result.files, lines=result.lines)
        if not is_complete:
            return RetryJobLater(_RETRY, "messages of a scope are not written yet", counts=False)
        await self.storage.jobs.put(self._job(self.storage.now() + _DAY))
        return None

    # -- a scope -----------------------------------------------------------------------------------

    async def _expire_scope(self, scope: str, keys: Sequence[SessionKey], cutoff: datetime) -> RetentionResult:
        result = RetentionResult()
        await owe_mirror(self.storage.home, scope, self.storage.disk, erasure=RETENTION)
        # The next message of an unused session starts a new one, instead of a window of blank lines.
        await self.unlist(await self.storage.store.drop_sessions(keys, unused_since=cutoff))
        folder = scope_folder(self.storage.home, scope)
        result.turns = await self.storage.transcripts.lapse(scope, cutoff, partial(_blank_line, cutoff=cutoff))
        await self.storage.session_files.write_scope(scope)
        others = await asyncio.to_thread(lambda: list(self._other_files(folder, cutoff)))
        for path in others:
            await asyncio.to_thread(self.storage.disk.remove, path)
        async with self.storage.writing:
            result.lines = await self.storage.history.rewrite(scope, partial(_without_older, cutoff=cutoff))
            await self.storage.settle_history(scope)
        await pay_mirror(self.storage.home, scope, self.storage.disk, erasure=RETENTION)
        removed = await self.storage.files.remove(scope, FileKind.ATTACHMENT, FileKind.TEXT, before=cutoff)
        result.files = removed + len(others)
        if result.is_changed:
            self.storage.reopen(scope)
            await self.storage.index.purge_stale(scope)
        return result

    def _other_files(self, folder: Path, cutoff: datetime) -> Iterator[Path]:
        """Yield older edited files and corrupt lines."""
        for pattern in _OTHER_FILES:
            for path in sorted(folder.glob(pattern)):
                if path.is_file() and datetime.fromtimestamp(path.stat().st_mtime, UTC) < cutoff:
                    yield path

    @staticmethod
    def _job(at: datetime) -> Job:
        return Job(id=f"{RETENTION}:{at:%Y-%m-%d}", kind=RETENTION, scope="", payload={}, due_at=at)


def _time_of(line: Line | None) -> datetime | None:
    """Return a line's time, None if it has none."""
    return next((at for name in ("timestamp", "at") if line and (at := parse_time(line.get(name))) is not None), None)


def _without_older(name: str, body: bytes, cutoff: datetime) -> bytes:
    """Return "" for an older raw message or session note."""
    note = _NOTE.match(name)
    if note:
        return b"" if note[1] < f"{cutoff:%Y-%m-%d}" else body
    return b"" if name == RAW_JSONL and _is_older(body, cutoff) else body


def _is_older(raw: bytes, cutoff: datetime) -> bool:
    line = decode(raw)
    message: Any = line.get("message") if line is not None else None
    at = _time_of(message) if isinstance(message, Mapping) else None
    return at is not None and at < cutoff


def _blank_line(raw: bytes, cutoff: datetime) -> bytes:
    """Return an old line of text without its words and sender; any other line unchanged."""
    line = decode(raw)
    at = _time_of(line)
    if line is None or at is None or at >= cutoff or kind_of(line) not in _LAPSING_KINDS:
        return raw
    cleared = decode(without_words(raw, ALL, lambda _: True, whole=True)) or {}
    blank = {name: value for name, value in cleared.items() if name != "by"}
    return raw if blank == line else encode(blank)
