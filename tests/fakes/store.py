"""Stores for tests: the real rules on real SQLite, with the writer's thread or without it.

`open_inline_store` runs each operation at once, in a transaction of its own, on the calling
thread: nothing waits for a disk or another thread, so it works on the virtual clock. The caller still
sees its result one turn of the loop later, as it would from the real writer.
"""

from __future__ import annotations

import asyncio
import shutil
import sqlite3
import tempfile
from collections.abc import Callable, Hashable
from contextlib import suppress
from functools import cache, partial
from pathlib import Path
from typing import TypeVar

from gateway.errors import StoreUnavailable
from gateway.ports.memory import BYTES
from gateway.store import jobs
from gateway.store.database import BatchedOperation, StoreConnection
from gateway.store.engine import Clock, StoreLimits, utc_now
from gateway.store.sql_store import SqlStore, assemble
from gateway.store.sqlite import copy_file, schema
from gateway.store.sqlite.connection import SqliteConnection
from gateway.store.writer import (
    BatchResult,
    BatchWriter,
    ExclusiveOperation,
    FullDisk,
    Operation,
    StoreWriter,
    _QueuedOperation,
    run_batch,
    settle_entry,
)

T = TypeVar("T")
_WAL, _NO_WAL = b"\x02\x02", b"\x01\x01"  # the first in the header of a file; in memory there is no log


class WriterLog:
    """The operations that a store's writer gets from now on, and the transactions that store them.

    Those of the look at the store that the gateway takes each second, whatever happens, do not count.
    """

    _EACH_SECOND = frozenset({"SqlStore.check", "SqlJournal.depth", jobs._COUNT})

    def __init__(self, writer: StoreWriter) -> None:
        assert isinstance(writer, BatchWriter)
        self.operations: list[str] = []
        self.transactions: list[list[str]] = []
        self._writer = writer
        self._noted = asyncio.Event()
        self._enqueue, self._store = writer._enqueue, writer._store
        writer._enqueue = self._note_operation  # type: ignore[method-assign]
        writer._store = self._note_transaction  # type: ignore[method-assign]

    def clear(self) -> None:
        """Begin again."""
        self.operations.clear()
        self.transactions.clear()

    async def wait(self, name: str) -> None:
        """Return when an operation of this name was given."""
        while name not in self.operations:
            self._noted.clear()
            await self._noted.wait()

    def _note_operation(self, entry: _QueuedOperation, within: float) -> None:
        if (name := _name_of(entry)) not in self._EACH_SECOND:
            self.operations.append(name)
            self._noted.set()
        self._enqueue(entry, within)

    async def _note_transaction(self, entries: list[_QueuedOperation]) -> None:
        names, before = [_name_of(each) for each in entries], self._writer.commits
        await self._store(entries)
        if self._writer.commits > before and not self._EACH_SECOND & set(names):
            self.transactions.append(names)


def writer_of(store: SqlStore) -> StoreWriter:
    """Return the writer of an open store."""
    return store._engine.writer


def _name_of(entry: _QueuedOperation) -> str:
    """Return the operation's qualified name, or the statement that it runs alone."""
    if isinstance(entry.operation, partial) and "statement" in entry.operation.keywords:
        return str(entry.operation.keywords["statement"])
    operation = entry.operation.func if isinstance(entry.operation, partial) else entry.operation
    return operation.__qualname__.partition(".<locals>")[0]


