"""Search the indexes of many scopes without blocking the event loop.

    engine = RecallEngine(embedder=build_embedder("local:/models/minilm"))
    scope = IndexedScope(home / "people/ann/index.db", sources)
    await engine.sync(scope)  # again after a write; reads only what is new
    answer = await engine.search([scope, shared], "when did we move?", budget=1_500, around=2)
    await engine.close()

An index is derived data. If it is missing, damaged or of another version, it is rebuilt from its sources in a new file.
Until then, searches return the results of other indexes and set `RecallAnswer.note`.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import time
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, tzinfo
from pathlib import Path
from typing import TYPE_CHECKING

import structlog

from agent.memory.search.index_file import IndexUnusable, remove_index
from agent.memory.search.query import SearchQuery, parse_query
from agent.memory.search.result_selection import (
    BUILDING,
    RESULT_TOKENS,
    RecallAnswer,
    SearchResult,
    SeedProfile,
    find_missing_times,
    rank_candidates,
    select_results,
)
from agent.memory.search.scope_index import IndexCache, IndexMatches, ScopeIndex
from agent.memory.search.search_unit import ERASURES, MEMORY, MissingTime, UnitSource, UnitSources
from agent.memory.search.time_spans import TimeSpan
from gateway.errors import ModelFailed

if TYPE_CHECKING:
    from agent.memory.search.embedding import Embedder
    from agent.memory.search.vector_matrix import Floats

log = structlog.get_logger(__name__)

_SLICE = 200  # units in one write, which bounds how long other writes wait
_BATCH = 64  # texts in one embedding call
_MANY = 500  # units without a vector: with more, the index is searched by words until they have them
_FEW_HITS = 10  # a page of so few has no places for standing wishes
_PROGRESS = 30.0  # seconds between lines about them


@dataclass(frozen=True, slots=True, eq=False)
class IndexedScope:
    """An index file and its sources."""

    path: Path
    sources: UnitSources


@dataclass(slots=True)
class _IndexTask:
    lock: asyncio.Lock = field(default_factory=asyncio.Lock)  # one writer per file
    tasks: dict[str, asyncio.Task[None]] = field(default_factory=dict)


class RecallEngine:
    """Updates the indexes of scopes from their sources, and searches them."""

    def __init__(
        self,
        *,
        embedder: Embedder | None = None,
        seed: SeedProfile | None = None,
        open_files: int = 32,
        matrix_bytes: int = 256 << 20,
        read_at_once: int = 20_000,
    ) -> None:
        """*seed* selects the seed profile. *matrix_bytes* limits the vectors in memory, except those of the last scope.

        A search waits until at most *read_at_once* vectors are read; more vectors are read in the background.
        """
        self._embedder = embedder
        self._seed = seed
        self._read_at_once = read_at_once
        self._files = IndexCache(files=open_files, matrix_bytes=matrix_bytes, is_flat=seed is not None)
        self._work: dict[Path, _IndexTask] = {}
        self._half_embedded: set[Path] = set()
        self._unused_vectors: set[Path] = set()  # indexes with vectors for units that are still to be read

    async def close(self) -> None:
        """Cancel background tasks and close every file; units without vectors are embedded after the next start."""
        tasks = [task for work in self._work.values() for task in work.tasks.values()]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await self._files.close()

    async def close_idle(self, idle: float) -> None:
        """Close the files that were not used for *idle* seconds."""
        await self._files.close_idle(idle)

    # -- searching -----------------------------------------------------------------------------------

    async def search(
        self,
        scopes: Sequence[IndexedScope],
        text: str,
        *,
        projects: Iterable[str] = (MEMORY,),
        limit: int = 10,
        budget: int = RESULT_TOKENS,
        around: int = 0,
        now: datetime | None = None,
        zone: tzinfo = UTC,
        embed_timeout: float | None = None,
        bounds: TimeSpan | None = None,
        page: int = 1,
    ) -> RecallAnswer:
        """Return page *page* of the results for *text* in *scopes*, best first, within *budget* tokens.

        `SearchResult.place` is the position of the scope in *scopes*. The first *around* results have neighbours.
        "Last week" is relative to *now* in *zone*. Results are from *bounds*, if given. If the model takes longer than
        *embed_timeout* seconds, the search uses words alone. Errors of an index or the model are not raised, but set
        `RecallAnswer.note`.
        """
        notes: list[str] = []
        async with contextlib.AsyncExitStack() as stack:
            indexes: list[ScopeIndex] = []
            places: list[int] = []
            for n, scope in enumerate(scopes):
                try:
                    indexes.append(await stack.enter_async_context(self._files.using(scope.path)))
                    places.append(n)
                except IndexUnusable as error:
                    self._rebuild_soon(scope, str(error))
                    notes.append(BUILDING)
            paths = [scopes[n].path for n in places]
            if not self._half_embedded.isdisjoint(paths):
                notes.append("by words alone: the embedding model is still reading what was said")
            vector = await self._vector(text, indexes, notes, embed_timeout)
            wanted = tuple(projects)
            moment = now or datetime.now(UTC)

            def find() -> tuple[list[SearchResult], bool, list[int], list[int], tuple[MissingTime, ...]]:
                question = parse_query(text, now=moment.astimezone(zone), bounds=bounds)
                matches, broken, cold = self._match(indexes, paths, question, vector, wanted)
                try:
                    ranked = rank_candidates(matches, question, seed=self._seed, now=moment, zone=zone)
                    return (
                        *select_results(
                            matches,
                            ranked,
                            limit=limit,
                            budget=budget,
                            around=0 if question.asks_overview else around,
                            page=page,
                            is_overview=question.asks_overview and self._seed is None,
                            has_wishes=self._seed is None and limit > _FEW_HITS,
                            zone=zone,
                        ),
                        broken,
                        cold,
                        find_missing_times(matches),
                    )
                except IndexUnusable:  # one of them is damaged: rebuild all
                    return [], False, list(range(len(indexes))), [], ()

            found, has_more, broken, cold, missing = await self._files.searching(find)
            for n in cold:
                self._warm_soon(scopes[places[n]].path)
                notes.append("by words alone: what things mean is being read in")
            for n in broken:
                self._rebuild_soon(scopes[places[n]], "damaged", is_sure=True)
                notes.append(BUILDING)
            results = tuple(replace(each, place=places[each.place]) for each in found)
        await self._files.trim()
        note = "; ".join(dict.fromkeys(notes))
        return RecallAnswer(results=results, note=note, has_more=has_more, missing=missing)

    def _match(
        self,
        indexes: Sequence[ScopeIndex],
        paths: Sequence[Path],
        question: SearchQuery,
        vector: Floats | None,
        projects: Sequence[str],
    ) -> tuple[list[IndexMatches], list[int], list[int]]:
        """Return the matches of each index, and the positions of damaged and of not yet read indexes."""
        model = self._embedder.name if self._embedder else ""
        matches: list[IndexMatches] = []
        broken: list[int] = []
        cold: list[int] = []
        likes: list[Floats | None] = []
        centers: list[tuple[int, Floats]] = []
        for n, index in enumerate(indexes):
            likes.append(None)
            try:
                if vector is None or index.model != model or paths[n] in self._half_embedded:
                    continue
                if index.is_cold(self._read_at_once):
                    cold.append(n)
                    continue
                likes[n] = vector
                centers += index.center()
            except IndexUnusable:
                broken.append(n)
        # One center for all, of the index with the most vectors, or similarities could not be compared.
        center = max(centers, key=lambda each: each[0])[1] if len(centers) > 1 else None
        for n, (index, like) in enumerate(zip(indexes, likes, strict=True)):
            try:
                if n not in broken:
                    matches.append(index.query(question, like, center=center, projects=projects))
                    continue
            except IndexUnusable:
                broken.append(n)
            matches.append(IndexMatches(index, []))
        return matches, broken, cold

    async def _vector(
        self, text: str, indexes: Sequence[ScopeIndex], notes: list[str], embed_timeout: float | None
    ) -> Floats | None:
        if self._embedder is None or not indexes:
            return None
        try:
            async with asyncio.timeout(embed_timeout):
                rows = await self._embedder.embed([text], is_question=True)
        except (ModelFailed, TimeoutError) as error:
            notes.append(f"by words alone: {error}")
            return None
        vector: Floats = rows[0]
        return vector

    # -- updating ------------------------------------------------------------------------------------

    async def marks(self, scope: IndexedScope) -> Mapping[UnitSource, str]:
        """Return the sources that the index has, with their marks; nothing for one that must be built first."""
        try:
            async with self._files.using(scope.path) as index:
                return await self._files.writing(index.marks)
        except IndexUnusable:
            return {}

    async def sync(
        self, scope: IndexedScope, *, is_forced: bool = False, is_scrubbed: bool = False, is_partial: bool = False
    ) -> int:
        """Update the index of *scope* from its sources; return the number of changed units.

        *is_forced* reads sources completely even if their marks did not change, and erases deleted units from the
        file's free pages, as *is_scrubbed* does alone. The latter is also done after an erasure by another gateway.
        *is_partial*: later calls read further sources, for which the vectors of an unusable index are kept. Vectors
        are computed in the background.
        """
        async with self._lock(scope.path):
            try:
                async with self._files.using(scope.path) as index:
                    changed = await self._sync(index, scope.sources, is_forced=is_forced, is_scrubbed=is_scrubbed)
                    if scope.path in self._unused_vectors and not is_partial:
                        await self._files.writing(index.drop_unused_vectors)
                        self._unused_vectors.discard(scope.path)
            except IndexUnusable as error:
                changed = await self._build(scope, str(error), is_partial=is_partial)
        self._embed_soon(scope)
        return changed

    async def compact(self, scope: IndexedScope) -> None:
        """Merge the index segments of many small writes, in short steps between other writes."""
        more = True
        while more:
            async with self._lock(scope.path), self._files.using(scope.path) as index:
                more = bool(await self._files.writing(index.optimize))

    async def _sync(self, index: ScopeIndex, sources: UnitSources, *, is_forced: bool, is_scrubbed: bool) -> int:
        now, then = await sources.marks(), await self._files.writing(index.marks)
        changed = 0
        for source in sorted({*now, *then} - {ERASURES}, key=_by_name):
            if source not in now:
                changed += len(await self._files.writing(index.remove, source)) if source in then else 0
            elif is_forced or now[source] != then.get(source, "").partition("#")[0]:
                changed += await self._take(index, sources, source, then.get(source, ""), is_forced=is_forced)
        mark = now.get(ERASURES, then.get(ERASURES, ""))  # sources that do not know of erasures ask for nothing
        if is_forced or is_scrubbed or mark != then.get(ERASURES, ""):
            await self._files.writing(index.drop_unused_vectors)
            await self._files.writing(index.scrub)
            await self._files.writing(lambda: index.put(ERASURES, (), mark=mark))  # after a kill it is scrubbed again
        return changed

    async def _take(
        self, index: ScopeIndex, sources: UnitSources, source: UnitSource, since: str, *, is_forced: bool = False
    ) -> int:
        try:
            reading = await sources.read(source, "" if is_forced else since)
        except FileNotFoundError:
            return len(await self._files.writing(index.remove, source))
        units, mark = reading.units, reading.mark
        if reading.is_more:
            return len(await self._files.writing(lambda: index.append(source, units, mark=mark)))
        if since or len(units) <= _SLICE:
            return len(await self._files.writing(lambda: index.put(source, units, mark=mark)))
        # A new source is written in slices, so that other scopes' writes can run in between. The mark is written last:
        # after a crash the source is read from the start.
        changed = len(await self._files.writing(lambda: index.put(source, units[:_SLICE])))
        for start in range(_SLICE, len(units), _SLICE):
            part, is_last = units[start : start + _SLICE], start + _SLICE >= len(units)
            write = functools.partial(index.append, source, part, mark=mark if is_last else "")
            changed += len(await self._files.writing(write))
        return changed

    async def _build(self, scope: IndexedScope, why: str, *, is_partial: bool = False) -> int:
        """Build the index in a new file, then replace the old file. The caller holds the lock."""
        started = time.monotonic()
        path = scope.path
        fresh_path = path.with_name(f"{path.name}.new")
        await self._files.writing(remove_index, fresh_path)
        fresh = await self._files.writing(lambda: ScopeIndex(fresh_path, is_new=True, is_flat=self._seed is not None))
        try:
            await self._files.writing(fresh.take_vectors, path)
            marks = await scope.sources.marks()
            count = 0
            for source in sorted(marks, key=_by_name):
                count += await self._take(fresh, scope.sources, source, "")
            if is_partial:
                self._unused_vectors.add(scope.path)
            else:
                await self._files.writing(fresh.drop_unused_vectors)
            while await self._files.writing(
                fresh.optimize
            ):  # in steps, so that other scopes' writes can run in between
                pass
            await self._files.writing(fresh.scrub)
        except BaseException:  # what was erased meanwhile is not left in it
            await asyncio.shield(self._files.writing(_discard, fresh, fresh_path))
            raise
        await asyncio.shield(self._files.writing(fresh.close))
        await self._files.drop(path)
        await self._files.writing(_swap, fresh_path, path)
        log.info("recall.built", index=str(path), why=why, units=count, seconds=round(time.monotonic() - started, 3))
        return count

    def _rebuild_soon(self, scope: IndexedScope, why: str, *, is_sure: bool = False) -> None:
        async def rebuild() -> None:
            async with self._lock(scope.path):
                if not is_sure and await self._is_usable(scope.path):
                    return  # another task has built it
                await self._build(scope, why)
            self._embed_soon(scope)

        self._start(scope.path, "build", rebuild)

    def _warm_soon(self, path: Path) -> None:
        async def warm() -> None:
            async with self._files.using(path) as index:
                await self._files.searching(index.warm)

        self._start(path, "warm", warm)

    async def _is_usable(self, path: Path) -> bool:
        try:
            async with self._files.using(path):
                return True
        except IndexUnusable:
            return False

    def _embed_soon(self, scope: IndexedScope) -> None:
        if self._embedder is not None:
            self._start(scope.path, "embed", lambda: self._embed(scope))

    async def _embed(self, scope: IndexedScope) -> None:
        """Compute missing vectors until the model fails; the next sync continues."""
        embedder = self._embedder
        if embedder is None:
            return
        async with self._files.using(scope.path) as index:
            if await self._files.writing(index.use_model, embedder.name):
                log.info("recall.model_changed", index=str(scope.path), model=embedder.name)
            left = await self._files.writing(index.count_without_vector)
            if left > _MANY:
                self._half_embedded.add(scope.path)
            done, reported = 0, time.monotonic()
            before: list[tuple[int, str]] = []
            while (waiting := await self._files.writing(index.units_without_vector, _BATCH)) and waiting != before:
                before = waiting
                rows = await embedder.embed([text for _, text in waiting])
                vectors = {unit: row for (unit, _), row in zip(waiting, rows, strict=True)}
                await self._files.writing(index.embed, embedder.name, vectors, dict(waiting))
                done += len(waiting)
                if time.monotonic() - reported >= _PROGRESS:
                    reported = time.monotonic()
                    log.info("recall.embedding", index=str(scope.path), done=done, left=max(0, left - done))
        self._half_embedded.discard(scope.path)

    async def wait_idle(self, path: Path) -> None:
        """Wait until the background tasks of this index have ended."""
        while tasks := [*self._work_of(path).tasks.values()]:
            await asyncio.wait(tasks)

    async def rebuild(self, scope: IndexedScope) -> int:
        """Rebuild the index of *scope*; return its number of units."""
        async with self._lock(scope.path):
            count = await self._build(scope, "asked for")
        self._embed_soon(scope)
        return count

    async def close_scope(self, path: Path, *, is_removing: bool = False) -> None:
        """Cancel the tasks of an index and close its file, which is about to be moved or removed, or remove it."""
        for task in [*self._work_of(path).tasks.values()]:
            task.cancel()
        await self.wait_idle(path)
        async with self._lock(path):
            await self._files.drop(path)
            if is_removing:
                await self._files.writing(remove_index, path)

    # -- files and threads ---------------------------------------------------------------------------

    def _start(self, path: Path, name: str, work: Callable[[], Awaitable[object]]) -> None:
        """Run *work* in the background, unless a task of that name is running; errors are logged."""
        tasks = self._work_of(path).tasks
        if name in tasks:
            return

        async def guarded() -> None:
            try:
                await work()
            except ModelFailed as error:
                log.warning("recall.embedding_waits", index=str(path), error=type(error).__name__)
            except Exception:  # the boundary of a background task: searches continue without it
                log.exception("recall.background_failed", index=str(path), task=name)
            finally:
                tasks.pop(name, None)

        tasks[name] = asyncio.create_task(guarded(), name=f"recall {name} {path}")

    def _work_of(self, path: Path) -> _IndexTask:
        return self._work.setdefault(path, _IndexTask())

    def _lock(self, path: Path) -> asyncio.Lock:
        return self._work_of(path).lock


def _by_name(source: UnitSource) -> tuple[str, str]:
    return source.project, source.name


def _discard(index: ScopeIndex, path: Path) -> None:
    """Close an index that is not complete, and remove its file."""
    index.close()
    remove_index(path)


def _swap(fresh: Path, path: Path) -> None:
    """Replace *path* with *fresh*; removes the old file's write-ahead log, which must not be applied to the new one."""
    for each in ("-wal", "-shm"):
        path.with_name(f"{path.name}{each}").unlink(missing_ok=True)
    fresh.replace(path)
