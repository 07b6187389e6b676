"""Journals, disks and turns for tests of memory: the ports' promises in plain dictionaries, bytes that are counted."""

from __future__ import annotations

import asyncio
import base64
import errno
import hashlib
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, TypeVar

from agent.base import transcript_lines as build
from agent.base.disk import Disk
from gateway.errors import StoreUnavailable
from gateway.events import OutboundMessage, SessionKey
from gateway.ports.journal import InboxRow, Job, Line, MessageOutcome, SessionRow, TurnCommit, TurnRecord, UnwrittenTurn
from gateway.ports.memory import StoredTurn, StoredWindow
from gateway.store import turn_commits
from gateway.store.claims import WorkerIdentity
from gateway.store.documents import SqlDocuments
from gateway.store.engine import StoreEngine, StoreLimits
from gateway.store.files import SqlFiles
from gateway.store.history import SqlHistory
from gateway.store.jobs import JobQueueStats, SqlJobs
from gateway.store.records import SqlTurnRecords
from gateway.store.row_codec import quote, with_end, write_key
from gateway.store.transcripts import FORGET_CHANGES, SqlTranscripts
from tests.fakes.store import InlineWriter, new_connection

T = TypeVar("T")
START = datetime(2026, 11, 21, 21, 0, tzinfo=UTC)
ANN = SessionKey("telegram", "42")
SCOPE = "people/telegram%3a42"
TRANSCRIPT = "abcdefgh234567aa"


def turn_name(n: int | str) -> str:
    """Return a turn id of the usual shape."""
    return "t" + base64.b32encode(hashlib.sha256(str(n).encode()).digest()[:10]).decode().lower()


def print_transcript(records: Sequence[TurnRecord]) -> list[bytes]:
    """Return the head of a transcript and the lines of each record, as its file has them."""
    spans = ((each, (each.from_index, each.to_index)) for each in records)
    turns = (with_end(each.turn, each.lines, span, each.inbox, each.outcome, each.at) for each, span in spans)
    head = build.encode(build.head_line(TRANSCRIPT, str(ANN), records[0].at))
    return [head, *(b"".join(map(build.encode, lines)) for lines in turns)]


