"""The tables, their migrations, and how the file is opened."""

from __future__ import annotations

import contextlib
import os
import sqlite3
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TypeAlias

import structlog

from gateway.errors import SchemaTooNew, StoreUnavailable
from gateway.journal_file import damaged_line
from gateway.store.link_tables import migrate as link_tables
from gateway.store.people_tables import migrate as people_tables

log = structlog.get_logger(__name__)

Migration: TypeAlias = Callable[[sqlite3.Connection], None]

BUSY_SECONDS = 30.0

# Rows of the inbox that have not ended: waiting, claimed, stamped (given back), control, noted.
# Times are microseconds since 1970. Few indices on purpose: each is a page per commit.
_TABLES = """
CREATE TABLE meta (name TEXT PRIMARY KEY, value TEXT NOT NULL) WITHOUT ROWID;

CREATE TABLE inbox (
    seq INTEGER PRIMARY KEY,
    key TEXT NOT NULL,
    state TEXT NOT NULL,
    turn TEXT NOT NULL DEFAULT '',
    sender TEXT NOT NULL,
    sent_at INTEGER NOT NULL,
    message_id TEXT NOT NULL,
    album TEXT NOT NULL DEFAULT '',
    length INTEGER NOT NULL,
    alone INTEGER NOT NULL,
    role TEXT NOT NULL,
    attempts INTEGER NOT NULL DEFAULT 0,
    crashes INTEGER NOT NULL DEFAULT 0,
    accepted_at INTEGER NOT NULL,
    ended_at INTEGER,
    payload TEXT NOT NULL
);
CREATE INDEX inbox_open ON inbox (key, state, sent_at, ended_at) WHERE ended_at IS NULL;
CREATE INDEX inbox_ended ON inbox (ended_at) WHERE ended_at IS NOT NULL;

CREATE TABLE dedupe (
    name TEXT NOT NULL, revision TEXT NOT NULL, seq INTEGER NOT NULL,
    PRIMARY KEY (name, revision)
) WITHOUT ROWID;
CREATE INDEX dedupe_seq ON dedupe (seq);

CREATE TABLE lane (
    key TEXT PRIMARY KEY,
    owner TEXT NOT NULL DEFAULT '',
    epoch INTEGER NOT NULL DEFAULT 0,
    turn TEXT NOT NULL DEFAULT '',
    told_at INTEGER NOT NULL DEFAULT 0
) WITHOUT ROWID;

CREATE TABLE session (
    key TEXT PRIMARY KEY,
    transcript TEXT NOT NULL,
    next_index INTEGER NOT NULL,
    created_at INTEGER NOT NULL,
    used_at INTEGER NOT NULL,
    last_turn TEXT NOT NULL DEFAULT '',
    scope TEXT NOT NULL DEFAULT ''
) WITHOUT ROWID;

CREATE TABLE step (
    turn TEXT NOT NULL, n INTEGER NOT NULL, kind TEXT NOT NULL, call TEXT NOT NULL, body TEXT NOT NULL,
    PRIMARY KEY (turn, n)
) WITHOUT ROWID;

CREATE TABLE record (
    seq INTEGER PRIMARY KEY,
    turn TEXT NOT NULL UNIQUE,
    key TEXT NOT NULL,
    transcript TEXT NOT NULL,
    outcome TEXT NOT NULL,
    from_index INTEGER NOT NULL,
    to_index INTEGER NOT NULL,
    inbox TEXT NOT NULL,
    at INTEGER NOT NULL,
    new_transcript TEXT NOT NULL,
    failure TEXT NOT NULL,
    supersedes TEXT NOT NULL,
    scope TEXT NOT NULL
);
CREATE TABLE body (seq INTEGER PRIMARY KEY, key TEXT NOT NULL, body TEXT NOT NULL);
CREATE INDEX body_key ON body (key);

CREATE TABLE outbox (
    seq INTEGER PRIMARY KEY,
    id TEXT NOT NULL UNIQUE,
    key TEXT NOT NULL,
    open INTEGER,
    ended_at INTEGER,
    payload TEXT NOT NULL
);
CREATE INDEX outbox_open ON outbox (key, open, seq) WHERE open IS NOT NULL;
CREATE INDEX outbox_ended ON outbox (ended_at) WHERE ended_at IS NOT NULL;

CREATE TABLE part (
    message TEXT NOT NULL,
    n INTEGER NOT NULL,
    state TEXT NOT NULL,
    attempts INTEGER NOT NULL DEFAULT 0,
    message_id TEXT NOT NULL DEFAULT '',
    adopted TEXT NOT NULL DEFAULT '',
    reason TEXT NOT NULL DEFAULT '',
    at INTEGER NOT NULL,
    payload TEXT NOT NULL,
    PRIMARY KEY (message, n)
) WITHOUT ROWID;

CREATE TABLE usage (
    turn TEXT NOT NULL, person TEXT NOT NULL, chat TEXT NOT NULL, purpose TEXT NOT NULL, model TEXT NOT NULL,
    tokens_in INTEGER NOT NULL, tokens_out INTEGER NOT NULL, tokens_cached INTEGER NOT NULL, cost REAL,
    at INTEGER NOT NULL
);
CREATE INDEX usage_at ON usage (at);
CREATE INDEX usage_turn ON usage (turn);

CREATE TABLE dead (
    id TEXT PRIMARY KEY, turn TEXT NOT NULL, key TEXT NOT NULL, reason TEXT NOT NULL, at INTEGER NOT NULL
);
CREATE INDEX dead_turn ON dead (turn);

CREATE TABLE job (
    seq INTEGER PRIMARY KEY,
    id TEXT NOT NULL UNIQUE,
    kind TEXT NOT NULL,
    scope TEXT NOT NULL,
    payload TEXT NOT NULL,
    due_at INTEGER NOT NULL,
    attempts INTEGER NOT NULL,
    leased INTEGER NOT NULL DEFAULT 0,
    reason TEXT NOT NULL DEFAULT ''
);
CREATE INDEX job_due ON job (leased, due_at);
CREATE INDEX job_scope ON job (scope);

CREATE TABLE preference (
    subject TEXT NOT NULL, name TEXT NOT NULL, value TEXT NOT NULL, PRIMARY KEY (subject, name)
) WITHOUT ROWID;

CREATE TABLE note (
    channel TEXT NOT NULL, name TEXT NOT NULL, value TEXT NOT NULL, PRIMARY KEY (channel, name)
) WITHOUT ROWID;
"""


