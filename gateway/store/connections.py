"""Claims of connections that exist once: one worker has each, the others wait until it gives it back or is dead.

They are rows beside those of chats, in the same transaction, and are fenced like them: a worker that was taken over
from stores nothing more, so that whatever its connection still receives is not acknowledged.

The shards of a bot are a group, whose names are `<group>/<number>`. Workers that want the shards of a group have as
many each, or one more than others: a free one is left to those who have too few, and a worker that has two more than
another gives one back, if it has had it for `MOVE_AFTER`. A row for each group and worker that wants them.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Collection, Iterable
from dataclasses import dataclass, field
from datetime import timedelta
from functools import partial

from gateway.store.claims import DEAD_AFTER, OVERDUE
from gateway.store.database import Database
from gateway.store.row_codec import quote, sql, unquote

# Of a gateway that cannot connect, each shard comes back; more often than this it is not tried.
MOVE_AFTER = timedelta(minutes=5)

_PREFIX, _WANT = "conn:", "want:"
_ROWS = sql(
    "SELECT name, worker, at FROM claim WHERE name >= 'conn:' AND name < 'conn;' UNION ALL",
    "SELECT name, worker, at FROM claim WHERE name >= 'want:' AND name < 'want;'",
)
_TAKE = "INSERT INTO claim (name, worker, at) VALUES (?, ?, ?) ON CONFLICT DO NOTHING"
_RELEASE = "DELETE FROM claim WHERE name = ? AND worker = ?"


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
