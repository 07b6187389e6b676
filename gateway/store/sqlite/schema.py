"""Opening, checking, migrating and copying the journal file; and what offline commands do with a closed one."""

from __future__ import annotations

import contextlib
import os
import sqlite3
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import closing
from pathlib import Path
from typing import TypeVar

import structlog

from gateway.errors import SchemaTooNew, StoreUnavailable
from gateway.journal_file import OpenChoice, damaged_line, fault_line, is_empty, read_only
from gateway.ports.journal import SessionRow
from gateway.store import adoption
from gateway.store.adoption import OpenWork
from gateway.store.database import Database
from gateway.store.migrations import MIGRATIONS, Migration, require_known
from gateway.store.sqlite.connection import CHECKPOINT, SqliteConnection
from gateway.store.tables import SCHEMA, VERSION, run_script

log = structlog.get_logger(__name__)
T = TypeVar("T")

BUSY_SECONDS = 30.0
# A larger file is checked beside the gateway that runs, and only after a process was killed: 420 MB take ten seconds
# from a cold disk.
_CHECKED_FIRST = 4 * 1024 * 1024  # bytes


def create_private(path: Path) -> None:
    """Make an empty file that only we may read, unless it is there; SQLite's side files inherit its mode."""
    os.close(os.open(path, os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o600))
    path.chmod(0o600)


def connect(path: Path, factory: type[SqliteConnection] = SqliteConnection) -> SqliteConnection:
    """Open the file for the writer: WAL, every commit fsynced.

    The log of an earlier connection is checkpointed and synced again: after a failed fsync, readable data may be
    missing on disk.
    """
    connection = sqlite3.connect(
        path, timeout=BUSY_SECONDS, isolation_level=None, cached_statements=256, factory=factory
    )
    try:
        # The journal itself has the right mode from its first byte; the page size only takes in a new file. A turn
        # changes a few bytes in each of some thirty pages, and each transaction writes its pages whole.
        connection.execute("PRAGMA page_size = 512")
        connection.execute("PRAGMA journal_mode = WAL")
        connection.execute("PRAGMA synchronous = FULL")
        connection.execute(f"PRAGMA wal_autocheckpoint = {CHECKPOINT}")
        connection.execute("PRAGMA secure_delete = ON")
        connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()
    except BaseException:
        connection.close()
        raise
    return connection


def prepare(
    connection: sqlite3.Connection, path: Path | None, migrations: Mapping[int, Migration] = MIGRATIONS
) -> None:
    """Check the file and bring it to this version, once per start; nothing is changed in a newer one.

    The snapshot to go back to is the home's (gateway/preflight.py), which is taken before the store is opened.
    Raises StoreUnavailable for a damaged file, SchemaTooNew for one from a newer Parlour, SchemaTooOld for one
    from before 0.2.0.
    """
    is_small = path is None or path.stat().st_size <= _CHECKED_FIRST
    if is_small and not is_whole(connection):
        raise StoreUnavailable(damaged_line(path))
    (before,) = connection.execute("PRAGMA user_version").fetchone()
    newest = max(migrations)
    if before > newest:
        raise SchemaTooNew(_newer_line(path, before, newest))
    require_known(before)
    if before == newest:
        return
    if not before:
        with _change(connection, VERSION):
            run_script(connection, SCHEMA)
    elif path is not None:  # where SQLite is built otherwise, it has not overwritten what it deleted
        connection.execute("VACUUM")
    for number in range((before or VERSION) + 1, newest + 1):
        with _change(connection, number):
            migrations[number](connection)
    if before:
        log.info("store.migrated", before=before, now=newest)


@contextlib.contextmanager
def _change(connection: sqlite3.Connection, number: int) -> Iterator[None]:
    """Change the tables and the number of their schema, or nothing."""
    connection.execute("BEGIN IMMEDIATE")
    try:
        yield
        connection.execute(f"PRAGMA user_version = {number}")
        connection.execute("COMMIT")
    except BaseException:
        with contextlib.suppress(sqlite3.Error):
            connection.rollback()
        raise


def is_whole(connection: sqlite3.Connection) -> bool:
    """Read the whole file and return True if its tables and indices are well-formed. Raises sqlite3.Error."""
    return bool(connection.execute("PRAGMA quick_check(1)").fetchone()[0] == "ok")


def _newer_line(path: Path | None, version: int, supported: int) -> str:
    return (
        f"{path} was written by a newer Parlour (schema {version}, this one knows {supported}). "
        "Install the newer version again, or go back to a backup: parlour restore FILE --force"
    )


def copy(source: sqlite3.Connection, target: Path) -> None:
    """Write a consistent copy of *source* to *target*, 0600, complete or not there at all."""
    target.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    unfinished = target.with_name(f".{target.name}.part")
    unfinished.unlink(missing_ok=True)
    create_private(unfinished)
    try:
        copied = sqlite3.connect(unfinished, isolation_level=None)
        try:
            source.backup(copied)
            # A self-contained file, without a log beside it.
            copied.execute("PRAGMA journal_mode = DELETE")
        finally:
            copied.close()
        sync(unfinished)
        unfinished.replace(target)
        sync(target.parent)
    except BaseException:
        unfinished.unlink(missing_ok=True)
        raise


def sync(path: Path) -> None:
    """Make what was written to a file or folder durable."""
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


# -- a closed journal ----------------------------------------------------------------------------


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
