"""Read and write the index file of one scope.

Everything here blocks; `RecallEngine` calls it from threads. One read and one write can run at the same time, each with
its own connection; two reads, or two writes, wait for each other.
"""

from __future__ import annotations

import contextlib
import heapq
import sqlite3
import threading
from collections import deque
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from agent.memory.search import index_schema, text_query
from agent.memory.search.index_schema import (
    REACH,
    SOURCE_SLOTS,
    IndexUnusable,
    map_sqlite_errors,
    transaction,
    unpack_text,
)
from agent.memory.search.index_writer import UnitChanges, UnitWriter
from agent.memory.search.query import SearchQuery
from agent.memory.search.ranking import RankedCandidate
from agent.memory.search.search_unit import MEMORY, SearchUnit, UnitSource, content_hash
from agent.memory.search.time_spans import TimeSpan
from agent.memory.search.tokenizer import expand_query_word, index_terms, words

if TYPE_CHECKING:
    from agent.memory.search.text_scores import UnitSizes
    from agent.memory.search.vector_matrix import Floats, VectorMatrix, VectorScores

KEPT = 400  # candidates that are scored


@dataclass(frozen=True, slots=True, kw_only=True)
class IndexedPassage:
    """A unit as it is shown in results."""

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
    language: str


@dataclass(slots=True)
class IndexMatches:
    """Candidates of one index, before indexes are ranked together."""

    index: ScopeIndex
    candidates: list[RankedCandidate]
    names: frozenset[str] = field(default_factory=frozenset)
    weights: tuple[tuple[tuple[str, ...], float], ...] = ()  # the query's words, as in `IndexedTerms`

    def coverage(self, passage: IndexedPassage) -> float:
        """Return the share of the query's words in *passage*, its headings and keys, by weight.

        Words that the index lacks count half.
        """
        present = set(index_terms(f"{passage.about} {passage.text}", passage.language).split())
        total = sum(weight for _, weight in self.weights)
        return sum(weight for terms, weight in self.weights if not present.isdisjoint(terms)) / (total or 1.0)


