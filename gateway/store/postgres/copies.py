"""Copies of all tables from a database to a journal file, and from the file to a database: one instant, verified.

The tables of both engines are the same, so the copy of a database is a journal that `parlour restore` and the embedded
store take. Each table is read back from the copy and compared: the number of its rows and the sum of their hashes.
"""

from __future__ import annotations

import hashlib
import sqlite3
from collections.abc import Callable, Generator, Iterable, Iterator
from contextlib import closing, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Protocol, TypeAlias

import psycopg
from psycopg.raw_cursor import RawServerCursor

from gateway.errors import StoreUnavailable, UserError
from gateway.journal_file import fault_line as file_fault_line
from gateway.store.file_copies import TABLES as EARLIER_TABLES
from gateway.store.file_copies import drop_tables, store_bytes
from gateway.store.objects import ObjectStore
from gateway.store.postgres import schema
from gateway.store.postgres.connection import PostgresConnection
from gateway.store.postgres.schema import DatabaseMove, fault_line, open_session
from gateway.store.sqlite import schema as journal_schema

Row: TypeAlias = tuple[Any, ...]
Report: TypeAlias = Callable[[str, int], None]  # is called with a table's name and how many of its rows are copied

_AT_ONCE = 1_000  # rows in memory
_REPORT_EVERY = 100_000  # rows
_OBJECTS = "SELECT place FROM stored_file WHERE place LIKE '%-%'"
# The objects of a copy that is replaced, but for those that the new one has again.
_RELEASE = (
    "INSERT INTO unused_object (name, due) SELECT ?1, 0 WHERE NOT EXISTS (SELECT 1 FROM stored_file WHERE place = ?1) "
    "ON CONFLICT DO NOTHING"
)
_ORDER = {"usage": "rowid"}  # a table without a key of its own keeps its order
_NOT_COPIED = frozenset({"unused_object"})  # of one store's bytes, which the other one has not
_LEFT_OUT = {"meta": f"name != '{schema.MOVE}'"}  # true of one database, not of its copy


@dataclass(frozen=True, slots=True)
class CopiedTable:
    """One table, and the columns that are copied."""

    name: str
    columns: tuple[str, ...]

    @property
    def names(self) -> str:
        """Return the columns as SQL."""
        return ", ".join(self.columns)

    @property
    def query(self) -> str:
        """Return the statement that reads all rows."""
        rows = f"{self.name} WHERE {_LEFT_OUT[self.name]}" if self.name in _LEFT_OUT else self.name
        return f"SELECT {self.names} FROM {rows} ORDER BY {_ORDER.get(self.name, '1')}"  # noqa: S608 - our schema's own names


def copied_tables(journal: sqlite3.Connection) -> list[CopiedTable]:
    """Return every table of the schema: one that a migration adds is copied without a change here."""
    tables = "SELECT name FROM sqlite_master WHERE type = 'table' AND name NOT LIKE 'sqlite%' ORDER BY name"
    return [
        CopiedTable(name, tuple(row[1] for row in journal.execute(f"PRAGMA table_info({name})")))
        for (name,) in journal.execute(tables).fetchall()
        if name not in _NOT_COPIED
    ]


class TableStore(Protocol):
    """One side of a copy, inside a transaction."""

    def read(self, table: CopiedTable) -> Generator[Row]:
        """Yield all rows."""
        ...

    def append(self, table: CopiedTable, rows: Iterable[Row]) -> None:
        """Add *rows*."""
        ...


class _JournalTables:
    def __init__(self, journal: sqlite3.Connection) -> None:
        self._journal = journal

    def read(self, table: CopiedTable) -> Generator[Row]:
        yield from self._journal.execute(table.query)

    def append(self, table: CopiedTable, rows: Iterable[Row]) -> None:
        values = ", ".join("?" * len(table.columns))
        self._journal.executemany(f"INSERT INTO {table.name} ({table.names}) VALUES ({values})", rows)  # noqa: S608 - our schema's own names


class _DatabaseTables:
    def __init__(self, session: psycopg.Connection[Any]) -> None:
        self._session = session

    def read(self, table: CopiedTable) -> Generator[Row]:
        with RawServerCursor(self._session, f"copy_{table.name}") as cursor:
            cursor.execute(table.query.encode())
            while block := cursor.fetchmany(_AT_ONCE):
                yield from block

    def append(self, table: CopiedTable, rows: Iterable[Row]) -> None:
        with self._session.cursor() as cursor:
            with cursor.copy(f"COPY {table.name} ({table.names}) FROM STDIN".encode()) as copy:
                for row in rows:
                    copy.write_row(row)
            if "seq" in table.columns:  # numbers go on behind the highest; without a sequence this is NULL
                highest = f"SELECT max(seq) AS seq FROM {table.name} HAVING max(seq) > 0"  # noqa: S608 - our schema's own names
                numbers = (
                    f"SELECT setval(pg_get_serial_sequence('{table.name}', 'seq'), seq) FROM ({highest}) AS highest"  # noqa: S608
                )
                cursor.execute(numbers.encode())


