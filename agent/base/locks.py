"""Locks by key, the worker slots that limit concurrent turns, and tasks side by side."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Hashable, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
from datetime import timedelta
from typing import Self


class KeyLocks:
    """One lock per key, each for *holders* at a time; unused entries are dropped."""

    def __init__(self, holders: int = 1) -> None:
        self._holders = holders
        self._locks: dict[Hashable, tuple[asyncio.Semaphore, int]] = {}

    @asynccontextmanager
    async def hold(self, key: Hashable) -> AsyncIterator[None]:
        """Hold the lock of *key* for the block; waiters are served first in, first out."""
        lock, users = self._locks.get(key, (asyncio.Semaphore(self._holders), 0))
        self._locks[key] = (lock, users + 1)
        try:
            async with lock:
                yield
        finally:
            lock, users = self._locks[key]
            if users == 1:
                del self._locks[key]
            else:
                self._locks[key] = (lock, users - 1)

    def __len__(self) -> int:
        return len(self._locks)


class WorkerSlots:
    """N slots for turns, served first in, first out, with any number of jobs beside them.

    Turns work in phases, which end while they wait for a model. Any number of usual phases run side by side, or one
    lone phase.
    """

    def __init__(self, count: int) -> None:
        self.count = count
        self._free = asyncio.Semaphore(count)
        self._demand = 0  # slots that are held or waited for
        self._jobs = 0
        self._phases = 0  # usual ones
        self._lone = asyncio.Lock()  # one lone phase runs or waits
        self._changed = asyncio.Event()  # set when one of the counts falls, or a lone phase has ended
        self._admits_jobs = asyncio.Event()
        self._admits_jobs.set()

    async def __aenter__(self) -> None:
        """Hold one slot."""
        self._demand += 1
        try:
            await self._free.acquire()
        except BaseException:
            self._leave()
            raise

    async def __aexit__(self, *_: object) -> None:
        self._free.release()
        self._leave()

    def _leave(self) -> None:
        self._demand -= 1
        self._changed.set()

    async def wait_for_jobs(self) -> None:
        """Return when jobs may start: at once, unless `without_jobs` runs or waits."""
        await self._admits_jobs.wait()

    @contextmanager
    def job(self) -> Iterator[None]:
        """Count one running job; call `wait_for_jobs` before."""
        self._jobs += 1
        try:
            yield
        finally:
            self._jobs -= 1
            self._changed.set()

    @asynccontextmanager
    async def without_jobs(self, max_wait: timedelta) -> AsyncIterator[None]:
        """Let no job start. Turns that want a slot go first, and running jobs may end: *max_wait* each."""
        await self._wait_until(lambda: not self._demand, max_wait)
        self._admits_jobs.clear()
        try:
            await self._wait_until(lambda: not self._jobs, max_wait)
            yield
        finally:
            self._admits_jobs.set()

    async def begin_phase(self, max_wait: timedelta) -> None:
        """Count a usual phase: beside no lone one, unless that lasts longer than *max_wait*."""
        if self._lone.locked():
            await self._wait_until(lambda: not self._lone.locked(), max_wait)
        self._phases += 1

    def end_phase(self) -> None:
        """Count a usual phase as ended."""
        self._phases -= 1
        self._changed.set()

    @asynccontextmanager
    async def lone_phase(self, max_wait: timedelta) -> AsyncIterator[bool]:
        """Run a phase by itself, once others have ended; the value is False if some last longer than *max_wait*."""
        try:
            async with self._lone:
                await self._wait_until(lambda: not self._phases and not self._jobs, max_wait)
                yield not self._phases and not self._jobs
        finally:
            self._changed.set()

    async def _wait_until(self, condition: Callable[[], bool], max_wait: timedelta) -> None:
        with suppress(TimeoutError):
            async with asyncio.timeout(max_wait.total_seconds()):
                while not condition():
                    self._changed.clear()
                    await self._changed.wait()
                    await asyncio.sleep(0)  # a session whose turn has ended asks for its next slot first


class TurnPhases:
    """The usual phases in which one turn does its own work, one after the other; see `WorkerSlots`.

    Every turn has two: a context manager made of a generator would cost more than what a phase does.
    """

    def __init__(self, slots: WorkerSlots, max_wait: timedelta) -> None:
        """A phase waits *max_wait* at most for a lone one."""
        self._slots = slots
        self._max_wait = max_wait
        self._is_running = False

    async def __aenter__(self) -> Self:
        await self.begin()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.end()

    async def begin(self) -> None:
        """Start a phase."""
        await self._slots.begin_phase(self._max_wait)
        self._is_running = True

    async def end(self) -> None:
        """End the phase, if one runs."""
        if self._is_running:
            self._is_running = False
            self._slots.end_phase()


@asynccontextmanager
async def task_group() -> AsyncIterator[asyncio.TaskGroup]:
    """Open an `asyncio.TaskGroup` that raises the first failure itself, not an ExceptionGroup.

    An error is handled by its type (gateway/errors.py), but `except StoreUnavailable` does not catch a
    group that contains one: an outage of the store would be handled as a bug, and end the turn.
    """
    try:
        async with asyncio.TaskGroup() as tasks:
            yield tasks
    except ExceptionGroup as failures:
        raise failures.exceptions[0] from failures
