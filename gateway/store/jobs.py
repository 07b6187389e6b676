"""Background jobs: queueing, leasing, finishing and postponing background jobs."""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from gateway.ports.journal import Job, JobAdvance
from gateway.store.database import LISTED, Database
from gateway.store.engine import StoreEngine
from gateway.store.erased_words import ErasedWords, store_cleared
from gateway.store.row_codec import (
    JOB_COLUMNS,
    advance_job,
    encode_advance,
    encode_job,
    micros,
    moment,
    put_job,
    quote,
    read_job,
    sql,
    write_json,
)
from gateway.store.suspects import KILLED

_DUE = sql(
    "SELECT seq, reason FROM job WHERE leased = 0 AND due_at <= ? AND kind",
    LISTED,
    "ORDER BY due_at, seq LIMIT ?",
)
_LEASE = sql("UPDATE job SET leased = 1, worker = ? WHERE seq = ? AND leased = 0 RETURNING", JOB_COLUMNS)
_PENDING = sql("SELECT", JOB_COLUMNS, "FROM job WHERE scope = ? ORDER BY seq")
_PENDING_OF = sql("SELECT", JOB_COLUMNS, "FROM job WHERE kind = ? ORDER BY due_at, seq")
_NEXT_DUE = sql("SELECT min(due_at) FROM job WHERE leased = 0 AND due_at > ? AND kind", LISTED)
_COUNT = (
    "SELECT kind, count(*) FILTER (WHERE leased = 0 AND due_at <= ?1), min(due_at) FILTER (WHERE leased = 0), "
    "count(*) FILTER (WHERE leased = 0 AND due_at > ?1) FROM job GROUP BY kind ORDER BY kind"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class JobQueueStats:
    """How the unfinished jobs of one kind stand."""

    kind: str
    waiting: int  # due and not leased
    lag_seconds: float  # age of the oldest due job
    later: int  # scheduled or postponed


def _lease_jobs(database: Database, worker: str, now: int, kinds: str, limit: int) -> tuple[Job, ...]:
    due = database.execute(_DUE, (now, kinds, limit)).fetchall()
    # A job that was leased at a crash may have caused it: it is leased by itself, so the next crash charges no other.
    killed = next((place for place, (_, reason) in enumerate(due) if reason == KILLED), len(due))
    leased = [database.execute(_LEASE, (worker, seq)).fetchone() for seq, _ in due[: max(killed, 1)]]
    return tuple(read_job(columns) for columns in leased if columns is not None)


def _clear(words: ErasedWords, erasures: Sequence[Job], jobs: list[Job]) -> list[Job]:
    cleared = (words.clear_job(erasures, each) for each in jobs)
    return [each for each in cleared if each is not None]


class SqlJobs:
    """Durable background work. A job that was due before a crash is due after it."""

    def __init__(self, engine: StoreEngine) -> None:
        self._engine = engine

    async def put(self, job: Job) -> None:
        """Queue *job*; the same id again changes nothing."""

        def put(database: Database, queued: list[Job]) -> None:
            for each in queued:
                put_job(database, encode_job(each))

        await store_cleared(
            self._engine,
            job.scope,
            [job],
            _clear,
            put,
            then=lambda _: self._engine.queued_job.set(),
            group=job.scope,
        )

    async def due(self, now: datetime, limit: int, *, kinds: Collection[str]) -> tuple[Job, ...]:
        """Return jobs of *kinds* due at *now*, oldest first, each leased to this process until finished or put off."""
        owner, listed = self._engine.owner, write_json(list(kinds))
        return await self._engine.writer.submit(
            lambda database: _lease_jobs(database, owner, micros(now), listed, limit)
        )

    async def next_due(self, after: datetime, *, kinds: Collection[str]) -> datetime | None:
        """Return when the first job of *kinds* becomes due that is not leased and due later than *after*."""
        ((due_at,),) = await self._engine.fetch(_NEXT_DUE, micros(after), write_json(list(kinds)))
        return moment(due_at) if due_at is not None else None

    async def pending_of(self, kind: str) -> tuple[Job, ...]:
        """Return the unfinished jobs of *kind* in every scope, due or not, the earliest first."""
        return tuple(map(read_job, await self._engine.fetch(_PENDING_OF, kind)))

    async def pending_in(self, scope: str) -> tuple[Job, ...]:
        """Return the scope's unfinished jobs, due or not, in the order they were queued."""
        return tuple(map(read_job, await self._engine.fetch(_PENDING, quote(scope), group=scope)))

    async def finish(self, job: Job) -> None:
        """Remove *job*."""
        await self._engine.writer.submit(
            lambda database: database.execute("DELETE FROM job WHERE id = ?", (quote(job.id),)).close(),
            group=job.scope,
        )

    async def advance(self, job: Job, next_: Job | None) -> bool:
        """Replace *job* with *next_* in one transaction, or remove it; False, and no effect, if it was removed.

        A job that was cancelled while it ran is therefore not queued again.
        """

        def advance(database: Database, queued: list[Job]) -> bool:
            return advance_job(database, encode_advance(JobAdvance(job, *queued)))

        return await store_cleared(
            self._engine,
            job.scope,
            [] if next_ is None else [next_],
            _clear,
            advance,
            then=lambda _: self._engine.queued_job.set(),
        )

    async def put_off(
        self,
        job: Job,
        delay: timedelta,
        reason: str,
        *,
        counts: bool = True,
        payload: Mapping[str, Any] | None = None,
    ) -> None:
        """Make *job* due again after *delay*; its attempt is counted, unless it only had to wait for its turn.

        *payload* replaces that of the job, if given.
        """
        due_at = micros(self._engine.clock() + delay)
        data = None if payload is None else write_json(payload)
        await self._engine.writer.submit(
            lambda database: database.execute(
                "UPDATE job SET leased = 0, attempts = attempts + ?, due_at = ?, reason = ?,"
                " payload = coalesce(?, payload) WHERE id = ?",
                (int(counts), due_at, quote(reason), data, quote(job.id)),
            ).close(),
            lambda _: self._engine.queued_job.set(),
        )

    async def count(self) -> tuple[JobQueueStats, ...]:
        """Return the number of unfinished jobs by kind and state."""
        now = self._engine.now()
        found = await self._engine.fetch(_COUNT, now)
        return tuple(
            JobQueueStats(
                kind=kind,
                waiting=waiting,
                lag_seconds=max(0.0, (now - oldest) / 1_000_000) if oldest is not None else 0.0,
                later=later,
            )
            for kind, waiting, oldest, later in found
        )

    async def wait_changed(self, at_most: timedelta) -> None:
        """Return when a job was queued, or after *at_most*."""
        with suppress(TimeoutError):
            async with asyncio.timeout(at_most.total_seconds()):
                await self._engine.queued_job.wait()
        self._engine.queued_job.clear()
