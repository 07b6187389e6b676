"""Read the search units of a scope: documents, notes, history and transcripts; read the lines around a hit."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING
from zoneinfo import ZoneInfo

from agent.attachments.file_facts import UNTRUSTED
from agent.memory.history.history_files import NOTE_NAME
from agent.memory.history.line_keys import ARCHIVE_SUFFIX, keys_of_all_lines, line_fingerprint
from agent.memory.messages.taint import origin_of_words
from agent.memory.search.search_hits import SearchHit
from agent.memory.search.search_unit import ERASURES, SearchUnit, SourceReading, UnitSource, chunk_markdown
from agent.memory.search.sources.transcript_source import TranscriptSource, text_of
from agent.memory.storage.disk import Disk
from agent.memory.storage.transcript_lines import FORGOTTEN, parse_time
from gateway.ports.journal import Line
from gateway.ports.memory import HistoryEntry, HistoryStore, ScopeHead

if TYPE_CHECKING:
    from gateway.store.documents import SqlDocuments


SESSIONS = "sessions/"
HISTORY = "memory/history.jsonl"
_PAPERS = {"USER.md": "USER.md", "memory/MEMORY.md": "MEMORY.md"}  # the documents that are searched
_MEMORY = "memory/"  # before the name of a note
_REACH = 5  # messages, or lines, on each side
_LONGEST = 2_000  # characters of one, except of the line that was asked for
_DATED = re.compile(r"\d{4}-\d{2}-\d{2}")

Cut = Callable[[str, datetime | None], Sequence[SearchUnit]]


class ScopeSource:
    """Implements `UnitSources` over a scope's turns, documents, history, and its folder, which is read in threads."""

    def __init__(
        self,
        folder: Path,
        scope: str,
        history: HistoryStore,
        *,
        zone: Callable[[], str],
        cut: Cut = chunk_markdown,
        transcripts: TranscriptSource | None = None,
        documents: SqlDocuments | None = None,
        disk: Disk | None = None,
    ) -> None:
        """*zone* is the scope's time zone, which history entries use.

        The seed profile has no *transcripts*, and its documents are files.
        """
        self._folder = folder
        self._scope = scope
        self._documents = documents
        self._history = history
        self._zone = zone
        self._cut = cut
        self._disk = disk or Disk()
        self._transcripts = transcripts

    @property
    def zone(self) -> ZoneInfo:
        """The scope's time zone."""
        return ZoneInfo(self._zone())

    async def marks(self) -> Mapping[UnitSource, str]:
        """Return every source with a mark that changes with its content."""
        turns = await self._transcripts.marks() if self._transcripts is not None else {}
        marks = {UnitSource(name=f"{SESSIONS}{transcript}"): mark for transcript, mark in turns.items()}
        head = (await self._documents.heads([self._scope]))[self._scope] if self._documents else ScopeHead()
        marks |= {UnitSource(name=path): head.revs[name] for path, name in _PAPERS.items() if name in head.revs}
        if head.epoch:
            marks[ERASURES] = head.epoch
        marks |= await asyncio.to_thread(self._file_marks)
        revs = await self._history.revs(self._scope)
        marks |= {UnitSource(name=f"{_MEMORY}{name}"): rev for name, rev in revs.notes.items()}
        if revs.entries:
            marks[UnitSource(name=HISTORY)] = revs.entries
        keys = revs.entries + revs.keys
        return {each: f"{mark}+{keys}" if _has_keys(each.name) else mark for each, mark in marks.items()}

    def _file_marks(self) -> dict[UnitSource, str]:
        marks: dict[UnitSource, str] = {}
        papers = () if self._documents is not None else _PAPERS
        # And what a person has put beside the notes.
        others = [path.name for path in (self._folder / "memory").glob("[0-9]*.md") if not NOTE_NAME.match(path.name)]
        for name in (*papers, *(f"{_MEMORY}{each}" for each in others)):
            with suppress(FileNotFoundError):
                marks[UnitSource(name=name)] = mark_of(self._folder / name)
        return marks

    async def read(self, source: UnitSource, since: str) -> SourceReading:
        """Return the units of *source*, or the new ones of a conversation. Raises FileNotFoundError."""
        if self._transcripts is not None and source.name.startswith(SESSIONS):
            return await self._transcripts.read(source.name.removeprefix(SESSIONS), since)
        marks = await self.marks()  # before reading, so that a concurrent write changes the next mark
        if source not in marks:
            raise FileNotFoundError(source.name)
        if source == ERASURES:
            return SourceReading(units=(), mark=marks[source])
        if source.name == HISTORY:
            entries = await self._history.after(self._scope)
            units: Sequence[SearchUnit] = await asyncio.to_thread(self._cut_entries, entries)
        else:
            units = await asyncio.to_thread(self._cut, await self.text(source), day_of(source.name.rpartition("/")[2]))
        if _has_keys(source.name):
            units = _with_keys(units, await keys_of_all_lines(self._history, self._scope))
        return SourceReading(units=units, mark=marks[source])

    async def messages(self, source: UnitSource, low: int, high: int) -> Sequence[Line]:
        """Return the messages of a conversation with ``low <= i < high``."""
        if self._transcripts is None:
            return ()
        return await self._transcripts.messages(source.name.removeprefix(SESSIONS), low, high)

    async def text(self, source: UnitSource) -> str:
        """Return the text of a document or a note."""
        name = source.name.removeprefix(_MEMORY)
        if self._documents is not None and source.name in _PAPERS:
            return (await self._documents.read(self._scope, _PAPERS[source.name])).text
        if source.name in _PAPERS or not NOTE_NAME.match(name):
            data = await asyncio.to_thread(self._disk.load, self._folder / source.name)
        else:
            data = await self._history.note(self._scope, name)
        return (data or b"").decode("utf-8", "replace")

    async def entry(self, line: int) -> Sequence[HistoryEntry]:
        """Return the history entry in *line*, or nothing."""
        return (await self._history.after(self._scope))[line - 1 : line]

    def _cut_entries(self, entries: Sequence[HistoryEntry]) -> list[SearchUnit]:
        zone = self.zone
        return [
            unit
            for n, entry in enumerate(entries, start=1)
            for unit in (_of(entry, n, each) for each in self._cut(entry.content, _local(entry.timestamp, zone)))
        ]


