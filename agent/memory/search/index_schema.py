"""Tables of an index file; open, check and delete index files.

The id of a unit is its place: `SOURCE_SLOTS` times its source, plus its slot. Neighbours in a conversation have
adjacent slots; between two groups at least `REACH` slots are free. A block is `BLOCK` slots; a group begins with one.
Therefore one full-text table is enough: text_scores.py derives the scores of contexts and blocks from it.

The full-text table has no texts, only terms (tokenizer.py). FTS5 needs the terms to delete a row; they are derived from
the text, which is compressed where that makes it shorter.
"""

from __future__ import annotations

import contextlib
import os
import sqlite3
import zlib
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import quote

from agent.memory.search.tokenizer import VERSION as TERMS

VERSION = f"7.{TERMS}"
BUSY_SECONDS = 10.0
REACH = 2  # neighbours on each side in a unit's context
BLOCK = 20  # slots
SOURCE_SLOTS = BLOCK << 20

# Marks are letters' parts in many scripts; diacritics were folded where that is right.
_TOKENS = "tokenize = \"unicode61 remove_diacritics 0 categories 'L* M* N* Co'\""
_TABLES = """
CREATE TABLE meta (key TEXT PRIMARY KEY, value TEXT NOT NULL) WITHOUT ROWID;
CREATE TABLE project (id INTEGER PRIMARY KEY, name TEXT NOT NULL UNIQUE);
CREATE TABLE source (
    id INTEGER PRIMARY KEY AUTOINCREMENT, project INTEGER NOT NULL REFERENCES project, name TEXT NOT NULL,
    mark TEXT NOT NULL DEFAULT '', language TEXT NOT NULL DEFAULT '', UNIQUE (project, name)
);
CREATE TABLE unit (
    id INTEGER PRIMARY KEY, at REAL, traits INTEGER NOT NULL,
    who TEXT NOT NULL, role TEXT NOT NULL, origin TEXT NOT NULL, language TEXT NOT NULL,
    line INTEGER NOT NULL, "end" INTEGER NOT NULL,
    "group" TEXT NOT NULL, content BLOB NOT NULL, digest BLOB NOT NULL, vector INTEGER, length INTEGER NOT NULL,
    about TEXT NOT NULL, text NOT NULL
);
CREATE INDEX unit_vector ON unit (vector) WHERE vector IS NOT NULL;
CREATE INDEX unit_waiting ON unit (id) WHERE vector IS NULL;
CREATE INDEX unit_language ON unit (language);
CREATE INDEX unit_who ON unit (who);
CREATE INDEX unit_at ON unit (at) WHERE at IS NOT NULL;
CREATE TABLE block (id INTEGER PRIMARY KEY, sizes BLOB NOT NULL);
CREATE TABLE vector (id INTEGER PRIMARY KEY AUTOINCREMENT, content BLOB NOT NULL UNIQUE, data BLOB NOT NULL);
CREATE VIRTUAL TABLE unit_text USING fts5 (terms, content = '', columnsize = 0, TOKENS);
CREATE VIRTUAL TABLE unit_words USING fts5vocab (unit_text, row);
CREATE VIRTUAL TABLE unit_places USING fts5vocab (unit_text, instance);
"""
# Automatic merges of FTS5 delay single writes by tens of milliseconds. `ScopeIndex.optimize` merges while the scope is
# idle; a write merges only if very many segments have accumulated.
_MERGED_WHEN_CALM = ("'automerge', 0", "'crisismerge', 64")


class IndexUnusable(Exception):
    """The file is not an index, damaged, or of another version, and must be rebuilt."""


def connect(path: Path, *, is_new: bool = False) -> sqlite3.Connection:
    """Open the index at *path*; with *is_new*, create an empty one with mode 0600.

    Any thread may use the connection, one at a time. Raises IndexUnusable.
    """
    if is_new:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        os.close(os.open(path, os.O_CREAT | os.O_WRONLY, 0o600))
    elif not path.is_file():
        raise IndexUnusable("there is none")
    database = sqlite3.connect(
        f"file:{quote(str(path))}", uri=True, timeout=BUSY_SECONDS, isolation_level=None, check_same_thread=False
    )
    try:
        with map_sqlite_errors():
            database.executescript(
                "PRAGMA journal_mode = WAL; PRAGMA synchronous = NORMAL; PRAGMA secure_delete = ON;"
                "PRAGMA cache_size = -16000; PRAGMA mmap_size = 268435456; PRAGMA temp_store = MEMORY;"
            )
            if is_new:
                with transaction(database):
                    for statement in _TABLES.replace("TOKENS", _TOKENS).split(";\n"):
                        database.execute(statement)
                    for setting in _MERGED_WHEN_CALM:
                        database.execute(f"INSERT INTO unit_text (unit_text, rank) VALUES ({setting})")  # noqa: S608 - ours
                    set_meta(database, "version", VERSION)
            version = meta(database, "version")
    except BaseException:
        database.close()
        raise
    if version != VERSION:
        database.close()
        raise IndexUnusable(f"version {version or 'unknown'}, not {VERSION}")
    return database


@contextlib.contextmanager
def map_sqlite_errors() -> Iterator[None]:
    """Map SQLite's errors for damaged files to IndexUnusable; errors for a full disk or a lock pass unchanged."""
    try:
        yield
    except sqlite3.OperationalError as error:
        if any(sign in str(error) for sign in ("no such", "malformed", "fts5", "corrupt", "vtable")):
            raise IndexUnusable(str(error)) from error
        raise
    except sqlite3.DatabaseError as error:
        raise IndexUnusable(str(error)) from error


@contextlib.contextmanager
def transaction(database: sqlite3.Connection) -> Iterator[None]:
    """Run the block in one transaction."""
    database.execute("BEGIN IMMEDIATE")
    try:
        yield
    except BaseException:
        database.execute("ROLLBACK")
        raise
    database.execute("COMMIT")


def meta(database: sqlite3.Connection, key: str) -> str:
    """Return the value of *key*, "" if none exists."""
    row = database.execute("SELECT value FROM meta WHERE key = ?", (key,)).fetchone()
    return str(row[0]) if row else ""


def set_meta(database: sqlite3.Connection, key: str, value: str) -> None:
    """Store *value* under *key*."""
    database.execute(
        "INSERT INTO meta VALUES (?, ?) ON CONFLICT (key) DO UPDATE SET value = excluded.value", (key, value)
    )


def pack_text(text: str) -> str | bytes:
    """Return *text* as the index stores it, compressed if that is shorter."""
    plain = text.encode()
    packed = zlib.compress(plain, 9)
    return packed if len(packed) < len(plain) else text


def unpack_text(data: str | bytes) -> str:
    """Return the text that `pack_text` has encoded. Raises IndexUnusable."""
    try:
        return data if isinstance(data, str) else zlib.decompress(data).decode()
    except (zlib.error, UnicodeDecodeError) as error:
        raise IndexUnusable("a text is damaged") from error


def remove(path: Path) -> None:
    """Delete an index file with its journal files."""
    for each in (path, path.with_name(f"{path.name}-wal"), path.with_name(f"{path.name}-shm")):
        each.unlink(missing_ok=True)
