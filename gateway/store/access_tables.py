"""Who may speak beyond the settings, and the audit of what was decided about people."""

from __future__ import annotations

TABLES = """
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
"""
