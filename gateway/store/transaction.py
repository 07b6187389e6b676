"""One transaction for many operations.

An *operation* is a function of a connection. It may run twice (a batch that holds a bad row is rolled back and run
again one by one), so it changes nothing but the database. It raises ParlourErrors only before its first write, so
that they do not fail other operations.
"""

from __future__ import annotations

import contextlib
import sqlite3
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias, TypeVar

from gateway.errors import ParlourError

T = TypeVar("T")
Operation: TypeAlias = Callable[[sqlite3.Connection], T]

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


def is_fault(error: BaseException) -> bool:
    """Return True if *error* is a fault of the disk or the file, not of the operation."""
    if isinstance(error, sqlite3.Error):
        return (getattr(error, "sqlite_errorcode", 0) & 0xFF) in _FAULTS
    return isinstance(error, (OSError, MemoryError))


@dataclass(slots=True)
class BatchResult:
    """Results of a batch: an outcome per operation, up to the fault if there was one."""

    results: list[Any] = field(default_factory=list)  # a value, or the operation's own error
    fault: Exception | None = None
    commits: int = 0  # transactions that changed something, each of them synced


def run_batch(connection: sqlite3.Connection, operations: Sequence[Operation[Any]]) -> BatchResult:
    """Run *operations* in one transaction; one by one when one of them is bad."""
    batch = BatchResult()
    try:
        before = connection.total_changes
        connection.execute("BEGIN IMMEDIATE")
        for operation in operations:
            try:
                batch.results.append(operation(connection))
            except ParlourError as error:
                batch.results.append(error)
        connection.execute("COMMIT")
        batch.commits = int(connection.total_changes != before)
    except Exception as error:  # noqa: BLE001 - the batch boundary: one bad operation fails none of its neighbours
        _roll_back(connection)
        if is_fault(error):
            return BatchResult(fault=error)
        if len(operations) == 1:
            return BatchResult(results=[error])
        return _one_by_one(connection, operations)
    return batch


def run_outside_transaction(connection: sqlite3.Connection, operation: Operation[Any]) -> BatchResult:
    """Run one *operation* that makes its own transactions, or none."""
    try:
        return BatchResult(results=[operation(connection)])
    except Exception as error:  # noqa: BLE001 - the batch boundary, as above
        return BatchResult(fault=error) if is_fault(error) else BatchResult(results=[error])


def _one_by_one(connection: sqlite3.Connection, operations: Sequence[Operation[Any]]) -> BatchResult:
    batch = BatchResult()
    for operation in operations:
        single = run_batch(connection, (operation,))
        batch.results += single.results
        batch.commits += single.commits
        if single.fault is not None:
            batch.fault = single.fault
            break
    return batch


def _roll_back(connection: sqlite3.Connection) -> None:
    # Disk full and I/O errors may have rolled back already; a broken file may refuse. It is closed next.
    with contextlib.suppress(sqlite3.Error):
        connection.rollback()