class FakeRecords(SqlTurnRecords):
    """Records and transcripts over the store's own statements, in memory and without a queue. Sessions stay."""

    def __init__(self, *records: TurnRecord) -> None:
        """Begin with *records* committed."""
        self.connection = new_connection()
        writer = InlineWriter(self.connection)
        engine = StoreEngine(writer, StoreLimits(), lambda: START, WorkerIdentity())
        self.engine = engine
        self.transcripts: SqlTranscripts = SqlTranscripts(engine)
        self.documents: SqlDocuments = SqlDocuments(engine)
        self.history: SqlHistory = SqlHistory(engine)
        self.files: SqlFiles = SqlFiles(engine, None)
        self.rows: dict[SessionKey, SessionRow] = {}
        self.notes: dict[int, InboxRow] = {}
        self.said: list[OutboundMessage] = []
        self.when_appended: Callable[[TurnRecord], object] = lambda _: None
        self._writer = writer
        self._committed = asyncio.Event()
        for record in records:
            self.commit(record)

    @property
    def is_down(self) -> bool:
        """True while every operation fails."""
        return self._writer.fault is not None

    @is_down.setter
    def is_down(self, is_down: bool) -> None:
        self._writer.fault = OSError("the fake is down") if is_down else None

    @property
    def stored(self) -> tuple[UnwrittenTurn, ...]:
        """The records that are in no file yet."""
        return turn_commits.unwritten(self.connection, -(2**62), 10_000, lambda _: True)

    def commit(self, record: TurnRecord) -> TurnRecord:
        """Commit as `SqlJournal.commit` would, as far as records and sessions are concerned."""
        stored = turn_commits.find_record(self.connection, record.turn)
        if stored is None:
            new = turn_commits.encode(TurnCommit(record=record), 0)
            stored = turn_commits._numbered(record, turn_commits._store(self.connection, new)[0])
            self.engine.may_have_stale = self.engine.may_have_stale or new.deletion is not None
        if record.transcript:
            before = self.rows.get(record.key)
            index = record.to_index if record.to_index > record.from_index or before is None else before.next_index
            self.rows[record.key] = SessionRow(
                key=record.key,
                transcript=record.new_transcript or record.transcript,
                next_index=0 if record.new_transcript else index,
                created_at=START,
                scope=record.scope,
                head=stored.seq,
                changes=self._changes(record),
            )
        self._committed.set()
        return stored

    def _changes(self, record: TurnRecord) -> int:
        columns = (quote(record.scope), write_key(record.key), record.new_transcript or record.transcript)
        found = self.connection.execute(
            "SELECT changes FROM stale_file WHERE scope = ? AND key = ? AND transcript = ?", columns
        ).fetchone()
        return int(found[0]) if found is not None else 0

    def forget_removed(self) -> None:
        """Do as the store does a while after turns were removed, and their files written."""
        self.connection.execute("DELETE FROM record WHERE body IS NULL")
        self.connection.execute("UPDATE stale_file SET written = changes")
        self.connection.execute(FORGET_CHANGES)

    async def unwritten(self, after: int, limit: int) -> tuple[UnwrittenTurn, ...]:
        """Return what is in no file yet, after *after*."""
        self._check()
        return tuple(each for each in self.stored if each.seq > after)[:limit]

    async def wait_unwritten(self) -> None:
        """Wait for the next commit."""
        await self._committed.wait()
        self._committed.clear()

    def mark_written(self, seqs: Sequence[int]) -> None:
        """Note what is in its file."""
        self._check()
        self.connection.executemany("DELETE FROM unwritten WHERE seq = ?", [(seq,) for seq in seqs])

    async def append(self, record: TurnRecord, *, outbound: Sequence[OutboundMessage] = ()) -> None:
        """Commit lines that belong to no inbox row; the same turn again changes nothing."""
        self._check()
        if turn_commits.find_record(self.connection, record.turn) is None:
            self.said += outbound
        self.commit(record)
        self.when_appended(record)

    async def pending_notes(self, key: SessionKey, note: int) -> InboxRow | None:
        """Return a note that was put here."""
        return self.notes.get(note)

    async def append_for(self, note: int, record: TurnRecord) -> bool:
        """Commit and end the note, if it is here."""
        self._check()
        if self.notes.pop(note, None) is None:
            return False
        self.commit(record)
        return True

    async def scope_of(self, key: SessionKey) -> str | None:
        """Return the scope of a row."""
        self._check()
        return self.rows[key].scope if key in self.rows else None

    async def has_session(self, chat: SessionKey, scope: str) -> bool:
        """Return True if *chat* or one of its threads has a session of *scope*."""
        return any(row.key.parent == chat for row in await self.sessions(scope))

    async def sessions(self, scope: str = "") -> tuple[SessionRow, ...]:
        """Return the rows (of *scope*)."""
        self._check()
        return tuple(row for row in reversed(self.rows.values()) if scope in ("", row.scope))

    def _check(self) -> None:
        if self.is_down:
            raise StoreUnavailable("the fake is down")


class CountingTranscripts(SqlTranscripts):
    """The transcripts of fake records; counts the bytes of the bodies that are read."""

    def __init__(self, records: FakeRecords) -> None:
        super().__init__(records.engine)
        self.bytes_read = 0

    async def window(self, scope: str, key: SessionKey, transcript: str) -> StoredWindow:
        """Read and count."""
        found = await super().window(scope, key, transcript)
        self.bytes_read += sum(len(each.body) for each in found.turns) + len(found.snapshot)
        return found

    async def since(self, scope: str, key: SessionKey, transcript: str, after: int) -> Sequence[StoredTurn]:
        """Read and count."""
        found = await super().since(scope, key, transcript, after)
        self.bytes_read += sum(len(each.body) for each in found)
        return found

    async def newest(
        self, scope: str, key: SessionKey, limit: int, *, before: int | None = None, transcript: str = ""
    ) -> Sequence[StoredTurn]:
        """Read and count."""
        found = await super().newest(scope, key, limit, before=before, transcript=transcript)
        self.bytes_read += sum(len(each.body) for each in found)
        return found


