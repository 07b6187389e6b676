"""Stage claim: N workers run turns, in order within a session and in parallel across sessions.

    journal.ready_sessions() ──▶ one task per session ──▶ worker slot ──▶ claim ──▶ one turn
    journal.control_rows() ──▶ one task per control command (/stop, /status, buttons)
    journal.wait_suspect() ──▶ no job ──▶ worker slot ──▶ claim the next suspect ──▶ run it in lone phases

A session's task runs one turn and goes to the back of the queue for slots, so a flooded chat does not delay others.
A suspect may be the message that crashes the process (`gateway/store/suspects.py`): it starts when no turn wants a
slot, and nothing else runs while it does its own work.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

import structlog

from agent.base.locks import KeyLocks, TurnPhases, WorkerSlots
from agent.turns.turn import RunningTurns, Turn
from gateway.errors import LeaseLost, ScopeMoved, StoreUnavailable
from gateway.events import SessionKey, short_turn_id, turn_id
from gateway.ports.journal import InboxRow, MessageOutcome, Suspect, TurnLease
from gateway.ports.metrics import TURN_SPAN, MetricsRecorder, TraceSpan

if TYPE_CHECKING:
    from agent.workers.turn_runner import TurnRunner
    from gateway.store.journal import SqlJournal


log = structlog.get_logger(__name__)

T = TypeVar("T")

_STORE_PAUSE = timedelta(seconds=0.5)  # between tries while the journal cannot write
_ATTEMPTS = 3  # of a turn or a control command that ends the process
_CONTROLS_AT_ONCE = 4  # per chat; more would delay every turn that starts
_ENDINGS = frozenset(MessageOutcome)  # other outcomes leave the turn to the next attempt
_SUSPECT_WAIT = timedelta(seconds=30)  # that suspects wait for other turns under constant load, and for jobs
_PHASE_WAIT = timedelta(seconds=3)  # that a phase waits for others to end
_SENT_PAUSE = timedelta(seconds=0.05)  # between looks at whether an answer is delivered
_NONE = timedelta(0)


class SuspectPhases(TurnPhases):
    """The phases of a suspect, each of which is tried by itself."""

    def __init__(self, start: Callable[[], AbstractAsyncContextManager[object]]) -> None:
        """*start* returns the context of one phase."""
        self._start = start
        self._running: AbstractAsyncContextManager[object] | None = None

    async def begin(self) -> None:
        """Start a phase."""
        phase = self._start()
        await phase.__aenter__()
        self._running = phase

    async def end(self) -> None:
        """End the phase, if one runs."""
        phase, self._running = self._running, None
        if phase is not None:
            await phase.__aexit__(None, None, None)


class WorkerPool:
    """Claims turns from the journal and runs each to its end."""

    def __init__(
        self,
        journal: SqlJournal,
        handler: TurnRunner,
        *,
        turns: RunningTurns,
        slots: WorkerSlots,
        meter: MetricsRecorder,
        clock: Callable[[], float],
    ) -> None:
        self._journal = journal
        self._handler = handler
        self._slots = slots
        self._meter = meter
        self._clock = clock
        self.turns = turns
        self._again: set[SessionKey] = set()
        self._tasks: set[asyncio.Task[Any]] = set()
        self._suspect_waiting: asyncio.Task[Any] | None = None  # while nothing is claimed by it
        self._tried: set[str] = set()  # turns of suspects that have ended
        self._send_wait = _PHASE_WAIT  # that is left for their answers to be delivered: a platform may be away
        self._controls = KeyLocks(_CONTROLS_AT_ONCE)
        self._earlier = dict[int, SessionKey]()  # commands of the last run that are not done, and their chats
        self._earlier_done = asyncio.Condition()

    async def run(self) -> None:
        """Run turns until cancelled; call `drain` before."""
        self._earlier = dict(self._journal.earlier_controls)
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._watch_sessions(tasks), name="pool sessions")
            tasks.create_task(self._watch_controls(tasks), name="pool controls")
            tasks.create_task(self._watch_suspects(tasks), name="pool suspects")

    async def drain(self, grace: timedelta) -> int:
        """Start no turn; let running ones finish within *grace*, then release the others; return their number."""
        self._draining = True
        if self._suspect_waiting is not None:  # nothing is claimed yet
            self._suspect_waiting.cancel()
        pending = {task for task in self._tasks if not task.done()}
        if pending:
            _, pending = await asyncio.wait(pending, timeout=grace.total_seconds())
        for task in pending:
            task.cancel()
        if pending:
            await asyncio.wait(pending)
        return len(pending)

    # -- session queues ------------------------------------------------------------------------

    _draining = False

    async def _watch_sessions(self, tasks: asyncio.TaskGroup) -> None:
        async for key in self._journal.ready_sessions():
            if self._draining:
                return
            if key in self.turns.active:
                self._again.add(key)
            else:
                self._start(key, tasks)

    def _start(self, key: SessionKey, tasks: asyncio.TaskGroup) -> None:
        self.turns.active.add(key)
        self._spawn(self._run_session(key, tasks), tasks, f"turn {key}")

    def _spawn(self, work: Coroutine[Any, Any, T], tasks: asyncio.TaskGroup, name: str) -> asyncio.Task[T]:
        """Start a task that `drain` waits for."""
        task = tasks.create_task(work, name=name)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    async def _run_session(self, key: SessionKey, tasks: asyncio.TaskGroup) -> None:
        try:
            if self._earlier:  # a /stop before a kill was about what is claimed here
                async with self._earlier_done:
                    await self._earlier_done.wait_for(lambda: key.parent not in self._earlier.values())
            # One task for each session, or ten messages queued in one chat would fill ten slots.
            async with self._slots:
                if not self._draining:
                    await self._claim_and_run(key)
        except asyncio.CancelledError:
            if not self._draining:
                self._again.discard(key)  # the whole pool ends: it starts no other task
                raise
        finally:
            self.turns.active.discard(key)
            if key in self._again and not self._draining:
                self._again.discard(key)
                self._start(key, tasks)

    async def _claim_and_run(self, key: SessionKey) -> None:
        try:
            lease = await self._journal.claim(key)
        except StoreUnavailable:
            log.warning("pool.store_down", key=str(key))
            await asyncio.sleep(_STORE_PAUSE.total_seconds())
            self._again.add(key)
            return
        if lease is None:
            return
        if lease.more:
            self._again.add(key)
        async with TurnPhases(self._slots, _PHASE_WAIT) as phases:
            await self._run_turn(lease, phases)

    # -- suspects ------------------------------------------------------------------------------

    async def _watch_suspects(self, tasks: asyncio.TaskGroup) -> None:
        while not self._draining:
            await self._journal.wait_suspect()
            if not self._draining:
                await asyncio.wait([self._spawn(self._run_suspects(tasks), tasks, "suspects")])

    async def _run_suspects(self, tasks: asyncio.TaskGroup) -> None:
        """Run suspects until none is queued, as many side by side as the journal lets be in flight."""
        running: set[asyncio.Task[Any]] = set()
        self._suspect_waiting, self._send_wait = asyncio.current_task(), _PHASE_WAIT
        async with self._slots.without_jobs(_SUSPECT_WAIT):
            while True:
                suspect = await self._start_suspect(tasks, running)
                if suspect is None and not running:
                    return
                if suspect is None or suspect.is_alone:
                    await asyncio.wait(running, return_when=asyncio.FIRST_COMPLETED)
                    running = {task for task in running if not task.done()}

    async def _start_suspect(self, tasks: asyncio.TaskGroup, running: set[asyncio.Task[Any]]) -> Suspect | None:
        """Claim the next suspect, add its task to *running* and return it; None if none may start now."""
        async with AsyncExitStack() as slot:
            await slot.enter_async_context(self._slots)
            try:
                suspect = None if self._draining else await self._journal.claim_suspect(beside=len(running))
            except StoreUnavailable:
                log.warning("pool.store_down", key="")
                return None  # the journal announces it again
            if suspect is not None:
                self._suspect_waiting = None
                running.add(self._spawn(self._run_suspect(suspect, slot.pop_all()), tasks, "suspect"))
            return suspect

    async def _run_suspect(self, suspect: Suspect, slot: AsyncExitStack) -> None:
        work, is_beyond = suspect.work, suspect.work.attempts >= _ATTEMPTS
        key = work.key if isinstance(work, TurnLease) else work.message.key
        log.warning("pool.suspect", key=str(key), turn=work.turn, attempts=work.attempts)
        async with slot, SuspectPhases(partial(self._try, suspect)) as phases:
            if isinstance(work, InboxRow):
                await self._run_control(work)
            elif is_beyond:
                await self._guard(work, self._handler.dead_letter(Turn(lease=work)))
            else:
                await self._run_turn(work, phases)
        self._tried.add(work.turn if isinstance(work, TurnLease) else turn_id(work.message))
        if suspect.is_alone:
            await self._until_stored(self._journal.end_trial)

    @asynccontextmanager
    async def _try(self, suspect: Suspect) -> AsyncIterator[None]:
        """Run one phase of a suspect: a crash in it is charged to the suspect, if the phase has no company."""
        async with self._slots.lone_phase(_PHASE_WAIT) as has_no_company:
            if has_no_company:
                await self._begin_trial(suspect)
            yield
            if not suspect.is_alone:
                await self._until_stored(self._journal.end_trial)

    async def _begin_trial(self, suspect: Suspect) -> None:
        """Put *suspect* on trial, once the answers of those before it are delivered: a crash would mark them."""

        async def begin() -> bool:
            return await self._journal.begin_trial(suspect, self._tried if self._send_wait > _NONE else ())

        while True:
            if await self._until_stored(begin) is not False:
                self._tried.clear()
                return
            await asyncio.sleep(_SENT_PAUSE.total_seconds())
            self._send_wait -= _SENT_PAUSE

    async def _until_stored(self, call: Callable[[], Awaitable[T]]) -> T | None:
        """Return the result of *call*, repeated while the store is unavailable; None if the pool drains."""
        while True:
            try:
                return await call()
            except StoreUnavailable:
                if self._draining:  # a deliberate stop ends every trial
                    return None
                await asyncio.sleep(_STORE_PAUSE.total_seconds())

    async def _run_turn(self, lease: TurnLease, phases: TurnPhases) -> None:
        turn = Turn(lease=lease, task=asyncio.current_task(), phases=phases)
        started = self._clock()
        outcome = "failed"
        try:
            handle = self._handler.handle_turn if self.turns.add(turn) else self._handler.handle_stop
            outcome = await handle(turn)
        except asyncio.CancelledError:
            outcome = await self._end_cancelled(turn)
        except LeaseLost:
            outcome = "lost"
            log.warning("turn.lease_lost", key=str(lease.key), turn=lease.turn)
        except ScopeMoved:
            outcome = "moved"
            await self._release(lease)
        except StoreUnavailable:
            # Nothing was committed; stored steps are kept, and the session is claimed again.
            outcome = "store_down"
            log.warning("turn.store_down", key=str(lease.key), turn=lease.turn)
            await self._release(lease)
            await asyncio.sleep(_STORE_PAUSE.total_seconds())
        except Exception:  # the turn boundary: siblings survive a bad turn
            log.exception("turn.failed", key=str(lease.key), turn=lease.turn)
            await self._guard(lease, self._handler.dead_letter(turn))
        finally:
            self.turns.remove(lease.key)
            seconds = self._clock() - started
            self._meter.count("turns", outcome=str(outcome))
            self._meter.time("turn_seconds", seconds)
            if self._meter.records_spans and outcome in _ENDINGS:
                self._trace(turn, str(outcome))
            log.info(
                "turn.done",
                key=str(lease.key),
                turn=lease.turn,
                reference=short_turn_id(lease.turn),
                rows=len(lease.rows),
                outcome=str(outcome),
                seconds=round(seconds, 3),
            )

    def _trace(self, turn: Turn, outcome: str) -> None:
        """Record the turn and its stages. One that another attempt continues is recorded by that attempt."""
        lease, ended = turn.lease, datetime.now(UTC)
        began = list(turn.stage_times.items())
        for n, (name, at) in enumerate(began):
            until = began[n + 1][1] if n + 1 < len(began) else ended
            self._meter.span(TraceSpan(turn=lease.turn, name=name, began=at, ended=until))
        first, *others = lease.rows
        self._meter.span(
            TraceSpan(
                turn=lease.turn,
                name=TURN_SPAN,
                began=min(row.accepted_at for row in lease.rows),
                ended=ended,
                attributes={
                    "parlour.turn": lease.turn,
                    "parlour.channel": first.message.key.channel,
                    "parlour.outcome": outcome,
                    "parlour.messages": len(lease.rows),
                },
                linked=tuple(turn_id(row.message) for row in others),
            )
        )

    async def _end_cancelled(self, turn: Turn) -> str:
        task = asyncio.current_task()
        if turn.is_stop_wanted:
            if task is not None:
                task.uncancel()
            await self._guard(turn.lease, self._handler.handle_stop(turn))
            return MessageOutcome.STOPPED
        if self._draining:
            if task is not None:
                task.uncancel()
            await self._release(turn.lease)
            return "given_back"
        raise asyncio.CancelledError

    async def _guard(self, lease: TurnLease, ending: Awaitable[object]) -> None:
        """Await an ending that may itself fail; the lease is then released if possible."""
        try:
            await ending
        except LeaseLost:
            log.warning("turn.lease_lost", key=str(lease.key), turn=lease.turn)
        except StoreUnavailable:
            await self._release(lease)
        except Exception:  # the last boundary: the lease is held until the next start, other sessions continue
            log.exception("turn.not_ended", key=str(lease.key), turn=lease.turn)

    async def _release(self, lease: TurnLease) -> None:
        while True:
            try:
                await self._journal.release(lease)
            except StoreUnavailable:
                if self._draining:
                    return
                await asyncio.sleep(_STORE_PAUSE.total_seconds())
            except LeaseLost:
                return
            else:
                return

    # -- controls ------------------------------------------------------------------------------

    async def _watch_controls(self, tasks: asyncio.TaskGroup) -> None:
        async for row in self._journal.control_rows():
            tasks.create_task(self._take_control(row), name=f"control {row.message.key}")

    async def _take_control(self, row: InboxRow) -> None:
        async with self._controls.hold(row.message.key):
            await self._run_control(row)
        if self._earlier.pop(row.seq, None) is not None:
            async with self._earlier_done:
                self._earlier_done.notify_all()

    async def _run_control(self, row: InboxRow) -> None:
        is_beyond = row.attempts >= _ATTEMPTS
        while True:
            try:
                await (self._handler.dead_letter_control(row) if is_beyond else self._handler.control(row))
            except StoreUnavailable:
                await asyncio.sleep(_STORE_PAUSE.total_seconds())
            except Exception:  # the turn boundary: one failing command does not affect others
                log.exception("control.failed", key=str(row.message.key), seq=row.seq)
                if is_beyond:
                    return
                is_beyond = True
            else:
                return
