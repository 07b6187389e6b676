"""The threads of the journal's file: the writer's, which runs a whole batch in one hop, and the one that reads."""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, TypeVar

import aiosqlite

from gateway.errors import StoreUnavailable
from gateway.journal_file import fault_line
from gateway.store.database import StoreConnection
from gateway.store.sqlite.connection import SqliteConnection
from gateway.store.writer import Operation

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


class SqliteReader:
    """Reads committed rows beside the writer's transactions, over a connection that the first read opens."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._executor = ThreadPoolExecutor(1, "store reader")
        self._connection: SqliteConnection | None = None
        self._is_closed = False

    async def read(self, operation: Operation[T]) -> T:
        """Return the result of *operation*, whose statements see one moment. Raises StoreUnavailable."""
        if self._is_closed:
            raise StoreUnavailable("the journal is closed")
        try:
            return await asyncio.get_running_loop().run_in_executor(self._executor, self._read, operation)
        except sqlite3.Error as error:
            raise StoreUnavailable(fault_line(self._path, error)) from error

    def while_disconnected(self, work: Callable[[], None]) -> None:
        """Run *work* between two reads, without a connection.

        A descriptor of the file is closed so: the process gives up its locks on the file then, also those of a
        connection that is open. Blocks.
        """

        def run() -> None:
            self._disconnect()
            work()

        if self._is_closed:
            work()
        else:
            self._executor.submit(run).result()

    async def close(self) -> None:
        """End the reading, after the operations that were asked for; a second call does nothing."""
        if not self._is_closed:
            self._is_closed = True
            await asyncio.get_running_loop().run_in_executor(self._executor, self._disconnect)
            self._executor.shutdown(wait=False)

    def _read(self, operation: Operation[T]) -> T:
        if self._connection is None:
            address = f"{self._path.absolute().as_uri()}?mode=ro"
            self._connection = sqlite3.connect(address, uri=True, isolation_level=None, factory=SqliteConnection)
        try:
            self._connection.execute("BEGIN")
            return operation(self._connection)
        except sqlite3.Error:
            self._disconnect()
            raise
        finally:
            if self._connection is not None:
                self._connection.rollback()

    def _disconnect(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.close()
