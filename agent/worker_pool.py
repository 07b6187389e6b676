"""Stage 5, claim: N workers take turns from lanes, strictly in order within a key, in parallel across keys.

    journal.lanes() ──▶ one task per ready key ──▶ key's lock ──▶ a worker slot ──▶ claim ──▶ one turn
    journal.controls() ──▶ one task per command that must not wait (/stop, /status, buttons)
    journal.wait_suspect() ──▶ all slots, no job ──▶ claim the next suspect ──▶ it alone

A key's task runs one turn and goes to the back of the queue for slots, so a flooded chat delays nobody. A suspect
may be what kills the process (`gateway/store/suspects.py`): it runs when nobody else wants a slot.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from datetime import timedelta
from typing import Any, Protocol, TypeVar

import structlog

from agent.locks import KeyLocks, WorkerSlots
from agent.running_turns import RunningTurn, RunningTurns
from gateway.errors import LeaseLost, StoreUnavailable
from gateway.events import SessionKey, short_turn_id
from gateway.ports import InboxRow, Journal, MessageOutcome, MetricsRecorder, TurnLease

log = structlog.get_logger(__name__)

T = TypeVar("T")

_STORE_PAUSE = timedelta(seconds=0.5)  # between tries while the journal cannot write
_CONTROLS_AT_ONCE = 4  # of one chat; more would be ahead of every turn that begins
_SUSPECT_PATIENCE = timedelta(seconds=30)  # that a suspect waits for others under a load that never ends


class TurnHandler(Protocol):
    """What the pool does with a lease; `agent/turn_runner.py` implements it."""

    async def handle_turn(self, running: RunningTurn) -> MessageOutcome:
        """Run the turn to its commit. Cancelled without `stop_wanted`, it commits nothing."""
        ...

    async def handle_stop(self, running: RunningTurn) -> None:
        """Commit the turn as stopped."""
        ...

    async def dead_letter(self, lease: TurnLease) -> None:
        """Commit the turn as dead-lettered and tell its sender."""
        ...

    async def control(self, row: InboxRow) -> None:
        """Run one control command to its commit."""
        ...

    async def dead_letter_control(self, row: InboxRow) -> None:
        """Settle a control command that cannot be run, and tell its sender."""
        ...


class WorkerPool:
    """Takes turns from the journal and sees each to its end."""

    def __init__(
        self,
        journal: Journal,
        work: TurnHandler,
        *,
        turns: RunningTurns,
        slots: WorkerSlots,
        meter: MetricsRecorder,
        attempts: int = 3,
        clock: Callable[[], float],
    ) -> None:
        self._journal = journal
        self._work = work
        self._slots = slots
        self._locks = KeyLocks()
        self._attempts = attempts
        self._meter = meter
        self._clock = clock
        self.turns = turns
        self._again: set[SessionKey] = set()
        self._lane_tasks: set[asyncio.Task[Any]] = set()
        self._waiting_suspect: asyncio.Task[Any] | None = None  # while it gathers the slots
        self._controls = KeyLocks(_CONTROLS_AT_ONCE)

    async def run(self) -> None:
        """Take turns until cancelled; what runs then is the caller's to `drain` first."""
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._watch_lanes(tasks), name="pool lanes")
            tasks.create_task(self._watch_controls(tasks), name="pool controls")
            tasks.create_task(self._watch_suspects(tasks), name="pool suspects")

    async def drain(self, grace: timedelta) -> int:
        """Start nothing new; let running turns finish within *grace*, then give the rest back; return how many."""
        self._draining = True
        if self._waiting_suspect is not None:  # it has claimed nothing yet
            self._waiting_suspect.cancel()
        pending = {task for task in self._lane_tasks if not task.done()}
        if pending:
            _, pending = await asyncio.wait(pending, timeout=grace.total_seconds())
        for task in pending:
            task.cancel()
        if pending:
            await asyncio.wait(pending)
        return len(pending)

    # -- lanes ---------------------------------------------------------------------------------

    _draining = False

    async def _watch_lanes(self, tasks: asyncio.TaskGroup) -> None:
        async for key in self._journal.ready_sessions():
            if self._draining:
                return
            if key in self.turns.active:
                self._again.add(key)
            else:
                self._start(key, tasks)

    def _start(self, key: SessionKey, tasks: asyncio.TaskGroup) -> None:
        self.turns.active.add(key)
        self._spawn(self._lane(key, tasks), tasks, f"turn {key}")

    def _spawn(self, work: Coroutine[Any, Any, T], tasks: asyncio.TaskGroup, name: str) -> asyncio.Task[T]:
        """Start *work* as a task that `drain` waits for."""
        task = tasks.create_task(work, name=name)
        self._lane_tasks.add(task)
        task.add_done_callback(self._lane_tasks.discard)
        return task

    async def _lane(self, key: SessionKey, tasks: asyncio.TaskGroup) -> None:
        try:
            # Lock before slot, or ten messages queued in one chat fill all ten slots.
            async with self._locks.hold(key), self._slots.acquire():
                if not self._draining:
                    await self._take_one(key)
        except asyncio.CancelledError:
            if not self._draining:
                raise
        finally:
            self.turns.active.discard(key)
            if key in self._again and not self._draining:
                self._again.discard(key)
                self._start(key, tasks)

    async def _take_one(self, key: SessionKey) -> None:
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
        await self._turn(lease)

    # -- suspects ------------------------------------------------------------------------------

    async def _watch_suspects(self, tasks: asyncio.TaskGroup) -> None:
        while not self._draining:
            await self._journal.wait_suspect()
            is_left = True
            while is_left and not self._draining:
                task = self._spawn(self._take_suspect(), tasks, "suspect")
                await asyncio.wait([task])
                is_left = task.cancelled() or task.result()

    async def _take_suspect(self) -> bool:
        """Run one suspect with nothing beside it; False when there is none."""
        self._waiting_suspect = asyncio.current_task()
        try:
            async with self._slots.alone(_SUSPECT_PATIENCE) as is_alone:
                self._waiting_suspect = None
                suspect = None if self._draining else await self._journal.claim_suspect(is_alone=is_alone)
                if suspect is None:
                    return False
                await self._try_suspect(suspect)
        except StoreUnavailable:
            log.warning("pool.store_down", key="")
            return False  # the journal says again that there is one
        finally:
            self._waiting_suspect = None
        return True

    async def _try_suspect(self, suspect: TurnLease | InboxRow) -> None:
        key = suspect.key if isinstance(suspect, TurnLease) else suspect.message.key
        log.warning("pool.suspect", key=str(key), turn=suspect.turn, attempts=suspect.attempts)
        if isinstance(suspect, InboxRow):
            await self._control(suspect)
        elif suspect.attempts > self._attempts:
            await self._guard(suspect, self._work.dead_letter(suspect))
        else:
            await self._turn(suspect)

    async def _turn(self, lease: TurnLease) -> None:
        running = RunningTurn(lease=lease, task=asyncio.current_task())
        started = self._clock()
        outcome = "failed"
        try:
            if self.turns.add(running):
                outcome = await self._work.handle_turn(running)
            else:
                await self._work.handle_stop(running)
                outcome = MessageOutcome.STOPPED
        except asyncio.CancelledError:
            outcome = await self._end_cancelled(running)
        except LeaseLost:
            outcome = "lost"
            log.warning("turn.lease_lost", key=str(lease.key), turn=lease.turn)
        except StoreUnavailable:
            # Nothing was confirmed; the steps that were stored stay, and the lane comes round again.
            outcome = "store_down"
            log.warning("turn.store_down", key=str(lease.key), turn=lease.turn)
            await self._give_back(lease)
        except Exception:  # the turn boundary: siblings survive a bad turn
            log.exception("turn.failed", key=str(lease.key), turn=lease.turn)
            await self._guard(lease, self._work.dead_letter(lease))
        finally:
            self.turns.remove(lease.key)
            seconds = self._clock() - started
            self._meter.count("turns", outcome=str(outcome))
            self._meter.time("turn_seconds", seconds)
            log.info(
                "turn.done",
                key=str(lease.key),
                turn=lease.turn,
                reference=short_turn_id(lease.turn),
                rows=len(lease.rows),
                outcome=str(outcome),
                seconds=round(seconds, 3),
            )

    async def _end_cancelled(self, running: RunningTurn) -> str:
        task = asyncio.current_task()
        if running.stop_wanted:
            if task is not None:
                task.uncancel()
            await self._guard(running.lease, self._work.handle_stop(running))
            return MessageOutcome.STOPPED
        if self._draining:
            if task is not None:
                task.uncancel()
            await self._give_back(running.lease)
            return "given_back"
        raise asyncio.CancelledError

    async def _guard(self, lease: TurnLease, ending: Awaitable[object]) -> None:
        """Await an ending that may itself fail; then the lane is given back rather than lost."""
        try:
            await ending
        except LeaseLost:
            log.warning("turn.lease_lost", key=str(lease.key), turn=lease.turn)
        except StoreUnavailable:
            await self._give_back(lease)
        except Exception:  # the last boundary: the lane stays held until the next start, the others go on
            log.exception("turn.not_ended", key=str(lease.key), turn=lease.turn)

    async def _give_back(self, lease: TurnLease) -> None:
        while True:
            try:
                await self._journal.release(lease, attempt_counts=False)
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
            await self._control(row)

    async def _control(self, row: InboxRow) -> None:
        is_beyond = row.attempts > self._attempts
        while True:
            try:
                await (self._work.dead_letter_control(row) if is_beyond else self._work.control(row))
            except StoreUnavailable:
                await asyncio.sleep(_STORE_PAUSE.total_seconds())
            except Exception:  # the turn boundary: a bad command harms nobody else
                log.exception("control.failed", key=str(row.message.key), seq=row.seq)
                if is_beyond:
                    return
                is_beyond = True
            else:
                return
