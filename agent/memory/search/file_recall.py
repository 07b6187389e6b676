"""Search in the files of a scope: its workspace, and the documents that people sent.

Each scope has an index for them (`files.db`), beside that of its memory and made by the same engine. The first search
makes it, and each later one updates it, file by file: a search that does not wait longer has those that are read. The
text of a removed file leaves it behind the file that is being read. A source is named by the digest of a file's bytes
and the file's name, so that its units never change: another text is another source. Each search reads from the store
which files exist, and again for each hit, so that the index decides nothing about rights.
"""

from __future__ import annotations

import asyncio
from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator, Mapping, MutableMapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from itertools import accumulate
from pathlib import Path
from typing import TYPE_CHECKING
from zoneinfo import ZoneInfo

import structlog
from cachetools import LRUCache, TTLCache

from agent.attachments.document_reader import DocumentPlace, ExtractedText, SandboxedReader, detect_kind, may_have_text
from agent.base.file_facts import UNTRUSTED
from agent.base.scopes import scope_folder
from agent.files.file_workspace import FILE_BYTES, RECEIVED, ReceivedFiles
from agent.files.turn_files import split_pages
from agent.memory.search.recall_engine import IndexedScope, RecallEngine
from agent.memory.search.result_selection import BUILDING
from agent.memory.search.search_unit import ERASURES, SearchUnit, SourceReading, UnitSource, chunk_markdown
from gateway.errors import FileUnavailable
from gateway.ports.journal import Line
from gateway.ports.memory import MEDIUM, FileKind, ScopeFile

if TYPE_CHECKING:
    from agent.memory.search.scope_index import IndexedPassage
    from gateway.store.files import SqlFiles

log = structlog.get_logger(__name__)

FILE_INDEX = "files.db"
FILES = "_files"  # the project of their units
MOST_FILES = 200  # of a scope that are searched: the last changed ones
FILE_CHARS = 500_000  # of the text of a file
FILE_UNITS = 2_000  # of a file
HITS = 8
HIT_TOKENS = 1_600  # of all hits
_UNIT_CHARS = 1_000  # short paragraphs below one heading become one unit
_LOOKED_FOR = 60  # characters of a unit that are looked for in the text, to find its page
_COLUMNS = 200  # characters of a table's first line, which its units are found by
_MARK = "1"  # changes with the way that files are cut
_KNOWN = 2_000  # scopes of which is known whether they have files
_UNREADABLE = 2_000  # files that could not be read, all scopes together
_READ_AGAIN = 3_600.0  # seconds, after which they are tried again: the machine may only have been busy
_KINDS = (FileKind.WORKSPACE, FileKind.ATTACHMENT)
_TABLES = (".csv", ".tsv")


@dataclass(frozen=True, slots=True, kw_only=True)
class SearchedFile:
    """A file that is searched, as it is now."""

    name: str  # as `file_read` takes it
    row: ScopeFile
    kind: str = "document"  # as the platform said, like the next one
    media_type: str = ""

    @property
    def source(self) -> UnitSource:
        """The source of its units."""
        return UnitSource(name=f"{self.row.digest}/{self.name}", project=FILES)


@dataclass(frozen=True, slots=True, kw_only=True)
class FileHit:
    """A passage of a file. Its text, and the name of a sheet, are words of the file's author."""

    name: str  # as `file_read` takes it
    text: str
    place: DocumentPlace | None  # where it has pages, chapters or sheets
    page: int  # of `file_read`, from 1, on which it begins
    last_page: int  # on which it ends
    is_untrusted: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class FileHits:
    """Hits of a search, best first, and its limits."""

    hits: Sequence[FileHit] = ()
    files: int = 0  # that were searched
    left_out: int = 0  # older files, and those that are too large
    unread: int = 0  # of *files*, whose text the index does not have yet; they are being read


