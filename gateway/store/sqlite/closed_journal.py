"""What the offline commands do with a closed journal file: it is read, marked as adopted, and sealed."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterable
from contextlib import closing
from pathlib import Path
from typing import TypeVar

from gateway.errors import StoreUnavailable
from gateway.journal_file import OpenChoice, fault_line, is_empty, read_only
from gateway.ports.journal import SessionRow
from gateway.store import adoption
from gateway.store.adoption import OpenWork
from gateway.store.database import Database

T = TypeVar("T")


def read_journal(journal: Path, read: Callable[[Database], T]) -> T | None:
    """Return the result of *read* on a journal, which may be open; None if it cannot be read or is older. Blocks.

    All statements see the same moment.
    """
    if is_empty(journal):
        return None
    try:
        with closing(sqlite3.connect(read_only(journal), uri=True, timeout=2)) as database:
            database.execute("BEGIN")
            return read(database)
    except sqlite3.Error:
        return None


def mark_adopted(journal: Path, choice: OpenChoice, sessions: Iterable[SessionRow] = ()) -> OpenWork:
    """Mark a closed *journal* as adopted; return its open work.

    *sessions* replace the journal's session rows. A file without the journal's tables is not changed. Raises
    sqlite3.Error.
    """
    with closing(sqlite3.connect(journal, isolation_level=None)) as database:
        tables = {name for (name,) in database.execute("SELECT name FROM sqlite_master WHERE type = 'table'")}
        if not {"meta", "inbox", "outbox"} <= tables:
            return OpenWork(0, 0)
        database.execute("BEGIN IMMEDIATE")
        work = adoption.mark(database, choice, sessions)
        database.execute("COMMIT")
    return work


def seal(journal: Path) -> None:
    """Bring everything of a closed *journal* into its one file, durably. Raises StoreUnavailable."""
    try:
        with closing(sqlite3.connect(journal, isolation_level=None)) as database:
            database.execute("PRAGMA synchronous = FULL")
            database.execute("PRAGMA journal_mode = DELETE").fetchall()
    except sqlite3.Error as error:
        raise StoreUnavailable(fault_line(journal, error)) from error
