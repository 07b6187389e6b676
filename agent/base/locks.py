"""Locks by key, and the worker slots that limit concurrent turns."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Hashable, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
from datetime import timedelta


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

    @asynccontextmanager
    async def acquire(self) -> AsyncIterator[None]:
        """Hold one slot."""
        self._demand += 1
        try:
            async with self._free:
                yield
        finally:
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

    @asynccontextmanager
    async def phase(self, max_wait: timedelta) -> AsyncIterator[None]:
        """Run a phase of a usual turn: beside no lone one, unless that lasts longer than *max_wait*."""
        if self._lone.locked():
            await self._wait_until(lambda: not self._lone.locked(), max_wait)
        self._phases += 1
        try:
            yield
        finally:
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
