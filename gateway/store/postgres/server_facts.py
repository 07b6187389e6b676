"""Facts about a server that concern all of its workers: room for their sessions, its clock, and their versions."""

from __future__ import annotations

from contextlib import closing
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

import psycopg

from gateway.errors import StoreUnavailable
from gateway.store.database import Database
from gateway.store.postgres.connection import PostgresConnection
from gateway.store.postgres.schema import fault_line, open_reader
from gateway.store.postgres.worker_locks import server_time
from gateway.store.row_codec import moment

_SESSIONS = "SELECT count(*) FROM pg_stat_activity WHERE backend_type = 'client backend'"
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
            (sessions,) = database.execute(_SESSIONS).fetchone()
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
