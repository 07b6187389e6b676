"""Claims: which worker does the work of a chat, where several workers share a database.

A chat is claimed whole: the turns of its sessions, its control messages, what is sent to it and its transcripts have
one worker at a time, so that order, /stop and previews are as with one process. A row exists while a worker has the
chat. Only its worker removes it, when nothing of the chat is open; those of a dead worker are removed at the takeover.

No wake-up is needed for correctness: every worker looks for open work at least every `POLL`. A worker takes its fair
share of the chats that have open work. A chat that stays free for `OVERDUE` is taken by any of them.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Collection
from dataclasses import dataclass, field
from datetime import timedelta

from gateway.events import SessionKey
from gateway.store.database import LISTED, Database
from gateway.store.row_codec import quote, read_key, sql, write_json, write_key
from gateway.store.workers import COUNT_WORKERS, LISTED_WORKERS

POLL = timedelta(seconds=0.5)
OVERDUE = timedelta(seconds=2)

_CHAT = "chat:"
_HOLDERS = "SELECT name, worker FROM claim WHERE name >= 'chat:' AND name < 'chat;'"  # others: connections.py
_TAKE = "INSERT INTO claim (name, worker, at) VALUES (?, ?, ?) ON CONFLICT DO NOTHING"
_RELEASE = "DELETE FROM claim WHERE name = ? AND worker = ?"
IS_HELD = "SELECT 1 FROM claim WHERE name = ? AND worker = ?"
_LANES = sql("SELECT owner FROM lane WHERE key IN (SELECT key FROM session WHERE scope", LISTED, ")")
# Written although they stay: a lease at the same moment waits for the end of the transaction.
_LOCK_JOBS = sql("UPDATE job SET leased = leased WHERE scope", LISTED, "AND leased != 0 RETURNING worker")
FORGET_CLAIMS = sql("DELETE FROM claim WHERE worker NOT IN", LISTED_WORKERS)
_BUSY = sql(
    "SELECT key, min(accepted_at) FROM inbox WHERE ended_at IS NULL",
    "AND state IN ('waiting', 'claimed', 'stamped', 'control') GROUP BY key",
    "UNION ALL SELECT key, 0 FROM outbox WHERE open IS NOT NULL GROUP BY key",
    "UNION ALL SELECT r.key, 0 FROM unwritten u JOIN record r ON r.seq = u.seq GROUP BY r.key",
)


@dataclass(frozen=True, slots=True)
class ClaimBalance:
    """The chats that a worker has now, and those that have open work and no worker."""

    held: frozenset[SessionKey]
    free: frozenset[SessionKey]


@dataclass(slots=True)
class ChatClaims:
    """The chats of this worker, as its event loop knows them; a worker that shares nothing has all."""

    is_shared: bool = False
    held: frozenset[SessionKey] = frozenset()
    changed: asyncio.Event = field(default_factory=asyncio.Event)  # look for work, and do not wait for the poll
    replaced: asyncio.Event = field(default_factory=asyncio.Event)  # others have taken over from this worker
    _wanted: set[SessionKey] = field(default_factory=set)
    _free_since: dict[SessionKey, float] = field(default_factory=dict)

    def covers(self, key: SessionKey) -> bool:
        """Return True if the chat of *key* is ours; otherwise have its work looked for."""
        if not self.is_shared or key.parent in self.held:
            return True
        self._wanted.add(key.parent)
        self.changed.set()
        return False

    def take_wanted(self) -> frozenset[SessionKey]:
        """Return the chats that were asked for since the last call."""
        wanted, self._wanted = frozenset(self._wanted), set()
        return wanted

    def overdue(self, now: float) -> frozenset[SessionKey]:
        """Return the chats that have been free for `OVERDUE`; *now* is the loop's time in seconds."""
        return frozenset(key for key, at in self._free_since.items() if now - at >= OVERDUE.total_seconds())

    def note(self, balance: ClaimBalance, now: float) -> frozenset[SessionKey]:
        """Take over what the database says; return the chats that are new."""
        new = balance.held - self.held
        self.held = balance.held
        self._free_since = {key: self._free_since.get(key, now) for key in balance.free}
        return new


def claim_name(key: SessionKey) -> str:
    """Return the name of the claim to the chat of *key*."""
    return _CHAT + write_key(key.parent)


def _chats_of(names: Collection[str]) -> frozenset[SessionKey]:
    return frozenset(read_key(name.removeprefix(_CHAT)) for name in names)


def is_held(database: Database, key: SessionKey, worker: str) -> bool:
    """Return True if the chat of *key* is claimed by *worker*."""
    return database.execute(IS_HELD, (claim_name(key), worker)).fetchone() is not None


def held_chats(database: Database, workers: Collection[str]) -> frozenset[SessionKey]:
    """Return the chats that are claimed by one of *workers*."""
    return _chats_of([name for name, worker in database.execute(_HOLDERS) if worker in workers])


def forget_claims(database: Database) -> None:
    """Remove the claims of workers that are not listed."""
    database.execute(FORGET_CLAIMS)


def balance_claims(database: Database, worker: str, now: int, overdue: Collection[SessionKey]) -> ClaimBalance:
    """Release the idle chats of *worker*, and claim its share of those that are free; *overdue* ones in any case.

    Claims are made in the order of their names, so that two workers never wait for each other.
    """
    holders = dict(database.execute(_HOLDERS).fetchall())
    busy = _busy_chats(database)
    own = {name for name, holder in holders.items() if holder == worker}
    idle = own - busy.keys()
    database.executemany(_RELEASE, [(name, worker) for name in sorted(idle)])
    free = sorted((name for name in busy if name not in holders), key=lambda name: (busy[name], name))
    (count,) = database.execute(COUNT_WORKERS).fetchone()
    share = math.ceil((len(holders) - len(idle) + len(free)) / max(count, 1))
    room = max(share - len(own - idle), 0)
    late = {claim_name(key) for key in overdue}
    wanted = [name for place, name in enumerate(free) if place < room or name in late]
    taken = {name for name in sorted(wanted) if database.execute(_TAKE, (name, worker, now)).rowcount}
    return ClaimBalance(held=_chats_of(own - idle | taken), free=_chats_of(set(free) - taken))


def _busy_chats(database: Database) -> dict[str, int]:
    """Return the names of chats with open work, each with the time of its oldest message."""
    busy: dict[str, int] = {}
    for column, at in database.execute(_BUSY):
        name = claim_name(read_key(column))
        busy[name] = min(busy.get(name, at), at)
    return busy


def has_jobs_elsewhere(database: Database, scopes: Collection[str], owner: str) -> bool:
    """Return True if another worker than *owner* runs a job of *scopes*.

    One that is leased from here on has the scope that it has after the transaction.
    """
    jobs = database.execute(_LOCK_JOBS, (write_json([quote(each) for each in scopes]),)).fetchall()
    return any(worker not in ("", owner) for (worker,) in jobs)


def has_turns_elsewhere(database: Database, scopes: Collection[str], owner: str) -> bool:
    """Return True if another worker than *owner* runs a turn of *scopes*."""
    lanes = database.execute(_LANES, (write_json([quote(each) for each in scopes]),)).fetchall()
    return any(worker not in ("", owner) for (worker,) in lanes)
