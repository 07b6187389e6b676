"""One writer, one thread, one transaction for everything that waits.

An *operation* is a function of a database. It may run twice (a batch that holds a bad row is rolled back and run
again one by one), so it changes nothing but the database. It raises ParlourErrors only before its first write, so
that they do not fail other operations.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import math
from collections import deque
from collections.abc import Awaitable, Callable, Hashable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Protocol, TypeAlias, TypeVar

import structlog

from gateway.errors import ParlourError, StoreUnavailable
from gateway.store.database import BatchedOperation, SharedDatabase, StoreConnection

log = structlog.get_logger(__name__)

T = TypeVar("T")
Operation: TypeAlias = Callable[[SharedDatabase], T]
ExclusiveOperation: TypeAlias = Callable[[StoreConnection], T]

_AT_ONCE = 1_000  # operations in one transaction; more would only make the first wait longer
_GATHER = 0.02  # seconds for which the operations of a transaction are waited for, while more and more come
_TRIES = 5  # of a batch that meets other workers' transactions, then of each of its operations
_DISK_FULL = "53100"  # PostgreSQL's SQLSTATE
_FIRST_DELAY, _LONGEST_DELAY = 0.05, 5.0  # seconds between attempts to open a broken store again


@dataclass(slots=True)
class BatchResult:
    """Results of a batch: an outcome per operation, up to the fault if there was one."""

    results: list[Any] = field(default_factory=list)  # a value, or the operation's own error
    fault: Exception | None = None
    commits: int = 0  # transactions that changed something, each of them synced


def run_batch(connection: StoreConnection, operations: Sequence[BatchedOperation]) -> BatchResult:
    """Run *operations* in one transaction; one by one when one of them is bad.

    They are run again when another worker's transaction was first; StoreUnavailable when it always is.
    """
    for _ in range(_TRIES):
        batch = _run_once(connection, operations)
        if batch is not None:
            return batch
    if len(operations) > 1:
        return _one_by_one(connection, operations)
    return BatchResult(results=[StoreUnavailable("other workers change the same rows: try again")])


def _run_once(connection: StoreConnection, operations: Sequence[BatchedOperation]) -> BatchResult | None:
    """Run *operations*; return None, without effect, if they may be run again as they are."""
    batch = BatchResult()
    try:
        connection.begin_batch()
        batch.results = connection.run_operations(operations)
        batch.commits = int(connection.end_batch())
    except Exception as error:  # noqa: BLE001 - the batch boundary: one bad operation fails none of its neighbours
        connection.roll_back()
        if connection.is_conflict(error):
            return None
        if connection.is_fault(error):
            return BatchResult(fault=error)
        if len(operations) == 1:
            return BatchResult(results=[error])
        return _one_by_one(connection, operations)
    return batch


def run_outside_transaction(connection: StoreConnection, operation: ExclusiveOperation[Any]) -> BatchResult:
    """Run one *operation* that makes its own transactions, or none."""
    try:
        return BatchResult(results=[operation(connection)])
    except Exception as error:  # noqa: BLE001 - the batch boundary, as above
        return BatchResult(fault=error) if connection.is_fault(error) else BatchResult(results=[error])


def _one_by_one(connection: StoreConnection, operations: Sequence[BatchedOperation]) -> BatchResult:
    batch = BatchResult()
    for operation in operations:
        single = run_batch(connection, (operation,))
        batch.results += single.results
        batch.commits += single.commits
        if single.fault is not None:
            batch.fault = single.fault
            break
    return batch


@dataclass(frozen=True, slots=True)
class FullDisk:
    """A write that failed because a disk was full."""

    at: float  # by the loop's time
    error: str


def is_full_disk(error: Exception) -> bool:
    """Return True if the disk of the file or of the database's server is full, in the terms of any driver."""
    return (
        getattr(error, "sqlstate", None) == _DISK_FULL
        or getattr(error, "sqlite_errorname", None) == "SQLITE_FULL"
        or getattr(error, "errno", None) in (errno.ENOSPC, errno.EDQUOT)
    )


class StoreWriter(Protocol):
    """Runs every operation on the database, in the order of the calls."""

    commits: int  # transactions that changed something, since the start
    full_disk: FullDisk | None  # the last time that a write met a full disk

    def submit(
        self,
        operation: Operation[T],
        then: Callable[[T], None] | None = None,
        *,
        group: Hashable | None = None,
        within: float = 0.0,
    ) -> asyncio.Future[T]:
        """Queue *operation*; the future is done when it is durable.

        Cancelling the future does not cancel the operation. *then* is called with the result first, on the event loop,
        also after a cancellation. It may run beside operations of another *group* (`BatchedOperation`), and wait
        *within* seconds for a transaction that is needed anyway.
        """
        ...

    def submit_nowait(
        self, operation: Operation[object], *, group: Hashable | None = None, within: float = 0.0
    ) -> None:
        """Queue *operation*, to be kept until it could be stored; *group* and *within* are as in `submit`."""
        ...

    def submit_exclusive(self, operation: ExclusiveOperation[T]) -> asyncio.Future[T]:
        """Queue *operation* to be run outside any transaction, after the commit of earlier operations."""
        ...

    def when_reopened(self, operation: Operation[T], then: Callable[[T], None]) -> None:
        """Run *operation* before any other whenever the file was opened again after a fault.

        Writes of the broken batch may be in the file although their callers got an error.
        """
        ...

    async def close(self, last: Operation[object]) -> None:
        """Write what is queued and *last*, then close."""
        ...