class FileRecall:
    """Search in the files of scopes. *engine* may be shared with other indexes."""

    def __init__(
        self,
        home: Path,
        engine: RecallEngine,
        *,
        files: SqlFiles,
        received: ReceivedFiles,
        zone: Callable[[str], str],
        timeout: float = 20.0,
    ) -> None:
        """A search waits for *timeout* seconds until files are read; the reading continues after that."""
        self._home = home
        self._engine = engine
        self._files = files
        self._received = received
        self._zone = zone
        self._timeout = timeout
        self._reader = SandboxedReader()  # of its own: who reads a file does not wait until others are indexed
        self._known: LRUCache[str, tuple[int, bool]] = LRUCache(_KNOWN)
        self._failed: TTLCache[str, bool] = TTLCache(_UNREADABLE, _READ_AGAIN)  # by the names of their sources
        self._syncs: dict[str, asyncio.Task[None]] = {}
        self._changed: set[str] = set()  # scopes of which a file has gone while a sync runs

    async def has_files(self, scope: str) -> bool:
        """Return True if *scope* has files. The store is asked once, and again after this process changed a file."""
        count = self._files.change_count  # before the reading: a later change is seen next time
        known = self._known.get(scope)
        if known is None or known[0] != count:
            known = self._known[scope] = count, await self._files.has_texts(scope)
        return known[1]

    async def search(self, scope: str, query: str, lines: Iterable[Line] = ()) -> FileHits:
        """Return the best passages. *lines* are those of the current conversation, which may have new files."""
        found = await self._list(scope, lines)
        searched = {each.source.name: each for each in found if each.row.size <= FILE_BYTES}
        searched = dict(list(searched.items())[:MOST_FILES])
        if not searched:
            return FileHits(left_out=len(found))
        await self._update(scope, searched)
        index = self._index(scope, {})
        unread = len(self._find_unread(searched, await self._engine.marks(index)))
        answer = await self._engine.search(
            [index],
            query,
            projects=[FILES],
            limit=HITS,
            budget=HIT_TOKENS,
            zone=ZoneInfo(self._zone(scope)),
        )
        hits: list[FileHit] = []
        for passage in (each.passage for each in answer.results):
            file = searched.get(passage.source.name)
            # What is not there now is not found: the index may be behind, and the search has taken a while.
            if file is not None and await self._is_there(scope, file):
                hits.append(_hit(file, passage))
        return FileHits(
            hits=hits,
            files=len(searched),
            left_out=len(found) - len(searched),
            unread=len(searched) if BUILDING in answer.note else unread,
        )

    async def drop_gone(self, scope: str) -> bool:
        """Remove the texts of removed files from the index of *scope*. No file is read for it.

        Return False if a sync is running, which removes them unless it fails: the caller is to look again.
        """
        if scope in self._syncs:
            self._changed.add(scope)  # it is not begun again
            return False
        await self._drop(scope)
        return True

    async def erase_gone(self, scope: str, epoch: str, *, is_forced: bool = False) -> None:
        """Remove them from the free pages of the index, too, and end the reading of a file that may be gone.

        The index is rewritten for that once in each *epoch* of the scope, with *is_forced* in any case.
        """
        await self._cancel_sync(scope)  # the next search goes on with the files that are left
        await self._drop(scope, epoch=epoch, is_forced=is_forced)

    async def close_index(self, scope: str, *, is_removing: bool = False) -> None:
        """Close the index of *scope*, which is about to be moved or removed, or remove it."""
        await self._cancel_sync(scope)
        await self._engine.close_scope(self._path(scope), is_removing=is_removing)

    async def close(self) -> None:
        """End what is being read; the engine is closed by its owner."""
        for task in (running := list(self._syncs.values())):
            task.cancel()
        await asyncio.gather(*running, return_exceptions=True)

    # -- private -----------------------------------------------------------------------------------

    def _path(self, scope: str) -> Path:
        return scope_folder(self._home, scope) / FILE_INDEX

    def _index(
        self, scope: str, searched: Mapping[str, SearchedFile], *, read: str = "", epoch: str = ""
    ) -> IndexedScope:
        source = FileSource(self._files, self._reader, scope, searched, self._failed, readable=read, epoch=epoch)
        return IndexedScope(self._path(scope), source)

    async def _drop(self, scope: str, *, epoch: str = "", is_forced: bool = False) -> None:
        if self._path(scope).is_file():
            searched = {each.source.name: each for each in await self._list(scope, ())}
            await self._engine.sync(self._index(scope, searched, epoch=epoch), is_scrubbed=is_forced)

    def _find_unread(self, searched: Mapping[str, SearchedFile], marks: Mapping[UnitSource, str]) -> list[str]:
        """Return the names of the sources whose text is not in the index; those that cannot be read are in it."""
        return [
            name
            for name, each in searched.items()
            if (mark := marks.get(each.source)) is None or (mark != _MARK and name not in self._failed)
        ]

    async def _list(self, scope: str, lines: Iterable[Line]) -> list[SearchedFile]:
        """Return the files with text that `file_read` reads, the last changed first."""
        rows = await self._files.files(scope, *_KINDS)
        stored = {row.name: row for row in rows if row.kind is FileKind.ATTACHMENT and row.original != MEDIUM}
        found = [SearchedFile(name=row.name, row=row) for row in rows if row.kind is FileKind.WORKSPACE]
        if stored:
            for fact in await self._received.list_facts(scope, lines, most=len(stored)):
                # A reference is looked for in this scope alone, whatever it names.
                row = stored.get(str(fact["blob"]).rpartition("/")[2])
                if row is not None:
                    kind, media_type = str(fact.get("kind", "")), str(fact.get("media_type", ""))
                    name = f"{RECEIVED}/{fact['name']}"
                    found.append(SearchedFile(name=name, row=row, kind=kind, media_type=media_type))
        kept = [
            each
            for each in found
            if each.row.size and may_have_text(kind=each.kind, name=each.name, media_type=each.media_type)
        ]
        return sorted(kept, key=lambda each: each.row.at, reverse=True)

    async def _is_there(self, scope: str, file: SearchedFile) -> bool:
        row = await self._files.find(scope, file.row.kind, file.row.name)
        return row is not None and row.digest == file.row.digest

    async def _update(self, scope: str, searched: Mapping[str, SearchedFile]) -> None:
        """Bring the index up to date; if that takes longer than a search waits, continue in the background."""
        with suppress(TimeoutError):
            async with asyncio.timeout(self._timeout):
                while (running := self._syncs.get(scope)) is not None:  # of an earlier search, for its files
                    await asyncio.wait([running])
                task = self._syncs[scope] = asyncio.create_task(self._sync(scope, searched), name=f"files {scope}")
                task.add_done_callback(lambda done: self._end_sync(scope, done))
                await asyncio.wait([task])

    async def _cancel_sync(self, scope: str) -> None:
        if (running := self._syncs.get(scope)) is not None:
            running.cancel()
            await asyncio.wait([running])

    def _end_sync(self, scope: str, task: asyncio.Task[None]) -> None:
        if self._syncs.get(scope) is task:
            del self._syncs[scope]
            self._changed.discard(scope)
        if not task.cancelled() and (error := task.exception()) is not None:
            log.error("files.sync_failed", scope=scope, error=type(error).__name__)

    async def _sync(self, scope: str, searched: Mapping[str, SearchedFile]) -> None:
        """Read the files that the index lacks, one a step, the last changed first. Each step drops removed files.

        The units of a file are stored before the next file is read, so that a kill or a change of files loses none.
        """
        tried: set[str] = set()  # one whose bytes are lost would be read for ever
        while True:
            self._changed.discard(scope)
            there = {(row.kind, row.name, row.digest) for row in await self._files.files(scope, *_KINDS)}
            searched = {
                name: each
                for name, each in searched.items()
                if (each.row.kind, each.row.name, each.row.digest) in there
            }
            has_index = self._path(scope).is_file()
            if not searched and not has_index:  # the scope itself may be gone: nothing comes into being in its place
                break
            marks = await self._engine.marks(self._index(scope, {}))
            unread = [name for name in self._find_unread(searched, marks) if name not in tried]
            name = unread[0] if unread and has_index else ""  # an empty index comes first
            await self._engine.sync(self._index(scope, searched, read=name), is_partial=bool(unread))
            tried.add(name)
            # No step to another task between this look and the removal: who comes later does it itself.
            if not unread and scope not in self._changed:
                break
        if self._syncs.get(scope) is asyncio.current_task():
            del self._syncs[scope]


