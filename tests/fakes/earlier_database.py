"""A PostgreSQL database with files of scopes, as releases before files were rows have left it."""

from __future__ import annotations

import hashlib
import sqlite3
from collections.abc import Collection
from contextlib import closing
from pathlib import Path

import psycopg

from agent.base.scopes import list_scopes, scope_folder
from gateway.ports.memory import CACHE
from gateway.store.claims import WorkerIdentity
from gateway.store.postgres import schema
from gateway.store.row_codec import quote
from tests.fakes.earlier_tables import create_database

PIECE = 256 * 1024
MEMORY_ID = "0123456789abcdef"


def fill_database(
    url: str, home: Path, *, state: str = f"stored:{MEMORY_ID}", objects: Collection[Path] = ()
) -> dict[str, dict[str, bytes]]:
    """Store the files of the scopes of *home* in an empty database; return them by scope and path.

    The contents of *objects* are in an object store, under their SHA-256 with an ending.
    """
    with closing(psycopg.connect(url, autocommit=True)) as database:  # tables of before: a start has dropped some
        database.execute("DROP SCHEMA public CASCADE")
        database.execute("CREATE SCHEMA public")
    with closing(schema.connect(url, WorkerIdentity())) as connection:
        create_database(connection)
        schema.prepare(connection)
    stored: dict[str, dict[str, bytes]] = {}
    with closing(psycopg.connect(url)) as database:
        if state:
            database.execute("INSERT INTO scope_state (name, value) VALUES ('memory', %s)", (state,))
        for scope in list_scopes(home):
            folder = scope_folder(home, scope)
            files = stored[scope] = {}
            database.execute("INSERT INTO scope (scope, version) VALUES (%s, 'v1')", (quote(scope),))
            for path in sorted(each for each in folder.rglob("*") if each.is_file() and each.name != ".lock"):
                name, data, status = path.relative_to(folder).as_posix(), path.read_bytes(), path.stat()
                files[name] = data
                key = (quote(scope), quote(name))
                object_ = f"{hashlib.sha256(data).hexdigest()}-00000000" if path in objects else ""
                database.execute(
                    "INSERT INTO scope_file (scope, path, size, replaced, modified, object)"
                    " VALUES (%s, %s, %s, 'v1', %s, %s)",
                    (*key, len(data), status.st_mtime_ns, object_),
                )
                for start in range(0, 0 if object_ else len(data), PIECE):
                    piece = data[start : start + PIECE]
                    database.execute(
                        "INSERT INTO scope_piece (scope, path, start, data) VALUES (%s, %s, %s, %s)",
                        (*key, start, piece),
                    )
        database.commit()
    return stored


def mark_home(home: Path, id_: str = MEMORY_ID) -> None:
    """Have *home* be one of those that had a copy of a database's memory."""
    home.mkdir(exist_ok=True)
    with closing(sqlite3.connect(home / CACHE)) as database:
        database.execute("CREATE TABLE meta (name TEXT PRIMARY KEY, value TEXT NOT NULL)")
        database.execute("INSERT INTO meta VALUES ('id', ?)", (id_,))
        database.commit()
