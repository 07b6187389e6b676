"""Open, write and close the index file of one scope: units of sources, and their vectors.

Everything here blocks; `RecallEngine` calls it from threads. One read and one write can run at the same time, each with
its own connection; two reads, or two writes, wait for each other.

Only units that differ are written, so the cost depends on the number of new units: a message at the end of a
conversation updates itself and the sizes of one block of twenty. A unit is scored with those around it, and with its
block. Therefore one full-text table is enough: text_scores.py derives the scores of contexts and blocks from it.
"""

from __future__ import annotations

import contextlib
import os
import sqlite3
import struct
import threading
import zlib
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import quote

from agent.memory.search.query import traits
from agent.memory.search.search_unit import (
    BLOCK,
    REACH,
    SOURCE_SLOTS,
    SearchUnit,
    UnitChanges,
    UnitSource,
    content_hash,
)
from agent.memory.search.tokenizer import VERSION as TERMS
from agent.memory.search.tokenizer import detect, index_terms, words

if TYPE_CHECKING:
    from agent.memory.search.vector_matrix import Floats, VectorMatrix
VERSION = f"7.{TERMS}"
BUSY_SECONDS = 10.0

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
_NEIGHBOUR = 300  # characters of a neighbour's terms in a context
_MOST_TERMS = 0xFFFE  # that a unit's size counts


@dataclass(frozen=True, slots=True)
class _UnitRow:
    id: int
    digest: bytes
    group: str
    language: str