class _TableDigest:
    """The number of rows and the sum of their hashes, whatever their order."""

    def __init__(self) -> None:
        self.count = 0
        self._sum = 0

    def over(self, rows: Iterable[Row], report: Callable[[int], None]) -> Iterator[Row]:
        """Yield *rows* and take them in."""
        for row in rows:
            self.take((row,))
            if not self.count % _REPORT_EVERY:
                report(self.count)
            yield row

    def take(self, rows: Iterable[Row]) -> None:
        """Take *rows* in."""
        for row in rows:
            self.count += 1
            self._sum += int.from_bytes(hashlib.sha256(repr(row).encode()).digest())

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _TableDigest) and (self.count, self._sum) == (other.count, other._sum)

    __hash__ = None  # type: ignore[assignment]


def _copy_tables(source: TableStore, target: TableStore, tables: Iterable[CopiedTable], report: Report) -> int:
    """Copy and compare every table; return the number of rows. Raises StoreUnavailable for a copy that differs."""
    total = 0
    for table in tables:
        written, found = _TableDigest(), _TableDigest()
        with closing(source.read(table)) as rows:
            target.append(table, written.over(rows, partial(report, table.name)))
        with closing(target.read(table)) as rows:
            found.take(rows)
        if written != found:
            raise StoreUnavailable(
                f"the copy of the table {table.name} differs from what was written ({written.count} rows, read back:"
                f" {found.count}); nothing was changed, check the disks and try again"
            )
        report(table.name, written.count)
        total += written.count
    return total


def copy_database(url: str, target: Path, report: Report = lambda *_: None) -> int:
    """Write the tables as of one instant to a new journal file *target*, 0600, complete or not there at all.

    Returns the number of rows. Raises StoreUnavailable.
    """
    unfinished = target.with_name(f".{target.name}.part")
    try:
        _remove(unfinished)
        target.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        journal_schema.create_private(unfinished)
        with closing(journal_schema.connect(unfinished)) as journal:
            journal_schema.prepare(journal, unfinished)
            with closing(open_session(url)) as session:
                session.execute(b"BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY")
                journal.execute("BEGIN")
                count = _copy_tables(_DatabaseTables(session), _JournalTables(journal), copied_tables(journal), report)
                journal.execute("COMMIT")
                session.execute(b"COMMIT")
            journal.execute("PRAGMA journal_mode = DELETE")
        journal_schema.sync(unfinished)
        unfinished.replace(target)
        journal_schema.sync(target.parent)
    except (psycopg.Error, sqlite3.Error, OSError) as error:
        raise StoreUnavailable(f"the copy {target} could not be written: {error}") from error
    finally:
        _remove(unfinished)
    return count


def fill_database(
    connection: PostgresConnection,
    file: Path,
    move: DatabaseMove,
    report: Report,
    *,
    objects: ObjectStore | None = None,
) -> int:
    """Copy the journal *file*, which nothing else has open, into an empty database, with *move* as its note.

    An unfinished copy and what was moved away are replaced. It is one transaction: killed in it, nothing is there.
    Bytes of large files in the home go to *objects*, or without them into the database.
    The server then knows the sizes of the tables.
    Returns the number of rows. Raises StoreUnavailable; UserError for a database that holds messages.
    """
    try:
        with closing(journal_schema.connect(file)) as journal:
            journal_schema.prepare(journal, file)
            tables = copied_tables(journal)
            _require_room(connection, tables)
            schema.prepare(connection)
            journal.execute("BEGIN")
            connection.begin_batch()
            try:
                drop_tables(connection)
                objects_before = connection.execute(_OBJECTS).fetchall()
                connection.execute(f"TRUNCATE {', '.join(table.name for table in tables)} RESTART IDENTITY")
                count = _copy_tables(_JournalTables(journal), _DatabaseTables(connection.session), tables, report)
                store_bytes(connection, file.parent, objects)
                connection.executemany(_RELEASE, objects_before)
                schema.write_move(connection, move)
                # The plans for empty tables read whole tables at every turn, until autovacuum comes.
                connection.execute(f"ANALYZE {', '.join(table.name for table in tables)}")
                connection.end_batch()
            except BaseException:
                connection.roll_back()
                raise
    except psycopg.Error as error:
        raise StoreUnavailable(f"{fault_line(error)}; nothing was moved") from error
    except (sqlite3.Error, OSError) as error:
        raise StoreUnavailable(file_fault_line(file, error)) from error
    return count


def _require_room(connection: PostgresConnection, tables: Iterable[CopiedTable]) -> None:
    """Raise UserError for a database with messages that are in no file."""
    if not schema.schema_version(connection):
        return
    move = schema.read_move(connection)
    if move is not None and not move.is_active:
        return
    made = {
        name for (name,) in connection.execute("SELECT tablename FROM pg_tables WHERE schemaname = current_schema()")
    }
    for table in (*(each.name for each in tables), *EARLIER_TABLES):
        if table in made and connection.execute(f"SELECT 1 FROM {table} LIMIT 1").fetchone():  # noqa: S608 - our schema's own names
            raise UserError(
                f"the database of store.url is not empty (its table {table} has rows), and would be overwritten:"
                " make another one with createdb and name that"
            )


def _remove(file: Path) -> None:
    for end in ("", "-wal", "-shm"):
        with suppress(FileNotFoundError):
            file.with_name(f"{file.name}{end}").unlink()
