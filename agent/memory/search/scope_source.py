"""Read the search units of a scope: documents, notes, history, transcripts, project documents. Read around a hit."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import quote, unquote
from zoneinfo import ZoneInfo

import structlog

from agent.base.disk import Disk
from agent.base.file_facts import UNTRUSTED, facts_in
from agent.base.transcript_lines import FORGOTTEN, decode_lines, format_time, kind_of, parse_time
from agent.memory.history.history_files import ARCHIVE_SUFFIX, NOTE_NAME, keys_of_all_lines
from agent.memory.search.search_unit import (
    ERASURES,
    SearchHit,
    SearchUnit,
    SourceReading,
    UnitSource,
    chunk_markdown,
    chunk_message,
    group_by_silence,
)
from agent.memory.storage.messages import messages_between, origin_of_words
from agent.memory.storage.scope_documents import line_fingerprint
from gateway.errors import FileUnavailable
from gateway.events import SessionKey
from gateway.ports.journal import Line
from gateway.ports.memory import HistoryEntry, HistoryStore, ScopeHead, StoredTurn, TranscriptHead

if TYPE_CHECKING:
    from gateway.store.documents import SqlDocuments
    from gateway.store.transcripts import SqlTranscripts

_MARK = re.compile(r"(\d+):(-?\d+):([^#]+)#(\S*) (\S*)")
log = structlog.get_logger(__name__)

_PLAIN = frozenset({".md", ".markdown", ".txt", ".rst", ".org", ".csv"})
_READ = frozenset({".pdf", ".docx", ".html", ".htm"})
_LARGEST = 20_000_000  # bytes
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


# -- transcripts -----------------------------------------------------------------------------------


class TranscriptSource:
    """The transcripts of a scope."""

    def __init__(self, scope: str, turns: SqlTranscripts) -> None:
        self._scope = scope
        self._turns = turns
        self._heads: dict[str, TranscriptHead] = {}  # by the id of the transcript
        self._seen: dict[SessionKey, int] = {}  # the last turn of each session
        self._changes: Mapping[tuple[SessionKey, str], int] = {}

    async def marks(self) -> Mapping[str, str]:
        """Return a mark of each transcript that changes with its turns; costs what is new."""
        changes = await self._turns.changes(self._scope)  # before the turns: a change while they are read comes again
        differ = {each for each in {*changes, *self._changes} if changes.get(each) != self._changes.get(each)}
        read_again = {key for key, _ in differ}
        seen = {key: seq for key, seq in self._seen.items() if key not in read_again}
        firsts = await self._turns.sessions(self._scope)
        heads = {
            name: head
            for name, head in self._heads.items()
            # The count of changes goes with the last turn of a session.
            if head.key not in read_again and head.seq >= firsts.get(head.key, head.seq + 1)
        }
        for head in await self._turns.heads(self._scope, seen):
            heads[head.transcript] = head
        for head in heads.values():
            seen[head.key] = max(head.seq, seen.get(head.key, head.seq))
        self._heads, self._seen, self._changes = heads, seen, changes  # at once: another call may be under way
        return {
            name: _ReadPosition(self._count(head), head.seq, head.turn).mark.partition("#")[0]
            for name, head in heads.items()
        }

    async def read(self, transcript: str, since: str) -> SourceReading:
        """Return the messages since the mark *since*; all of them if turns were changed or removed.

        Raises FileNotFoundError without such a transcript, as of the last `marks`.
        """
        head, position = self._head(transcript), _ReadPosition.parse(since)
        is_more = position.turn != "" and await self._is_before(position, head)
        if not is_more:
            position = _ReadPosition(changes=self._count(head))
        units: list[SearchUnit] = []
        while page := await self._turns.since(self._scope, head.key, transcript, position.seq):
            new, position = await asyncio.to_thread(_read_page, page, position)
            units += new
        return SourceReading(units=units, mark=position.mark, is_more=is_more)

    async def messages(self, transcript: str, low: int, high: int) -> Sequence[Line]:
        """Return the messages with ``low <= i < high``. Raises FileNotFoundError as `read`."""
        turns = await self._turns.messages(self._scope, self._head(transcript).key, transcript, low, high)
        return await asyncio.to_thread(messages_between, turns, low, high)

    def _head(self, transcript: str) -> TranscriptHead:
        """Return the last turn as of the last `marks`. Raises FileNotFoundError."""
        if transcript not in self._heads:
            raise FileNotFoundError(transcript)
        return self._heads[transcript]

    def _count(self, head: TranscriptHead) -> int:
        return self._changes.get((head.key, head.transcript), 0)

    async def _is_before(self, position: _ReadPosition, head: TranscriptHead) -> bool:
        """Return True if the turns up to *position* are in the store as they were read."""
        if position.changes != self._count(head):
            return False
        # Another store, such as one that was filled again, has other numbers.
        found = await self._turns.find(self._scope, head.key, position.turn)
        return found is not None and found.seq == position.seq


@dataclass(frozen=True, slots=True)
class _ReadPosition:
    """The turn up to which a transcript was read, as its mark has it."""

    changes: int
    seq: int = -(2**62)
    turn: str = ""
    group: str = ""
    last: str = ""  # time of the last message

    @property
    def mark(self) -> str:
        """The mark; behind `#` is what the next messages are grouped by."""
        return f"{self.changes}:{self.seq}:{quote(self.turn)}#{self.group} {self.last}"

    @classmethod
    def parse(cls, mark: str) -> _ReadPosition:
        """Return the position of a mark; one before every turn for none, and for that of an earlier release."""
        found = _MARK.fullmatch(mark)
        if found is None:
            return cls(changes=-1)
        changes, seq, turn, group, last = found.groups()
        return cls(int(changes), int(seq), unquote(turn), group, last)


def _read_page(turns: Sequence[StoredTurn], position: _ReadPosition) -> tuple[list[SearchUnit], _ReadPosition]:
    """Return the units of the messages of *turns*, and the position behind them."""
    units: list[SearchUnit] = []
    for line, text in _messages(line for turn in turns for line in decode_lines(turn.body)):
        by = line.get("by")
        who = str(by.get("name", "")) if isinstance(by, dict) and line["role"] == "user" else ""
        at = parse_time(line.get("timestamp"))
        origin = origin_of_words(line)
        units += chunk_message(text, line=line["i"] + 1, at=at, who=who, role=line["role"], origin=origin)
    last = SearchUnit(text="", line=0, at=parse_time(position.last), group=position.group) if position.group else None
    units = group_by_silence(units, last=last)
    times = [unit.at for unit in units if unit.at]
    return units, _ReadPosition(
        changes=position.changes,
        seq=turns[-1].seq,
        turn=turns[-1].turn,
        group=units[-1].group if units else position.group,
        last=format_time(times[-1]) if times else position.last,
    )


def _messages(lines: Iterable[Line]) -> Iterator[tuple[Line, str]]:
    """Yield the messages of users and the bot with their texts."""
    for line in lines:
        if kind_of(line) != "message" or line.get("role") not in ("user", "assistant"):
            continue
        text = text_of(line).strip()
        if text and text != FORGOTTEN:
            yield line, text


def text_of(line: Line) -> str:
    """Return the text of a message and the transcripts of its voice messages, without third-party content."""
    content = line.get("content")
    text = content if isinstance(content, str) else ""
    transcripts = [str(fact["said"]) for fact in facts_in(line) if fact.get("said") and not fact.get("origin")]
    return "\n".join([text, *transcripts]) if transcripts else text


# -- project documents -----------------------------------------------------------------------------


class DocumentSource:
    """Implements `UnitSources` over the folder of all projects; reads in threads, but for `text`."""

    def __init__(self, folder: Path, *, read: Callable[[Path], str], cut: Cut) -> None:
        """*read* returns the text of a PDF, DOCX or HTML file, or raises FileUnavailable."""
        self._folder = folder
        self._read = read
        self._cut = cut

    async def marks(self) -> Mapping[UnitSource, str]:
        """Return the marks of all documents except hidden files, links and files that are too large."""
        return await asyncio.to_thread(self._marks)

    async def read(self, source: UnitSource, since: str) -> SourceReading:  # noqa: ARG002 - a document that changed is read whole
        """Return the units of a document, none if it is unreadable. Raises FileNotFoundError."""
        return await asyncio.to_thread(self._read_units, source)

    def _marks(self) -> Mapping[UnitSource, str]:
        return {source: mark_of(path) for source, path in self._files() if path.stat().st_size <= _LARGEST}

    def _read_units(self, source: UnitSource) -> SourceReading:
        path = self._path(source)
        mark = mark_of(path)
        # The date in the file's name, else its last change.
        at = day_of(path.name) or datetime.fromtimestamp(path.stat().st_mtime, UTC)
        return SourceReading(units=tuple(self._cut(self._text(path), at)), mark=mark)

    def text(self, source: UnitSource) -> str:
        """Return the text of a document, "" if it is not a searchable one. Blocks."""
        return self._text(self._path(source)) if source in self._marks() else ""

    def _text(self, path: Path) -> str:
        if path.suffix.lower() in _PLAIN:
            return path.read_bytes().decode("utf-8", "replace")
        try:
            return self._read(path)
        except FileUnavailable as error:
            log.warning("documents.unreadable", kind=path.suffix.lower(), reason=str(error))
            return ""

    def _path(self, source: UnitSource) -> Path:
        return self._folder.parent / source.name

    def _files(self) -> Iterator[tuple[UnitSource, Path]]:
        if not self._folder.is_dir():
            return
        for project in sorted(self._folder.iterdir()):
            if project.name.startswith(".") or project.is_symlink() or not project.is_dir():
                continue
            for path in sorted(project.rglob("*")):
                inside = path.relative_to(self._folder)
                if any(part.startswith(".") for part in inside.parts) or path.is_symlink() or not path.is_file():
                    continue
                if path.suffix.lower() in _PLAIN | _READ:
                    yield UnitSource(name=f"docs/{inside.as_posix()}", project=project.name), path
