"""The tables of accounts, persons and moves between scopes."""

from __future__ import annotations

import sqlite3

TABLES = """
CREATE TABLE account (
    identity TEXT PRIMARY KEY, person TEXT NOT NULL, at INTEGER NOT NULL
) WITHOUT ROWID;
CREATE TABLE account_chat (key TEXT PRIMARY KEY, identity TEXT NOT NULL) WITHOUT ROWID;
CREATE TABLE link_note (name TEXT PRIMARY KEY, value TEXT NOT NULL) WITHOUT ROWID;
CREATE TABLE move (id TEXT PRIMARY KEY, at INTEGER NOT NULL, payload TEXT NOT NULL) WITHOUT ROWID;
"""


def migrate(database: sqlite3.Connection) -> None:
    """Make the tables."""
    for statement in TABLES.split(";"):
        if statement.strip():
            database.execute(statement)
