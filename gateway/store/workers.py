"""Workers: the processes that use one database, and who takes over when one of them is killed.

A worker is listed from its start until it ends. Leases name their worker: a lane its `owner`, a job its `worker`.
Taking over is two steps in one transaction: the rows of the workers that are dead are removed, and every lease of a
worker that is not listed is given back (`sql_store.take_over`). The engine decides who is dead: with a file, every
other worker is, since the home's lock is ours.
"""

from __future__ import annotations

import os
import secrets
import socket
from dataclasses import dataclass, field
from datetime import datetime, timedelta

from gateway.installation import program_version
from gateway.store.database import Database
from gateway.store.row_codec import moment, quote, sql, unquote

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