class FakeJobs(SqlJobs):
    """Jobs in memory, on a clock that stands still."""

    def __init__(self) -> None:
        self.now = START
        self.jobs: dict[str, Job] = {}
        self.leased: set[str] = set()
        self.reasons: list[str] = []
        self.asked: Counter[str] = Counter()
        self._changed = asyncio.Event()

    async def put(self, job: Job) -> None:
        """Queue once."""
        self.jobs.setdefault(job.id, job)
        self._changed.set()

    async def due(self, now: datetime, limit: int, *, kinds: Collection[str]) -> tuple[Job, ...]:
        """Lease what is due."""
        free = [job for job in self.jobs.values() if job.id not in self.leased and job.kind in kinds]
        found = [job for job in free if job.due_at <= now][:limit]
        self.leased |= {job.id for job in found}
        return tuple(found)

    async def next_due(self, after: datetime, *, kinds: Collection[str]) -> datetime | None:
        """Return when the next one is due."""
        free = [job for job in self.jobs.values() if job.id not in self.leased and job.kind in kinds]
        return min((job.due_at for job in free if job.due_at > after), default=None)

    async def pending_of(self, kind: str) -> tuple[Job, ...]:
        """Return the jobs of a kind, the earliest first."""
        return tuple(sorted((job for job in self.jobs.values() if job.kind == kind), key=lambda job: job.due_at))

    async def advance(self, job: Job, next_: Job | None) -> bool:
        """Replace a job that is here."""
        if self.jobs.pop(job.id, None) is None:
            return False
        if next_ is not None:
            await self.put(next_)
        return True

    async def pending_in(self, scope: str) -> tuple[Job, ...]:
        """Return the scope's jobs; counts how often it was asked."""
        self.asked[scope] += 1
        return tuple(job for job in self.jobs.values() if job.scope == scope)

    async def finish(self, job: Job) -> None:
        """Remove, once or twice."""
        self.jobs.pop(job.id, None)

    async def put_off(
        self,
        job: Job,
        delay: timedelta,
        reason: str,
        *,
        counts: bool = True,
        payload: Mapping[str, Any] | None = None,
    ) -> None:
        """Count the attempt and make it due later."""
        self.reasons.append(reason)
        self.leased.discard(job.id)
        if job.id in self.jobs:
            self.jobs[job.id] = Job(
                id=job.id,
                kind=job.kind,
                scope=job.scope,
                payload=job.payload if payload is None else payload,
                due_at=self.now + delay,
                attempts=job.attempts + counts,
            )

    async def count(self) -> tuple[JobQueueStats, ...]:
        """Count what is not taken up, by kind."""
        free: dict[str, list[Job]] = {}
        for job in self.jobs.values():
            mine = free.setdefault(job.kind, [])
            mine += [] if job.id in self.leased else [job]
        return tuple(
            JobQueueStats(
                kind=kind,
                waiting=sum(job.due_at <= self.now for job in mine),
                lag_seconds=max([0.0, *((self.now - job.due_at).total_seconds() for job in mine)]),
                later=sum(job.due_at > self.now for job in mine),
            )
            for kind, mine in sorted(free.items())
        )

    async def wait_changed(self, at_most: timedelta) -> None:
        """Wait for the next put, or as long."""
        with suppress(TimeoutError):
            async with asyncio.timeout(at_most.total_seconds()):
                await self._changed.wait()
        self._changed.clear()


def remember_job(fact: str, *, scope: str = SCOPE, n: int = 0, origin: str = "user") -> Job:
    """Return a job as a turn's commit queues it."""
    payload = {"fact": fact, "origin": origin, "turn": turn_name(n), "by": "telegram%3a42"}
    return Job(id=f"remember:{turn_name(n)}.0", kind="remember", scope=scope, payload=payload, due_at=START)


class CountingDisk(Disk):
    """A real disk that counts: bytes read and written, calls by name."""

    def __init__(self) -> None:
        self.bytes_read = 0
        self.bytes_written = 0
        self.calls: Counter[str] = Counter()

    def read(self, path: Path, start: int, length: int) -> bytes:
        """Read and count."""
        data = super().read(path, start, length)
        self.bytes_read += len(data)
        self.calls["read"] += 1
        return data

    def write(self, fd: int, data: bytes) -> None:
        """Write and count."""
        super().write(fd, data)
        self.bytes_written += len(data)
        self.calls["write"] += 1

    def sync(self, fd: int) -> None:
        """Sync and count."""
        super().sync(fd)
        self.calls["sync"] += 1

    def reset(self) -> None:
        """Begin counting anew."""
        self.bytes_read = self.bytes_written = 0
        self.calls.clear()


class ProcessCrash(BaseException):
    """The process is gone: no handler runs, no promise is kept."""


