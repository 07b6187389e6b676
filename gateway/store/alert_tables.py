"""What the owner was told last, by cause, and what is on its way to the webhook."""

from __future__ import annotations

TABLES = """
CREATE TABLE alert (cause TEXT PRIMARY KEY, since INTEGER NOT NULL, payload TEXT NOT NULL) WITHOUT ROWID;
CREATE TABLE alert_post (
    seq INTEGER PRIMARY KEY, body TEXT NOT NULL, at INTEGER NOT NULL, attempts INTEGER NOT NULL DEFAULT 0,
    due_at INTEGER NOT NULL
);
"""
