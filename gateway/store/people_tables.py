"""The third schema: people."""

from __future__ import annotations

import sqlite3

from gateway.store import access_tables, alert_tables, caps_tables


def migrate(database: sqlite3.Connection) -> None:
    """Make the tables."""
    for area in (access_tables, caps_tables, alert_tables):
        for statement in area.TABLES.split(";"):
            if statement.strip():
                database.execute(statement)
