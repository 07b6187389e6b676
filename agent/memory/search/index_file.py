"""Open, write and close the index file of one scope: units of sources, and their vectors.

Everything here blocks; `RecallEngine` calls it from threads. One read and one write can run at the same time, each with
its own connection; two reads, or two writes, wait for each other.
"""

from __future__ import annotations

import contextlib
import sqlite3
import threading
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import quote

from agent.memory.search import index_writer as index_schema
from agent.memory.search.index_writer import IndexUnusable, UnitWriter, map_sqlite_errors, transaction, unpack_text
from agent.memory.search.search_unit import SearchUnit, UnitChanges, UnitSource, content_hash

if TYPE_CHECKING:
    from agent.memory.search.vector_matrix import Floats, VectorMatrix


class IndexFile:
    """The units and vectors of one index file, without a search. Call `close` at the end."""

    def __init__(self, path: Path, *, is_new: bool = False, is_flat: bool = False) -> None:
        """Open or create the file at *path*; *is_flat* indexes have no contexts and blocks. Raises IndexUnusable."""
        self.path = path
        self._write_lock, self._read_lock = threading.RLock(), threading.RLock()
        self._writer = index_schema.connect(path, is_new=is_new)
        try:
            self._reader = index_schema.connect(path)
            kind = "flat" if is_flat else "full"
            if is_new:
                index_schema.set_meta(self._writer, "kind", kind)
        except BaseException:
            self._writer.close()
            raise
        if index_schema.meta(self._writer, "kind") != kind:
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
            was = index_schema.meta(self._writer, "model")
            if was == name:
                return False
            self._drop_vectors(name)
        return bool(was)

    def _drop_vectors(self, model: str) -> None:
        with transaction(self._writer):
            self._writer.execute("UPDATE unit SET vector = NULL WHERE vector IS NOT NULL")
            self._writer.execute("DELETE FROM vector")
            index_schema.set_meta(self._writer, "model", model)
            index_schema.set_meta(self._writer, "dimensions", "")
        self.drop_matrix()

    @property
    def model(self) -> str:
        """The model of the vectors, "" if none exists."""
        with self._read_lock, map_sqlite_errors():
            return index_schema.meta(self._reader, "model")

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
            if not vectors or index_schema.meta(self._writer, "model") != model:
                return
            size = str(len(next(iter(vectors.values()))))
            if index_schema.meta(self._writer, "dimensions") not in ("", size):
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
                index_schema.set_meta(self._writer, "dimensions", size)
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
        with map_sqlite_errors(), contextlib.closing(index_schema.connect(self.path)) as database:
            matrix = self._load(database)
        with self._read_lock:
            # If the matrix was dropped meanwhile, later changes were not recorded.
            self._matrix = matrix if self._is_followed else None

    def _load(self, database: sqlite3.Connection) -> VectorMatrix | None:
        from agent.memory.search.vector_matrix import VectorMatrix

        dimensions = index_schema.meta(database, "dimensions")
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
                        index_schema.set_meta(self._writer, "model", model[0])
                        index_schema.set_meta(self._writer, "dimensions", size[0])
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