def _with_keys(units: Sequence[SearchUnit], keys: Mapping[str, str]) -> Sequence[SearchUnit]:
    """Return *units* with the keys of their lines, which are searched like headings, but not shown."""
    found = ([keys.get(line_fingerprint(line), "") for line in unit.text.splitlines()] for unit in units)
    return [
        replace(unit, about=" / ".join(part for part in (unit.about, *texts) if part))
        for unit, texts in zip(units, found, strict=True)
    ]


def mark_of(path: Path) -> str:
    """Return a mark that changes with the content of a file. Raises FileNotFoundError."""
    stat = path.stat()
    return f"{stat.st_size}:{stat.st_mtime_ns}:{stat.st_ino}"


def _has_keys(name: str) -> bool:
    return name == "memory/MEMORY.md" or name.endswith(ARCHIVE_SUFFIX)


def _of(entry: HistoryEntry, line: int, unit: SearchUnit) -> SearchUnit:
    """Return a unit of an entry's text with the entry's line and origin."""
    return SearchUnit(text=unit.text, line=line, at=unit.at, about=unit.about, origin=origin_of(entry), group=str(line))


def origin_of(entry: HistoryEntry) -> str:
    """Return "untrusted" for an entry with third-party content, "" for any other."""
    return UNTRUSTED if entry.origin == UNTRUSTED else ""


def day_of(name: str) -> datetime | None:
    """Return noon of the date that a file name begins with; None without a valid date."""
    dated = _DATED.match(name)
    try:
        return datetime.fromisoformat(f"{dated[0]}T12:00:00+00:00") if dated else None
    except ValueError:
        return None


def _local(text: str, zone: ZoneInfo) -> datetime | None:
    try:
        return datetime.strptime(text, "%Y-%m-%d %H:%M").replace(tzinfo=zone).astimezone(UTC)
    except ValueError:
        return None


# -- reading around a hit ---------------------------------------------------------------------------


async def read_surroundings(sources: ScopeSource, name: str, line: int) -> Sequence[SearchHit]:
    """Return the lines around *line* of the source *name*; nothing if the source or line does not exist."""
    source = UnitSource(name=name)
    if line < 1 or source not in await sources.marks():
        return ()
    if name == HISTORY:
        entries = await sources.entry(line)
        return [SearchHit(source=name, line=line, text=each.content, origin=origin_of(each)) for each in entries]
    if name.startswith(SESSIONS):
        return await _messages_around(sources, source, line)
    return lines_around(name, await sources.text(source), line)


def lines_around(name: str, text: str, line: int) -> Sequence[SearchHit]:
    """Return the lines of a text around *line*; nothing if it has no such line."""
    lines = text.splitlines()
    if not 1 <= line <= len(lines):
        return ()
    low, high = max(line - 1 - _REACH, 0), min(line + _REACH, len(lines))
    return [SearchHit(source=name, line=n + 1, text=_shortened(lines[n], n + 1, line)) for n in range(low, high)]


def _shortened(text: str, line: int, target: int) -> str:
    """Return *text* with a note of what was cut from it; the line that was asked for is whole."""
    if line == target or len(text) <= _LONGEST:
        return text
    return f"{text[:_LONGEST]}… (cut: {len(text) - _LONGEST} more characters; read line {line} for all)"


async def _messages_around(sources: ScopeSource, source: UnitSource, line: int) -> Sequence[SearchHit]:
    messages = await sources.messages(source, max(line - 1 - _REACH, 0), line + _REACH)
    if not any(each["i"] == line - 1 for each in messages):
        return ()
    texts = [(each, text_of(each).strip()) for each in messages if each.get("role") in ("user", "assistant")]
    zone = sources.zone
    return [_to_hit(source.name, each, text, line, zone) for each, text in texts if text and text != FORGOTTEN]


def _to_hit(name: str, line: Mapping[str, object], text: str, target: int, zone: ZoneInfo) -> SearchHit:
    by, number, at = line.get("by"), int(str(line["i"])) + 1, parse_time(line.get("timestamp"))
    return SearchHit(
        source=name,
        line=number,
        text=_shortened(text, number, target),
        at=at.astimezone(zone) if at else None,
        who=str(by.get("name", "")) if isinstance(by, dict) and line.get("role") == "user" else "",
        role=str(line.get("role", "")),
        origin=origin_of_words(line),
    )