class ScopeIndex:
    """One index file. Call `close` at the end."""

    def __init__(self, path: Path, *, is_new: bool = False, is_flat: bool = False) -> None:
        """Open or create the file at *path*; *is_flat* indexes have no contexts and blocks. Raises IndexUnusable."""
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
        self._changes: deque[UnitChanges] = deque()  # not applied to the matrix yet
        self._is_followed = False
        self._sizes: tuple[int, UnitSizes] | None = None  # with the version of the data that they are of

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

    def _write(self, source: UnitSource, change: Any, mark: str | None) -> UnitChanges:
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

    # -- searching -----------------------------------------------------------------------------------

    def query(
        self,
        question: SearchQuery,
        vector: Floats | None = None,
        *,
        center: Floats | None = None,
        projects: Iterable[str] = (MEMORY,),
        top: int = text_query.TOP,
    ) -> IndexMatches:
        """Return candidates for *question* with the parts of their scores. Raises IndexUnusable.

        Similarities are seen from *center*, by default the index's own; in flat indexes they are plain cosines.
        """
        from agent.memory.search.text_scores import TextScores

        with self._read_lock, map_sqlite_errors():
            own = text_query.sources(self._reader, projects)
            if not own:
                return IndexMatches(self, [])
            names = question.names(text_query.speakers(self._reader))
            spans = self._spans(question)
            unit = self._find_then(question, spans, names, own, top)
            context: dict[int, float] = {}
            blocks: dict[int, float] = {}
            with self._snapshot():
                sizes = self._read_sizes()
                languages = text_query.languages(self._reader)
                query = text_query.build_term_query(self._reader, question.terms(languages), sizes.count)
                if not unit and query.terms:
                    scores = TextScores(self._reader, sizes, query, own, is_flat=self._is_flat)
                    unit = scores.units(top, within=question.bounds)
                    for span in spans:
                        # The best of all time may be others than the best of the time that the query names.
                        unit |= scores.units(top, within=span)
                    scale = max(query.ideal, 1e-6)
                    unit = _divided(unit, scale)
                    context = _divided(scores.contexts(top, within=question.bounds), scale)
                    blocks = _divided(scores.blocks(top), scale)
            ids: Collection[int] = unit.keys() | context.keys()
            likeness = None
            matrix = self._fresh_matrix() if vector is not None else None
            if vector is not None and matrix is not None and matrix.dimensions == len(vector):
                likeness = matrix.score(vector, own, top, center=0 * vector if self._is_flat else center)
                ids = {*ids, *likeness.best}
            if len(ids) > KEPT:
                ids = heapq.nlargest(KEPT, ids, key=_promise(unit, context, likeness))
            if likeness is not None:
                ids = {*ids, *likeness.best_of_people}
            found = text_query.candidates(self._reader, ids, within=question.bounds)
        for each in found:
            each.unit = unit.get(each.id, 0.0)
            each.context = context.get(each.id, 0.0)
            each.block_score = blocks.get(each.block, 0.0)
            each.is_then = _is_within(each, spans)
            if likeness is not None and (like := likeness.of(each.id)) is not None:
                each.own, each.smooth = like
        return IndexMatches(self, found, names, query.weights)

    @contextlib.contextmanager
    def _snapshot(self) -> Iterator[None]:
        """Read the same state of the index in the whole block."""
        self._reader.execute("BEGIN")
        try:
            yield
        finally:
            self._reader.execute("ROLLBACK")

    def _read_sizes(self) -> UnitSizes:
        """Return the sizes of the snapshot, cached until the index changes."""
        from agent.memory.search.text_scores import UnitSizes

        version = int(self._reader.execute("PRAGMA data_version").fetchone()[0])
        if self._sizes is None or self._sizes[0] != version:
            self._sizes = version, UnitSizes(self._reader)
        return self._sizes[1]

    def _find_then(
        self,
        question: SearchQuery,
        spans: Sequence[TimeSpan],
        names: frozenset[str],
        source_ids: Sequence[int],
        top: int,
    ) -> dict[int, float]:
        """Return the messages of a time with scores, if the index knows no other words of the query."""
        people = {word for name in names for word in words(name)}
        languages = text_query.languages(self._reader) if spans else []
        terms = {term for word in question.topic - people for term in expand_query_word(word, languages)}
        found: dict[int, float] = {}
        if spans and not text_query.has_any(self._reader, terms):
            for span in spans:
                found |= text_query.find_messages_within(self._reader, span, source_ids, top=top)
        return found

    def _spans(self, question: SearchQuery) -> list[TimeSpan]:
        """Return the times that the query names, in conversations of this index too, or must keep to."""
        spans = [*question.spans]
        if question.now is not None:
            found = (text_query.conversation_span(self._reader, each, question.now) for each in question.conversations)
            spans += [span for span in found if span is not None]
        return spans or ([question.bounds] if question.bounds else [])

    def center(self) -> list[tuple[int, Floats]]:
        """Return the number of vectors and their mean; an empty list without vectors."""
        with self._read_lock, map_sqlite_errors():
            matrix = self._fresh_matrix()
            return [] if matrix is None else [(len(matrix), matrix.center)]

    def passages(self, ids: Sequence[int]) -> dict[int, IndexedPassage]:
        """Return the passages of units by id."""
        with self._read_lock, map_sqlite_errors():
            found = self._reader.execute(
                f"{_PASSAGE} WHERE u.id IN ({','.join('?' * len(ids))})",
                ids,
            )
            return {row[0]: _passage(row) for row in found}

    def sources(self, ids: Sequence[int]) -> dict[int, UnitSource]:
        """Return the sources of units by id."""
        return {id_: passage.source for id_, passage in self.passages(ids).items()}

    def around(self, unit: int, reach: int = REACH) -> list[IndexedPassage]:
        """Return a unit with its neighbours of the same group, at most `REACH` on each side, in order."""
        with self._read_lock, map_sqlite_errors():
            found = self._reader.execute(
                f"{_PASSAGE} WHERE u.id BETWEEN ? AND ? ORDER BY u.id", (unit - reach, unit + reach)
            )
            return [_passage(row) for row in found]


def _divided(scores: Mapping[int, float], by: float) -> dict[int, float]:
    return {id_: score / by for id_, score in scores.items()}


def _is_within(each: RankedCandidate, spans: Sequence[TimeSpan]) -> bool:
    if each.at is None or not spans:
        return False
    at = datetime.fromtimestamp(each.at, UTC)
    return any(span.covers(at) for span in spans)


def _promise(
    unit: Mapping[int, float], context: Mapping[int, float], likeness: VectorScores | None
) -> Callable[[int], float]:
    """Return an estimate of a unit's score that needs no further reads."""
    first, around = max(unit.values(), default=1.0) or 1.0, max(context.values(), default=1.0) or 1.0

    def promise(id_: int) -> float:
        words = unit.get(id_, 0.0) / first + context.get(id_, 0.0) / around
        like = likeness.of(id_) if likeness is not None else None
        return words + sum(like) if like is not None else words

    return promise


_PASSAGE = (
    'SELECT u.id, s.name, p.name, u.line, u."end", u.text, u.at, u.who, u.role, u.origin, u.about, u.language'
    " FROM unit u JOIN source s ON s.id = u.id / SLOTS JOIN project p ON p.id = s.project"
).replace("SLOTS", str(SOURCE_SLOTS))


def _passage(row: Sequence[Any]) -> IndexedPassage:
    id_, name, project, line, end, text, at, who, role, origin, about, language = row
    return IndexedPassage(
        id=id_,
        source=UnitSource(name=name, project=project),
        line=line,
        end=end,
        text=unpack_text(text),
        at=None if at is None else datetime.fromtimestamp(at, UTC),
        who=who,
        role=role,
        origin=origin,
        about=about,
        language=language,
    )
