"""The shards of a bot over gateways that come, go and fail: even, with few moves, in minutes of virtual time."""

from __future__ import annotations

import asyncio
import itertools
import random
import sqlite3
from collections import Counter
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass, field
from datetime import timedelta

import pytest

from gateway.store import claims as store_connections
from gateway.store.claims import MOVE_AFTER, POLL, WorkerConnections, balance_connections

_STEP = POLL.total_seconds()
_PAUSE = 1.0  # of the supervisor, after a run has ended
_SETTLED = 45.0  # seconds in which shards are even again
_MOVE_AFTER = MOVE_AFTER.total_seconds()


@dataclass
class SimulatedGateway:
    """A gateway as the database sees it: it wants every shard, and ends a connection within a look."""

    name: str
    fails: bool = False  # no connection comes about
    connections: WorkerConnections = field(default_factory=lambda: WorkerConnections(asyncio.Event()))
    wants_at: dict[str, float] = field(default_factory=dict)  # when it acquires a shard again

    def look(self, database: sqlite3.Connection, now: float) -> None:
        """Do what the supervisor does, and look at the database."""
        connections = self.connections
        for shard in sorted(connections.wanted):
            if shard in connections._moving or (self.fails and shard in connections.held):
                connections.release(shard)
                self.wants_at[shard] = now + (60.0 if self.fails else _PAUSE)
        connections.wanted |= {shard for shard, at in self.wants_at.items() if at <= now}
        self.wants_at = {shard: at for shard, at in self.wants_at.items() if at > now}
        wanted, overdue = frozenset(connections.wanted), connections.overdue(now)
        connections.note(balance_connections(database, self.name, int(now * 1e6), wanted, overdue), now)


class SimulatedTeam:
    """Gateways on one database."""

    def __init__(self, database: sqlite3.Connection, shards: int, seed: int) -> None:
        self.database = database
        self.shards = [f"discord:1/{number}" for number in range(shards)]
        self.gateways: dict[str, SimulatedGateway] = {}
        self.now = 0.0
        self.moves: list[tuple[float, str]] = []
        self.free: Counter[str] = Counter()  # looks at which nobody had a shard
        self._random = random.Random(seed)  # noqa: S311 - no secret
        self._holders: dict[str, str] = {}

    def join(self, name: str, *, fails: bool = False) -> None:
        """Start a gateway."""
        self.gateways[name] = SimulatedGateway(name, fails, wants_at=dict.fromkeys(self.shards, 0.0))

    def leave(self, name: str) -> None:
        """End one, as a stop or a takeover does."""
        del self.gateways[name]
        self.database.execute("DELETE FROM claim WHERE worker = ?", (name,))

    def run(self, seconds: float) -> None:
        """Let time pass; all look in any order."""
        for _ in range(int(seconds / _STEP)):
            self.now += _STEP
            for gateway in self._random.sample(list(self.gateways.values()), len(self.gateways)):
                gateway.look(self.database, self.now)
            rows = self.database.execute("SELECT name, worker FROM claim WHERE name LIKE 'conn:%'").fetchall()
            holders = {name.removeprefix("conn:"): worker for name, worker in rows}
            self.moves += [(self.now, name) for name, by in holders.items() if self._holders.get(name, by) != by]
            self._holders |= holders
            self.free.update(set(self.shards) - holders.keys())

    def counts(self) -> list[int]:
        """Return how many shards each gateway has."""
        rows = self.database.execute("SELECT worker FROM claim WHERE name LIKE 'conn:%'").fetchall()
        found = Counter(worker for (worker,) in rows)
        assert found.total() == len(self.shards)
        return sorted(found[name] for name in self.gateways)

    def is_even(self) -> bool:
        """Return True if no gateway has two more than another."""
        counts = self.counts()
        return counts[-1] - counts[0] <= 1


@pytest.fixture
def database() -> Iterator[sqlite3.Connection]:
    """Give an empty table of claims."""
    with closing(sqlite3.connect(":memory:")) as database:
        database.execute("CREATE TABLE claim (name TEXT PRIMARY KEY, worker TEXT NOT NULL, at INTEGER NOT NULL)")
        yield database


@pytest.mark.parametrize("seed", range(2))
def test_shards_are_even_after_each_change(
    database: sqlite3.Connection, monkeypatch: pytest.MonkeyPatch, seed: int
) -> None:
    """One that joins gets its share, one that leaves gives its own back; then nothing moves."""
    monkeypatch.setattr(store_connections, "MOVE_AFTER", timedelta(seconds=10))
    chance = random.Random(seed)  # noqa: S311 - no secret
    team = SimulatedTeam(database, chance.randint(1, 16), seed)
    for number in range(8):
        if len(team.gateways) > 1 and chance.random() < 0.4:
            team.leave(chance.choice(list(team.gateways)))
        else:
            team.join(f"w{number}")
        before = len(team.moves)
        team.run(_SETTLED)
        assert team.is_even()
        assert len(team.moves) - before <= len(team.shards)
        before = len(team.moves)
        team.run(_SETTLED)
        assert len(team.moves) == before


def test_gateways_that_start_together_divide_at_once(database: sqlite3.Connection) -> None:
    """A free shard is left to those who have too few: none has to move."""
    team = SimulatedTeam(database, 16, 1)
    team.join("a")
    team.join("b")
    team.join("c")
    team.run(10)
    assert team.counts() == [5, 5, 6]
    assert team.moves == []


def test_a_gateway_that_cannot_connect_costs_little(database: sqlite3.Connection) -> None:
    """It is given each shard once in five minutes, for a moment; nobody waits for it with one that is free."""
    team = SimulatedTeam(database, 4, 1)
    team.join("good")
    team.run(_MOVE_AFTER)
    team.join("bad", fails=True)
    team.run(4 * _MOVE_AFTER)
    for shard in team.shards:
        times = [at for at, name in team.moves if name == shard][::2]  # there, and back
        assert all(later - earlier >= _MOVE_AFTER for earlier, later in itertools.pairwise(times))
        assert team.free[shard] * _STEP <= 4 * 10
    team.leave("bad")
    team.run(_SETTLED)
    assert team.counts() == [4]


def test_a_connection_without_shards_is_taken_at_once(database: sqlite3.Connection) -> None:
    """By any worker that wants it; and nobody's interest is stored."""
    assert balance_connections(database, "a", 1, {"telegram:1"}).held == {"telegram:1"}
    assert balance_connections(database, "b", 1, {"telegram:1"}).held == set()
    assert database.execute("SELECT name FROM claim").fetchall() == [("conn:telegram:1",)]