@dataclass
class FaultyDisk(Disk):
    """A real disk whose *at*th change fails or is where the process dies; a dying write is torn in the middle."""

    at: int = -1
    error: BaseException = field(default_factory=lambda: OSError(errno.ENOSPC, "No space left on device"))
    only: str = ""  # part of the path that fails; empty means every path
    count: int = 0
    paths: dict[int, str] = field(default_factory=dict)

    def _step(self, name: str) -> bool:
        if self.only and self.only not in name:
            return False
        self.count += 1
        return self.count - 1 == self.at

    def step(self, name: str) -> None:
        """Count one more place to die in: for what is written elsewhere."""
        if self._step(name):
            raise self.error

    def open_append(self, path: Path) -> int:
        """Open, or fail."""
        if self._step(str(path)):
            raise self.error
        fd = super().open_append(path)
        self.paths[fd] = str(path)
        return fd

    def write(self, fd: int, data: bytes) -> None:
        """Write; the failing write leaves half of its bytes."""
        if self._step(self.paths.get(fd, "")):
            super().write(fd, data[: len(data) // 2])
            raise self.error
        super().write(fd, data)

    def sync(self, fd: int) -> None:
        """Sync, or fail."""
        if self._step(self.paths.get(fd, "")):
            raise self.error
        super().sync(fd)

    def close(self, fd: int) -> None:
        """Close; the number may soon be another file's."""
        self.paths.pop(fd, None)
        super().close(fd)

    def truncate(self, fd: int, size: int) -> None:
        """Truncate, or fail."""
        if self._step(self.paths.get(fd, "")):
            raise self.error
        super().truncate(fd, size)

    def rename(self, old: Path, new: Path) -> None:
        """Rename, or fail before it."""
        if self._step(str(old)):
            raise self.error
        super().rename(old, new)


class DyingDisk(FaultyDisk):
    """A disk with more places to die: before and after a file is replaced or removed."""

    def replace(self, path: Path, data: bytes) -> None:
        """Replace, or die before or after it."""
        self.step(str(path))
        super().replace(path, data)
        self.step(str(path))

    def exchange(self, beside: Path, path: Path) -> None:
        """Exchange, or die before or after it."""
        self.step(str(path))
        super().exchange(beside, path)
        self.step(str(path))

    def rename(self, old: Path, new: Path) -> None:
        """Rename, or die before or after it."""
        super().rename(old, new)
        self.step(str(old))

    def remove(self, path: Path) -> None:
        """Remove, or die before or after it."""
        self.step(str(path))
        super().remove(path)
        self.step(str(path))


async def killed_runs(
    folder: Path,
    prepare: Callable[[Path], Awaitable[T]],
    work: Callable[[T, Disk | None], Awaitable[object]],
    *,
    more_than: int,
    at: Sequence[int] = range(400),
) -> AsyncIterator[tuple[int, T]]:
    """Yield each write at which *work* was killed before it was done again, and what *prepare* had made for it.

    Ends with the run that nothing kills, in which *work* has made more than *more_than* writes.
    """
    for n in at:
        place = await prepare(folder / str(n))
        try:
            await work(place, FaultyDisk(at=n, error=ProcessCrash()))
        except ProcessCrash:
            await work(place, None)
        else:
            assert n > more_than
            return
        yield n, place
    raise AssertionError("the work has more writes than were tried")


def exchange(
    n: int,
    start: int,
    *,
    said: str = "",
    answered: str = "",
    tools: int = 0,
    before: Sequence[Line] = (),
    blobs: Mapping[str, str] | None = None,
    **fields: Any,
) -> TurnRecord:
    """Return the record of turn *n*: a user line, *tools* calls with results, an answer."""
    turn = turn_name(fields.pop("name", n))
    at = START + timedelta(minutes=n)
    lines: list[Line] = [*before]
    i = start

    def add(role: str, content: Any, **more: Any) -> None:
        nonlocal i
        lines.append(build.message(i, turn, role, content, at, **more))
        i += 1

    add("user", said or f"question {n}", head=f"Sat 21 Nov 21:{n % 60:02d} UTC, Ann", mid=f"m{n}", origin="user")
    for k in range(tools):
        call = {"id": f"c{n}.{k}", "type": "function", "function": {"name": "look", "arguments": "{}"}}
        add("assistant", "", tool_calls=[call])
        add("tool", f"result {k}", tool_call_id=f"c{n}.{k}", name="look")
    add("assistant", answered or f"answer {n}")
    outcome = fields.pop("outcome", MessageOutcome.ANSWERED)
    end = build.end_line(turn, from_index=start, to_index=i, inbox=[str(n)], outcome=str(outcome), at=at)
    given: dict[str, Any] = {"key": ANN, "transcript": TRANSCRIPT, "scope": SCOPE}
    return TurnRecord(
        turn=turn,
        outcome=outcome,
        lines=(*lines, end),
        from_index=start,
        to_index=i,
        inbox=(n,),
        at=at,
        blobs=dict(blobs or {}),
        **(given | fields),
    )


def talk(count: int, *, first: int = 0, start: int = 0, **fields: Any) -> list[TurnRecord]:
    """Return *count* plain exchanges in a row."""
    records = []
    for n in range(first, first + count):
        records.append(exchange(n, start, **fields))
        start = records[-1].to_index
    return records