class FileSource:
    """Implements `UnitSources` over files of a scope, by the names of their sources."""

    def __init__(
        self,
        files: SqlFiles,
        reader: SandboxedReader,
        scope: str,
        searched: Mapping[str, SearchedFile],
        failed: MutableMapping[str, bool],
        *,
        readable: str,
        epoch: str,
    ) -> None:
        """Add sources that cannot be read to *failed*; they are read again once they are not in it.

        Of those that the index lacks only *readable* is read. With a new *epoch*, deleted units leave the index's free
        pages.
        """
        self._files = files
        self._reader = reader
        self._scope = scope
        self._searched = searched
        self._failed = failed
        self._readable = readable
        self._epoch = epoch

    async def marks(self) -> Mapping[UnitSource, str]:
        """Return the files, whose mark is the same for ever once they were read."""
        marks = {each.source: "" if name in self._failed else _MARK for name, each in self._searched.items()}
        return {**marks, ERASURES: self._epoch} if self._epoch else marks

    async def read(self, source: UnitSource, since: str) -> SourceReading:  # noqa: ARG002 - a file is read whole
        """Return the passages of a file; of an unreadable one its name and the reason. Raises FileNotFoundError."""
        file = self._searched.get(source.name)
        is_readable = file is not None and source.name == self._readable
        data = await self._files.load(self._scope, file.row) if file is not None and is_readable else None
        if file is None or data is None:
            raise FileNotFoundError(source.name)
        kind = detect_kind(data, kind=file.kind, name=file.name, media_type=file.media_type)
        mark = _MARK
        try:
            text = await self._reader.read_text(data, kind, FILE_CHARS)
        except FileUnavailable as error:
            text = ExtractedText(f"({file.name} cannot be read: {error})")
            self._failed[source.name], mark = True, ""
        # As for `file_read`: plain text in the workspace is the bot's own, until a row says otherwise.
        is_own = kind == "text" and file.row.kind is FileKind.WORKSPACE
        units = await asyncio.to_thread(cut_file, file, text, origin="" if is_own else UNTRUSTED)
        return SourceReading(units=units, mark=mark)


