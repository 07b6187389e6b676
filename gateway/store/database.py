"""A database as the rules see it, and a connection as the writer uses it.

The rules of the store are functions of a `Database`, written once for all engines, in the SQL that SQLite and
PostgreSQL share: `RETURNING` and not `lastrowid`; `ON CONFLICT` and not `INSERT OR`; JSON is read and changed in
Python; times, flags and counts are integers; no column holds a NUL. An engine may replace `?`, `LISTED` and `LOCKED`
by its own spelling, and nothing else.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Hashable, Iterable, Iterator, Sequence
from enum import StrEnum
from typing import Any, NamedTuple, Protocol, TypeAlias

from gateway.errors import ParlourError

LISTED = "IN (SELECT value FROM json_each(?))"  # one of the texts in a JSON list; NOT goes before the column
LOCKED = "/* locked */"  # behind a WHERE: other workers change the rows before this transaction, or after it
Columns: TypeAlias = tuple[Any, ...]


class QueryResult(Protocol):
    """The result of a statement."""

    @property
    def rowcount(self) -> int:
        """Return the number of changed rows."""
        ...

    @property
    def description(self) -> Any:
        """Return a sequence of columns; the first field of each is its name."""
        ...

    def fetchone(self) -> Any:
        """Return the next row as a tuple; None after the last."""
        ...

    def fetchall(self) -> list[Any]:
        """Return the remaining rows."""
        ...

    def __iter__(self) -> Iterator[Any]: ...

    def close(self) -> None:
        """Discard the remaining rows."""
        ...


class Database(Protocol):
    """Runs statements inside the writer's transaction. Parameters are `?`, or `?1`, `?2`… where one comes twice."""

    def execute(self, statement: str, parameters: Sequence[Any] = ..., /) -> QueryResult:
        """Run one statement. Raises the driver's errors, on PostgreSQL not before its result is asked for."""
        ...

    def executemany(self, statement: str, parameters: Iterable[Sequence[Any]], /) -> QueryResult:
        """Run a statement without a result once for each of *parameters*."""
        ...


class CachedRows(StrEnum):
    """Rows that every worker keeps in memory (gateway/store/shared_caches.py)."""

    ACCESS = "access"
    LINKS = "links"
    CHOICES = "choices"
    MODELS = "models"  # facts about models
    NOTES = "notes"  # of channels, those that `SqlChannelState.cached` returns


class SharedDatabase(Database, Protocol):
    """A database as those rules see it that are about other workers."""

    def dead_workers(self, worker: str, *, shares: bool) -> Sequence[str]:
        """Return the listed workers, other than *worker*, that are dead: this transaction may take over from them.

        *shares* is False for a worker that has the database for itself.
        """
        ...

    def notify(self) -> None:
        """Have the other workers look for work, once this transaction is durable."""
        ...

    def notify_worker(self, name: str) -> None:
        """Have one worker look for frames of its windows, once this transaction is durable."""
        ...

    def changes_cached(self, rows: CachedRows) -> None:
        """Say that this transaction changes *rows*: the other workers read them again."""
        ...


class BatchedOperation(NamedTuple):
    """An operation of a batch.

    Operations of different groups touch different rows, or give the same in any order, so that they may run side by
    side. Those of one group, and all before and after one without a group, run one after the other.
    """

    run: Callable[[SharedDatabase], Any]
    group: Hashable | None


def run_operation(operation: Callable[[SharedDatabase], Any], database: SharedDatabase) -> Any:
    """Return the result of an operation of a batch, or the ParlourError that it raises before its first write."""
    try:
        return operation(database)
    except ParlourError as error:
        return error


class StoreConnection(SharedDatabase, Protocol):
    """A connection of an engine, as its writer uses it. Everything on the writer's thread."""

    def run_operations(self, operations: Sequence[BatchedOperation]) -> list[Any]:
        """Run the *operations* of the open transaction; return the results that `run_operation` gives."""
        ...

    def begin_batch(self) -> None:
        """Begin a transaction that may write."""
        ...

    def end_batch(self) -> bool:
        """Make the transaction durable; return True if it changed something."""
        ...

    def roll_back(self) -> None:
        """Roll the transaction back, if there is one; a broken connection may refuse silently."""
        ...

    def is_fault(self, error: Exception) -> bool:
        """Return True if *error* is the fault of the disk, the file, the server or the network, not of a statement."""
        ...

    def is_conflict(self, error: Exception) -> bool:
        """Return True if the batch failed because of another worker's transaction, and may be run again as it is."""
        ...

    def running_transactions(self) -> Collection[str]:
        """Return the names of the transactions that other workers have begun and not ended."""
        ...

    def scrub_parts(self) -> Sequence[str]:
        """Return the parts of the data that `scrub` takes one after the other, so that others wait for one at most."""
        ...

    def has_older_readers(self) -> bool:
        """Return True while a transaction that began before `scrub_parts` has the engine keep what was deleted."""
        ...

    def scrub(self, part: str) -> bool:
        """Leave nothing in the files of *part* but its rows; False if it must be tried again. Outside a transaction."""
        ...

    def close(self) -> None:
        """Close the connection. Raises only what `is_fault`."""
        ...


def upsert_sql(table: str, *columns: str, keys: int = 1) -> str:
    """Return the statement that writes one row of *table*, in the place of one with the same first *keys* columns."""
    values = ", ".join("?" * len(columns))
    change = ", ".join(f"{column} = excluded.{column}" for column in columns[keys:])
    return (
        f"INSERT INTO {table} ({', '.join(columns)}) VALUES ({values}) "  # noqa: S608 - our own words
        f"ON CONFLICT ({', '.join(columns[:keys])}) DO UPDATE SET {change}"
    )


SET_META = upsert_sql("meta", "name", "value")
FIND_META = "SELECT value FROM meta WHERE name = ?"
BURY = upsert_sql("dead", "id", "turn", "key", "reason", "at")
