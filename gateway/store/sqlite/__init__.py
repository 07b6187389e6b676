"""The store's engine on one SQLite file."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable
from contextlib import closing
from functools import partial
from pathlib import Path

from gateway.errors import SettingsError, StoreUnavailable
from gateway.journal_file import fault_line, misplaced_journal, remove_move
from gateway.ports.store import Store, StoreLimits
from gateway.store.engine import Clock, utc_now
from gateway.store.sql_store import SqlStore, assemble
from gateway.store.sqlite import schema
from gateway.store.sqlite.connection import SqliteConnection
from gateway.store.sqlite.thread import SqliteThread
from gateway.store.writer import BatchWriter

FILE = "journal.db"

Connect = Callable[[Path], SqliteConnection]


async def open_store(home: Path, url: str, limits: StoreLimits, clock: Clock = utc_now) -> Store:
    """Open the embedded store of *home*, made when missing, with what the last run left in its wake-ups.

    The caller holds the home's lock. Raises StoreUnavailable when the file is damaged or cannot be
    written, SchemaTooNew when a newer Parlour wrote it, SettingsError when *url* is another engine's or the messages
    were moved to a database.
    """
    if url:
        raise SettingsError(
            f"store.url: {url.partition(':')[0]!r} is not this store; leave it empty for the embedded one"
        )
    if mistake := misplaced_journal(home / FILE, has_database=False):
        raise SettingsError(mistake)
    remove_move(home / FILE)  # of a move that was killed before its last step
    return await open_file(home / FILE, limits, clock=clock)


async def open_file(
    path: Path, limits: StoreLimits, *, clock: Clock = utc_now, connect: Connect = schema.connect
) -> SqlStore:
    """Open the store in one file; *clock* and *connect* are for those who bring their own time or their own faults."""
    is_prepared = False

    def connector() -> SqliteConnection:
        try:
            return open_connection()
        except (sqlite3.Error, OSError) as error:
            raise StoreUnavailable(fault_line(path, error)) from error

    def open_connection() -> SqliteConnection:
        # On the writer's thread; the check of the whole file and the migrations belong to the first time only.
        nonlocal is_prepared
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        schema.create_private(path)
        connection = connect(path)
        try:
            if not is_prepared:
                schema.prepare(connection, path)
                is_prepared = True
        except BaseException:
            connection.close()
            raise
        return connection

    writer = BatchWriter(partial(SqliteThread.open, connector))
    await writer.open()
    return await assemble(writer, limits, clock, partial(copy_file, path), path=path)


def copy_file(path: Path, target: Path) -> None:
    """Write a consistent copy of an open store's file to *target*."""
    # A separate connection: WAL readers see one snapshot and block no writer.
    try:
        with closing(sqlite3.connect(path, timeout=schema.BUSY_SECONDS, isolation_level=None)) as source:
            schema.copy(source, target)
    except (sqlite3.Error, OSError) as error:
        raise StoreUnavailable(f"the backup {target} could not be written: {error}") from error