class UnitWriter:
    """Writes the units of one source."""

    def __init__(self, database: sqlite3.Connection, source: UnitSource) -> None:
        self._db = database
        self._source = self._find_or_insert(source)
        self._start = self._source * SOURCE_SLOTS
        self.changes = UnitChanges()
        self._vectors: set[int] = set()  # of deleted units

    def _find_or_insert(self, source: UnitSource) -> int:
        key = (_project(self._db, source.project), source.name)
        self._db.execute("INSERT OR IGNORE INTO source (project, name) VALUES (?, ?)", key)
        return int(self._db.execute("SELECT id FROM source WHERE project = ? AND name = ?", key).fetchone()[0])

    def put(self, units: Sequence[SearchUnit]) -> None:
        """Replace the source's units; units that did not change are not written."""
        old = self._rows("ASC")
        differing = [n for n, (was, unit) in enumerate(zip(old, units, strict=False)) if was.digest != unit.digest]
        if len(old) == len(units) and all(old[n].group == units[n].group for n in differing):
            languages = [row.language for row in old]
            for n in differing:
                self._delete(old[n].id)
                languages[n] = self._insert(old[n].id, units[n], languages[n - 1] if n else "")
        else:
            same = differing[0] if differing else min(len(old), len(units))
            for row in old[same:]:
                self._delete(row.id)
            self._add(old[same - 1] if same else None, units[same:])
        self._finish()

    def append(self, units: Sequence[SearchUnit]) -> None:
        """Add units after the last."""
        self._add(next(iter(self._rows("DESC LIMIT 1")), None), units)
        self._finish()

    def mark(self, mark: str) -> None:
        """Store the mark up to which the source was read."""
        self._db.execute("UPDATE source SET mark = ? WHERE id = ?", (mark, self._source))

    def remove(self) -> None:
        """Delete the source and its units."""
        self.put(())
        self._db.execute("DELETE FROM source WHERE id = ?", (self._source,))

    # -- private -------------------------------------------------------------------------------------

    def _rows(self, order: str) -> list[_UnitRow]:
        found = self._db.execute(
            'SELECT id, digest, "group", language FROM unit'  # noqa: S608 - ours
            f" WHERE id >= ? AND id < ? ORDER BY id {order}",
            (self._start, self._start + SOURCE_SLOTS),
        )
        return [_UnitRow(*row) for row in found]

    def _delete(self, unit: int) -> None:
        about, text, language, vector = self._db.execute(
            "DELETE FROM unit WHERE id = ? RETURNING about, text, language, vector", (unit,)
        ).fetchone()
        self._db.execute(
            "INSERT INTO unit_text (unit_text, rowid, terms) VALUES ('delete', ?, ?)",
            (unit, _unit_terms(about, unpack_text(text), language)),
        )
        self._resize(unit, b"\0\0\0\0")
        self.changes.gone.append(unit)
        if vector is not None:
            self._vectors.add(vector)

    def _add(self, previous: _UnitRow | None, units: Sequence[SearchUnit]) -> None:
        """Insert units after *previous*."""
        slot, group, language = (previous.id, previous.group, previous.language) if previous else (-1, "", "")
        for unit in units:
            if slot < 0:
                slot = self._start
            elif unit.group == group:
                slot += 1
            else:
                slot = -(-(slot + 1 + REACH) // BLOCK) * BLOCK
            group, language = unit.group, self._insert(slot, unit, language)

    def _insert(self, id_: int, unit: SearchUnit, before: str) -> str:
        """Insert a unit at its place after text of the language *before*; return its language."""
        found = words(unit.text)
        language = detect(found, before=before)
        terms = _unit_terms(unit.about, unit.text, language)
        vector = self._db.execute("SELECT id FROM vector WHERE content = ?", (unit.content,)).fetchone()
        self._db.execute(
            'INSERT INTO unit (id, at, traits, who, role, origin, language, line, "end", "group", content, digest,'
            " vector, length, about, text) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
            (
                id_, unit.at.timestamp() if unit.at else None, int(traits(unit.text, found)), unit.who, unit.role,
                unit.origin, language, unit.line, unit.end or unit.line, unit.group, unit.content, unit.digest,
                vector[0] if vector else None, len(unit.text), unit.about, pack_text(unit.text),
            ),
        )  # fmt: skip
        self._db.execute("INSERT INTO unit_text (rowid, terms) VALUES (?, ?)", (id_, terms))
        self._resize(
            id_, struct.pack("<HH", *(min(_MOST_TERMS, _count(each)) + 1 for each in (terms, _clipped(terms))))
        )
        self.changes.came.append(id_)
        return language

    def _resize(self, unit: int, size: bytes) -> None:
        """Store the size of a unit: its terms, and those that count in its neighbours' contexts, each plus one."""
        block, slot = divmod(unit, BLOCK)
        row = self._db.execute("SELECT sizes FROM block WHERE id = ?", (block,)).fetchone()
        sizes = bytearray((row[0] if row else b"").ljust(4 * BLOCK, b"\0"))
        sizes[4 * slot : 4 * slot + 4] = size
        self._db.execute("REPLACE INTO block (id, sizes) VALUES (?, ?)", (block, bytes(sizes).rstrip(b"\0")))

    def _finish(self) -> None:
        """Delete blocks without units, and vectors that no unit uses, so that nothing remains of erased text."""
        for each in self._vectors:
            self._db.execute(
                "DELETE FROM vector WHERE id = ? AND NOT EXISTS (SELECT 1 FROM unit WHERE vector = ?)", (each, each)
            )
        for block in {each // BLOCK for each in self.changes.gone}:
            self._db.execute("DELETE FROM block WHERE id = ? AND sizes = x''", (block,))


def _unit_terms(about: str, text: str, language: str) -> str:
    """Return the terms of a unit, without its speaker: a name would match every line of that person."""
    return index_terms(f"{about} {text}", language)


def _project(database: sqlite3.Connection, name: str) -> int:
    database.execute("INSERT OR IGNORE INTO project (name) VALUES (?)", (name,))
    return int(database.execute("SELECT id FROM project WHERE name = ?", (name,)).fetchone()[0])


def _count(terms: str) -> int:
    return terms.count(" ") + 1 if terms else 0


def _clipped(terms: str) -> str:
    return terms if len(terms) <= _NEIGHBOUR else terms[:_NEIGHBOUR].rpartition(" ")[0]


# -- the tables of an index ------------------------------------------------------------------------


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


def remove_index(path: Path) -> None:
    """Delete an index file with its journal files."""
    for each in (path, path.with_name(f"{path.name}-wal"), path.with_name(f"{path.name}-shm")):
        each.unlink(missing_ok=True)


class IndexFile:
    """The units and vectors of one index file, without a search. Call `close` at the end."""

    def __init__(self, path: Path, *, is_new: bool = False, is_flat: bool = False) -> None:
        """Open or create the file at *path*; *is_flat* indexes have no contexts and blocks. Raises IndexUnusable."""
        self.path = path
        self._write_lock, self._read_lock = threading.RLock(), threading.RLock()
        self._writer = connect(path, is_new=is_new)
        try:
            self._reader = connect(path)
            kind = "flat" if is_flat else "full"
            if is_new:
                set_meta(self._writer, "kind", kind)
        except BaseException:
            self._writer.close()
            raise
        if meta(self._writer, "kind") != kind:
            self._writer.close()
            self._reader.close()
            raise IndexUnusable(f"its units were made for another profile than {kind}")
        self._matrix: VectorMatrix | None = None
        self._changes: deque[UnitChanges] = deque()  # not applied to the matrix yet
        self._is_followed = False

    def close(self) -> None:
        """Close the file; waits for running searches and writes."""
        with self._write_lock, self._read_lock:
            self._matrix = None
            self._reader.close()
            self._writer.close()

    # -- writing -------------------------------------------------------------------------------------

    def put(self, source: UnitSource, units: Sequence[SearchUnit], *, mark: str = "") -> UnitChanges:
        """Replace the units of *source*, writing only differences; *mark* identifies the content that was read."""
        return self._write(source, lambda writer: writer.put(units), mark)

    def append(self, source: UnitSource, units: Sequence[SearchUnit], *, mark: str = "") -> UnitChanges:
        """Add units at the end of *source*; the cost depends on the number of new units."""
        return self._write(source, lambda writer: writer.append(units), mark)

    def remove(self, source: UnitSource) -> UnitChanges:
        """Delete *source* and its units."""
        return self._write(source, lambda writer: writer.remove(), None)

    def _write(self, source: UnitSource, change: Callable[[UnitWriter], None], mark: str | None) -> UnitChanges:
        with self._write_lock, map_sqlite_errors():
            with transaction(self._writer):
                writer = UnitWriter(self._writer, source)
                change(writer)
                if mark is not None:
                    writer.mark(mark)
            self._note(writer.changes)
            return writer.changes

    def _note(self, changes: UnitChanges) -> None:
        if self._is_followed:
            self._changes.append(changes)

    def marks(self) -> dict[UnitSource, str]:
        """Return the sources with the marks of the last update."""
        with self._write_lock, map_sqlite_errors():
            found = self._writer.execute(
                "SELECT p.name, s.name, s.mark FROM source s JOIN project p ON p.id = s.project"
            )
            return {UnitSource(name=name, project=project): mark for project, name, mark in found}

    def scrub(self) -> None:
        """Erase deleted units from the file; FTS5 keeps their terms until its segments are merged."""
        with self._write_lock, self._read_lock, map_sqlite_errors():
            self._writer.execute("INSERT INTO unit_text (unit_text) VALUES ('optimize')")
            self._writer.execute("VACUUM")
            self._writer.execute("PRAGMA wal_checkpoint(TRUNCATE)")

    def optimize(self, pages: int = 16) -> bool:
        """Merge segments of small writes, at most *pages*; return True if more remain."""
        with self._write_lock, map_sqlite_errors():
            before = self._writer.total_changes
            self._writer.execute("INSERT INTO unit_text (unit_text, rank) VALUES ('merge', ?)", (pages,))
            # As documented for FTS5: a merge that had nothing to do changes fewer than two rows.
            return self._writer.total_changes - before >= 2

    # -- vectors -------------------------------------------------------------------------------------

    def use_model(self, name: str) -> bool:
        """Set the model of the vectors, and delete vectors of another model; return True if the model changed."""
        with self._write_lock, map_sqlite_errors():
            was = meta(self._writer, "model")
            if was == name:
                return False
            self._drop_vectors(name)
        return bool(was)

    def _drop_vectors(self, model: str) -> None:
        with transaction(self._writer):
            self._writer.execute("UPDATE unit SET vector = NULL WHERE vector IS NOT NULL")
            self._writer.execute("DELETE FROM vector")
            set_meta(self._writer, "model", model)
            set_meta(self._writer, "dimensions", "")
        self.drop_matrix()

    @property
    def model(self) -> str:
        """The model of the vectors, "" if none exists."""
        with self._read_lock, map_sqlite_errors():
            return meta(self._reader, "model")

    def count_without_vector(self) -> int:
        """Return the number of units without a vector."""
        with self._write_lock, map_sqlite_errors():
            return int(self._writer.execute("SELECT count(*) FROM unit WHERE vector IS NULL").fetchone()[0])

    def units_without_vector(self, limit: int = 64) -> list[tuple[int, str]]:
        """Return the ids of units without a vector, and the texts to embed."""
        with self._write_lock, map_sqlite_errors():
            found = self._writer.execute(
                "SELECT id, who, about, text FROM unit WHERE vector IS NULL ORDER BY id LIMIT ?", (limit,)
            )
            return [
                (id_, ": ".join(part for part in (who, about, unpack_text(text)) if part))
                for id_, who, about, text in found
            ]

    def embed(self, model: str, vectors: Mapping[int, Floats], texts: Mapping[int, str] | None = None) -> None:
        """Store the vectors of units; vectors of deleted units or another model are ignored.

        *texts* are the texts that were embedded. A unit that has another text now is ignored too.
        """
        from agent.memory.search.vector_matrix import pack

        changes = UnitChanges()
        with self._write_lock, map_sqlite_errors():
            if not vectors or meta(self._writer, "model") != model:
                return
            size = str(len(next(iter(vectors.values()))))
            if meta(self._writer, "dimensions") not in ("", size):
                self._drop_vectors(model)  # the model has changed under the same name: embed all units again
            with transaction(self._writer):
                for unit, vector in vectors.items():
                    row = self._writer.execute("SELECT content FROM unit WHERE id = ?", (unit,)).fetchone()
                    if row is None or (texts is not None and row[0] != content_hash(texts[unit])):
                        continue
                    self._writer.execute(
                        "INSERT OR IGNORE INTO vector (content, data) VALUES (?, ?)", (row[0], pack(vector))
                    )
                    found = self._writer.execute(
                        "UPDATE unit SET vector = (SELECT id FROM vector WHERE content = ?) WHERE id = ? RETURNING id",
                        (row[0], unit),
                    )
                    changes.came += [each[0] for each in found]
                set_meta(self._writer, "dimensions", size)
            self._note(changes)

    @property
    def matrix_bytes(self) -> int:
        """Size of the cached vectors, in bytes."""
        matrix = self._matrix
        return 0 if matrix is None else matrix.bytes

    def drop_matrix(self) -> None:
        """Free the cached vectors; the next search reads them again."""
        with self._read_lock:
            self._is_followed = False
            self._matrix = None
            self._changes.clear()

    def is_cold(self, most: int) -> bool:
        """Return True if a vector search would first have to read more than *most* vectors."""
        if self._matrix is not None:
            return False
        with self._read_lock, map_sqlite_errors():
            row = self._reader.execute("SELECT seq FROM sqlite_sequence WHERE name = 'vector'").fetchone()
            return row is not None and row[0] > most

    def warm(self) -> None:
        """Read the vectors without delaying text searches."""
        self._is_followed = True
        with map_sqlite_errors(), contextlib.closing(connect(self.path)) as database:
            matrix = self._load(database)
        with self._read_lock:
            # If the matrix was dropped meanwhile, later changes were not recorded.
            self._matrix = matrix if self._is_followed else None

    def _load(self, database: sqlite3.Connection) -> VectorMatrix | None:
        from agent.memory.search.vector_matrix import VectorMatrix

        dimensions = meta(database, "dimensions")
        return VectorMatrix(database, int(dimensions)) if dimensions else None

    def _fresh_matrix(self) -> VectorMatrix | None:
        if self._matrix is None or self._matrix.needs_rebuild:
            self._is_followed = True  # before reading: concurrent writes are applied afterwards, perhaps twice
            self._changes.clear()
            self._matrix = self._load(self._reader)
        while self._matrix is not None and self._changes:
            self._matrix.follow(self._reader, self._changes.popleft())
        return self._matrix

    def take_vectors(self, other: Path) -> None:
        """Copy the vectors of another index file of any version, as far as it is readable, because they cost money."""
        from agent.memory.search.vector_matrix import packed_size

        with self._write_lock, contextlib.suppress(sqlite3.DatabaseError):
            self._writer.execute("ATTACH DATABASE ? AS other", (f"file:{quote(str(other))}?mode=ro",))
            try:
                model, size = (
                    self._writer.execute("SELECT value FROM other.meta WHERE key = ?", (key,)).fetchone()
                    for key in ("model", "dimensions")
                )
                if model and size and size[0]:
                    with transaction(self._writer):
                        self._writer.execute(
                            "INSERT OR IGNORE INTO vector (content, data)"
                            " SELECT content, data FROM other.vector WHERE length(data) = ?",
                            (packed_size(int(size[0])),),
                        )
                        set_meta(self._writer, "model", model[0])
                        set_meta(self._writer, "dimensions", size[0])
            finally:
                self._writer.execute("DETACH DATABASE other")

    def drop_unused_vectors(self) -> None:
        """Delete the vectors that no unit uses."""
        with self._write_lock, map_sqlite_errors(), transaction(self._writer):
            self._writer.execute(
                "DELETE FROM vector WHERE id NOT IN (SELECT vector FROM unit WHERE vector IS NOT NULL)"
            )

    def center(self) -> list[tuple[int, Floats]]:
        """Return the number of vectors and their mean; an empty list without vectors."""
        with self._read_lock, map_sqlite_errors():
            matrix = self._fresh_matrix()
            return [] if matrix is None else [(len(matrix), matrix.center)]
