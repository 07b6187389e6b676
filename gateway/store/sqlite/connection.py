"""Connections to the journal's file, and their threads: the writer's, which runs a batch in one hop, the reader's."""

from __future__ import annotations

import asyncio
import contextlib
import os
import sqlite3
import struct
from collections.abc import Callable, Collection, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import aiosqlite
import structlog

from gateway.errors import StoreUnavailable
from gateway.journal_file import fault_line
from gateway.store.database import BatchedOperation, CachedRows, StoreConnection, run_operation
from gateway.store.writer import Operation

log = structlog.get_logger(__name__)

CHECKPOINT = 16_000  # pages of the log that are written to the file at a time
_WHOLE, _END = "whole", "end"  # parts of a scrub
_AT_ONCE = 512 * 1024  # bytes that a scrub clears while turns wait
_HEADERS = {2: 12, 5: 12, 10: 8, 13: 8}  # lengths by the kind of a page of a tree; all other pages are used whole
_FILE_HEADER = 100  # bytes, before the header of the first page
# Other pages begin with a page's number, which is that of a kind in files with more pages than this.
MOST_PAGES = 1 << 25
_FAULTS = frozenset(
    {
        sqlite3.SQLITE_BUSY,
        sqlite3.SQLITE_CANTOPEN,
        sqlite3.SQLITE_CORRUPT,
        sqlite3.SQLITE_FULL,
        sqlite3.SQLITE_IOERR,
        sqlite3.SQLITE_LOCKED,
        sqlite3.SQLITE_NOMEM,
        sqlite3.SQLITE_NOTADB,
        sqlite3.SQLITE_PERM,
        sqlite3.SQLITE_PROTOCOL,
        sqlite3.SQLITE_READONLY,
    }
)


