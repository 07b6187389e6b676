"""What a gateway has open on the server: the thread of each session, its heartbeat, and the session of caps.

psycopg's connections block, and the rules are not coroutines: each session has a thread. The heartbeat has its own, so
that no batch and no turn delays it.

So has the session in which a gateway decides on caps, where several share the database. Decisions of all gateways are
exclusive, and a batch of turns is too long to be waited for: these transactions have a few short statements. They wait
for the lock first, and read afterwards (READ COMMITTED), so each sees what the one before has stored, and none is in
conflict.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Callable
from contextlib import closing, suppress
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from queue import SimpleQueue
from threading import Event, Thread
from typing import Any, TypeVar

import psycopg
import structlog

from gateway.errors import ParlourError, StoreUnavailable
from gateway.store import claims
from gateway.store.database import Database, StoreConnection
from gateway.store.postgres import schema
from gateway.store.postgres.connection import PostgresConnection
from gateway.store.postgres.schema import fault_line, open_reader, open_session
from gateway.store.postgres.worker_locks import server_time
from gateway.store.row_codec import moment

log = structlog.get_logger(__name__)

# After its store is open a gateway still imports channels and builds them, during which its event loop does not answer.
START = timedelta(seconds=30)


class WorkerHeartbeat:
    """Notes every second that a worker is alive, while it starts or its event loop answers, until it is stopped.

    Errors of the server are logged once: the worker's own session meets them too.
    """

    def __init__(
        self,
        read_address: Callable[[], str],
        name: str,
        loop: asyncio.AbstractEventLoop,
        *,
        on_notify: Callable[[str], object] | None = None,
        has_started: Event | None = None,
        read_time: Callable[[Database], int] = server_time,
    ) -> None:
        """*read_address* is called for each session, *on_notify* on the loop with each notification of another worker.

        *read_time* returns the server's time, at each heartbeat.

        Until *has_started* is set, for `START` at most, a loop that does not answer is no reason to be silent.
        """
        self._on_notify = on_notify
        self._read_address = read_address
        self._name = name
        self._read_time = read_time
        self._loop = loop
        self._session: psycopg.Connection[Any] | None = None
        self._stopped = Event()
        self._answered = Event()
        self._answered.set()
        self._is_failing = False
        self._has_started = has_started
        self._start_ends_at = time.monotonic() + START.total_seconds()
        self._next_at = time.monotonic() + claims.HEARTBEAT.total_seconds()

    def start(self) -> None:
        """Begin; the first heartbeat is one interval from now."""
        Thread(target=self._run, name="worker heartbeat", daemon=True).start()

    def stop(self) -> None:
        """End soon; do not wait for it."""
        self._stopped.set()

    def _run(self) -> None:
        try:
            while not self._wait():
                if time.monotonic() < self._next_at:
                    continue
                self._next_at = time.monotonic() + claims.HEARTBEAT.total_seconds()
                try:
                    if (self._is_starting() or self._is_answered()) and not self._beat():
                        return
                    self._is_failing = False
                except (psycopg.Error, ParlourError) as error:
                    if not self._is_failing:
                        log.warning("store.heartbeat_failed", reason=str(error).strip())
                    self._is_failing = True
                    self._disconnect()
        finally:
            self._disconnect()

    def _wait(self) -> bool:
        """Return True when it was stopped, False after one interval or a second."""
        interval = min(claims.HEARTBEAT.total_seconds(), 1.0)
        if self._on_notify is None:
            return self._stopped.wait(interval)
        try:
            for notification in self._connected().notifies(timeout=interval):
                with suppress(RuntimeError):  # the loop is closed
                    self._loop.call_soon_threadsafe(self._on_notify, notification.payload)
        except (psycopg.Error, ParlourError):
            self._disconnect()
            return self._stopped.wait(interval)
        return self._stopped.is_set()

    def _connected(self) -> psycopg.Connection[Any]:
        if self._session is None:
            self._session = open_session(self._read_address())
            if self._on_notify is not None:
                self._session.execute(b"LISTEN parlour")
        return self._session

    def _is_starting(self) -> bool:
        started = self._has_started
        return started is not None and not started.is_set() and time.monotonic() < self._start_ends_at

    def _is_answered(self) -> bool:
        """Return True if the loop answered the last question, and ask it again.

        It does not where it hangs, or has ended without closing the store.
        """
        if not self._answered.is_set():
            return False
        self._answered.clear()
        with suppress(RuntimeError):  # the loop is closed
            self._loop.call_soon_threadsafe(self._answered.set)
        return True

    def _beat(self) -> bool:
        database = PostgresConnection(self._connected())
        return claims.beat(database, self._name, self._read_time(database))

    def _disconnect(self) -> None:
        session, self._session = self._session, None
        if session is not None:
            with suppress(psycopg.Error):
                session.close()


_CAP_LOCK = int.from_bytes(b"Parl") + 2  # beside those of schema.py
# A gateway that hangs has the lock until the server ends its session.
_CAP_SESSION = (
    schema.NO_SCANS,
    schema.NO_COMPILER,
    "SET idle_in_transaction_session_timeout = '5s'",
    "SET idle_session_timeout = 0",
    "SET client_min_messages = warning",
)


class CapConnection(PostgresConnection):
    """A connection whose transactions are exclusive over all gateways."""

    def begin_batch(self) -> None:
        """Begin a transaction. Raises ConnectionAbortedError if another worker has taken over from ours."""
        self._is_in_batch = True
        self.execute("BEGIN ISOLATION LEVEL READ COMMITTED")
        self.execute("SELECT pg_advisory_xact_lock(?::int, hashtext(current_schema()))", (_CAP_LOCK,))
        if self.execute("SELECT 1 FROM worker WHERE name = ?", (self.worker,)).fetchone() is None:
            raise ConnectionAbortedError("another gateway has taken over the work of this one")
        self._has_written = False


def connect_caps(url: str, worker: str) -> CapConnection:
    """Open the session of a listed *worker*. Raises StoreUnavailable."""
    connection = CapConnection(schema.open_session(url))
    try:
        for statement in _CAP_SESSION:
            connection.execute(statement)
    except psycopg.Error as error:
        connection.close()
        raise StoreUnavailable(schema.fault_line(error)) from error
    connection.worker = worker
    return connection


T = TypeVar("T")


class PostgresThread:
    """The one thread that uses a connection, which it opens and closes.

    A daemon: confirmed operations are durable, so a failing process must not wait for it.
    """

    def __init__(self, connector: Callable[[], StoreConnection]) -> None:
        self._connector = connector
        self._loop = asyncio.get_running_loop()
        self._calls: SimpleQueue[tuple[asyncio.Future[Any], Callable[[StoreConnection], Any]] | None] = SimpleQueue()
        self._opened: asyncio.Future[None] = self._loop.create_future()
        self._ended: asyncio.Future[None] = self._loop.create_future()

    @classmethod
    async def open(cls, connector: Callable[[], StoreConnection]) -> PostgresThread:
        """Start the thread and open the connection; when that fails, the thread has ended, and the error is raised."""
        thread = cls(connector)
        Thread(target=thread._work, name="store writer", daemon=True).start()
        try:
            await asyncio.shield(thread._opened)
        except BaseException:
            await thread.close()
            raise
        return thread

    async def call(self, work: Callable[[StoreConnection], T]) -> T:
        """Run *work* on the thread and return its result."""
        future: asyncio.Future[T] = self._loop.create_future()
        self._calls.put((future, work))
        return await future

    async def close(self) -> None:
        """Close the connection and end the thread."""
        self._calls.put(None)
        await asyncio.shield(self._ended)

    def _work(self) -> None:
        try:
            connection = self._connector()
        except BaseException as error:  # noqa: BLE001 - raised where the connection was asked for
            self._answer(self._opened, None, error)
        else:
            self._answer(self._opened, None, None)
            while (asked := self._calls.get()) is not None:
                self._run(connection, *asked)
            connection.close()
        self._answer(self._ended, None, None)

    def _run(self, connection: StoreConnection, future: asyncio.Future[Any], work: Callable[..., Any]) -> None:
        try:
            self._answer(future, work(connection), None)
        except BaseException as error:  # noqa: BLE001 - raised where the work was asked for
            self._answer(future, None, error)

    def _answer(self, future: asyncio.Future[Any], result: Any, error: BaseException | None) -> None:
        with contextlib.suppress(RuntimeError):  # the loop is closed: nobody waits
            self._loop.call_soon_threadsafe(_settle, future, result, error)


def _settle(future: asyncio.Future[Any], result: Any, error: BaseException | None) -> None:
    if future.done():
        return
    if error is not None:
        future.set_exception(error)
    else:
        future.set_result(result)


_CAP_SESSIONS = "SELECT count(*) FROM pg_stat_activity WHERE backend_type = 'client backend'"
_LIMIT = (
    "SELECT current_setting('max_connections')::int - current_setting('superuser_reserved_connections')::int"
    " - coalesce(current_setting('reserved_connections', true), '0')::int"
)
_VERSIONS = "SELECT DISTINCT version FROM worker ORDER BY version"


@dataclass(frozen=True, slots=True)
class ServerFacts:
    """A server at one moment."""

    sessions: int  # of all its clients
    session_limit: int  # for clients that are no superusers
    clock_ahead: timedelta  # of this machine's clock, at least; negative if the server's is ahead
    worker_versions: tuple[str, ...]


def read_server_facts(url: str) -> ServerFacts:
    """Return the facts of the server at *url*. Blocks; raises StoreUnavailable."""
    try:
        with closing(open_reader(url)) as raw:
            database: Database = PostgresConnection(raw)
            (sessions,) = database.execute(_CAP_SESSIONS).fetchone()
            (limit,) = database.execute(_LIMIT).fetchone()
            before = datetime.now(UTC)
            at = moment(server_time(database))
            after = datetime.now(UTC)
            has_workers = database.execute("SELECT to_regclass('worker')").fetchone()[0] is not None
            versions = database.execute(_VERSIONS).fetchall() if has_workers else []
    except psycopg.Error as error:
        raise StoreUnavailable(fault_line(error)) from error
    ahead = max(before - at, timedelta()) or min(after - at, timedelta())
    return ServerFacts(sessions, limit, ahead, tuple(version for (version,) in versions))
