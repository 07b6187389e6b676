"""One asyncio lock per key, in a table that frees itself; and the places that turns run in."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Hashable, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
from datetime import timedelta


class KeyLocks:
    """Locks by key, each for *holders* at once; an entry lives only while somebody holds it or waits for it."""

    def __init__(self, holders: int = 1) -> None:
        self._holders = holders
        self._locks: dict[Hashable, tuple[asyncio.Semaphore, int]] = {}

    @asynccontextmanager
    async def hold(self, key: Hashable) -> AsyncIterator[None]:
        """Hold the lock of *key* for the block; waiters are served in the order they came."""
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

    def is_held(self, key: Hashable) -> bool:
        """Say whether somebody holds the lock of *key* now."""
        entry = self._locks.get(key)
        return entry is not None and entry[0].locked()

    def __len__(self) -> int:
        return len(self._locks)


class WorkerSlots:
    """N places for turns, served in order, and any number of jobs beside them; or one lone holder of it all."""

    def __init__(self, count: int) -> None:
        self.count = count
        self._free = asyncio.Semaphore(count)
        self._wanted = 0  # places that are held or waited for
        self._jobs = 0
        # One lone holder gathers at a time, or two would each hold half for ever.
        self._gathering = asyncio.Lock()
        self._is_less = asyncio.Event()  # set when one of these two falls
        self._admits_jobs = asyncio.Event()
        self._admits_jobs.set()

    @asynccontextmanager
    async def acquire(self) -> AsyncIterator[None]:
        """Hold one place."""
        self._wanted += 1
        try:
            async with self._free:
                yield
        finally:
            self._wanted -= 1
            self._is_less.set()

    async def wait_for_jobs(self) -> None:
        """Return when jobs may begin: at once, unless somebody is alone or about to be."""
        await self._admits_jobs.wait()

    @contextmanager
    def job(self) -> Iterator[None]:
        """Run one job beside the turns; `wait_for_jobs` first."""
        self._jobs += 1
        try:
            yield
        finally:
            self._jobs -= 1
            self._is_less.set()

    @asynccontextmanager
    async def alone(self, patience: timedelta) -> AsyncIterator[bool]:
        """Hold every place, and let no job begin; give whether no job is under way.

        Everybody who wants a place is let go first, and jobs may end, but each for *patience* only.
        """
        async with self._gathering:
            await self._wait_until(lambda: not self._wanted, patience)
            self._admits_jobs.clear()
            held = 0
            try:
                await self._wait_until(lambda: not self._jobs, patience)
                for _ in range(self.count):
                    await self._free.acquire()
                    held += 1
                yield not self._jobs
            finally:
                for _ in range(held):
                    self._free.release()
                self._admits_jobs.set()

    async def _wait_until(self, is_so: Callable[[], bool], at_most: timedelta) -> None:
        with suppress(TimeoutError):
            async with asyncio.timeout(at_most.total_seconds()):
                while not is_so():
                    self._is_less.clear()
                    await self._is_less.wait()
                    await asyncio.sleep(0)  # a queue whose turn has ended asks for its next place first