def cut_file(file: SearchedFile, text: ExtractedText, *, origin: str) -> list[SearchUnit]:
    """Return the text of a file in passages, at most `FILE_UNITS`. Blocks.

    `line` and `end` are the pages of `file_read` that a passage is on; `about` begins with a line that names its place.
    """
    ends = list(accumulate(len(page) for page in split_pages(text.text)))
    is_table = file.name.lower().endswith(_TABLES)
    units: list[SearchUnit] = []
    for start, place, part in _parts(text):
        names = [file.name]
        if is_table or place.startswith("sheet "):
            rows = part.partition("\n\n")[2] if place else part  # below the heading of a sheet
            names.append(rows.partition("\n")[0][:_COLUMNS])
        at = 0
        for unit in _merge_short(chunk_markdown(part, file.row.at)):
            if len(units) == FILE_UNITS:
                return units
            found = part.find(unit.text.partition("\n")[0][:_LOOKED_FOR], at)
            at = max(found, at)
            first, last = (bisect_right(ends[:-1], start + at + n) + 1 for n in (0, len(unit.text) - 1))
            about = "\n".join([place, " / ".join(each for each in (*names, unit.about) if each)])
            units.append(replace(unit, line=first, end=last, about=about, group=place, origin=origin))
    return units


def _parts(text: ExtractedText) -> Iterator[tuple[int, str, str]]:
    """Yield where each part of a text begins, its place as ``page 12``, and the part."""
    starts = [(each.start, f"{each.kind} {each.name}") for each in text.places]
    if not starts or starts[0][0]:
        starts.insert(0, (0, ""))
    for n, (start, place) in enumerate(starts):
        end = starts[n + 1][0] if n + 1 < len(starts) else len(text.text)
        yield start, place, text.text[start:end]


def _merge_short(units: Iterable[SearchUnit]) -> Iterator[SearchUnit]:
    """Join neighbours below the same headings, as long as they are short."""
    last: SearchUnit | None = None
    for unit in units:
        if last is not None and last.about == unit.about and len(last.text) + len(unit.text) < _UNIT_CHARS:
            last = replace(last, text=f"{last.text}\n{unit.text}")
            continue
        if last is not None:
            yield last
        last = unit
    if last is not None:
        yield last


def _hit(file: SearchedFile, passage: IndexedPassage) -> FileHit:
    kind, _, name = passage.about.partition("\n")[0].partition(" ")
    return FileHit(
        name=file.name,
        text=passage.text,
        place=DocumentPlace(0, kind, name) if kind else None,
        page=passage.line,
        last_page=passage.end,
        is_untrusted=file.row.is_untrusted or bool(passage.origin),
    )
