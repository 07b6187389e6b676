"""The thread of the journal's file: aiosqlite's, which can run a whole batch in one hop."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, TypeVar

import aiosqlite

from gateway.store.database import StoreConnection

T = TypeVar("T")


class SqliteThread(aiosqlite.Connection):
    """aiosqlite's thread and connection, as a `WriterThread`."""

    def __init__(self, connector: Callable[[], Any]) -> None:
        super().__init__(connector, iter_chunk_size=64)
        # Confirmed operations are durable, so a failing process must not wait for this thread.
        self._thread.daemon = True
        self._stopped: asyncio.Future[Any] | None = None

    @classmethod
    async def open(cls, connector: Callable[[], Any]) -> SqliteThread:
        """Start the thread and open the file; when that fails, the thread has ended before the error is raised."""
        thread = cls(connector)
        try:
            await thread
        except BaseException:
            if thread._stopped is not None:
                await thread._stopped
            raise
        return thread

    def stop(self) -> asyncio.Future[Any] | None:
        """End the thread; remember the future, since aiosqlite forgets it when opening fails."""
        self._stopped = super().stop()
        return self._stopped

    async def call(self, work: Callable[[StoreConnection], T]) -> T:
        """Run *work* on the thread and return its result."""
        result: T = await self._execute(work, self._conn)  # type: ignore[no-untyped-call]
        return result
