"""The version of each scope in a home, with its files: `memory-cache.db`. Blocks; any thread may call.

It says nothing that the database does not: without it, a home is filled again.
"""

from __future__ import annotations

import secrets
import sqlite3
import threading
from collections.abc import Collection, Mapping
from contextlib import closing, suppress
from pathlib import Path
from typing import NamedTuple
from urllib.parse import quote

from agent.memory.storage.disk import FILE_MODE
from agent.memory.storage.scope_scan import CachedFile, FileSignature

FILE = "memory-cache.db"
STORED, ADOPTING = "stored", "adopting"  # states of a database; then a colon and the id of its memory
_BOOT = Path("/proc/sys/kernel/random/boot_id")
_TABLES = """
CREATE TABLE IF NOT EXISTS meta (name TEXT PRIMARY KEY, value TEXT NOT NULL) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS scope (scope BLOB PRIMARY KEY, version TEXT NOT NULL) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS file (
    scope BLOB NOT NULL, path BLOB NOT NULL, size INTEGER NOT NULL, modified INTEGER NOT NULL, inode INTEGER NOT NULL,
    replaced TEXT NOT NULL, tail INTEGER NOT NULL, PRIMARY KEY (scope, path)
) WITHOUT ROWID;
"""


class CachedChange(NamedTuple):
    """The version that a scope has now, and how its files differ from before."""

    scope: str
    version: str
    changed: Mapping[str, CachedFile] = {}
    removed: Collection[str] = ()


class CachedScopes:
    """The file, opened. *is_clean*: the last run ended as it should; *can_trust*: its files are what it wrote."""

    def __init__(self, home: Path) -> None:
        """Open the file of *home*, made when missing. Raises OSError, sqlite3.Error."""
        self._lock = threading.Lock()
        try:
            self._database = _connect(home / FILE)
        except sqlite3.DatabaseError:
            for path in home.glob(f"{FILE}*"):
                path.unlink()
            self._database = _connect(home / FILE)
        meta = dict(self._database.execute("SELECT name, value FROM meta").fetchall())
        boot = _boot()
        self.id = str(meta.get("id", ""))  # of the memory that is cached
        self.is_clean = meta.get("clean") == "1"
        # After a power cut, a file may lack what was written to it; a killed process loses nothing.
        self.can_trust = self.is_clean or (bool(boot) and meta.get("boot") == boot)
        if not self.can_trust:
            self._database.execute("DELETE FROM file")
        self._note(clean="0", boot=boot)
        self._database.execute("PRAGMA synchronous = NORMAL")

    def begin(self, id_: str = "") -> str:
        """Begin an empty cache of the memory *id_*, by default of a new one; return its id."""
        self.id = id_ or secrets.token_hex(8)
        self._database.execute("DELETE FROM file")
        self._database.execute("DELETE FROM scope")
        self._note(id=self.id)
        return self.id

    def versions(self) -> dict[str, str]:
        """Return the version of every scope that is here."""
        with self._lock:
            found = self._database.execute("SELECT scope, version FROM scope").fetchall()
        return {_text(scope): version for scope, version in found}

    def load(self, scope: str) -> tuple[str, dict[str, CachedFile]]:
        """Return the version of *scope*, "" if it is not here, and its files."""
        with self._lock:
            version = self._database.execute("SELECT version FROM scope WHERE scope = ?", (_bytes(scope),)).fetchone()
            found = self._database.execute(
                "SELECT path, size, modified, inode, replaced, tail FROM file WHERE scope = ?", (_bytes(scope),)
            ).fetchall()
        files = {
            _text(path): CachedFile(FileSignature(size, modified, inode), replaced, tail)
            for path, size, modified, inode, replaced, tail in found
        }
        return (str(version[0]) if version is not None else ""), files

    def save(self, *changes: CachedChange) -> None:
        """Store changes of scopes in one transaction; a scope without a version is not here any more."""
        with self._lock:
            self._database.execute("BEGIN")
            for each in changes:
                self._save(each, _bytes(each.scope))
            self._database.execute("COMMIT")
            if any(each.removed or not each.version for each in changes):  # names of files may quote what was forgotten
                self._database.execute("PRAGMA wal_checkpoint(TRUNCATE)")

    def _save(self, change: CachedChange, scope: bytes) -> None:
        execute, executemany = self._database.execute, self._database.executemany
        if not change.version:
            execute("DELETE FROM file WHERE scope = ?", (scope,))
            execute("DELETE FROM scope WHERE scope = ?", (scope,))
            return
        execute("INSERT OR REPLACE INTO scope VALUES (?, ?)", (scope, change.version))
        executemany("DELETE FROM file WHERE scope = ? AND path = ?", [(scope, _bytes(path)) for path in change.removed])
        executemany(
            "INSERT OR REPLACE INTO file VALUES (?, ?, ?, ?, ?, ?, ?)",
            [(scope, _bytes(path), *each.signature, each.replaced, each.tail) for path, each in change.changed.items()],
        )

    def close(self, *, is_clean: bool) -> None:
        """Close the file; with *is_clean*, every file of the home is stored, and on the disk."""
        with self._lock:
            if is_clean:
                self._database.execute("PRAGMA synchronous = FULL")
                self._note(clean="1")
            self._database.close()

    def _note(self, **values: str) -> None:
        self._database.executemany("INSERT OR REPLACE INTO meta VALUES (?, ?)", list(values.items()))


def is_current(home: Path, state: str, versions: Mapping[str, str]) -> bool:
    """Return True if the files of *home* are all of a database's memory, as after a stop in order. Changes nothing."""
    kind, _, id_ = state.partition(":")
    if not kind or not (home / FILE).exists():
        return not kind  # nothing is stored yet
    with closing(sqlite3.connect(f"file:{quote(str(home / FILE))}?mode=ro", uri=True)) as database:
        try:
            meta = dict(database.execute("SELECT name, value FROM meta").fetchall())
            here = {_text(scope): version for scope, version in database.execute("SELECT scope, version FROM scope")}
        except sqlite3.DatabaseError:
            return False
    if meta.get("id") != id_:
        return False
    return kind == ADOPTING or (meta.get("clean") == "1" and here == dict(versions))


def _connect(path: Path) -> sqlite3.Connection:
    path.touch(mode=FILE_MODE)
    database = sqlite3.connect(path, isolation_level=None, check_same_thread=False)
    try:
        database.execute("PRAGMA journal_mode = WAL")
        database.execute("PRAGMA secure_delete = ON")
        database.executescript(_TABLES)
    except BaseException:
        database.close()
        raise
    return database


def _boot() -> str:
    """Return an id of this start of the machine; "" if the system has no such id."""
    with suppress(OSError):
        return _BOOT.read_text("ascii").strip()
    return ""


def _bytes(text: str) -> bytes:
    return text.encode("utf-8", "surrogateescape")


def _text(data: bytes) -> str:
    return data.decode("utf-8", "surrogateescape")