def _first(connection: sqlite3.Connection) -> None:
    for statement in _TABLES.split(";"):
        if statement.strip():
            connection.execute(statement)


MIGRATIONS: Sequence[Migration] = (_first, link_tables, people_tables)


def create_private(path: Path) -> None:
    """Make an empty file that only we may read, unless it is there; SQLite's side files inherit its mode."""
    os.close(os.open(path, os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o600))
    path.chmod(0o600)


def connect(path: Path, factory: type[sqlite3.Connection] = sqlite3.Connection) -> sqlite3.Connection:
    """Open the file for the writer: WAL, every commit fsynced.

    What an earlier connection left in the log is written into the file and synced anew, since
    after a failed fsync what can be read from the log is not what is on the disk.
    """
    connection = sqlite3.connect(
        path, timeout=BUSY_SECONDS, isolation_level=None, cached_statements=256, factory=factory
    )
    try:
        # The journal itself has the right mode from its first byte; the page size only takes in a new file.
        connection.execute("PRAGMA page_size = 2048")
        connection.execute("PRAGMA journal_mode = WAL")
        connection.execute("PRAGMA synchronous = FULL")
        connection.execute("PRAGMA wal_autocheckpoint = 4000")
        connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()
    except BaseException:
        connection.close()
        raise
    return connection


def prepare(connection: sqlite3.Connection, path: Path | None, migrations: Sequence[Migration] = MIGRATIONS) -> None:
    """Check the file and bring it to this version, once per start; nothing is changed in a newer one.

    The snapshot to go back to is the home's (gateway/home_migration.py), which is taken before the store is opened.
    Raises StoreUnavailable for a damaged file and SchemaTooNew for one from a newer Parlour.
    """
    found = connection.execute("PRAGMA quick_check(1)").fetchone()
    if found[0] != "ok":
        raise StoreUnavailable(damaged_line(path))
    (version,) = connection.execute("PRAGMA user_version").fetchone()
    if version > len(migrations):
        raise SchemaTooNew(_newer_line(path, version, len(migrations)))
    if version == len(migrations):
        return
    for step in range(version, len(migrations)):
        connection.execute("BEGIN IMMEDIATE")
        try:
            migrations[step](connection)
            connection.execute(f"PRAGMA user_version = {step + 1}")
            connection.execute("COMMIT")
        except BaseException:
            with contextlib.suppress(sqlite3.Error):
                connection.rollback()
            raise
    if version:
        log.info("store.migrated", before=version, now=len(migrations))


def _newer_line(path: Path | None, version: int, known: int) -> str:
    return (
        f"{path} was written by a newer Parlour (schema {version}, this one knows {known}). "
        "Install the newer version again, or go back to a backup: parlour restore FILE --force"
    )


def copy(source: sqlite3.Connection, target: Path) -> None:
    """Write a consistent copy of *source* to *target*, 0600, complete or not there at all."""
    target.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    unfinished = target.with_name(f".{target.name}.part")
    unfinished.unlink(missing_ok=True)
    create_private(unfinished)
    try:
        copied = sqlite3.connect(unfinished, isolation_level=None)
        try:
            source.backup(copied)
            # One file that stands by itself: no log beside it.
            copied.execute("PRAGMA journal_mode = DELETE")
        finally:
            copied.close()
        _sync(unfinished)
        unfinished.replace(target)
        _sync(target.parent)
    except BaseException:
        unfinished.unlink(missing_ok=True)
        raise


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
