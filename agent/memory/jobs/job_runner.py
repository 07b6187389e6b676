"""Work that no reply waits for: durable jobs, run beside the turns, a few at a time.

A job stays in the journal until its handler is done with it, so one that was due before a crash is due
after it; every handler may therefore run twice for one job, and must change things once.

A job that asks a model stores the answer as a second job, which applies it, so that a crash pays for no answer twice.

Turns and jobs share the lock of their memory's scope; moving the scope's files excludes them.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from enum import Enum
from typing import TYPE_CHECKING, Any, TypeAlias

import structlog

from agent.base import transcript_lines as build
from agent.base.locks import WorkerSlots
from agent.base.transcript_lines import utc_now
from agent.memory.jobs.token_budget import BudgetStatus, TokenBudget
from gateway.errors import ObjectsUnavailable, StoreUnavailable, exponential_delay
from gateway.events import Attachment, ChatKind, MessageButton, OutboundKind, OutboundMessage, short_id
from gateway.ports.journal import Job, MessageOutcome, SessionRow, TurnRecord
from gateway.ports.metrics import MetricsRecorder

if TYPE_CHECKING:
    from gateway.store.jobs import SqlJobs
    from gateway.store.records import SqlTurnRecords


class JobPace(Enum):
    """How the jobs of a kind are run."""

    QUICK = "quick"  # one after the other, as soon as they are due
    SLOW = "slow"  # they ask a model: a few at a time, while the token budget allows it
    LONG = "long"  # they read a lot, and ask no model: one at a time
    TASK = "task"  # steps of what a person started: a few at a time, within the caps of that person
    PUSH = "push"  # short calls of the servers of others, which may hang: many at a time


class JobErasure(Enum):
    """The effect of an erasure on a job with its words in the payload."""

    NONE = "none"  # nothing: no text of people or of the model is written later
    OWN = "own"  # remove it; its `person` may ask for that too, by its `text`
    ADMIN = "admin"  # remove it; only an admin may
    ANSWER = "answer"  # remove them from its answer; without one, as ADMIN


@dataclass(frozen=True, slots=True, kw_only=True)
class JobKind:
    """One kind. Its jobs may also be stored with one of the *aliases*: those of an earlier release, or of one part.

    If it *locks_scopes*, its handler acquires the locks that it needs; others run under that of their job's scope.
    """

    name: str
    pace: JobPace
    aliases: tuple[str, ...] = ()
    erasure: JobErasure = JobErasure.NONE
    export: str = ""  # file of an export that has the payloads of the scope's jobs of this name
    locks_scopes: bool = False

    @property
    def names(self) -> tuple[str, ...]:
        """Every name that its jobs may have."""
        return (self.name, *self.aliases)


def by_name(kinds: Iterable[JobKind]) -> Mapping[str, JobKind]:
    """Return the kinds by each of their names."""
    return {name: kind for kind in kinds for name in kind.names}


log = structlog.get_logger(__name__)

AT_ONCE = 2  # slow jobs: turns have priority at the model
TASKS_AT_ONCE = 4
_PUSHES_AT_ONCE = 32
_QUICK_AT_ONCE = 32
# The wall clock may jump and the machine may sleep, and the token budget has a new day: no event tells of these.
LONGEST_SLEEP = timedelta(seconds=30)
_PAUSE = timedelta(seconds=1)  # while the store is down
_OBJECTS_DELAY = timedelta(seconds=10)  # while the object store is down
_FIRST_DELAY = timedelta(seconds=30)  # of a job that broke its handler; doubled each time
_LONGEST_DELAY = timedelta(hours=1)


@dataclass(frozen=True, slots=True)
class RetryJobLater:
    """The job could not be done now."""

    delay: timedelta
    reason: str  # for the operator; quotes no message
    counts: bool = True  # as an attempt; a job that only waits was not tried
    payload: Mapping[str, Any] | None = None  # replaces the job's; None = unchanged


Handler: TypeAlias = Callable[[Job], Awaitable[RetryJobLater | None]]  # None = done


@dataclass(slots=True, kw_only=True)
class JobKindStatus:
    """How the jobs of one kind stand, for /status and metrics."""

    kind: str
    running: int = 0
    waiting: int = 0  # due
    lag_seconds: float = 0.0  # since the oldest of them became due
    later: int = 0  # planned, or put off
    done: int = 0  # since the start, as the next two
    failures: int = 0
    last_run: datetime | None = None

    @property
    def is_idle(self) -> bool:
        """Nothing of the kind is to be done now, or went wrong."""
        return not (self.running or self.waiting or self.failures)


class JobRunner:
    """Runs the jobs that it has a handler for; others stay where they are."""

    def __init__(
        self,
        jobs: SqlJobs,
        handlers: Mapping[JobKind, Handler],
        *,
        at_once: int = AT_ONCE,
        tasks_at_once: int = TASKS_AT_ONCE,
        token_budget: TokenBudget | None = None,
        now: Callable[[], datetime] = utc_now,
        meter: MetricsRecorder | None = None,
        slots: WorkerSlots | None = None,
        longest_sleep: timedelta = LONGEST_SLEEP,
    ) -> None:
        """Run jobs that are due at their pace, of slow ones at most *at_once*, while the token budget allows it.

        Of the steps of tasks at most *tasks_at_once* run side by side.

        No job starts while a turn has all *slots* to itself.
        """
        self._slots = slots or WorkerSlots(1)
        self._jobs = jobs
        self._handlers = handlers
        self._kinds = by_name(handlers)
        self._quick, self._slow, self._long, self._steps, self._pushes = (
            tuple(name for name, kind in self._kinds.items() if kind.pace is pace) for pace in JobPace
        )
        self._at_once = at_once
        self._tasks_at_once = tasks_at_once
        self._token_budget = token_budget
        self._now = now
        self._meter = meter
        self._longest_sleep = longest_sleep
        self._running: dict[str, str] = {}  # job -> kind, of those that are in a slot
        self._owed: list[Job] = []  # quick ones that were leased when the store went down
        self._freed = asyncio.Event()
        self._looked_at = now()  # the jobs due until then were begun, or cannot begin yet
        self._tallies = {kind.name: JobKindStatus(kind=kind.name) for kind in handlers}

    @property
    def running(self) -> int:
        """The number of jobs that are running in a slot."""
        return len(self._running)

    @property
    def jobs(self) -> SqlJobs:
        """The queue of the jobs."""
        return self._jobs

    def can_do(self, kind: str) -> bool:
        """Return True if jobs of this kind have a handler."""
        return kind in self._kinds

    async def do(self, job: Job) -> RetryJobLater | None:
        """Run a job that a caller waits for, outside of the slots; it need not be queued."""
        return await self._handlers[self._kinds[job.kind]](job)

    async def work(self) -> tuple[JobKindStatus, ...]:
        """Return the status of every kind, also of kinds without a handler here. Raises StoreUnavailable."""
        found = {kind: replace(tally) for kind, tally in self._tallies.items()}
        for each in await self._jobs.count():
            name = self._kinds[each.kind].name if each.kind in self._kinds else each.kind
            status = found.setdefault(name, JobKindStatus(kind=name))
            status.waiting += each.waiting
            status.lag_seconds = max(status.lag_seconds, each.lag_seconds)
            status.later += each.later
        return tuple(found[kind] for kind in sorted(found))

    async def budget(self) -> BudgetStatus | None:
        """Return the status of the day's token budget, or None without a budget. Raises StoreUnavailable."""
        return await self._token_budget.budget() if self._token_budget is not None else None

    async def record_metrics(self) -> None:
        """Set the gauges. Raises StoreUnavailable."""
        if self._meter is None:
            return
        for each in await self.work():
            if each.kind not in self._tallies:
                continue  # labels come from a fixed set
            self._meter.gauge("jobs_running", each.running, kind=each.kind)
            self._meter.gauge("jobs_waiting", each.waiting, kind=each.kind)
            self._meter.gauge("jobs_lag_seconds", each.lag_seconds, kind=each.kind)
            self._meter.gauge("jobs_scheduled", each.later, kind=each.kind)
            if each.last_run is not None:
                self._meter.gauge("jobs_last_run_seconds", each.last_run.timestamp(), kind=each.kind)
        if (budget := await self.budget()) is not None:
            self._meter.gauge("background_tokens", budget.spent)
            self._meter.gauge("background_tokens_limit", budget.limit)

    async def run(self) -> None:
        """Run due jobs until cancelled, those of the last run first."""
        async with asyncio.TaskGroup() as tasks:
            while True:
                try:
                    if not await self._begin(tasks):
                        await self._wait()
                except StoreUnavailable:
                    await asyncio.sleep(_PAUSE.total_seconds())

    async def _begin(self, tasks: asyncio.TaskGroup) -> bool:
        """Take what is due; False when there was nothing that can begin now."""
        self._freed.clear()
        await self._slots.wait_for_jobs()
        with self._slots.job():
            return await self._begin_due(tasks)

    async def _begin_due(self, tasks: asyncio.TaskGroup) -> bool:
        self._looked_at = self._now()
        quick = self._owed or list(await self._jobs.due(self._looked_at, _QUICK_AT_ONCE, kinds=self._quick))
        self._owed = list(quick)
        for job in quick:
            await self._do(job)
            self._owed.remove(job)
        slow = await self._due(self._slow, await self._startable_jobs())
        if self._token_budget is not None:
            self._token_budget.reserve(*(job.id for job in slow))
        long = await self._due(self._long, 1 - self._in_slots(self._long))
        steps = await self._due(self._steps, self._tasks_at_once - self._in_slots(self._steps))
        pushes = await self._due(self._pushes, _PUSHES_AT_ONCE - self._in_slots(self._pushes))
        for job in (*slow, *long, *steps, *pushes):
            self._running[job.id] = job.kind
            tasks.create_task(self._in_a_slot(job), name=f"{job.kind} {job.scope}")
        return bool(quick or slow or long or steps or pushes)

    async def _startable_jobs(self) -> int:
        """Return the number of slow jobs that may start: free slots, limited by the day's token budget."""
        free = self._at_once - self._in_slots(self._slow)
        if self._token_budget is None or free <= 0 or not self._slow:
            return free
        # Asking writes where gateways share the budget, and they look twice a second.
        if self._token_budget.is_shared and not await self._is_due(self._slow):
            return 0
        return await self._token_budget.startable_jobs(free)

    async def _is_due(self, kinds: Sequence[str]) -> bool:
        first = await self._jobs.next_due(datetime.min.replace(tzinfo=UTC), kinds=kinds)
        return first is not None and first <= self._looked_at

    async def _due(self, kinds: Sequence[str], free: int) -> tuple[Job, ...]:
        return await self._jobs.due(self._looked_at, free, kinds=kinds) if free > 0 and kinds else ()

    def _in_slots(self, kinds: Sequence[str]) -> int:
        return sum(kind in kinds for kind in self._running.values())

    async def _wait(self) -> None:
        """Return when a job was queued, a slot is free again, or the next job is due."""
        next_due = await self._jobs.next_due(self._looked_at, kinds=tuple(self._kinds))
        seconds = self._longest_sleep.total_seconds()
        if next_due is not None:
            seconds = min(seconds, (next_due - self._now()).total_seconds())
        if seconds <= 0:
            return
        changed = asyncio.ensure_future(self._jobs.wait_changed(timedelta(seconds=seconds)))
        freed = asyncio.ensure_future(self._freed.wait())
        try:
            await asyncio.wait({changed, freed}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            changed.cancel()
            freed.cancel()
            # Not `await task`: suppressing its CancelledError would also suppress our own.
            await asyncio.wait({changed, freed})

    async def _in_a_slot(self, job: Job) -> None:
        try:
            while True:
                try:
                    with self._slots.job():
                        await self._do(job)
                except StoreUnavailable:  # the lease is held until the outcome is stored
                    await asyncio.sleep(_PAUSE.total_seconds())
                else:
                    return
        finally:
            self._running.pop(job.id, None)
            if self._token_budget is not None:
                self._token_budget.settle(job.id)
            self._freed.set()

    async def _do(self, job: Job) -> None:
        """Run one job to its end or put it off. Raises StoreUnavailable."""
        kind = self._kinds[job.kind]
        handler, tally = self._handlers[kind], self._tallies[kind.name]
        tally.running += 1
        try:
            later = await handler(job)
            if later is None:
                await self._jobs.finish(job)
        except ObjectsUnavailable as error:  # a slot is for jobs that do not need it
            later = RetryJobLater(_OBJECTS_DELAY, str(error), counts=False)
        except StoreUnavailable:
            raise
        except Exception as error:  # the service boundary: a job that breaks waits, the others go on
            log.exception("background.failed", job=job.id, kind=job.kind)
            delay = exponential_delay(job.attempts + 1, _FIRST_DELAY, _LONGEST_DELAY)
            later = RetryJobLater(delay, type(error).__name__)
        finally:
            tally.running -= 1
        tally.last_run = self._now()
        if later is None:
            tally.done += 1
        else:
            await self._jobs.put_off(job, later.delay, later.reason, counts=later.counts, payload=later.payload)
            tally.failures += later.counts
            log.info("background.later", job=job.id, kind=job.kind, reason=later.reason)
        if self._meter is not None:
            outcome = "done" if later is None else "failed" if later.counts else "put_off"
            self._meter.count("jobs", kind=kind.name, outcome=outcome)


# -- reports ---------------------------------------------------------------------------------------


async def send_job_report(
    records: SqlTurnRecords,
    job: Job,
    session: SessionRow,
    text: str,
    *,
    at: datetime,
    reply_to: str = "",
    visible_to: str = "",
    chat_kind: ChatKind = ChatKind.DIRECT,
    attachments: Sequence[Attachment] = (),
    facts: Sequence[Mapping[str, Any]] = (),
    choices: Sequence[MessageButton] = (),
    ends_job: bool = False,
) -> bool:
    """Send *text* to the chat of *session* with *attachments*, whose *facts* its transcript keeps, and buttons.

    Only *visible_to* sees it, if given. Idempotent: a stored record of this job is not replaced. With *ends_job* the
    same transaction ends *job*; if it was removed before, nothing is sent, and the result is False.
    """
    turn = f"t{short_id(job.id)}"
    files = {"files": list(facts)} if facts else {}
    record = TurnRecord(
        turn=turn,
        key=session.key,
        transcript=session.transcript,
        scope=job.scope,
        outcome=MessageOutcome.ANSWERED,
        # A message visible to one person only is never stored in a shared transcript.
        lines=() if visible_to else (build.notice(turn, text, at, **files),),
        from_index=session.next_index,
        to_index=session.next_index,
        inbox=(),
        at=at,
    )
    message = OutboundMessage(
        id=f"{turn}.1",
        key=session.key,
        text=text,
        kind=OutboundKind.NOTICE,
        reply_to=reply_to,
        visible_to=visible_to,
        chat_kind=chat_kind,
        attachments=tuple(attachments),
        choices=tuple(choices),
    )
    if ends_job:
        return await records.append_from(job, record, outbound=(message,))
    await records.append(record, outbound=(message,))
    return True


_IMMEDIATELY = timedelta(0)
_RETRY_DELAY = timedelta(seconds=1)
_MAX_WAIT = timedelta(seconds=2)  # moving files takes milliseconds, unless the disk is full
_LOOK = 0.5  # seconds between looks at a move of another gateway


class ScopeLock:
    """Readers-writer lock for each scope; the entries of unused scopes are removed.

    A move that the store knows as begun locks its scopes at every gateway, also while the gateway that does it is down.
    """

    def __init__(self, moving: Callable[[], Collection[str]] = tuple) -> None:
        """*moving* returns the scopes of the moves that are not complete (`SqlAccountLinks.moving`)."""
        self._moving = moving
        self._users: Counter[str] = Counter()
        self._locked: set[str] = set()
        self._waiting: set[asyncio.Future[None]] = set()

    @asynccontextmanager
    async def hold_shared(self, resolve: Callable[[], str]) -> AsyncIterator[str]:
        """Hold the shared lock of the scope that *resolve* returns, and yield the scope.

        Waits while the scope is locked exclusively. The scope's files are not moved while the context is open.
        """
        while self.is_locked(scope := resolve()):  # moving the files may change the scope
            await self._wait_changed()
        self._users[scope] += 1
        try:
            yield scope
        finally:
            self._users[scope] -= 1
            if not self._users[scope]:
                del self._users[scope]
            self._wake()

    def is_locked(self, scope: str) -> bool:
        """Return True if *scope* is locked exclusively, or is being moved."""
        return scope in self._locked or scope in self._moving()

    async def wait_unlocked(self, scope: str, at_most: timedelta) -> None:
        """Return when *scope* is not locked exclusively any more, or after *at_most*."""
        with suppress(TimeoutError):
            async with asyncio.timeout(at_most.total_seconds()):
                while self.is_locked(scope):
                    await self._wait_changed()

    @asynccontextmanager
    async def hold_exclusive(self, *scopes: str) -> AsyncIterator[None]:
        """Hold the exclusive locks of *scopes*; waits until no lock of them is held.

        New shared locks are granted while it waits, so that a long turn of one chat does not delay other chats.
        """
        while any(each in self._users or each in self._locked for each in scopes):
            await self._wait_changed()
        self._locked.update(scopes)
        try:
            yield
        finally:
            self._locked.difference_update(scopes)
            self._wake()

    async def _wait_changed(self) -> None:
        """Return when a lock was released, or after a moment; the caller looks again, as others may have come first."""
        change: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.add(change)
        try:
            async with asyncio.timeout(_LOOK):
                await change
        except TimeoutError:
            pass
        finally:
            self._waiting.discard(change)

    def _wake(self) -> None:
        for change in self._waiting:
            if not change.done():
                change.set_result(None)


def lock_handler(lock: ScopeLock, jobs: SqlJobs, handler: Handler) -> Handler:
    """Wrap *handler* to hold the shared lock of its job's scope; a job whose scope is locked is retried."""

    async def run(job: Job) -> RetryJobLater | None:
        if lock.is_locked(job.scope):
            await lock.wait_unlocked(job.scope, _MAX_WAIT)
            delay = _RETRY_DELAY if lock.is_locked(job.scope) else _IMMEDIATELY
            return RetryJobLater(delay, "the files of its scope are being moved", counts=False)
        async with lock.hold_shared(lambda: job.scope):
            if all(each.id != job.id for each in await jobs.pending_in(job.scope)):
                # The job has moved to another scope since it was claimed; the retry claims it there.
                return RetryJobLater(_IMMEDIATELY, "its scope has changed", counts=False)
            if lock.is_locked(job.scope):  # the look has told of a move that another gateway has begun
                return RetryJobLater(_RETRY_DELAY, "its scope is being moved", counts=False)
            return await handler(job)

    return run
