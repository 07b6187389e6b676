"""Workers: the processes that use one database, who takes over from a killed one, and which does the work of a chat.

A worker is listed from its start until it ends. Leases name their worker: a lane its `owner`, a job its `worker`.
Taking over is two steps in one transaction: the rows of the workers that are dead are removed, and every lease of a
worker that is not listed is given back (`sql_store.take_over`). The engine decides who is dead: with a file, every
other worker is, since the home's lock is ours.

A chat is claimed whole: the turns of its sessions, its control messages, what is sent to it and its transcripts have
one worker at a time, so that order, /stop and previews are as with one process. A row exists while a worker has the
chat. Only its worker removes it, when nothing of the chat is open; those of a dead worker are removed at the takeover.

No wake-up is needed for correctness: every worker looks for open work at least every `POLL`. A worker takes its fair
share of the chats that have open work. A chat that stays free for `OVERDUE` is taken by any of them.

A connection that exists once is claimed by a row beside those of chats, and fenced like them: a worker that was taken
over from stores nothing more, so that whatever its connection still receives is not acknowledged. The shards of a bot
are a group, whose names are `<group>/<number>`. Workers that want the shards of a group have as many each, or one more
than others: a free one is left to those who have too few, and a worker that has two more than another gives one back,
if it has had it for `MOVE_AFTER`. A row for each group and worker that wants them.
"""

from __future__ import annotations

import asyncio
import math
import os
import secrets
import socket
from collections import defaultdict
from collections.abc import Collection, Iterable
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from functools import partial

from gateway.events import SessionKey
from gateway.installation import program_version
from gateway.store.database import LISTED, Database
from gateway.store.row_codec import moment, quote, read_key, sql, unquote, write_json, write_key

HEARTBEAT = timedelta(seconds=1)
DEAD_AFTER = timedelta(seconds=5)  # without a heartbeat

LISTED_WORKERS = "(SELECT name FROM worker)"
_ENLIST = (
    "INSERT INTO worker (name, host, process, version, shares, started_at, beat_at) VALUES (?, ?, ?, ?, ?, ?, ?) "
    "ON CONFLICT DO NOTHING"
)
_BEAT = "UPDATE worker SET beat_at = ? WHERE name = ?"
_REMOVE = "DELETE FROM worker WHERE name = ?"
COUNT_WORKERS = "SELECT count(*) FROM worker"
_STATUS = sql(
    "SELECT name, host, process, version, started_at, beat_at,",
    "(SELECT count(*) FROM lane WHERE owner = worker.name),",
    "(SELECT count(*) FROM job WHERE leased != 0 AND worker = worker.name)",
    "FROM worker ORDER BY started_at, name",
)


@dataclass(frozen=True, slots=True)
class WorkerIdentity:
    """A process that uses the database, from one opening of the store until its close."""

    name: str = field(default_factory=lambda: secrets.token_hex(8))  # never used again
    host: str = field(default_factory=socket.gethostname)
    process: int = field(default_factory=os.getpid)
    version: str = field(default_factory=program_version)
    shares: bool = False  # the database, with others that share it; the work is divided by claims


@dataclass(frozen=True, slots=True)
class WorkerStatus:
    """A listed worker, and what it holds."""

    name: str
    host: str
    process: int
    version: str
    started_at: datetime
    beat_at: datetime
    turns: int
    jobs: int
    chats: int  # claimed, where the database is shared
    connections: tuple[str, ...]  # `<channel>:<connection>`


def enlist(database: Database, worker: WorkerIdentity, now: int) -> None:
    """List *worker*, once."""
    row = (worker.name, quote(worker.host), worker.process, worker.version, int(worker.shares), now, now)
    database.execute(_ENLIST, row)


def beat(database: Database, name: str, now: int) -> bool:
    """Note a heartbeat; False if the worker is not listed any more: another one has taken over."""
    return database.execute(_BEAT, (now, name)).rowcount > 0


