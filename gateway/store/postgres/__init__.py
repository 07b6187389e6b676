"""The store's engine on a PostgreSQL database."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Collection, Mapping
from dataclasses import replace
from datetime import datetime
from functools import partial
from pathlib import Path
from threading import Event
from typing import Any, TypeAlias

import psycopg
from psycopg.conninfo import conninfo_to_dict

from gateway.errors import SettingsError, WorkerReplaced
from gateway.journal_file import JournalMove, StoreKind, misplaced_journal, read_move, write_move
from gateway.settings import check_settings
from gateway.store.claims import ChatClaims, WorkerIdentity
from gateway.store.database import Database
from gateway.store.engine import Clock, StoreLimits, utc_now
from gateway.store.postgres import schema
from gateway.store.postgres.connection import PostgresConnection
from gateway.store.postgres.copies import copy_database
from gateway.store.postgres.sessions import CapConnection, PostgresThread, WorkerHeartbeat, connect_caps
from gateway.store.postgres.worker_locks import RETRY, ServerClock, server_time
from gateway.store.shared_caches import SharedCaches, read_again
from gateway.store.sql_store import SqlStore, assemble, end_idle_run
from gateway.store.sqlite import FILE
from gateway.store.writer import BatchWriter

Wrap: TypeAlias = Callable[[psycopg.Connection[Any]], PostgresConnection]


async def open_store(home: Path, url: str, limits: StoreLimits, clock: Clock = utc_now) -> SqlStore:
    """Open the store in the database at *url*, its tables made when missing, as its one gateway or as one of several.

    Raises StoreUnavailable when it cannot be reached or a gateway has it that does not share, SchemaTooNew when a newer
    Parlour wrote it, SettingsError for an invalid address and for messages that are in another store.
    """
    journal = home / FILE
    if mistake := misplaced_journal(journal, has_database=True):
        raise SettingsError(mistake)
    store = await open_database(
        url,
        limits,
        clock=ServerClock(clock) if limits.is_shared else clock,
        shares=limits.is_shared,
        read_address=partial(_read_address, url),
        journal=journal,
    )
    await asyncio.to_thread(_note_database, journal, url, store.store_id, store.journal.now())
    return store


def _read_address(url: str) -> str:
    """Return the address that the settings have now: a password may have been changed in `store.url_file`. Blocks."""
    settings = check_settings(os.environ).settings
    return (settings.store.address if settings is not None else "") or url


def _note_database(journal: Path, url: str, store_id: str, at: datetime) -> None:
    """Name the database in the home, so that no start takes the home for one without messages."""
    move = read_move(journal)
    if move is not None and move.store:
        return
    if move is None:
        parameters = conninfo_to_dict(url)
        name = parameters.get("dbname") or f"service {parameters.get('service') or 'of the environment'}"
        where = f"{name} on {parameters.get('host') or 'this machine'}"
        move = JournalMove(id="", database=where, at=at.isoformat(timespec="seconds"))
    write_move(journal, replace(move, store=store_id))


def _set_event(events: Mapping[str, asyncio.Event], name: str) -> None:
    if name in events:
        events[name].set()


async def open_database(
    url: str,
    limits: StoreLimits,
    *,
    clock: Clock = utc_now,
    wrap: Wrap = PostgresConnection,
    shares: bool = False,
    read_address: Callable[[], str] | None = None,
    journal: Path | None = None,
) -> SqlStore:
    """Open the store; *clock* and *wrap* are for those who bring their own time or their own faults.

    A `ServerClock` is corrected when a session begins, and by each heartbeat.
    Each session uses the address that *read_address* returns, *url* without it. With *shares*, other workers that share
    the database may have it open too, and the chats are divided among them. A stamp is written beside *journal*, the
    path that the journal would have in the home.
    """
    current_address = read_address or (lambda: url)
    last = 0  # the server's process of our last session
    worker = WorkerIdentity(shares=shares)
    held = ChatClaims(is_shared=shares)
    loop = asyncio.get_running_loop()
    read_time = clock.read if isinstance(clock, ServerClock) else server_time
    caches = SharedCaches()
    frame_arrival, has_started = asyncio.Event(), Event()
    # Without a name, there may be work for any worker.
    dispatch = partial(_set_event, {"": held.changed, worker.name: frame_arrival})

    def hand_over(database: Database, changed: Collection[str]) -> None:
        # On the writer's thread. The loop runs it before it hears of the transaction's results.
        found = read_again(database, changed)
        loop.call_soon_threadsafe(lambda: caches.adopt(found))

    def connector() -> PostgresConnection:
        # On the writer's thread; the tables are looked at the first time only.
        nonlocal last
        wait = schema.RELOCK_SECONDS if last else schema.LOCK_SECONDS
        connection = schema.connect(current_address(), worker, wrap=wrap, wait=wait, broken=last)
        try:
            if not last:
                schema.prepare(connection)
            schema.require_active(connection)  # always: it may have been moved away while we hung
            connection.when_changed(hand_over)
            is_new, last = not last, connection.process
            read_time(connection)
            schema.enlist(connection, worker, is_new=is_new)
            heartbeat = WorkerHeartbeat(
                current_address,
                worker.name,
                loop,
                on_notify=dispatch if shares else None,
                has_started=has_started if is_new else None,
                read_time=read_time,
            )
            connection.when_closed(heartbeat.stop)
            heartbeat.start()
        except BaseException as error:
            connection.close()
            if isinstance(error, WorkerReplaced):
                loop.call_soon_threadsafe(held.replaced.set)
            raise
        return connection

    writer = BatchWriter(partial(PostgresThread.open, connector), longest_delay=RETRY.total_seconds())
    await writer.open()

    def connect_cap_session() -> CapConnection:
        return connect_caps(current_address(), worker.name)

    cap_writer = BatchWriter(partial(PostgresThread.open, connect_cap_session)) if shares else None
    try:
        if cap_writer is not None:
            await cap_writer.open()
    except BaseException:
        await writer.close(partial(end_idle_run, worker=worker))
        raise
    store = await assemble(
        writer,
        limits,
        clock,
        lambda target: copy_database(current_address(), target),
        journal=journal,
        kind=StoreKind.POSTGRESQL,
        worker=worker,
        chat_claims=held,
        caches=caches,
        frame_arrival=frame_arrival,
        cap_writer=cap_writer,
    )
    store.when_started(has_started.set)
    return store
