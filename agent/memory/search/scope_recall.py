"""Search for turns, commands and operators: select the indexes that a scope may read, update them, read around a hit.

The index of a scope's files is made in `file_recall.py`, and closed, moved and erased with that of its memory.

A search first updates the index, which costs a look at the scope's folder and sessions, and reading what is new.
Existing indexes are also updated in the background when their scope has been idle for a moment, and when another
gateway has erased something of it. Scopes that were never searched have no index.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable, Coroutine, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, tzinfo
from pathlib import Path
from typing import TYPE_CHECKING, Any
from zoneinfo import ZoneInfo

import structlog
from cachetools import LRUCache

from agent.base.scopes import list_scopes, scope_folder
from agent.memory.search.file_recall import FILE_INDEX, FileHits, FileRecall
from agent.memory.search.recall_engine import IndexedScope, RecallEngine
from agent.memory.search.result_selection import BUILDING, RESULT_TOKENS, RecallAnswer, SearchResult
from agent.memory.search.scope_index import IndexedPassage
from agent.memory.search.scope_source import (
    Cut,
    DocumentSource,
    ScopeSource,
    TranscriptSource,
    lines_around,
    read_surroundings,
)
from agent.memory.search.search_unit import (
    MEMORY,
    SEARCH_DEFAULTS,
    SearchHit,
    SearchHits,
    SearchOptions,
    UnitSource,
    chunk_markdown,
    name_speaker,
)
from agent.memory.search.time_spans import TimeSpan
from gateway.errors import StoreUnavailable
from gateway.ports.journal import Line
from gateway.ports.memory import HistoryStore, ScopeHead

if TYPE_CHECKING:  # numpy: only where there are vectors
    from agent.memory.search.embedding import GuardedEmbedder
    from gateway.store.documents import SqlDocuments
    from gateway.store.transcripts import SqlTranscripts

log = structlog.get_logger(__name__)

INDEX = "index.db"
SHARED = "shared"
WORDS = "by words alone"  # in `RecallAnswer.note`
AROUND = 1  # hits with neighbours
SEED_HITS = 10  # of the seed profile at most [002]
_MAX_SCOPES = 512  # whose sources are cached
IDLE = 300.0  # seconds without use until an index is closed; opening it again reads its vectors again


@dataclass(frozen=True, slots=True, kw_only=True)
class RecallOptions:
    """Options of recall; times in seconds."""

    patience: float = 20.0  # how long a search waits for an index that is being built
    calm: float = 3.0  # time without writes until a scope is indexed
    interval: float = 60.0  # between checks of the documents for changes
    erasures: float | None = None  # between looks for erasures by other gateways; None = at the start alone
    budget: int = RESULT_TOKENS
    cut: Cut = chunk_markdown
    indexes: Path | None = None  # folder of the indexes; None = each is in the folder of what it indexes


class ScopeRecall:
    """Recall inside one scope; the scope comes from the turn's principal, never from a model."""

    def __init__(
        self,
        home: Path,
        *,
        memory: RecallEngine,
        documents: RecallEngine,
        read_document: Callable[[Path], str],
        zone: Callable[[str], str],
        history: HistoryStore,
        turns: SqlTranscripts | None = None,
        rows: SqlDocuments | None = None,
        meaning: GuardedEmbedder | None = None,
        files: FileRecall | None = None,
        options: RecallOptions | None = None,
    ) -> None:
        """*documents* is a separate engine, so that indexing large documents does not delay conversations.

        *zone* returns a scope's time zone. Without *turns*, as in the seed profile, no conversations are searched, and
        without *rows* the documents of a scope are files.
        *read_document* blocks. *meaning* is the model of both engines; it is closed with them. Without *files*, as in
        the seeds' library, no files are searched.
        """
        self._home = home
        self._memory = memory
        self._documents = documents
        self._zone = zone
        self._turns = turns
        self._rows = rows
        self._history = history
        self._meaning = meaning
        self._files = files
        self._options = options or RecallOptions()
        self._scopes: LRUCache[str, ScopeSource] = LRUCache(_MAX_SCOPES)
        folder = home / "docs"
        self._papers = DocumentSource(folder, read=read_document, cut=self._options.cut)
        self._docs = IndexedScope((self._options.indexes or folder) / f".{INDEX}", self._papers)
        self._docs_synced = float("-inf")
        self._noted: dict[str, float] = {}
        self._changed_files: dict[str, float] = {}
        self._epochs: dict[str, str] = {}  # of the scopes with an index, up to which it follows erasures
        self._woken = asyncio.Event()

    # -- the port ----------------------------------------------------------------------------------

    async def search(self, scope: str, query: str, options: SearchOptions = SEARCH_DEFAULTS) -> SearchHits:
        """Return the best hits of *scope* and of `shared`, or of a project's documents. See `SearchIndex.search`."""
        if not query.strip():
            return SearchHits()
        if options.project != MEMORY:
            return await self._search_documents(query, options)
        names = [name for name in dict.fromkeys([scope, SHARED]) if await self._exists(name)]
        await asyncio.gather(*(self._update(name) for name in names))
        zone = ZoneInfo(self._zone(scope))
        first, last = (
            at.replace(tzinfo=zone) if at and at.tzinfo is None else at for at in (options.since, options.until)
        )
        answer = await self._memory.search(
            [self._scope(name) for name in names],
            query,
            limit=options.limit if self._turns is not None else min(options.limit, SEED_HITS),
            budget=self._options.budget,
            around=AROUND,
            embed_timeout=options.embed_timeout,
            zone=zone,
            bounds=TimeSpan(first, last) if first or last else None,
            page=options.page,
        )
        prefixes = ["shared/" if name == SHARED != scope else "" for name in names]
        return to_search_hits(answer, prefixes, zone, is_seed=self._turns is None)

    async def read(self, scope: str, source: str, line: int, *, project: str = MEMORY) -> Sequence[SearchHit]:
        """Return the lines around a location from a search, in order; nothing for an unknown location."""
        if project != MEMORY:
            text = await asyncio.to_thread(self._papers.text, UnitSource(name=source, project=project))
            return lines_around(source, text, line)
        if source.startswith(f"{SHARED}/"):
            scope, source = SHARED, source.removeprefix(f"{SHARED}/")
        return await read_surroundings(self._source(scope), source, line)

    async def search_files(self, scope: str, query: str, lines: Iterable[Line]) -> FileHits:
        """Return the best passages of the files of *scope*; *lines* are those of the current conversation."""
        return FileHits() if self._files is None else await self._files.search(scope, query, lines)

    async def has_files(self, scope: str) -> bool:
        """Return True if *scope* has files that can be searched."""
        return self._files is not None and await self._files.has_files(scope)

    async def projects(self, scope: str) -> Sequence[str]:  # noqa: ARG002 - documents are the installation's
        """Return the names of the projects with documents, sorted."""
        return await asyncio.to_thread(self._projects)

    def last_error(self) -> str:
        """Return the reason for searching by words alone, for operators; "" while vectors are used."""
        return self._meaning.trouble if self._meaning is not None else ""

    @property
    def has_model(self) -> bool:
        """True if an embedding model is installed or configured, whether it responds or not."""
        return self._meaning is not None

    # -- updating ----------------------------------------------------------------------------------

    def note(self, scope: str) -> None:
        """Note a write in *scope*. It is indexed when the process is idle; a search indexes it at once."""
        self._noted[scope] = asyncio.get_running_loop().time()
        self._woken.set()

    def note_files(self, scope: str) -> None:
        """Note that a file of *scope* has changed or is gone; its text leaves the index when the process is idle."""
        if self._files is not None:
            self._changed_files[scope] = asyncio.get_running_loop().time()
            self._woken.set()

    async def run(self) -> None:
        """Update scheduled indexes until cancelled."""
        loop = asyncio.get_running_loop()
        next_look = loop.time()
        while True:
            if loop.time() >= next_look:
                await self._follow_erasures()
                next_look = loop.time() + (self._options.erasures or math.inf)
            with suppress(TimeoutError):
                async with asyncio.timeout(min(IDLE / 2, next_look - loop.time())):
                    await self._woken.wait()
            if self._woken.is_set():
                await asyncio.sleep(self._options.calm)
                self._woken.clear()
                await self._index_calm(loop.time())
                if self._noted or self._changed_files:
                    self._woken.set()
            await self._close_idle()

    async def _follow_erasures(self) -> None:
        """Schedule updates of the indexes of scopes of which something was erased; remove those of erased scopes.

        The erasing gateway updates its own index. Another one has copies of the words until it searches or does this.
        """
        if self._rows is None:
            return
        try:
            scopes = await asyncio.to_thread(self._indexed_scopes)
            heads = await self._rows.heads(scopes)
            for scope, head in heads.items():
                if head == ScopeHead() and not await self._source(scope).marks():
                    await self._remove_index(scope)
                elif head.epoch != self._epochs.get(scope, ""):
                    self.note(scope)
                    if self._files is not None:
                        await self._files.erase_gone(scope, head.epoch)
                    self._epochs[scope] = head.epoch
        except StoreUnavailable as error:
            log.info("recall.follows_later", reason=str(error))
        except Exception:  # the boundary of a service: the next look tries again
            log.exception("recall.follow_failed")

    def _indexed_scopes(self) -> list[str]:
        """Return the scopes that have an index here. Blocks."""
        scopes = ("", *list_scopes(self._home))
        return [each for each in scopes if any((self._folder(each) / name).is_file() for name in (INDEX, FILE_INDEX))]

    async def _remove_index(self, scope: str) -> None:
        self._noted.pop(scope, None)
        self._scopes.pop(scope, None)
        await self._memory.close_scope(self._folder(scope) / INDEX, is_removing=True)
        if self._files is not None:
            await self._files.close_index(scope, is_removing=True)
        if scope:
            with suppress(OSError):  # the folder has other files
                await asyncio.to_thread(self._folder(scope).rmdir)

    async def _close_idle(self) -> None:
        try:
            for engine in (self._memory, self._documents):
                await engine.close_idle(IDLE)
            if self._meaning is not None:
                await self._meaning.close_idle(IDLE)
        except Exception:  # the boundary of a service: an error on closing must not stop updates
            log.exception("recall.close_failed")

    async def _index_calm(self, now: float) -> None:
        calm = [scope for scope, at in self._noted.items() if now - at >= self._options.calm]
        for scope in calm:
            self._noted.pop(scope, None)
            try:
                if (self._folder(scope) / INDEX).is_file():
                    await self._memory.sync(self._scope(scope))
                    await self._memory.compact(self._scope(scope))
            except Exception:  # the boundary of a service: the next search tries again
                self._epochs.pop(scope, None)
                log.exception("recall.sync_failed", scope=scope)

        calm = [scope for scope, at in self._changed_files.items() if now - at >= self._options.calm]
        for scope in calm:
            self._changed_files.pop(scope, None)
            try:
                if self._files is not None and not await self._files.drop_gone(scope):
                    self.note_files(scope)
            except StoreUnavailable as error:
                self.note_files(scope)
                log.info("recall.drops_later", scope=scope, reason=str(error))
            except Exception:  # the boundary of a service: the next search does it
                log.exception("recall.sync_failed", scope=scope)

    async def rebuild(self, scope: str) -> int:
        """Rebuild the index of *scope*; return its number of units."""
        if not await self._exists(scope):
            return 0
        await self.close_index(scope)
        return await self._memory.rebuild(self._scope(scope))

    async def purge_stale(self, scope: str) -> None:
        """Remove from the indexes of *scope* what its sources no longer have, free database pages included."""
        if self._files is not None:
            heads = {} if self._rows is None else await self._rows.heads([scope])
            await self._files.erase_gone(scope, heads.get(scope, ScopeHead()).epoch, is_forced=True)
        if not (self._folder(scope) / INDEX).is_file():
            await self.close_index(scope)
            return
        await self._memory.sync(self._scope(scope), is_forced=True)

    async def close_index(self, scope: str) -> None:
        """Close the index files of *scope*, which are about to be moved or removed."""
        self._noted.pop(scope, None)
        if self._files is not None:
            await self._files.close_index(scope)
        if self._scopes.pop(scope, None) is not None:
            await self._memory.close_scope(self._folder(scope) / INDEX)

    async def close(self) -> None:
        """Close every file and model."""
        if self._files is not None:
            await self._files.close()
        await self._memory.close()
        await self._documents.close()
        if self._meaning is not None:
            await self._meaning.close()

    # -- private -----------------------------------------------------------------------------------

    def _folder(self, scope: str) -> Path:
        return scope_folder(self._home, scope)

    async def _exists(self, scope: str) -> bool:
        """Return True if there may be something to find: without a mirror, a scope that only talks has no folder."""
        return self._folder(scope).is_dir() or bool(await self._source(scope).marks())

    def _scope(self, scope: str) -> IndexedScope:
        folder = self._options.indexes / (scope or ".") if self._options.indexes else self._folder(scope)
        return IndexedScope(folder / INDEX, self._source(scope))

    def _source(self, scope: str) -> ScopeSource:
        source = self._scopes.get(scope)
        if source is None:
            transcripts = TranscriptSource(scope, self._turns) if self._turns is not None else None
            source = self._scopes[scope] = ScopeSource(
                self._folder(scope),
                scope,
                self._history,
                zone=lambda: self._zone(scope),
                cut=self._options.cut,
                transcripts=transcripts,
                documents=self._rows,
            )
        return source

    async def _update(self, scope: str) -> None:
        self._noted.pop(scope, None)
        await self._wait_for(self._memory.sync(self._scope(scope)), scope or "home")

    async def _wait_for(self, sync: Coroutine[Any, Any, int], name: str) -> None:
        """Wait for *sync* up to the configured time; it continues in the background after that."""

        def log_error(task: asyncio.Task[int]) -> None:
            if not task.cancelled() and (error := task.exception()) is not None:
                log.error("recall.sync_failed", of=name, error=type(error).__name__)

        task = asyncio.create_task(sync, name=f"recall sync {name}")
        task.add_done_callback(log_error)
        await asyncio.wait([task], timeout=self._options.patience)

    async def _search_documents(self, query: str, options: SearchOptions) -> SearchHits:
        if options.project not in await asyncio.to_thread(self._projects):
            return SearchHits()
        loop = asyncio.get_running_loop()
        if loop.time() - self._docs_synced > self._options.interval:
            self._docs_synced = loop.time()
            await self._wait_for(self._documents.sync(self._docs), "docs")
        answer = await self._documents.search(
            [self._docs],
            query,
            projects=[options.project],
            limit=options.limit,
            budget=self._options.budget,
            around=0,
            embed_timeout=options.embed_timeout,
        )
        return to_search_hits(answer, [""], UTC)

    def _projects(self) -> list[str]:
        folder = self._home / "docs"
        if not folder.is_dir():
            return []
        names = (each.name for each in folder.iterdir() if each.is_dir())
        return sorted(name for name in names if not name.startswith(".") and name != MEMORY)