def remove(database: Database, name: str) -> None:
    """Strike the worker off the list, at its end."""
    database.execute(_REMOVE, (name,))


def list_workers(database: Database) -> tuple[WorkerStatus, ...]:
    """Return the listed workers, the oldest first."""
    claimed: dict[str, list[str]] = {}
    for name, worker in database.execute("SELECT name, worker FROM claim ORDER BY name"):
        claimed.setdefault(worker, []).append(unquote(name))
    return tuple(
        WorkerStatus(
            name=name,
            host=unquote(host),
            process=process,
            version=version,
            started_at=moment(started_at),
            beat_at=moment(beat_at),
            turns=turns,
            jobs=jobs,
            chats=sum(each.startswith("chat:") for each in claimed.get(name, ())),
            connections=tuple(each.removeprefix("conn:") for each in claimed.get(name, ()) if each.startswith("conn:")),
        )
        for name, host, process, version, started_at, beat_at, turns, jobs in database.execute(_STATUS)
    )


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


# Of a gateway that cannot connect, each shard comes back; more often than this it is not tried.
MOVE_AFTER = timedelta(minutes=5)

_PREFIX, _WANT = "conn:", "want:"
_ROWS = sql(
    "SELECT name, worker, at FROM claim WHERE name >= 'conn:' AND name < 'conn;' UNION ALL",
    "SELECT name, worker, at FROM claim WHERE name >= 'want:' AND name < 'want;'",
)


@dataclass(frozen=True, slots=True)
class ConnectionBalance:
    """The connections that a worker has now, the free ones, and what has to change."""

    held: frozenset[str]
    free: frozenset[str] = frozenset()  # among those that it wants
    surplus: frozenset[str] = frozenset()  # held ones, at most one of a group, that another worker should have
    has_released: bool = False


@dataclass(slots=True)
class WorkerConnections:
    """The connections of this worker, as its event loop knows them.

    Names are `<channel>:<connection>` (`gateway.channel.SupportsOneConnection`).
    """

    changed: asyncio.Event  # look at the database, and do not wait for the poll
    wanted: set[str] = field(default_factory=set)
    held: frozenset[str] = frozenset()
    _moving: set[str] = field(default_factory=set)  # held, and to be released for another worker
    _free_since: dict[str, float] = field(default_factory=dict)
    _looked_at: float = 0.0  # when the last successful look began, in the loop's time
    _noted: asyncio.Event = field(default_factory=asyncio.Event)  # of the next look

    async def acquire(self, name: str) -> None:
        """Return when the connection *name* is ours, and no other worker's, until it is lost or released."""
        self.wanted.add(name)
        self.changed.set()
        while name not in self.held:
            await self._noted.wait()

    async def wait_lost(self, name: str) -> bool:
        """Return when the connection is to be ended: True if another worker should have it, and it is to be released.

        False if the database has not said for `DEAD_AFTER` that it is ours: others may have it.
        """
        loop = asyncio.get_running_loop()
        while name in self.held:
            left = self._looked_at + DEAD_AFTER.total_seconds() - loop.time()
            try:
                async with asyncio.timeout(left):
                    await self._noted.wait()
            except TimeoutError:
                if loop.time() - self._looked_at >= DEAD_AFTER.total_seconds():
                    self.held -= {name}  # the next look says whether it is still ours
        return name in self._moving

    def release(self, name: str) -> None:
        """Give the connection to the next worker that waits for it, within the next look; idempotent."""
        self.wanted.discard(name)
        self._moving.discard(name)
        self.held -= {name}
        self.changed.set()

    def overdue(self, now: float) -> frozenset[str]:
        """Return the connections that have been free for `OVERDUE`; *now* is the loop's time in seconds."""
        return frozenset(name for name, at in self._free_since.items() if now - at >= OVERDUE.total_seconds())

    def note(self, balance: ConnectionBalance, looked_at: float) -> None:
        """Take over what the database says, as of a look that began at *looked_at*."""
        moving = {_group_of(name) for name in self._moving}
        self._moving |= {name for name in balance.surplus & self.wanted if _group_of(name) not in moving}
        self.held = balance.held & self.wanted - self._moving
        self._free_since = {name: self._free_since.get(name, looked_at) for name in balance.free}
        self._looked_at = looked_at
        noted, self._noted = self._noted, asyncio.Event()
        noted.set()


