"""Read the messages of transcripts as search units; after the first time, only new ones are read."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from agent.attachments.file_facts import facts_in
from agent.memory.messages.taint import origin_of_words
from agent.memory.search.search_unit import SearchUnit, SourceReading, chunk_message, group_by_silence
from agent.memory.storage.disk import Disk
from agent.memory.storage.segments import SegmentChain
from agent.memory.storage.transcript_lines import FORGOTTEN, format_time, kind_of, parse_time
from agent.memory.storage.transcript_reader import parse_blocks
from gateway.ports import Line

_FULL_SEGMENT = re.compile(r"(?P<transcript>.+)\.\d{4}\.jsonl\Z")


@dataclass(slots=True)
class TranscriptFiles:
    """Files of one transcript: the newest, and the inodes of all, which change when a file is rewritten."""

    id: str
    path: Path | None = None
    size: int = 0
    files: set[int] = field(default_factory=set)

    @property
    def fingerprint(self) -> str:
        """A text that changes with every write."""
        return f"{self.size}:{','.join(map(str, sorted(self.files)))}"


class TranscriptSource:
    """Transcripts of a folder `sessions/`. Blocks."""

    def __init__(self, folder: Path, disk: Disk) -> None:
        self._folder = folder
        self._disk = disk
        self._heads: dict[str, _FileHead] = {}  # by the name of the file

    def all(self) -> list[TranscriptFiles]:
        """Return the current transcripts; costs one listing, and reading the head of each new file."""
        transcripts: dict[str, TranscriptFiles] = {}
        for entry in self._entries():
            full = _FULL_SEGMENT.match(entry.name)
            name = full["transcript"] if full else self._head(entry)
            if not name:
                continue
            each = transcripts.setdefault(name, TranscriptFiles(name))
            each.files.add(entry.inode())
            if not full:
                each.path, each.size = Path(entry.path), entry.stat().st_size
        return [each for each in transcripts.values() if each.path is not None]

    def read(self, transcript: TranscriptFiles, since: str) -> SourceReading:
        """Return the messages since the mark *since*, all if files were rewritten. Raises FileNotFoundError."""
        if transcript.path is None:
            raise FileNotFoundError(transcript.id)
        chain = SegmentChain(self._disk, transcript.path)
        if chain.transcript != transcript.id:  # renamed since the listing; the next `all` finds it
            raise FileNotFoundError(transcript.id)
        position = _parse_position(since)
        is_more = position.end > 0 and position.end <= chain.end and set(position.files) <= transcript.files
        position = position if is_more else _ReadPosition()
        parsed = parse_blocks(chain.read(position.end, chain.end), position.end)
        units, group, last = _units((line for block in parsed.blocks for line in block.lines), position)
        state = {"end": parsed.complete, "files": sorted(transcript.files), "sitting": group, "last": last}
        mark = f"{transcript.fingerprint}#{json.dumps(state, separators=(',', ':'))}"
        return SourceReading(units=units, mark=mark, is_more=is_more)

    def _entries(self) -> Sequence[os.DirEntry[str]]:
        try:
            with os.scandir(self._folder) as entries:
                return sorted((each for each in entries if each.name.endswith(".jsonl")), key=lambda each: each.name)
        except FileNotFoundError:
            return ()

    def _head(self, entry: os.DirEntry[str]) -> str:
        stat = entry.stat()
        known = self._heads.get(entry.name)
        # A file that was rewritten may have the inode of another one that was: the time of its change tells.
        if known is None or (known.inode, known.changed) != (stat.st_ino, stat.st_mtime_ns):
            transcript = SegmentChain(self._disk, Path(entry.path)).transcript
            known = self._heads[entry.name] = _FileHead(stat.st_ino, stat.st_mtime_ns, transcript)
        return known.transcript


@dataclass(frozen=True, slots=True)
class _FileHead:
    """The transcript that a file named when it was last changed."""

    inode: int
    changed: int  # nanoseconds
    transcript: str


@dataclass(frozen=True, slots=True)
class _ReadPosition:
    """Position up to which a transcript was read, stored in its mark."""

    end: int = 0  # bytes
    files: tuple[int, ...] = ()
    group: str = ""
    last: str = ""  # time of the last message


def _parse_position(mark: str) -> _ReadPosition:
    try:
        state = json.loads(mark.partition("#")[2] or "{}")
        return _ReadPosition(int(state["end"]), tuple(state["files"]), str(state["sitting"]), str(state["last"]))
    except (ValueError, KeyError, TypeError):
        return _ReadPosition()


def _units(lines: Iterable[Line], position: _ReadPosition) -> tuple[list[SearchUnit], str, str]:
    """Return the units of the messages after *position*, and the group and time of the last message."""
    units: list[SearchUnit] = []
    for line, text in _messages(lines):
        by = line.get("by")
        who = str(by.get("name", "")) if isinstance(by, dict) and line["role"] == "user" else ""
        at = parse_time(line.get("timestamp"))
        origin = origin_of_words(line)
        units += chunk_message(text, line=line["i"] + 1, at=at, who=who, role=line["role"], origin=origin)
    last = SearchUnit(text="", line=0, at=parse_time(position.last), group=position.group) if position.group else None
    units = group_by_silence(units, last=last)
    times = [unit.at for unit in units if unit.at]
    return units, units[-1].group if units else position.group, format_time(times[-1]) if times else position.last


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
