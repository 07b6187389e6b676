"""What the offline commands do with a closed journal file: its sessions are read, and it is marked as adopted."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

from gateway.errors import StoreUnavailable
from gateway.journal_file import OpenChoice, fault_line, read_only
from gateway.ports.journal import SessionRow
from gateway.store.database import SET_META
from gateway.store.row_codec import write_key
from gateway.store.session_queue import ALL, list_sessions
from gateway.store.workers import WorkerStatus, list_workers

_OPEN_ROWS = "SELECT count(*) FROM inbox WHERE ended_at IS NULL AND state != 'noted'"
_OPEN_ANSWERS = "SELECT count(*) FROM outbox WHERE open IN (1, 3)"


@dataclass(frozen=True, slots=True)
class OpenWork:
    """Number of open messages and undelivered answers in a journal."""

    messages: int
    answers: int

    def describe(self, choice: OpenChoice) -> str:
        """Return a line for the operator that says how open work is settled."""
        count = f"{self.messages} messages were open and {self.answers} answers undelivered in it"
        if not self.messages and not self.answers:
            return "nothing was open in it"
        if choice is OpenChoice.DROP:
            return f"{count}: they are dropped"
        return f"{count}: each is answered, and looked up or marked, since it may have been answered already"


def read_sessions(journal: Path, limit: int = ALL) -> tuple[SessionRow, ...]:
    """Return the sessions of a closed journal, the most recently used first; nothing where it cannot be read."""
    if not journal.exists():
        return ()
    try:
        with closing(sqlite3.connect(read_only(journal), uri=True, timeout=2)) as database:
            return list_sessions(database, limit)
    except sqlite3.Error:
        return ()


def read_workers(journal: Path) -> tuple[WorkerStatus, ...]:
    """Return the workers of a journal, which may be open; nothing where it cannot be read, or is older than they."""
    if not journal.exists():
        return ()
    try:
        with closing(sqlite3.connect(read_only(journal), uri=True, timeout=2)) as database:
            return list_workers(database)
    except sqlite3.Error:
        return ()


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
        database.execute(SET_META, ("adopted", choice.value))
        database.executemany(
            "UPDATE session SET transcript = ?, next_index = ? WHERE key = ?",
            [(row.transcript, row.next_index, write_key(row.key)) for row in sessions],
        )
        ((messages,), (answers,)) = (database.execute(query).fetchone() for query in (_OPEN_ROWS, _OPEN_ANSWERS))
        database.execute("COMMIT")
    return OpenWork(messages, answers)


def seal(journal: Path) -> None:
    """Bring everything of a closed *journal* into its one file, durably. Raises StoreUnavailable."""
    try:
        with closing(sqlite3.connect(journal, isolation_level=None)) as database:
            database.execute("PRAGMA synchronous = FULL")
            database.execute("PRAGMA journal_mode = DELETE").fetchall()
    except sqlite3.Error as error:
        raise StoreUnavailable(fault_line(journal, error)) from error