def balance_connections(
    database: Database, worker: str, now: int, names: Collection[str], overdue: Collection[str] = ()
) -> ConnectionBalance:
    """Have *worker* release its connections that are not among *names*, and claim its share of those that are free.

    Those that are *overdue* are claimed in any case. Times are in microseconds.
    """
    rows = database.execute(_ROWS).fetchall()
    holders = {unquote(name.removeprefix(_PREFIX)): (by, at) for name, by, at in rows if name.startswith(_PREFIX)}
    own = {name: at for name, (holder, at) in holders.items() if holder == worker}
    unwanted = sorted(own.keys() - set(names))
    database.executemany(_RELEASE, [(_PREFIX + quote(name), worker) for name in unwanted])
    groups = defaultdict[str, set[str]](set)
    for name in names:
        groups[_group_of(name)].add(name)
    wants = {(name, by) for name, by, _ in rows if name.startswith(_WANT)}
    _note_wants(database, worker, now, wants, [group for group, members in groups.items() if len(members) > 1])
    chosen, surplus = set(overdue), set[str]()
    for group, members in groups.items():
        others = [by for name, by in wants if by != worker and name == _want_name(group, by)]
        counts = [sum(holders.get(name, ("",))[0] == each for name in members) for each in others]
        free, mine = sorted(members - holders.keys()), sorted(own.keys() & members)
        if len(members) == 1 or (_want_name(group, worker), worker) in wants:  # one look earlier, others do not know
            chosen.update(free[: _share(len(members), len(mine), len(free), counts)])
        if not free and len(mine) - min(counts, default=len(mine)) > 1:
            oldest = min(mine, key=own.__getitem__)
            if now - own[oldest] >= MOVE_AFTER // timedelta(microseconds=1):
                surplus.add(oldest)
    take = partial(database.execute, _TAKE)
    chosen = chosen.intersection(names) - holders.keys()
    taken = {name for name in sorted(chosen) if take((_PREFIX + quote(name), worker, now)).rowcount}
    return ConnectionBalance(
        held=frozenset(own.keys() - set(unwanted) | taken),
        free=frozenset(set(names) - holders.keys() - taken),
        surplus=frozenset(surplus),
        has_released=bool(unwanted),
    )


def _note_wants(
    database: Database, worker: str, now: int, wants: Collection[tuple[str, str]], groups: Iterable[str]
) -> None:
    """Store that *worker* wants the shards of *groups* and of no others; *wants* is what is stored."""
    before, after = {name for name, by in wants if by == worker}, {_want_name(group, worker) for group in groups}
    database.executemany(_RELEASE, [(name, worker) for name in sorted(before - after)])
    database.executemany(_TAKE, [(name, worker, now) for name in sorted(after - before)])


def _share(total: int, mine: int, free: int, others: Collection[int]) -> int:
    """Return the number of *free* ones to be claimed by a worker that has *mine* of *total*, as *others* have."""
    least = total // (len(others) + 1)
    left_for_others = sum(max(least - each, 0) for each in others)
    most = -(-total // (len(others) + 1))
    return max(least - mine, min(free - left_for_others, most - mine), 0)


def _group_of(name: str) -> str:
    """Return the name that the shards of a bot share; of another connection its own."""
    group, _, number = name.rpartition("/")
    return group if number.isdecimal() else name


def _want_name(group: str, worker: str) -> str:
    return f"{_WANT}{quote(group)}:{worker}"
