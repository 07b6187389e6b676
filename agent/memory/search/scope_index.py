"""The index of one scope: a file, what is written to it, and what it says to a question.

Synchronous, so that it can be tried out by hand; `engine.py` calls it from threads. Writing and reading have a
connection each and may happen at once; two writers wait for each other, and so do two readers.
"""

from __future__ import annotations

import contextlib
import heapq
import sqlite3
import threading
from collections import deque
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from agent.memory.search import index_schema, text_query
from agent.memory.search.index_schema import IndexUnusable, map_sqlite_errors, transaction
from agent.memory.search.index_writer import REACH, UnitChanges, UnitWriter
from agent.memory.search.query import SearchQuery
from agent.memory.search.ranking import RankedCandidate
from agent.memory.search.search_unit import MEMORY, SearchUnit, UnitSource

if TYPE_CHECKING:
    from agent.memory.search.vector_matrix import Floats, VectorMatrix, VectorScores

KEPT = 400  # candidates that are looked at closely


@dataclass(frozen=True, slots=True, kw_only=True)
class IndexedPassage:
    """A unit as it is shown."""

    id: int
    source: UnitSource
    line: int
    end: int
    text: str
    at: datetime | None
    who: str
    role: str
    origin: str
    about: str


@dataclass(slots=True)
class IndexMatches:
    """What one index has to say, before indexes are compared."""

    index: ScopeIndex
    candidates: list[RankedCandidate]
    names: frozenset[str] = field(default_factory=frozenset)


