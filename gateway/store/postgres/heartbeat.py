"""A worker's heartbeat, in a thread and a session that no batch and no turn delays."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from contextlib import suppress
from datetime import timedelta
from threading import Event, Thread
from typing import Any

import psycopg
import structlog

from gateway.errors import ParlourError
from gateway.store import workers
from gateway.store.database import Database
from gateway.store.postgres.connection import PostgresConnection
from gateway.store.postgres.schema import open_session
from gateway.store.postgres.worker_locks import server_time

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
        self._next_at = time.monotonic() + workers.HEARTBEAT.total_seconds()

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
                self._next_at = time.monotonic() + workers.HEARTBEAT.total_seconds()
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
        interval = min(workers.HEARTBEAT.total_seconds(), 1.0)
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
        return workers.beat(database, self._name, self._read_time(database))

    def _disconnect(self) -> None:
        session, self._session = self._session, None
        if session is not None:
            with suppress(psycopg.Error):
                session.close()
