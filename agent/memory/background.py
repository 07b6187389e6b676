"""Work that no reply waits for: durable jobs, run beside the turns, a few at a time.

A job stays in the journal until its handler is done with it, so one that was due before a crash is due
after it; every handler may therefore run twice for one job, and must change things once.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import TypeAlias

import structlog

from agent.memory.files.lines import utc_now
from gateway.errors import StoreDown
from gateway.ports import Job, Jobs, Meter

log = structlog.get_logger(__name__)

AT_ONCE = 2  # slow jobs: what a person waits for comes first, at the model as elsewhere
_QUICK_AT_ONCE = 32
_IDLE = timedelta(seconds=5)  # what was put off comes due without anybody queuing it
_PAUSE = timedelta(seconds=1)  # while the store is down
_FIRST_DELAY = timedelta(seconds=30)  # of a job that broke its handler; doubled each time
_LONGEST_DELAY = timedelta(hours=1)


@dataclass(frozen=True, slots=True)
class Later:
    """The job could not be done now."""

    delay: timedelta
    reason: str  # for the operator; no word of anybody's
    counts: bool = True  # as an attempt; what only waits for its turn has not been tried


Handler: TypeAlias = Callable[[Job], Awaitable[Later | None]]  # None = done


@dataclass(slots=True)
class Tally:
    """What became of the jobs since the start, for /status."""

    done: int = 0
    put_off: int = 0
    last_done: datetime | None = None
    last_reason: str = ""  # why the last one was put off; "" once one is done again


class Background:
    """Runs the jobs that it has a handler for; others stay where they are."""

    def __init__(
        self,
        jobs: Jobs,
        *,
        quick: Mapping[str, Handler],
        slow: Mapping[str, Handler],
        at_once: int = AT_ONCE,
        now: Callable[[], datetime] = utc_now,
        meter: Meter | None = None,
    ) -> None:
        """Run *quick* kinds (files only) as they come due, and *slow* ones (models) *at_once* at most."""
        self._jobs = jobs
        self._quick = quick
        self._slow = slow
        self._at_once = at_once
        self._now = now
        self._meter = meter
        self._running: set[str] = set()
        self._owed: list[Job] = []  # quick ones that were leased when the store went down
        self._freed = asyncio.Event()
        self.tally = Tally()

    @property
    def running(self) -> int:
        """How many slow jobs are under way."""
        return len(self._running)

    async def run(self) -> None:
        """Run due jobs until cancelled, those of the last run first."""
        async with asyncio.TaskGroup() as tasks:
            while True:
                try:
                    if not await self._begin(tasks):
                        await self._wait()
                except StoreDown:
                    await asyncio.sleep(_PAUSE.total_seconds())

    async def _begin(self, tasks: asyncio.TaskGroup) -> bool:
        """Take what is due; False when there was nothing that can begin now."""
        self._freed.clear()
        quick = self._owed or list(await self._jobs.due(self._now(), _QUICK_AT_ONCE, kinds=tuple(self._quick)))
        self._owed = list(quick)
        for job in quick:
            await self._do(job, self._quick[job.kind])
            self._owed.remove(job)
        free = self._at_once - len(self._running)
        slow = await self._jobs.due(self._now(), free, kinds=tuple(self._slow)) if free and self._slow else ()
        for job in slow:
            self._running.add(job.id)
            tasks.create_task(self._in_a_slot(job), name=f"{job.kind} {job.scope}")
        return bool(quick or slow)

    async def _wait(self) -> None:
        """Return when a job was queued, a slot is free again, or it is time to look."""
        changed = asyncio.ensure_future(self._jobs.wait_changed(_IDLE))
        freed = asyncio.ensure_future(self._freed.wait())
        try:
            await asyncio.wait({changed, freed}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in (changed, freed):
                task.cancel()
                with suppress(asyncio.CancelledError):
                    await task

    async def _in_a_slot(self, job: Job) -> None:
        try:
            while True:
                try:
                    await self._do(job, self._slow[job.kind])
                except StoreDown:  # its lease is ours until the store knows what became of it
                    await asyncio.sleep(_PAUSE.total_seconds())
                else:
                    return
        finally:
            self._running.discard(job.id)
            self._freed.set()

    async def _do(self, job: Job, handler: Handler) -> None:
        """Run one job to its end or put it off. Raises StoreDown."""
        try:
            later = await handler(job)
        except StoreDown:
            raise
        except Exception as error:  # the service boundary: a job that breaks waits, the others go on
            log.exception("background.failed", job=job.id, kind=job.kind)
            delay = min(_FIRST_DELAY * 2.0 ** min(job.attempts, 20), _LONGEST_DELAY)
            later = Later(delay, type(error).__name__)
        if later is None:
            await self._jobs.finish(job)
            self.tally.done += 1
            self.tally.last_done, self.tally.last_reason = self._now(), ""
        else:
            await self._jobs.put_off(job, later.delay, later.reason, counts=later.counts)
            self.tally.put_off += 1
            self.tally.last_reason = later.reason
            log.info("background.later", job=job.id, kind=job.kind, reason=later.reason)
        if self._meter is not None:
            self._meter.count("jobs", outcome="done" if later is None else "put_off")