class ScopeIndex:
    """One index file. `close` it."""

    def __init__(self, path: Path, *, is_new: bool = False, is_flat: bool = False) -> None:
        """Open the file at *path*, or make it; *is_flat* indexes hold units alone. Raises IndexUnusable."""
        self.path = path
        self._is_flat = is_flat
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
        self._changes: deque[UnitChanges] = deque()  # what the matrix has not followed yet
        self._is_followed = False

    def close(self) -> None:
        """Close the file; searches and writes that go on are waited for."""
        with self._write_lock, self._read_lock:
            self._matrix = None
            self._reader.close()
            self._writer.close()

    # -- writing -------------------------------------------------------------------------------------

    def put(self, source: UnitSource, units: Sequence[SearchUnit], *, mark: str = "") -> UnitChanges:
        """Make the units of *source* these; only what differs is written. *mark* says what was read."""
        return self._write(source, lambda writer: writer.put(units), mark)

    def append(self, source: UnitSource, units: Sequence[SearchUnit], *, mark: str = "") -> UnitChanges:
        """Add units at the end of *source*; costs what is new."""
        return self._write(source, lambda writer: writer.append(units), mark)

    def remove(self, source: UnitSource) -> UnitChanges:
        """Take *source* out."""
        return self._write(source, lambda writer: writer.remove(), None)

    def _write(self, source: UnitSource, change: Any, mark: str | None) -> UnitChanges:
        with self._write_lock, map_sqlite_errors():
            with transaction(self._writer):
                writer = UnitWriter(self._writer, source, is_flat=self._is_flat)
                change(writer)
                if mark is not None:
                    writer.mark(mark)
            self._note(writer.changes)
            return writer.changes

    def _note(self, changes: UnitChanges) -> None:
        if self._is_followed:
            self._changes.append(changes)

    def marks(self) -> dict[UnitSource, str]:
        """Return the sources with the marks they were last read by."""
        with self._write_lock, map_sqlite_errors():
            found = self._writer.execute(
                "SELECT p.name, s.name, s.mark FROM source s JOIN project p ON p.id = s.project"
            )
            return {UnitSource(name=name, project=project): mark for project, name, mark in found}

    def scrub(self) -> None:
        """Leave nothing of removed units in the file: FTS5 keeps deleted terms until its segments merge."""
        with self._write_lock, self._read_lock, map_sqlite_errors():
            for table in index_schema.TEXTS:
                self._writer.execute(f"INSERT INTO {table} ({table}) VALUES ('optimize')")  # noqa: S608 - our own names
            self._writer.execute("VACUUM")
            self._writer.execute("PRAGMA wal_checkpoint(TRUNCATE)")

    def optimize(self, pages: int = 16) -> bool:
        """Merge what small writes left behind, *pages* of each table at most; say whether there is more to do."""
        with self._write_lock, map_sqlite_errors():
            before = self._writer.total_changes
            for table in index_schema.TEXTS:
                self._writer.execute(f"INSERT INTO {table} ({table}, rank) VALUES ('merge', ?)", (pages,))  # noqa: S608 - ours
            # By FTS5's own rule: a merge that found nothing to do changes fewer than two rows.
            return self._writer.total_changes - before >= 2 * len(index_schema.TEXTS)

    # -- vectors -------------------------------------------------------------------------------------

    def use_model(self, name: str) -> bool:
        """Say which model the vectors are of; those of another one are dropped. Return whether there were any."""
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
        """The model its vectors are of, "" while there is none."""
        with self._read_lock, map_sqlite_errors():
            return index_schema.meta(self._reader, "model")

    def units_without_vector(self, limit: int = 64) -> list[tuple[int, str]]:
        """Return units without a vector: their id and what a model embeds."""
        with self._write_lock, map_sqlite_errors():
            found = self._writer.execute(
                "SELECT id, who, about, text FROM unit WHERE vector IS NULL ORDER BY id LIMIT ?", (limit,)
            )
            return [(row[0], ": ".join(part for part in row[1:] if part)) for row in found]

    def count_waiting(self) -> int:
        """Return how many units have no vector."""
        with self._write_lock, map_sqlite_errors():
            return int(self._writer.execute("SELECT count(*) FROM unit WHERE vector IS NULL").fetchone()[0])

    def embed(self, model: str, vectors: Mapping[int, Floats]) -> None:
        """Keep the vectors of units, by content; of units that went meanwhile, or of another model, nothing is kept."""
        from agent.memory.search.vector_matrix import pack

        changes = UnitChanges()
        with self._write_lock, map_sqlite_errors():
            if not vectors or index_schema.meta(self._writer, "model") != model:
                return
            size = str(len(next(iter(vectors.values()))))
            if index_schema.meta(self._writer, "dimensions") not in ("", size):
                self._drop_vectors(model)  # another model under the same name: the rest is embedded anew as well
            with transaction(self._writer):
                for unit, vector in vectors.items():
                    row = self._writer.execute("SELECT content FROM unit WHERE id = ?", (unit,)).fetchone()
                    if row is None:
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
        """Memory that the cached vectors take."""
        matrix = self._matrix
        return 0 if matrix is None else matrix.bytes

    def drop_matrix(self) -> None:
        """Free the cached vectors; the next search reads them again."""
        with self._read_lock:
            self._is_followed = False
            self._matrix = None
            self._changes.clear()

    def is_cold(self, most: int) -> bool:
        """Say whether more than *most* vectors would have to be read before likeness can be asked."""
        if self._matrix is not None:
            return False
        with self._read_lock, map_sqlite_errors():
            row = self._reader.execute("SELECT seq FROM sqlite_sequence WHERE name = 'vector'").fetchone()
            return row is not None and row[0] > most

    def warm(self) -> None:
        """Read the vectors, without making searches by words wait."""
        self._is_followed = True
        with map_sqlite_errors(), contextlib.closing(index_schema.connect(self.path)) as database:
            matrix = self._load(database)
        with self._read_lock:
            # Dropped meanwhile: what was written since then was not followed.
            self._matrix = matrix if self._is_followed else None

    def _load(self, database: sqlite3.Connection) -> VectorMatrix | None:
        from agent.memory.search.vector_matrix import VectorMatrix

        dimensions = index_schema.meta(database, "dimensions")
        return VectorMatrix(database, int(dimensions)) if dimensions else None

    def _fresh_matrix(self) -> VectorMatrix | None:
        if self._matrix is None or self._matrix.needs_rebuild:
            self._is_followed = True  # before reading: what is written meanwhile is followed, perhaps twice
            self._changes.clear()
            self._matrix = self._load(self._reader)
        while self._matrix is not None and self._changes:
            self._matrix.follow(self._reader, self._changes.popleft())
        return self._matrix

    def take_vectors(self, other: Path) -> None:
        """Take the vectors of another index file of whatever version, as far as it can be read: they cost money."""
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
                            "INSERT OR IGNORE INTO vector (content, data) SELECT content, data FROM other.vector"
                            " WHERE length(data) = 2 * ?",
                            (int(size[0]),),
                        )
                        index_schema.set_meta(self._writer, "model", model[0])
                        index_schema.set_meta(self._writer, "dimensions", size[0])
            finally:
                self._writer.execute("DETACH DATABASE other")

    def drop_unused_vectors(self) -> None:
        """Delete the vectors that no unit has."""
        with self._write_lock, map_sqlite_errors(), transaction(self._writer):
            self._writer.execute(
                "DELETE FROM vector WHERE id NOT IN (SELECT vector FROM unit WHERE vector IS NOT NULL)"
            )

    # -- asking --------------------------------------------------------------------------------------

    def query(
        self,
        question: SearchQuery,
        vector: Floats | None = None,
        *,
        projects: Iterable[str] = (MEMORY,),
        top: int = text_query.TOP,
    ) -> IndexMatches:
        """Return the units that may answer *question*, with what each part says of them. Raises IndexUnusable."""
        with self._read_lock, map_sqlite_errors():
            own = text_query.projects(self._reader, projects)
            if not own:
                return IndexMatches(self, [])
            query = text_query.build_match_query(self._reader, question.terms(text_query.languages(self._reader)), own)
            unit = text_query.best(self._reader, "unit_text", query.expression, top)
            context: dict[int, float] = {}
            blocks: dict[int, float] = {}
            if not self._is_flat:
                context = text_query.best(self._reader, "context_text", query.rare, top)
                blocks = text_query.best(self._reader, "block_text", query.expression, top)
            ids: Collection[int] = unit.keys() | context.keys()
            likeness = None
            matrix = self._fresh_matrix() if vector is not None else None
            if vector is not None and matrix is not None and matrix.dimensions == len(vector):
                likeness = matrix.score(vector, own, top)
                ids = {*ids, *likeness.best}
            if len(ids) > KEPT:
                ids = heapq.nlargest(KEPT, ids, key=_promise(unit, context, likeness))
            found = text_query.candidates(self._reader, ids, own)
            names = question.names(text_query.speakers(self._reader))
        scale = max(query.ideal, 1e-6)
        for each in found:
            each.unit = unit.get(each.id, 0.0) / scale
            each.context = context.get(each.id, 0.0) / scale
            each.block_score = blocks.get(each.block, 0.0) / scale
            if likeness is not None and (like := likeness.of(each.id)) is not None:
                each.own, each.smooth = like
        return IndexMatches(self, found, names)

    def passages(self, ids: Sequence[int]) -> dict[int, IndexedPassage]:
        """Return units by id, as they are shown."""
        with self._read_lock, map_sqlite_errors():
            found = self._reader.execute(
                f"{_PASSAGE} WHERE u.id IN ({','.join('?' * len(ids))})",
                ids,
            )
            return {row[0]: _passage(row) for row in found}

    def sources(self, ids: Sequence[int]) -> dict[int, UnitSource]:
        """Return where units stand."""
        return {id_: passage.source for id_, passage in self.passages(ids).items()}

    def around(self, unit: int, reach: int = REACH) -> list[IndexedPassage]:
        """Return a unit with its neighbours of the same group, in order."""
        with self._read_lock, map_sqlite_errors():
            found = self._reader.execute(
                f'{_PASSAGE} JOIN unit m ON m.id = ? AND m.source = u.source AND m."group" = u."group"'
                " WHERE u.position BETWEEN m.position - ? AND m.position + ? ORDER BY u.position",
                (unit, reach, reach),
            )
            return [_passage(row) for row in found]

    def size(self) -> int:
        """Return how many units it holds."""
        with self._read_lock, map_sqlite_errors():
            return int(self._reader.execute("SELECT count(*) FROM unit").fetchone()[0])


def _promise(
    unit: Mapping[int, float], context: Mapping[int, float], likeness: VectorScores | None
) -> Callable[[int], float]:
    """Return a first guess at how good a unit is, of what is known without reading it."""
    first, around = max(unit.values(), default=1.0) or 1.0, max(context.values(), default=1.0) or 1.0

    def promise(id_: int) -> float:
        words = unit.get(id_, 0.0) / first + context.get(id_, 0.0) / around
        like = likeness.of(id_) if likeness is not None else None
        return words + sum(like) if like is not None else words

    return promise


_PASSAGE = (
    'SELECT u.id, s.name, p.name, u.line, u."end", u.text, u.at, u.who, u.role, u.origin, u.about FROM unit u'
    " JOIN source s ON s.id = u.source JOIN project p ON p.id = u.project"
)


def _passage(row: Sequence[Any]) -> IndexedPassage:
    id_, name, project, line, end, text, at, who, role, origin, about = row
    return IndexedPassage(
        id=id_,
        source=UnitSource(name=name, project=project),
        line=line,
        end=end,
        text=text,
        at=None if at is None else datetime.fromtimestamp(at, UTC),
        who=who,
        role=role,
        origin=origin,
        about=about,
    )
