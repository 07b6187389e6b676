"""The tables of 0.2.0 (schema 11), and stores at any schema that can be upgraded."""

from __future__ import annotations

import sqlite3

from gateway.store.database import Database
from gateway.store.migrations import MIGRATIONS, OLDEST
from gateway.store.postgres.connection import PostgresConnection
from gateway.store.postgres.schema import SchemaDatabase
from gateway.store.tables import run_script

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
    message INTEGER NOT NULL,
    n INTEGER NOT NULL,
    state TEXT NOT NULL,
    attempts INTEGER NOT NULL DEFAULT 0,
    message_id TEXT NOT NULL DEFAULT '',
    adopted TEXT NOT NULL DEFAULT '',
    reason TEXT NOT NULL DEFAULT '',
    at INTEGER NOT NULL,
    payload TEXT NOT NULL,
    PRIMARY KEY (message, n)
);

CREATE TABLE usage (
    turn TEXT NOT NULL, person TEXT NOT NULL, chat TEXT NOT NULL, purpose TEXT NOT NULL, model TEXT NOT NULL,
    tokens_in INTEGER NOT NULL, tokens_out INTEGER NOT NULL, tokens_cached INTEGER NOT NULL, cost REAL,
    at INTEGER NOT NULL, calls INTEGER NOT NULL DEFAULT 1, call TEXT NOT NULL DEFAULT '',
    is_own INTEGER NOT NULL DEFAULT 0
);
CREATE INDEX usage_at ON usage (at);
CREATE INDEX usage_open ON usage (call, turn) WHERE call != '' AND call != 'day';

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
    reason TEXT NOT NULL DEFAULT '',
    worker TEXT NOT NULL DEFAULT ''
);
CREATE INDEX job_due ON job (leased, due_at);
CREATE INDEX job_scope ON job (scope);

CREATE TABLE preference (
    subject TEXT NOT NULL, name TEXT NOT NULL, value TEXT NOT NULL, PRIMARY KEY (subject, name)
) WITHOUT ROWID;

CREATE TABLE note (
    channel TEXT NOT NULL, name TEXT NOT NULL, value TEXT NOT NULL, PRIMARY KEY (channel, name)
) WITHOUT ROWID;
CREATE TABLE account (
    identity TEXT PRIMARY KEY, person TEXT NOT NULL, at INTEGER NOT NULL
) WITHOUT ROWID;
CREATE TABLE account_chat (key TEXT PRIMARY KEY, identity TEXT NOT NULL) WITHOUT ROWID;
CREATE TABLE link_note (name TEXT PRIMARY KEY, value TEXT NOT NULL) WITHOUT ROWID;
CREATE TABLE move (id TEXT PRIMARY KEY, at INTEGER NOT NULL, payload TEXT NOT NULL) WITHOUT ROWID;
CREATE TABLE access (
    channel TEXT NOT NULL, who TEXT NOT NULL, standing TEXT NOT NULL, decided_by TEXT NOT NULL, at INTEGER NOT NULL,
    name TEXT NOT NULL DEFAULT '', PRIMARY KEY (channel, who)
) WITHOUT ROWID;
CREATE TABLE access_note (name TEXT PRIMARY KEY, value TEXT NOT NULL) WITHOUT ROWID;
CREATE TABLE audit (
    seq INTEGER PRIMARY KEY, id TEXT NOT NULL UNIQUE, at INTEGER NOT NULL, decided_by TEXT NOT NULL,
    place TEXT NOT NULL, what TEXT NOT NULL, whom TEXT NOT NULL, outcome TEXT NOT NULL
);
CREATE INDEX audit_at ON audit (at);

CREATE TABLE cap_told (
    name TEXT NOT NULL, chat TEXT NOT NULL, until INTEGER NOT NULL, most INTEGER NOT NULL, PRIMARY KEY (name, chat)
) WITHOUT ROWID;

CREATE TABLE alert (cause TEXT PRIMARY KEY, since INTEGER NOT NULL, payload TEXT NOT NULL) WITHOUT ROWID;
CREATE TABLE alert_post (
    seq INTEGER PRIMARY KEY, body TEXT NOT NULL, at INTEGER NOT NULL, attempts INTEGER NOT NULL DEFAULT 0,
    due_at INTEGER NOT NULL
);

CREATE TABLE worker (
    name TEXT PRIMARY KEY, host TEXT NOT NULL, process INTEGER NOT NULL, version TEXT NOT NULL,
    started_at INTEGER NOT NULL, beat_at INTEGER NOT NULL, shares INTEGER NOT NULL DEFAULT 0
) WITHOUT ROWID;
CREATE TABLE claim (name TEXT PRIMARY KEY, worker TEXT NOT NULL, at INTEGER NOT NULL) WITHOUT ROWID;
CREATE TABLE scope (scope TEXT PRIMARY KEY, version TEXT NOT NULL) WITHOUT ROWID;
CREATE TABLE scope_file (
    scope TEXT NOT NULL, path TEXT NOT NULL, size INTEGER NOT NULL, replaced TEXT NOT NULL, modified INTEGER NOT NULL,
    PRIMARY KEY (scope, path)
) WITHOUT ROWID;
CREATE TABLE scope_piece (
    scope TEXT NOT NULL, path TEXT NOT NULL, start INTEGER NOT NULL, data BLOB NOT NULL,
    PRIMARY KEY (scope, path, start)
);
CREATE TABLE scope_state (name TEXT PRIMARY KEY, value TEXT NOT NULL) WITHOUT ROWID;
"""


def create_tables(database: Database, version: int = OLDEST) -> None:
    """Make the tables as schema *version* had them, on an empty engine that understands SQLite's types."""
    run_script(database, _TABLES)
    for number in range(OLDEST + 1, version + 1):
        MIGRATIONS[number](database)


def create_file(connection: sqlite3.Connection, version: int = OLDEST) -> None:
    """Make a file of schema *version*."""
    create_tables(connection, version)
    connection.execute(f"PRAGMA user_version = {version}")


def create_database(connection: PostgresConnection, version: int = OLDEST) -> None:
    """Make a database of schema *version*."""
    connection.begin_batch()
    create_tables(SchemaDatabase(connection), version)
    connection.execute("CREATE TABLE schema_version (number INTEGER NOT NULL)")
    connection.execute("INSERT INTO schema_version VALUES (?)", (version,))
    connection.end_batch()
