"""What caps count: rows of usage know how many calls they are, and who was told that they are past a cap."""

from __future__ import annotations

# `calls`: more than one where a day's rows were folded. `call` names a call under way, 'day' a folded row.
# `is_own`: the turn was ours, nobody typed it.
TABLES = """
ALTER TABLE usage ADD COLUMN calls INTEGER NOT NULL DEFAULT 1;
ALTER TABLE usage ADD COLUMN call TEXT NOT NULL DEFAULT '';
ALTER TABLE usage ADD COLUMN is_own INTEGER NOT NULL DEFAULT 0;
CREATE INDEX usage_person ON usage (person, at);
CREATE TABLE cap_told (
    name TEXT NOT NULL, chat TEXT NOT NULL, until INTEGER NOT NULL, most INTEGER NOT NULL, PRIMARY KEY (name, chat)
) WITHOUT ROWID;
"""
