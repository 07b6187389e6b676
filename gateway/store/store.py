"""A whole store over one writer, and what happens when it is opened and closed."""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeAlias

import structlog

from gateway.errors import StoreDown
from gateway.events import SessionKey
from gateway.ports.access import Access
from gateway.ports.alerts import Alerts
from gateway.ports.caps import CapRows
from gateway.ports.channel import ChannelState
from gateway.ports.erasing import Erasing
from gateway.ports.journal import InboxRow, Jobs, Journal, People, Records, UsageReports
from gateway.ports.links import Links
from gateway.ports.outbox import Outbox
from gateway.ports.store import Limits
from gateway.store import access, inbox, lanes, ledger, links, records, upkeep
from gateway.store.alerts import SqliteAlerts
from gateway.store.base import Clock, Engine
from gateway.store.caps import SqliteCapRows
from gateway.store.erasing import SqliteErasing
from gateway.store.journal import SqliteJournal
from gateway.store.outbox import SqliteOutbox
from gateway.store.records import SqliteChannelState, SqliteJobs, SqlitePeople, SqliteRecords
from gateway.store.rows import unquote
from gateway.store.suspects import KilledJob, count_crash, forgive
from gateway.store.usage import SqliteUsage
from gateway.store.writer import Writer

log = structlog.get_logger(__name__)

Copy: TypeAlias = Callable[[Path], None]


@dataclass(slots=True)
class Backlog:
    """Who has something to do."""

    lanes: list[SessionKey]
    controls: list[InboxRow]
    chats: list[SessionKey]
    lost: list[SessionKey] = field(default_factory=list)  # lanes that are not held after all


@dataclass(slots=True)
class Found:
    """What the last run left."""

    backlog: Backlog
    unclean_stops: int
    preferences: dict[str, dict[str, str]]
    choosers: dict[SessionKey, str]
    links: links.Known
    access: access.Known
    killed_jobs: list[KilledJob]


def start(database: sqlite3.Connection, now: int) -> Found:
    """Take over from the process before: count its crash, free its lanes, find its backlog."""
    meta = dict(database.execute("SELECT name, value FROM meta WHERE name IN ('clean', 'unclean_stops')").fetchall())
    was_unclean = meta.get("clean") == "0"
    unclean_stops = int(meta.get("unclean_stops", "0")) + was_unclean
    killed_jobs = count_crash(database, now) if was_unclean else []
    lanes.recover(database)
    ledger.recover(database)
    database.execute("UPDATE job SET leased = 0 WHERE leased != 0")
    _set_meta(database, clean="0", unclean_stops=str(unclean_stops))
    preferences: dict[str, dict[str, str]] = {}
    for subject, name, value in database.execute("SELECT subject, name, value FROM preference"):
        preferences.setdefault(unquote(subject), {})[unquote(name)] = unquote(value)
    choosers = records.choosers(database) if any("language" in each for each in preferences.values()) else {}
    return Found(
        backlog=look(database),
        unclean_stops=unclean_stops,
        preferences=preferences,
        choosers=choosers,
        links=links.load(database),
        access=access.load(database),
        killed_jobs=killed_jobs,
    )


def look(database: sqlite3.Connection) -> Backlog:
    """Return who has something to do."""
    return Backlog(inbox.open_lanes(database), inbox.open_controls(database), ledger.open_chats(database))


def look_again(database: sqlite3.Connection, engine: Engine) -> Backlog:
    """Set right what a broken batch left behind, and return who has something to do."""
    lost = lanes.free_orphans(database, engine.owner, engine.held)
    backlog = look(database)
    backlog.lost = lost
    return backlog


def finish(database: sqlite3.Connection) -> None:
    """Say that this process stopped of its own will; nothing it held has survived a crash."""
    forgive(database)
    leave(database)
    _set_meta(database, unclean_stops="0")


def leave(database: sqlite3.Connection) -> None:
    """Say that this process, which served nobody, is done; what killed those before it is not forgiven by that."""
    lanes.recover(database)
    _set_meta(database, clean="1")


def _set_meta(database: sqlite3.Connection, **values: str) -> None:
    database.executemany("INSERT OR REPLACE INTO meta (name, value) VALUES (?, ?)", list(values.items()))


class SqliteStore:
    """Every port over one file (see the Store port)."""

    def __init__(self, engine: Engine, found: Found, copy: Copy) -> None:
        self._engine = engine
        self._copy = copy
        journal = SqliteJournal(engine)
        self.journal: Journal = journal
        self.outbox: Outbox = SqliteOutbox(engine)
        self.records: Records = SqliteRecords(engine, journal)
        self.jobs: Jobs = SqliteJobs(engine)
        self.people: People = SqlitePeople(engine, found.preferences, found.choosers)
        self.usage: UsageReports = SqliteUsage(engine)
        self.caps: CapRows = SqliteCapRows(engine)
        self.links: Links = links.SqliteLinks(engine, found.links, found.preferences)
        self.access: Access = access.SqliteAccess(engine, found.access)
        self.alerts: Alerts = SqliteAlerts(engine)
        self.erasing: Erasing = SqliteErasing(engine)

    def state(self, channel: str) -> ChannelState:
        """Return the notes of one channel block."""
        return SqliteChannelState(self._engine, channel)

    async def check(self) -> None:
        """Do one durable write."""
        now = str(self._engine.now())
        await self._engine.writer.submit(lambda database: _set_meta(database, checked_at=now))

    async def backup(self, target: Path) -> None:
        """Write a copy of one instant to *target* (0600) while running; it is complete or not there.

        Raises StoreDown when it cannot be written.
        """
        try:
            await asyncio.to_thread(self._copy, target)
        except (sqlite3.Error, OSError) as error:
            raise StoreDown(f"the backup {target} could not be written: {error}") from error

    async def prune(self) -> int:
        """Remove what is past its time."""
        now, limits = self._engine.now(), self._engine.limits
        blank_after, zone = limits.blank_after, limits.zone
        return await self._engine.writer.submit(lambda database: upkeep.prune(database, now, blank_after, zone=zone))

    async def close(self, *, has_served: bool = True) -> None:
        """Write what is queued, then close; streams end."""
        engine = self._engine
        try:
            await engine.writer.close(finish if has_served else leave)
        finally:
            for wakeups in (engine.lanes, engine.controls, engine.chats):
                wakeups.close()


async def assemble(writer: Writer, limits: Limits, clock: Clock, copy: Copy) -> SqliteStore:
    """Build a store on an open writer, and wake what the last run left."""
    engine = Engine(writer=writer, limits=limits, clock=clock)
    now = engine.now()
    found = await writer.submit(lambda database: start(database, now))
    engine.unclean_stops = found.unclean_stops
    _wake(engine, found.backlog)
    writer.when_reopened(lambda database: look_again(database, engine), lambda backlog: _wake(engine, backlog))
    log.info(
        "store.opened",
        lanes=len(found.backlog.lanes),
        controls=len(found.backlog.controls),
        chats=len(found.backlog.chats),
        unclean_stops=found.unclean_stops,
    )
    for job in found.killed_jobs:
        log.warning("store.job_killed", job=unquote(job.id), kind=job.kind, attempts=job.attempts)
    return SqliteStore(engine, found, copy)


def _wake(engine: Engine, backlog: Backlog) -> None:
    for key in backlog.lost:
        engine.free_lane(key, has_more=False)
    for key in backlog.lanes:
        engine.wake_lane(key)
    for row in backlog.controls:
        engine.offer_control(row)
    for key in backlog.chats:
        engine.chats.put(key)
    engine.recorded.set()
    engine.queued_job.set()
