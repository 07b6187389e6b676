"""Copies of a database: one instant of it as the journal file of an embedded store.

The tables of both engines are the same, so the copy is a journal that `parlour restore` and the embedded store take.
"""

from __future__ import annotations

import sqlite3
from contextlib import closing, suppress
from pathlib import Path

import psycopg
from psycopg.raw_cursor import RawServerCursor

from gateway.errors import StoreUnavailable
from gateway.store.postgres.schema import open_session
from gateway.store.sqlite import schema as journal_schema

_AT_ONCE = 1_000  # rows in memory
_ORDER = {"usage": "rowid"}  # a table without a key of its own keeps its order


def copy_database(url: str, target: Path) -> None:
    """Write the tables as of one instant to a new journal file *target*, 0600, complete or not there at all."""
    unfinished = target.with_name(f".{target.name}.part")
    try:
        _remove(unfinished)
        target.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        journal_schema.create_private(unfinished)
        with closing(journal_schema.connect(unfinished)) as journal:
            journal_schema.prepare(journal, unfinished)
            with closing(open_session(url)) as session:
                _copy_tables(session, journal)
            journal.execute("PRAGMA journal_mode = DELETE")
        journal_schema.sync(unfinished)
        unfinished.replace(target)
        journal_schema.sync(target.parent)
    except (psycopg.Error, sqlite3.Error, OSError) as error:
        raise StoreUnavailable(f"the backup {target} could not be written: {error}") from error
    finally:
        _remove(unfinished)


def _remove(file: Path) -> None:
    for end in ("", "-wal", "-shm"):
        with suppress(FileNotFoundError):
            file.with_name(f"{file.name}{end}").unlink()


def _copy_tables(session: psycopg.Connection[tuple[object, ...]], journal: sqlite3.Connection) -> None:
    tables = journal.execute("SELECT name FROM sqlite_master WHERE type = 'table' ORDER BY name").fetchall()
    session.execute(b"BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY")
    journal.execute("BEGIN")
    for (table,) in tables:
        columns = [row[1] for row in journal.execute(f"PRAGMA table_info({table})")]
        names = ", ".join(columns)
        values = ", ".join("?" * len(columns))
        with RawServerCursor(session, f"copy_{table}") as rows:
            rows.execute(f"SELECT {names} FROM {table} ORDER BY {_ORDER.get(table, '1')}".encode())  # noqa: S608 - our schema's own names
            while block := rows.fetchmany(_AT_ONCE):
                journal.executemany(f"INSERT INTO {table} ({names}) VALUES ({values})", block)  # noqa: S608
    journal.execute("COMMIT")
    session.execute(b"COMMIT")
