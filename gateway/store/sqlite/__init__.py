"""The store's engine on one SQLite file."""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import Callable
from contextlib import closing
from functools import partial
from pathlib import Path

import structlog

from gateway.errors import SettingsError, StoreUnavailable
from gateway.journal_file import damaged_line, fault_line, misplaced_journal, read_only, remove_move
from gateway.store.engine import Clock, StoreLimits, utc_now
from gateway.store.sql_store import SqlStore, assemble
from gateway.store.sqlite import schema
from gateway.store.sqlite.connection import SqliteConnection, SqliteReader, SqliteThread
from gateway.store.writer import BatchWriter

log = structlog.get_logger(__name__)

FILE = "journal.db"

Connect = Callable[[Path], SqliteConnection]


async def open_store(home: Path, url: str, limits: StoreLimits, clock: Clock = utc_now) -> SqlStore:
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
    reader = SqliteReader(path)

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
        connection.close_file_while(reader.while_disconnected)
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
    read_whole = partial(find_file_damage, path)
    try:
        return await assemble(
            writer, limits, clock, partial(copy_file, path), journal=path, read_whole=read_whole, reader=reader
        )
    except StoreUnavailable as error:
        if line := await read_whole():  # the error of a damaged page names no remedy
            raise StoreUnavailable(line) from error
        raise


async def find_file_damage(path: Path) -> str:
    """Read the whole file of an open store; return the error line if it is damaged, otherwise "".

    A cancelled call ends the reading.
    """
    try:
        # Other threads may use the connection: reading is interrupted from the loop's.
        connection = sqlite3.connect(read_only(path), uri=True, check_same_thread=False)
    except sqlite3.Error as error:
        return _damage_of(path, error)
    reading = asyncio.ensure_future(asyncio.to_thread(schema.is_whole, connection))
    try:
        return "" if await asyncio.shield(reading) else damaged_line(path)
    except sqlite3.Error as error:
        return _damage_of(path, error)
    finally:
        connection.interrupt()
        await asyncio.wait({reading})
        connection.close()


def _damage_of(path: Path, error: sqlite3.Error) -> str:
    """Return the error line if *error* is damage. Others are met by the writer too, which waits for their end."""
    line = fault_line(path, error)
    if line == damaged_line(path):
        return line
    log.warning("store.check_failed", reason=line)
    return ""


def copy_file(path: Path, target: Path) -> None:
    """Write a consistent copy of an open store's file to *target*."""
    # A separate connection: WAL readers see one snapshot and block no writer.
    try:
        with closing(sqlite3.connect(path, timeout=schema.BUSY_SECONDS, isolation_level=None)) as source:
            schema.copy(source, target)
    except (sqlite3.Error, OSError) as error:
        raise StoreUnavailable(f"the backup {target} could not be written: {error}") from error
