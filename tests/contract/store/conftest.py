"""The backends of the store's contract. Each engine passes every test here."""

from __future__ import annotations

from collections.abc import AsyncIterator
from datetime import timedelta
from pathlib import Path
from typing import Protocol

import pytest

from gateway.store import claims
from gateway.store.engine import Clock, StoreLimits
from gateway.store.postgres import open_database, schema, worker_locks
from gateway.store.sql_store import SqlStore
from gateway.store.sqlite import open_file
from tests.fakes.postgres_server import PostgresServer
from tests.fakes.shared_workers import HOUR, LossyConnection, Workers
from tests.fakes.store import kill, open_inline_store
from tests.fakes.turns import WallClock


class StoreBackend(Protocol):
    """Opens stores on the same data, run after run."""

    wall: WallClock

    async def open(self, limits: StoreLimits | None = None, clock: Clock | None = None) -> SqlStore:
        """Open the store as a process that starts would."""
        ...

    async def kill(self) -> None:
        """End the running process without its knowing."""
        ...

    async def reopen(self) -> SqlStore:
        """Open the store as the next process does, after a kill."""
        await self.kill()
        return await self.open()


class SqliteBackend(StoreBackend):
    """A folder with journal.db; a kill copies the files of the moment into another folder."""

    def __init__(self, folder: Path, *, is_inline: bool) -> None:
        self.wall = WallClock()
        self._folder = folder
        self._is_inline = is_inline
        self._runs = 0
        self._path = folder / "run-0" / "journal.db"
        self._path.parent.mkdir()
        self._opened: list[SqlStore] = []

    async def open(self, limits: StoreLimits | None = None, clock: Clock | None = None) -> SqlStore:
        """Open the store as a process that starts would."""
        limits, clock = limits or StoreLimits(), clock or self.wall.now
        store: SqlStore
        if self._is_inline:
            store = await open_inline_store(self._path, limits, clock=clock)
        else:
            store = await open_file(self._path, limits, clock=clock)
        self._opened.append(store)
        return store

    async def kill(self) -> None:
        """Take the files as they are; what the old process does from now on is not seen."""
        self._runs += 1
        self._path = kill(self._path, self._folder / f"run-{self._runs}")

    async def close(self) -> None:
        """Close whatever is open."""
        for store in self._opened:
            await store.close()


class PostgresBackend(StoreBackend):
    """An empty database; a kill ends the process's session, with which its lock goes."""

    def __init__(self, server: PostgresServer) -> None:
        self.wall = WallClock()
        self._server = server
        self._opened: list[SqlStore] = []
        server.empty()

    async def open(self, limits: StoreLimits | None = None, clock: Clock | None = None) -> SqlStore:
        """Open the store as a process that starts would."""
        store = await open_database(self._server.url, limits or StoreLimits(), clock=clock or self.wall.now)
        self._opened.append(store)
        return store

    async def kill(self) -> None:
        """End the session of whatever is open; the lock keeps the old process from writing again."""
        self._server.cut()

    async def close(self) -> None:
        """Close whatever is open, the newest first."""
        for store in reversed(self._opened):
            await store.close()


BACKENDS = ("sqlite", "inline", "postgres")


def make_backend(engine: str, folder: Path, request: pytest.FixtureRequest) -> SqliteBackend | PostgresBackend:
    """Return a backend without data."""
    if engine == "postgres":
        return PostgresBackend(request.getfixturevalue("postgres"))
    return SqliteBackend(folder, is_inline=engine == "inline")


@pytest.fixture
def server(postgres: PostgresServer) -> PostgresServer:
    """Return a server with empty tables."""
    postgres.empty()
    return postgres


@pytest.fixture(params=BACKENDS)
async def backend(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[StoreBackend]:
    """Return where stores are opened and killed."""
    made = make_backend(request.param, tmp_path, request)
    yield made
    await made.close()


@pytest.fixture
async def store(backend: StoreBackend) -> SqlStore:
    """Return an open store with the default limits."""
    return await backend.open()


@pytest.fixture
async def team(postgres: PostgresServer, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Workers]:
    """Return an opener of workers; heartbeats are as the test says."""
    monkeypatch.setattr(schema, "LOCK_SECONDS", 1.0)  # a worker that returns may have the lock of the start
    monkeypatch.setattr(schema, "RELOCK_SECONDS", 0.0)
    monkeypatch.setattr(claims, "HEARTBEAT", timedelta(days=1))
    monkeypatch.setattr(worker_locks, "_MISSED", HOUR)  # however slow the machine is
    monkeypatch.setattr(worker_locks, "_RETURNED", 0)
    monkeypatch.setattr(worker_locks, "_DEAD_AFTER", 3 * HOUR)
    monkeypatch.setattr(claims, "POLL", timedelta(seconds=0.05))
    LossyConnection.is_lossy = False
    postgres.empty()
    opened = Workers(postgres)
    yield opened
    await opened.close()