class SqliteConnection(sqlite3.Connection):
    """SQLite's own connection, which is a `Database`, with what a `StoreConnection` adds."""

    _changes = 0
    _file = -1  # a descriptor of the file, opened by the first scrub
    _while_disconnected: Callable[[Callable[[], None]], None] = staticmethod(lambda work: work())

    def close_file_while(self, disconnected: Callable[[Callable[[], None]], None]) -> None:
        """Close the scrub's descriptor by *disconnected*, which runs a function while no reader has the file open."""
        self._while_disconnected = disconnected

    def dead_workers(self, worker: str, *, shares: bool) -> Sequence[str]:  # noqa: ARG002 - the port's
        """Return all other workers: the home's lock is ours."""
        return [name for (name,) in self.execute("SELECT name FROM worker WHERE name != ?", (worker,))]

    def notify(self) -> None:
        """Do nothing: this worker is the only one."""

    def notify_worker(self, name: str) -> None:
        """Do nothing, as `notify`."""

    def changes_cached(self, rows: CachedRows) -> None:
        """Do nothing, as `notify`."""

    def begin_batch(self) -> None:
        """Begin a transaction, which locks out other writers."""
        self._changes = self.total_changes
        self.execute("BEGIN IMMEDIATE")

    def run_operations(self, operations: Sequence[BatchedOperation]) -> list[Any]:
        """Run *operations* in their order."""
        return [run_operation(operation, self) for operation, _ in operations]

    def end_batch(self) -> bool:
        """Make the transaction durable; return True if it changed something."""
        self.execute("COMMIT")
        return self.total_changes != self._changes

    def roll_back(self) -> None:
        """Roll the transaction back, if there is one."""
        # Disk full and I/O errors may have rolled back already; a broken file may refuse. It is closed next.
        with contextlib.suppress(sqlite3.Error):
            self.rollback()

    def is_fault(self, error: Exception) -> bool:
        """Return True if *error* is a fault of the disk or the file, not of a statement."""
        if isinstance(error, sqlite3.Error):
            return (getattr(error, "sqlite_errorcode", 0) & 0xFF) in _FAULTS
        return isinstance(error, (OSError, MemoryError))

    def is_conflict(self, error: Exception) -> bool:  # noqa: ARG002 - the port's
        """Return False: a transaction locks out all others."""
        return False

    def running_transactions(self) -> Collection[str]:
        """Return nothing: this worker is the only one."""
        return ()

    def scrub_parts(self) -> Sequence[str]:
        """Return the numbers of the first pages of pieces of the file, then the end of it."""
        path, page_size, count = self._layout()
        if not path or count >= MOST_PAGES:
            return (_WHOLE,)
        return [*(str(first) for first in range(1, count + 1, _AT_ONCE // page_size)), _END]

    def has_older_readers(self) -> bool:
        """Return False: `scrub` sees itself whether another connection reads."""
        return False

    def scrub(self, part: str) -> bool:
        """Clear the unused bytes of a piece, and of pages that were written since the last one; empty the log.

        Return False while a transaction of another connection reads. From one piece to the next the log is not written
        to the file, so it has every page that rows of a later piece have moved to.
        """
        path, page_size, _ = self._layout()
        pages = set() if part == _WHOLE else _read_log(path)
        with self._impatient():
            if is_empty := self._empty_log():
                if part == _WHOLE:
                    self.execute("VACUUM")
                else:
                    pieces = [] if part == _END else [(int(part), _AT_ONCE // page_size)]
                    self._clear(path, page_size, [*pieces, *((each, 1) for each in sorted(pages))])
            is_last = not is_empty or part in (_WHOLE, _END)
            self.execute(f"PRAGMA wal_autocheckpoint = {CHECKPOINT if is_last else 0}")
            return is_empty and (part != _WHOLE or self._empty_log())

    def _layout(self) -> tuple[str, int, int]:
        """Return the path of the file, "" in memory, the size of its pages, and their number."""
        path = self.execute("PRAGMA database_list").fetchone()[2]
        page_size, count = (self.execute(f"PRAGMA {name}").fetchone()[0] for name in ("page_size", "page_count"))
        return path, page_size, count

    def _clear(self, path: str, page_size: int, ranges: Sequence[tuple[int, int]]) -> None:
        """Clear the unused bytes of pages, given as the first one and their number. The log must be empty.

        They are in no row, so that a torn write of them harms nothing, and who reads the file sees no difference.
        """
        if self._file < 0:  # closed with the connection: closing it gives up all locks of the process on the file
            self._file = os.open(path, os.O_RDWR | os.O_CLOEXEC)
        is_changed = False
        for first, length in ranges:
            start = (first - 1) * page_size
            data = os.pread(self._file, length * page_size, start)
            for at, end in unused_spans(data, page_size, is_start=first == 1):
                os.pwrite(self._file, bytes(end - at), start + at)
                is_changed = True
        if is_changed:
            os.fdatasync(self._file)
            self.execute("PRAGMA shrink_memory")  # or the pages in memory would be written as they were

    def _empty_log(self) -> bool:
        row = self.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()
        return row is not None and row[0] == 0

    @contextlib.contextmanager
    def _impatient(self) -> Iterator[None]:
        """Do not wait for those who read: turns would wait with us."""
        (before,) = self.execute("PRAGMA busy_timeout").fetchone()
        self.execute("PRAGMA busy_timeout = 50")
        try:
            yield
        finally:
            self.execute(f"PRAGMA busy_timeout = {int(before)}")

    def close(self) -> None:
        """Close the file; a broken one may refuse, which is logged."""
        try:
            super().close()
        except sqlite3.Error as error:
            log.warning("store.close_failed", error=str(error))
        if self._file >= 0:
            self._while_disconnected(partial(os.close, self._file))
            self._file = -1


def _read_log(path: str) -> set[int]:
    """Return the numbers of the pages in the log of the file."""
    try:
        return logged_pages(Path(f"{path}-wal").read_bytes())
    except FileNotFoundError:
        return set()


# -- unused bytes --------------------------------------------------------------------------------

# With `secure_delete` SQLite overwrites what it deletes, and pages that it frees. When rows move between pages, their
# old copies stay in the space between a page's list of cells and its cells (docs/adr/0012-purge.md). No statement
# reaches that space, and rebuilding a file of 500 MB holds up every write for twelve seconds.


def unused_spans(data: bytes, page_size: int, *, is_start: bool) -> Iterator[tuple[int, int]]:
    """Yield the spans of *data*, whole pages of a file, that are unused and not zero; *is_start*: from its first."""
    for page in range(0, len(data), page_size):
        header = page + (_FILE_HEADER if is_start and not page else 0)
        kind, block, count, content = struct.unpack_from(">BHHH", data, header)
        if kind not in _HEADERS:
            continue
        spans = [(header + _HEADERS[kind] + 2 * count, page + (content or 65536))]
        while block and len(spans) <= page_size // 4:
            following, length = struct.unpack_from(">HH", data, page + block)
            spans.append((page + block + 4, page + block + length))
            block = following
        for start, end in spans:
            if start < end <= page + page_size and data.count(0, start, end) != end - start:
                yield start, end


def logged_pages(log: bytes) -> set[int]:
    """Return the numbers of the pages that a write-ahead log has, those of earlier rounds included."""
    if len(log) < 32:
        return set()
    (page_size,) = struct.unpack_from(">I", log, 8)
    return {struct.unpack_from(">I", log, at)[0] for at in range(32, len(log) - 23, 24 + page_size)}


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
