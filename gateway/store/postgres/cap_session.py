"""The session in which a gateway decides on caps, where several share the database.

It is not the one of turns. Decisions of all gateways are exclusive, and a batch of turns is too long to be waited for:
these transactions have a few short statements. They wait for the lock first, and read afterwards (READ COMMITTED), so
each sees what the one before has stored, and none is in conflict.
"""

from __future__ import annotations

import psycopg

from gateway.errors import StoreUnavailable
from gateway.store.postgres import schema
from gateway.store.postgres.connection import PostgresConnection

_LOCK = int.from_bytes(b"Parl") + 2  # beside those of schema.py
# A gateway that hangs has the lock until the server ends its session.
_SESSION = (
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
        self.execute("SELECT pg_advisory_xact_lock(?::int, hashtext(current_schema()))", (_LOCK,))
        if self.execute("SELECT 1 FROM worker WHERE name = ?", (self.worker,)).fetchone() is None:
            raise ConnectionAbortedError("another gateway has taken over the work of this one")
        self._has_written = False


def connect_caps(url: str, worker: str) -> CapConnection:
    """Open the session of a listed *worker*. Raises StoreUnavailable."""
    connection = CapConnection(schema.open_session(url))
    try:
        for statement in _SESSION:
            connection.execute(statement)
    except psycopg.Error as error:
        connection.close()
        raise StoreUnavailable(schema.fault_line(error)) from error
    connection.worker = worker
    return connection
