"""Search the index of one scope: candidates for a query with the parts of their scores, and the passages to show.

Open indexes are kept for the scopes that were used last.
"""

from __future__ import annotations

import asyncio
import contextlib
import heapq
from collections import OrderedDict
from collections.abc import AsyncIterator, Callable, Collection, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from agent.memory.search import text_query
from agent.memory.search.index_file import IndexFile, IndexUnusable, map_sqlite_errors, unpack_text
from agent.memory.search.query import SearchQuery
from agent.memory.search.search_unit import MEMORY, REACH, SOURCE_SLOTS, MissingTime, RankedCandidate, UnitSource
from agent.memory.search.time_spans import ConversationReference, TimeSpan
from agent.memory.search.tokenizer import expand_query_word, index_terms, words

if TYPE_CHECKING:
    from agent.memory.search.text_scores import UnitSizes
    from agent.memory.search.vector_matrix import Floats, VectorScores

_T = TypeVar("_T")
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
    # Times that the query names, each None where something is from it, else what is nearest to it.
    times: Mapping[TimeSpan | ConversationReference, MissingTime | None] = field(default_factory=dict)

    def coverage(self, passage: IndexedPassage) -> float:
        """Return the share of the query's words in *passage*, its headings and keys, by weight.

        Words that the index lacks count half.
        """
        present = set(index_terms(f"{passage.about} {passage.text}", passage.language).split())
        total = sum(weight for _, weight in self.weights)
        return sum(weight for terms, weight in self.weights if not present.isdisjoint(terms)) / (total or 1.0)


class ScopeIndex(IndexFile):
    """One index file that is searched."""

    def __init__(self, path: Path, *, is_new: bool = False, is_flat: bool = False) -> None:
        """Open or create the file at *path*; *is_flat* indexes have no contexts and blocks. Raises IndexUnusable."""
        super().__init__(path, is_new=is_new, is_flat=is_flat)
        self._is_flat = is_flat
        self._sizes: tuple[int, UnitSizes] | None = None  # with the version of the data that they are of

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
            times = self._find_times(question, own)
            spans = [span for span, missing in times.values() if span is not None and missing is None]
            spans = spans or ([question.bounds] if question.bounds else [])
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
        missing = {named: each for named, (_, each) in times.items()}
        return IndexMatches(self, found, names, query.weights, missing)

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

    def _find_times(
        self, question: SearchQuery, source_ids: Sequence[int]
    ) -> dict[TimeSpan | ConversationReference, tuple[TimeSpan | None, MissingTime | None]]:
        """Return the span of each time and conversation that the query names, or the times nearest to an empty one.

        A time that holds nothing is a day longer on both sides, because "four days ago" is often 96 hours.
        """
        now, database = question.now, self._reader
        found: dict[TimeSpan | ConversationReference, tuple[TimeSpan | None, MissingTime | None]] = {}
        for span in question.spans:
            is_to_come = now is not None and span.start is not None and span.start >= now
            tries = (span,) if is_to_come else (span, span.widened())
            held = next((each for each in tries if text_query.has_messages_within(database, each, source_ids)), None)
            found[span] = held, None
            if held is None:
                nearest = [] if is_to_come else text_query.find_nearest(database, span, source_ids)
                zone = (span.start or span.end or datetime.now(UTC)).tzinfo
                at = tuple(datetime.fromtimestamp(each, zone) for each in nearest)
                found[span] = None, MissingTime(start=span.start, end=span.end, is_to_come=is_to_come, nearest=at)
        for talks in question.conversations:
            if now is None:
                break
            held = text_query.conversation_span(database, talks, now)
            found[talks] = held, None
            if held is None:
                found[talks] = None, MissingTime(conversations=text_query.count_conversations(database))
        return found

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


# -- open indexes ----------------------------------------------------------------------------------


