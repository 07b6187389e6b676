"""What a journal's file and a database hold, as one comparable value, and which of them a gateway would start on."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path

from gateway.errors import SettingsError
from gateway.journal_file import misplaced_journal
from gateway.store.postgres import schema
from gateway.store.postgres.connection import PostgresConnection
from gateway.store.postgres.copies import copied_tables
from gateway.store.sqlite import schema as journal_schema

Rows = dict[str, list[str]]


def rows_of_file(journal: Path) -> Rows:
    """Return the rows of every table, as text and in order."""
    with closing(sqlite3.connect(journal)) as database:
        return {
            table.name: sorted(repr(row) for row in database.execute(table.query)) for table in copied_tables(database)
        }


def rows_of_database(url: str) -> Rows:
    """Return the rows of every table, as text and in order."""
    with closing(sqlite3.connect(":memory:")) as model, closing(schema.open_session(url)) as session:
        journal_schema.prepare(model, None)
        if not schema.schema_version(PostgresConnection(session)):
            return {}
        return {
            table.name: sorted(repr(row) for row in session.execute(table.query.encode()))
            for table in copied_tables(model)
        }


def startable(journal: Path, url: str) -> set[str]:
    """Return the stores that a gateway of this home would start on, of file and database; an empty one is none."""
    found = set()
    if not misplaced_journal(journal, has_database=False) and journal.exists():
        found.add("file")
    with closing(schema.open_session(url)) as session:
        connection = PostgresConnection(session)
        if not misplaced_journal(journal, has_database=True) and rows_of_database(url).get("meta"):
            try:
                schema.require_active(connection)
            except SettingsError:
                return found
            found.add("database")
    return found
