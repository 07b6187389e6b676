"""Claims of connections that exist once: one worker has each, the others wait until it gives it back or is dead.

They are rows beside those of chats, in the same transaction, and are fenced like them: a worker that was taken over
from stores nothing more, so that whatever its connection still receives is not acknowledged.
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection
from dataclasses import dataclass, field
from functools import partial

from gateway.store.database import Database
from gateway.store.row_codec import quote, unquote
from gateway.store.workers import DEAD_AFTER

_PREFIX = "conn:"
_HOLDERS = "SELECT name, worker FROM claim WHERE name >= 'conn:' AND name < 'conn;'"
_TAKE = "INSERT INTO claim (name, worker, at) VALUES (?, ?, ?) ON CONFLICT DO NOTHING"
_RELEASE = "DELETE FROM claim WHERE name = ? AND worker = ?"


@dataclass(frozen=True, slots=True)
class ConnectionBalance:
    """The connections that a worker has now, and whether it gave one back."""

    held: frozenset[str]
    has_released: bool


@dataclass(slots=True)
class WorkerConnections:
    """The connections of this worker, as its event loop knows them. Implements `ConnectionClaims`."""

    changed: asyncio.Event  # look at the database, and do not wait for the poll
    wanted: set[str] = field(default_factory=set)
    held: frozenset[str] = frozenset()
    _looked_at: float = 0.0  # when the last successful look began, in the loop's time
    _noted: asyncio.Event = field(default_factory=asyncio.Event)  # of the next look

    async def acquire(self, name: str) -> None:
        """Return when the connection *name* is ours."""
        self.wanted.add(name)
        self.changed.set()
        while name not in self.held:
            await self._noted.wait()

    async def wait_lost(self, name: str) -> None:
        """Return when it is not known to be ours any more."""
        loop = asyncio.get_running_loop()
        while name in self.held:
            left = self._looked_at + DEAD_AFTER.total_seconds() - loop.time()
            try:
                async with asyncio.timeout(left):
                    await self._noted.wait()
            except TimeoutError:
                if loop.time() - self._looked_at >= DEAD_AFTER.total_seconds():
                    self.held -= {name}  # the next look says whether it is still ours

    def release(self, name: str) -> None:
        """Give the connection back."""
        self.wanted.discard(name)
        self.held -= {name}
        self.changed.set()

    def note(self, names: frozenset[str], looked_at: float) -> None:
        """Keep that *names* are ours, as of a look that began at *looked_at*."""
        self.held = names & self.wanted
        self._looked_at = looked_at
        noted, self._noted = self._noted, asyncio.Event()
        noted.set()


def balance_connections(database: Database, worker: str, now: int, names: Collection[str]) -> ConnectionBalance:
    """Have *worker* release its connections that are not among *names*, and claim those that are free."""
    holders = {unquote(name.removeprefix(_PREFIX)): holder for name, holder in database.execute(_HOLDERS)}
    own = {name for name, holder in holders.items() if holder == worker}
    unwanted = sorted(own.difference(names))
    database.executemany(_RELEASE, [(_claim_name(name), worker) for name in unwanted])
    take = partial(database.execute, _TAKE)
    taken = {name for name in sorted(names) if name not in holders and take((_claim_name(name), worker, now)).rowcount}
    return ConnectionBalance(frozenset(own - set(unwanted) | taken), has_released=bool(unwanted))


def _claim_name(name: str) -> str:
    return _PREFIX + quote(name)
