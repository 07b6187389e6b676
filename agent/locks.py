"""One asyncio lock per key, in a table that frees itself."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Hashable
from contextlib import asynccontextmanager


class KeyLocks:
    """Locks by key; an entry lives only while somebody holds it or waits for it."""

    def __init__(self) -> None:
        self._locks: dict[Hashable, tuple[asyncio.Lock, int]] = {}

    @asynccontextmanager
    async def hold(self, key: Hashable) -> AsyncIterator[None]:
        """Hold the lock of *key* for the block; waiters are served in the order they came."""
        lock, users = self._locks.get(key, (asyncio.Lock(), 0))
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


class Slots:
    """N places to work in, served in order; a lone holder has them all to itself."""

    def __init__(self, count: int) -> None:
        self.count = count
        self._free = asyncio.Semaphore(count)
        # One lone holder gathers at a time, or two would each hold half for ever.
        self._gathering = asyncio.Lock()

    @asynccontextmanager
    async def one(self) -> AsyncIterator[None]:
        """Hold one place."""
        async with self._free:
            yield

    @asynccontextmanager
    async def others(self) -> AsyncIterator[None]:
        """Called by the holder of one place: hold all the others too, so that nothing runs beside it."""
        # The own place is given up meanwhile, or two who want to be alone would wait for each other's.
        self._free.release()
        held = 0
        try:
            async with self._gathering:
                for _ in range(self.count):
                    await self._free.acquire()
                    held += 1
                yield
        finally:
            if held == 0:
                await self._free.acquire()
                held = 1
            for _ in range(held - 1):
                self._free.release()