class InlineWriter:
    """A Writer without thread and queue. Set `fault` and every operation fails with StoreUnavailable."""

    def __init__(self, connection: StoreConnection) -> None:
        self.connection = connection
        self.commits = 0
        self.full_disk: FullDisk | None = None
        self.fault: Exception | None = None
        self._posted: list[Operation[object]] = []
        self._is_closed = False

    def submit(
        self,
        operation: Operation[T],
        then: Callable[[T], None] | None = None,
        *,
        group: Hashable | None = None,
        within: float = 0.0,
    ) -> asyncio.Future[T]:
        """Run *operation* now; the future is done one turn of the loop later."""
        if self._is_closed:
            raise StoreUnavailable("the journal is closed")
        future: asyncio.Future[T] = asyncio.get_running_loop().create_future()
        if self.fault is not None:
            _later(future, StoreUnavailable(str(self.fault)))
            return future
        for posted in self._posted:
            self._transact(posted)
        self._posted.clear()
        batch = self._transact(operation)
        if batch.fault is not None:
            _later(future, StoreUnavailable(str(batch.fault)))
            return future
        result = batch.results[0]
        if not isinstance(result, Exception) and then is not None:
            then(result)
        _later(future, result)
        return future

    def submit_exclusive(self, operation: ExclusiveOperation[T]) -> asyncio.Future[T]:
        """Run *operation* now, outside any transaction."""
        future: asyncio.Future[T] = asyncio.get_running_loop().create_future()
        _later(future, operation(self.connection))
        return future

    def submit_nowait(
        self, operation: Operation[object], *, group: Hashable | None = None, within: float = 0.0
    ) -> None:
        """Run *operation* now, or before the next one that can run."""
        self._posted.append(operation)
        if self.fault is None:
            for posted in self._posted:
                self._transact(posted)
            self._posted.clear()

    def when_reopened(self, operation: Operation[T], then: Callable[[T], None]) -> None:
        """Do nothing: the connection of a fault is the connection after it."""

    async def close(self, last: Operation[object]) -> None:
        """Run *last*, then close."""
        if self._is_closed:
            return
        self._transact(last)
        self._is_closed = True
        self.connection.close()

    def _transact(self, operation: Operation[object]) -> BatchResult:
        batch = run_batch(self.connection, (BatchedOperation(operation, None),))
        self.commits += batch.commits
        return batch


def _later(future: asyncio.Future[T], result: object) -> None:
    asyncio.get_running_loop().call_soon(settle_entry, future, None, result)


async def open_inline_store(
    path: Path | None = None, limits: StoreLimits | None = None, *, clock: Clock = utc_now
) -> SqlStore:
    """Open a store that needs no thread, in memory unless *path* is given; ``clock=clock.now`` for virtual time."""
    if path is None:
        connection = new_connection()
        copy = partial(schema.copy, connection)
    else:
        _create(path)
        connection = schema.connect(path)
        copy = partial(copy_file, path)
    schema.prepare(connection, path)
    return await assemble(InlineWriter(connection), limits or StoreLimits(), clock, copy)


def new_connection() -> SqliteConnection:
    """Return a connection to a journal in memory, which any thread may use: a backup reads it from another one."""
    connection = sqlite3.connect(":memory:", isolation_level=None, check_same_thread=False, factory=SqliteConnection)
    connection.deserialize(_new_journal().replace(_WAL, _NO_WAL, 1))
    return connection


def _create(path: Path) -> None:
    """Make a new journal at *path*, unless there is one."""
    schema.create_private(path)
    if not path.stat().st_size:
        path.write_bytes(_new_journal())


@cache
def _new_journal() -> bytes:
    """Return the file of a journal without rows: the migrations of thousands of stores took a fiftieth of all tests."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "journal.db")
        connection = schema.connect(path)
        try:
            schema.prepare(connection, path)
        finally:
            connection.close()
        return path.read_bytes()


def kill(path: Path, into: Path) -> Path:
    """Copy the files of a store that is still open, as a kill leaves them; return the copy's path."""
    into.mkdir(mode=0o700, parents=True, exist_ok=True)
    for suffix in ("", "-wal"):
        source = path.with_name(path.name + suffix)
        if source.exists():
            shutil.copy(source, into / source.name)
    for source in path.parent.glob(f"*/*/{BYTES}"):
        shutil.copytree(source, into / source.relative_to(path.parent), dirs_exist_ok=True)
    return into / path.name


async def until_open(store: SqlStore) -> None:
    """Return when the store has a session again."""
    async with asyncio.timeout(30):
        while True:
            with suppress(StoreUnavailable):
                return await store.check()
            await asyncio.sleep(0.02)
