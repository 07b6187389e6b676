"""Workers that share a database: real stores, opened and killed by a test."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from gateway.events import SessionKey
from gateway.store.engine import StoreLimits
from gateway.store.postgres import open_database
from gateway.store.postgres.connection import PostgresConnection
from gateway.store.sql_store import SqlStore
from tests.fakes.postgres_server import PostgresServer
from tests.fakes.turns import START

HOLDERS = "SELECT name, worker FROM claim ORDER BY name"
HOUR = 3_600_000_000  # microseconds


class LossyConnection(PostgresConnection):
    """A session whose next commit is stored, and whose reply is lost, when it is told to."""

    is_lossy = False

    def end_batch(self) -> bool:
        """Store the batch; then fail, once."""
        stored = super().end_batch()
        if type(self).is_lossy:
            type(self).is_lossy = False
            raise OSError("the reply was lost")
        return stored


class Workers:
    """Opens workers on one server, and kills them."""

    def __init__(self, server: PostgresServer) -> None:
        self.server = server
        self._opened: list[SqlStore] = []

    async def open(self) -> SqlStore:
        """Open a store that shares the database."""
        store = await open_database(
            self.server.url, StoreLimits(), clock=lambda: START, wrap=LossyConnection, shares=True
        )
        self._opened.append(store)
        return store

    async def kill(self, store: SqlStore) -> None:
        """End a worker's session without its knowing; its heartbeats are missed."""
        await paused(store)
        self.silence(store)
        self.cut(store)

    def cut(self, store: SqlStore) -> None:
        """End the session in which a worker writes."""
        lock = f"hashtextextended(current_schema() || '/' || '{store._engine.owner}', 0)"
        held = "locktype = 'advisory' AND objsubid = 1 AND ((classid::bigint << 32) | objid::bigint)"
        self.server.query(f"SELECT pg_terminate_backend(pid, 10000) FROM pg_locks WHERE {held} = {lock}")  # noqa: S608

    def silence(self, store: SqlStore) -> None:
        """Put a worker's last heartbeat back by what makes it a missed one; twice, by what makes the worker dead."""
        self.server.query(
            f"UPDATE worker SET beat_at = beat_at - {2 * HOUR} WHERE name = '{store._engine.owner}'"  # noqa: S608
        )

    def holders(self) -> dict[SessionKey, str]:
        """Return who has which chat."""
        return {SessionKey.parse(name.removeprefix("chat:")): worker for name, worker in self.server.query(HOLDERS)}

    async def close(self) -> None:
        """Close whatever is open."""
        for store in reversed(self._opened):
            await store.close()


async def paused(store: SqlStore) -> None:
    """Let a worker look for work only when the test says so."""
    assert store._sharing is not None
    store._sharing.cancel()
    await asyncio.wait({store._sharing})
    await store.check()  # behind a look that it had begun


async def until(is_met: Callable[[], bool]) -> None:
    """Return when *is_met* says so."""
    async with asyncio.timeout(30):
        while True:
            if is_met():
                return
            await asyncio.sleep(0.02)