@dataclass(slots=True)
class _OpenIndex:
    index: ScopeIndex
    inode: int
    users: int = 0
    used_at: float = 0.0  # seconds of the loop's clock

    def is_in_place(self, path: Path) -> bool:
        """Return True if *path* is still the opened file."""
        return _inode(path) == self.inode


class IndexCache:
    """Opens indexes when they are used, and closes the least recently used ones. Call `close` at the end."""

    def __init__(self, *, files: int, matrix_bytes: int, is_flat: bool) -> None:
        self._files = files
        self._matrix_bytes = matrix_bytes
        self._is_flat = is_flat
        self._open: OrderedDict[Path, _OpenIndex] = OrderedDict()
        self._searching = ThreadPoolExecutor(2, "recall-search")
        self._writing = ThreadPoolExecutor(1, "recall-write")

    async def close(self) -> None:
        """Close every file; waits for the work in the threads."""
        for each in self._open.values():
            await self.writing(each.index.close)
        self._open.clear()
        await asyncio.to_thread(self._searching.shutdown)
        await asyncio.to_thread(self._writing.shutdown)

    def __len__(self) -> int:
        """Return the number of open files."""
        return len(self._open)

    @contextlib.asynccontextmanager
    async def using(self, path: Path) -> AsyncIterator[ScopeIndex]:
        """Yield the open index of *path*; it stays open in the context. IndexUnusable closes it and is raised again."""
        if (known := self._open.get(path)) is not None and not known.is_in_place(path):
            await self.drop(path)  # the file was removed or replaced
        if path not in self._open:
            index = await self.searching(lambda: ScopeIndex(path, is_flat=self._is_flat))
            if path in self._open:  # another task has opened it meanwhile
                await self.searching(index.close)
            else:
                self._open[path] = _OpenIndex(index, _inode(path))
        entry = self._open[path]
        self._open.move_to_end(path)
        entry.users += 1
        try:
            yield entry.index
        except IndexUnusable:
            if self._open.get(path) is entry:
                del self._open[path]
            raise
        finally:
            entry.users -= 1
            entry.used_at = asyncio.get_running_loop().time()
            if not entry.users and self._open.get(path) is not entry:
                await asyncio.shield(self.searching(entry.index.close))

    async def drop(self, path: Path) -> None:
        """Close an index; if it is in use, its last user closes it."""
        entry = self._open.pop(path, None)
        if entry is not None and not entry.users:
            await self.writing(entry.index.close)

    async def trim(self) -> None:
        """Close the least recently used files, and free vectors, down to the limits."""
        idle = [path for path, entry in self._open.items() if not entry.users]
        while idle and len(self._open) > self._files:
            await self.drop(idle.pop(0))
        total = sum(entry.index.matrix_bytes for entry in self._open.values())
        for path in idle[:-1]:  # the last used index keeps its vectors, whatever their size
            if total <= self._matrix_bytes:
                return
            if (entry := self._open.get(path)) is not None and entry.index.matrix_bytes:
                total -= entry.index.matrix_bytes
                await self.searching(entry.index.drop_matrix)

    async def close_idle(self, idle: float) -> None:
        """Close the files that were not used for *idle* seconds."""
        before = asyncio.get_running_loop().time() - idle
        for path in [path for path, entry in self._open.items() if not entry.users and entry.used_at <= before]:
            await self.drop(path)

    async def searching(self, work: Callable[[], _T]) -> _T:
        """Run *work* in a thread for searches."""
        return await asyncio.get_running_loop().run_in_executor(self._searching, work)

    async def writing(self, work: Callable[..., _T], *arguments: object) -> _T:
        """Run *work* in the thread for writes, one call at a time."""
        return await asyncio.get_running_loop().run_in_executor(self._writing, work, *arguments)


def _inode(path: Path) -> int:
    """Return the inode of *path*, 0 if it does not exist."""
    try:
        return path.stat().st_ino
    except FileNotFoundError:
        return 0