def to_search_hits(answer: RecallAnswer, prefixes: Sequence[str], zone: tzinfo, *, is_seed: bool = False) -> SearchHits:
    """Convert an answer to the port's type, without the operator's error message."""
    return SearchHits(
        (_hit(each, prefixes[each.place], zone) for each in answer.results),
        is_words_only=WORDS in answer.note,
        is_building=BUILDING in answer.note,
        has_more=answer.has_more,
        is_seed=is_seed,
        missing=answer.missing,
    )


def _hit(result: SearchResult, prefix: str, zone: tzinfo) -> SearchHit:
    """Convert a result to the port's type."""
    passage = result.passage
    return SearchHit(
        source=f"{prefix}{passage.source.name}",
        line=passage.line,
        end=passage.end,
        text=passage.text,
        score=round(result.score, 4),
        at=passage.at.astimezone(zone) if passage.at else None,
        who=passage.who,
        role=passage.role,
        origin=next((each.origin for each in (passage, *result.before, *result.after) if each.origin), ""),
        before=_around(result.before) if passage.role else "",
        after=_around(result.after) if passage.role else "",
        coverage=round(result.coverage, 4),
        similarity=round(result.similarity, 4),
    )


def _around(passages: Sequence[IndexedPassage]) -> str:
    """Return a hit's neighbours, each with its speaker."""
    return "\n".join(f"{name_speaker(each.who, each.role)}: {each.text}" for each in passages)