@dataclass(slots=True)
class _QueuedOperation:
    operation: Callable[[Any], Any]
    future: asyncio.Future[Any] | None = None  # None = posted: kept until it is stored
    then: Callable[[Any], None] | None = None
    group: Hashable | None = None
    is_alone: bool = False  # outside any transaction


def settle_entry(future: asyncio.Future[Any] | None, then: Callable[[Any], None] | None, result: Any) -> None:
    """Set an operation's result or error on its future."""
    if isinstance(result, Exception):
        if future is None:
            log.error("store.row_refused", error=type(result).__name__)
        elif not future.done():
            future.set_exception(result)
        return
    if then is not None:
        then(result)
    if future is not None and not future.done():
        future.set_result(result)


class WriterThread(Protocol):
    """The one thread that uses a connection, of an engine; open until it is closed."""

    async def call(self, work: Callable[[StoreConnection], T]) -> T:
        """Run *work* on the thread and return its result."""
        ...

    async def close(self) -> None:
        """Close the connection and end the thread."""
        ...


ThreadOpener: TypeAlias = Callable[[], Awaitable[WriterThread]]  # raises ParlourError or OSError


class BatchWriter:
    """Writer of the real store: a task that commits all queued operations at once.

    An I/O error fails the batch with StoreUnavailable and closes the connection (a failed fsync is never retried on
    the same one); a later batch opens it again, with backoff.
    """

    def __init__(self, open_thread: ThreadOpener, *, longest_delay: float = _LONGEST_DELAY) -> None:
        """*longest_delay* is that of the backoff, in seconds."""
        self.commits = 0
        self.full_disk: FullDisk | None = None
        self._longest_delay = longest_delay
        self._open_thread = open_thread
        self._loop = asyncio.get_running_loop()
        self._connection: WriterThread | None = None
        self._queue: deque[_QueuedOperation] = deque()
        self._due = math.inf  # when the queue must be stored, by the loop's time
        self._batch: list[_QueuedOperation] = []
        self._kept: list[_QueuedOperation] = []
        self._waiter: asyncio.Future[None] | None = None
        self._task: asyncio.Task[None] | None = None
        self._reopened: _QueuedOperation | None = None
        self._is_closing = False
        self._delay = 0.0
        self._retry_at = 0.0
        self._fault = ""  # why the store is down

    async def open(self) -> None:
        """Open the file and start writing; raise what opening raises."""
        self._connection = await self._open_thread()
        self._task = asyncio.create_task(self._serve(), name="journal writer")

    def submit(
        self,
        operation: Operation[T],
        then: Callable[[T], None] | None = None,
        *,
        group: Hashable | None = None,
        within: float = 0.0,
    ) -> asyncio.Future[T]:
        """Queue *operation* (see StoreWriter)."""
        future: asyncio.Future[T] = self._loop.create_future()
        self._submit(_QueuedOperation(operation, future, then, group), within)
        return future

    def _submit(self, entry: _QueuedOperation, within: float = 0.0) -> None:
        if self._is_closing:
            raise StoreUnavailable("the journal is closed")
        self._enqueue(entry, within)

    def _enqueue(self, entry: _QueuedOperation, within: float) -> None:
        self._queue.append(entry)
        self._due = min(self._due, self._loop.time() + within)
        self._wake()

    def submit_exclusive(self, operation: ExclusiveOperation[T]) -> asyncio.Future[T]:
        """Queue *operation* to be run outside any transaction (see StoreWriter)."""
        future: asyncio.Future[T] = self._loop.create_future()
        self._submit(_QueuedOperation(operation, future, is_alone=True))
        return future

    def submit_nowait(
        self, operation: Operation[object], *, group: Hashable | None = None, within: float = 0.0
    ) -> None:
        """Queue *operation*, to be kept until it could be stored (see StoreWriter)."""
        self._enqueue(_QueuedOperation(operation, group=group), within)

    def when_reopened(self, operation: Operation[T], then: Callable[[T], None]) -> None:
        """Run *operation* first whenever the file was opened again after a fault (see StoreWriter)."""
        self._reopened = _QueuedOperation(operation, None, then)

    async def close(self, last: Operation[object]) -> None:
        """Write what is queued and *last*, then close; a store that is down is closed as it is."""
        task, self._task = self._task, None
        if task is None:
            return
        if not self._is_closing:
            done = self.submit(last)
            self._is_closing = True
            with contextlib.suppress(StoreUnavailable):
                await done
        await task
        if self._kept:
            log.error("store.lost_at_close", rows=len(self._kept))
        await self._disconnect()

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    async def _serve(self) -> None:
        try:
            while self._queue or not self._is_closing:
                if self._loop.time() < self._next_at():
                    await self._wait()
                    continue
                await self._gather()
                self._batch = self._next_batch()
                await self._store(self._batch)
                self._batch = []
        except Exception:  # the service boundary
            log.exception("store.writer_failed")
        finally:  # no caller may wait for a closed writer
            self._is_closing = True
            self._fail([*self._batch, *self._queue], StoreUnavailable("the journal's writer has ended"))

    async def _gather(self) -> None:
        """Let callers that the last batch woke, and those whom they wake, ask for more: it goes in one commit.

        It ends when nothing more comes. In a crowd each transaction is for more messages then, and writes the pages
        that all of them change once.
        """
        until, count = self._loop.time() + _GATHER, -1
        while count != len(self._queue):
            count = len(self._queue)
            await asyncio.sleep(0)
            await asyncio.sleep(0)
            if self._loop.time() >= until:
                break

    async def _wait(self) -> None:
        self._waiter = self._loop.create_future()
        at = self._next_at()
        timer = self._loop.call_at(at, self._wake) if at < math.inf else None
        await self._waiter
        self._waiter = None
        if timer is not None:
            timer.cancel()

    def _next_at(self) -> float:
        """Return when the next batch is to be stored."""
        return min(self._due, self._retry_at if self._kept else math.inf)

    def _next_batch(self) -> list[_QueuedOperation]:
        if self._queue and self._queue[0].is_alone:
            batch = [self._queue.popleft()]
        else:
            batch, self._kept = self._kept, []
            while self._queue and not self._queue[0].is_alone and len(batch) < _AT_ONCE:
                batch.append(self._queue.popleft())
        if not self._queue:
            self._due = math.inf
        return batch

    async def _store(self, entries: list[_QueuedOperation]) -> None:
        connection = self._connection
        if connection is None:
            connection = await self._reconnect()
        if connection is None:
            self._fail(entries, StoreUnavailable(f"the journal cannot be written now: {self._fault}"))
            return
        if entries[0].is_alone:
            batch = await connection.call(partial(run_outside_transaction, operation=entries[0].operation))
        else:
            operations = [BatchedOperation(entry.operation, entry.group) for entry in entries]
            batch = await connection.call(partial(run_batch, operations=operations))
        self.commits += batch.commits
        for entry, result in zip(entries, batch.results, strict=False):
            if isinstance(result, StoreUnavailable):  # other workers were first, again and again
                self._fail([entry], result)
            else:
                settle_entry(entry.future, entry.then, result)
        if batch.fault is None:
            self._delay = 0.0
            return
        await self._break(batch.fault)
        self._fail(entries[len(batch.results) :], StoreUnavailable(f"the journal cannot be written: {batch.fault}"))

    async def _break(self, fault: Exception) -> None:
        self._fault = str(fault)
        if is_full_disk(fault):
            self.full_disk = FullDisk(self._loop.time(), " ".join(self._fault.split()))
        log.error("store.down", error=self._fault)
        self._back_off()
        await self._disconnect()

    def _fail(self, entries: Sequence[_QueuedOperation], error: StoreUnavailable) -> None:
        for entry in entries:
            if entry.future is None:
                self._kept.append(entry)
            elif not entry.future.done():
                entry.future.set_exception(error)

    def _back_off(self) -> None:
        # The first attempt after a fault is free; a disk that stays full is asked less and less often.
        self._retry_at = self._loop.time() + self._delay
        self._delay = min(max(2 * self._delay, _FIRST_DELAY), self._longest_delay)

    async def _reconnect(self) -> WriterThread | None:
        if self._loop.time() < self._retry_at:
            return None
        try:
            connection = await self._open_thread()
        except (OSError, ParlourError) as error:
            if self._fault != str(error):  # the same line twice a second would push everything else out of the log
                self._fault = str(error)
                log.error("store.still_down", error=self._fault)  # noqa: TRY400 - the line says all; a trace repeats it
            self._back_off()
            return None
        self._connection = connection
        if self._reopened is not None:
            first = BatchedOperation(self._reopened.operation, None)
            batch = await connection.call(partial(run_batch, operations=(first,)))
            fault = batch.fault or batch.results[0]
            if batch.fault is not None or isinstance(fault, StoreUnavailable):
                await self._break(fault)
                return None
            settle_entry(None, self._reopened.then, batch.results[0])
        log.info("store.reopened")
        return connection

    async def _disconnect(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            await connection.close()
