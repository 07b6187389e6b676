"""A connection to the journal's file, as the writer uses it."""

from __future__ import annotations

import contextlib
import sqlite3
from collections.abc import Collection, Iterator, Sequence
from typing import Any

import structlog

from gateway.store.database import BatchedOperation, CachedRows, run_operation

log = structlog.get_logger(__name__)

_IN_MEMORY = 64 * 1024 * 1024  # bytes of a journal that is rebuilt in memory; a larger one in a temporary file
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
        """Return the file's one part."""
        return ("journal",)

    def scrub(self, part: str) -> bool:  # noqa: ARG002 - as the engines have it
        """Rebuild the file without what was deleted and empty its log; False while another process reads it."""
        with self._impatient():
            pages, size = (self.execute(f"PRAGMA {name}").fetchone()[0] for name in ("page_count", "page_size"))
            self.execute(f"PRAGMA temp_store = {'MEMORY' if pages * size <= _IN_MEMORY else 'FILE'}")
            if not self._empty_log():  # before the file is rebuilt: a reader would keep the old pages
                return False
            try:
                self.execute("VACUUM")
            except sqlite3.OperationalError as error:
                log.warning("store.scrub_failed", error=str(error))
                return False
            return self._empty_log()

    def _empty_log(self) -> bool:
        row = self.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()
        return row is not None and row[0] == 0

    @contextlib.contextmanager
    def _impatient(self) -> Iterator[None]:
        """Do not wait for those who read: turns would wait with us."""
        (before,) = self.execute("PRAGMA busy_timeout").fetchone()
        self.execute("PRAGMA busy_timeout = 100")
        try:
            yield
        finally:
            self.execute(f"PRAGMA busy_timeout = {int(before)}")
            self.execute("PRAGMA temp_store = DEFAULT")

    def close(self) -> None:
        """Close the file; a broken one may refuse, which is logged."""
        try:
            super().close()
        except sqlite3.Error as error:
            log.warning("store.close_failed", error=str(error))
