"""A conversation as units: one a message. Read once; from then on only what is new, however long it is."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from agent.attachments.file_facts import facts_in
from agent.memory.messages.taint import origin_of_words
from agent.memory.search.chunking import chunk_message, group_by_silence
from agent.memory.search.search_unit import SearchUnit, SourceReading
from agent.memory.storage.disk import Disk
from agent.memory.storage.segments import SegmentChain
from agent.memory.storage.transcript_lines import FORGOTTEN, format_time, kind_of, parse_time
from agent.memory.storage.transcript_reader import parse_blocks
from gateway.ports import Line

_FULL_SEGMENT = re.compile(r"(?P<transcript>.+)\.\d{4}\.jsonl\Z")


@dataclass(slots=True)
class TranscriptFiles:
    """The files of one transcript: the newest, and the inodes of all (a file that was written anew has another)."""

    id: str
    path: Path | None = None
    size: int = 0
    files: set[int] = field(default_factory=set)

    @property
    def looks(self) -> str:
        """What changes whenever something is written."""
        return f"{self.size}:{','.join(map(str, sorted(self.files)))}"


class TranscriptSource:
    """The transcripts of a folder `sessions/`. Blocks."""

    def __init__(self, folder: Path, disk: Disk) -> None:
        self._folder = folder
        self._disk = disk
        self._heads: dict[int, str] = {}  # inode -> transcript: a file's head never changes

    def all(self) -> list[TranscriptFiles]:
        """Return them as they are now; costs one listing, and a head for each file not seen before."""
        found: dict[str, TranscriptFiles] = {}
        for entry in self._entries():
            full = _FULL_SEGMENT.match(entry.name)
            name = full["transcript"] if full else self._head(entry)
            if not name:
                continue
            each = found.setdefault(name, TranscriptFiles(name))
            each.files.add(entry.inode())
            if not full:
                each.path, each.size = Path(entry.path), entry.stat().st_size
        return [each for each in found.values() if each.path is not None]

    def read(self, transcript: TranscriptFiles, since: str) -> SourceReading:
        """Return what came since the mark *since*, or everything where files were written anew. Costs what is new.

        Raises FileNotFoundError.
        """
        if transcript.path is None:
            raise FileNotFoundError(transcript.id)
        chain = SegmentChain(self._disk, transcript.path)
        if chain.transcript != transcript.id:  # it was renamed under our hands; the next look finds it
            raise FileNotFoundError(transcript.id)
        known = _known(since)
        is_more = known.end > 0 and known.end <= chain.end and set(known.files) <= transcript.files
        known = known if is_more else _ReadPosition()
        parsed = parse_blocks(chain.read(known.end, chain.end), known.end)
        units, sitting, last = _units((line for block in parsed.blocks for line in block.lines), known)
        state = {"end": parsed.complete, "files": sorted(transcript.files), "sitting": sitting, "last": last}
        mark = f"{transcript.looks}#{json.dumps(state, separators=(',', ':'))}"
        return SourceReading(units=units, mark=mark, is_more=is_more)

    def _entries(self) -> Sequence[os.DirEntry[str]]:
        try:
            with os.scandir(self._folder) as entries:
                return sorted((each for each in entries if each.name.endswith(".jsonl")), key=lambda each: each.name)
        except FileNotFoundError:
            return ()

    def _head(self, entry: os.DirEntry[str]) -> str:
        inode = entry.inode()
        if inode not in self._heads:
            transcript = SegmentChain(self._disk, Path(entry.path)).transcript
            if not transcript:
                return ""
            self._heads[inode] = transcript
        return self._heads[inode]


@dataclass(frozen=True, slots=True)
class _ReadPosition:
    """How far a transcript was read, as its mark says."""

    end: int = 0  # bytes
    files: tuple[int, ...] = ()
    sitting: str = ""
    last: str = ""  # when the last message was said


def _known(mark: str) -> _ReadPosition:
    try:
        found = json.loads(mark.partition("#")[2] or "{}")
        return _ReadPosition(int(found["end"]), tuple(found["files"]), str(found["sitting"]), str(found["last"]))
    except (ValueError, KeyError, TypeError):
        return _ReadPosition()


def _units(lines: Iterable[Line], known: _ReadPosition) -> tuple[list[SearchUnit], str, str]:
    """Return messages as units, the sitting they end in, and when; it goes on where the last reading ended."""
    units: list[SearchUnit] = []
    for line, text in _said(lines):
        by = line.get("by")
        who = str(by.get("name", "")) if isinstance(by, dict) and line["role"] == "user" else ""
        at = parse_time(line.get("timestamp"))
        origin = origin_of_words(line)
        units += chunk_message(text, line=line["i"] + 1, at=at, who=who, role=line["role"], origin=origin)
    last = SearchUnit(text="", line=0, at=parse_time(known.last), group=known.sitting) if known.sitting else None
    units = group_by_silence(units, last=last)
    times = [unit.at for unit in units if unit.at]
    return units, units[-1].group if units else known.sitting, format_time(times[-1]) if times else known.last


def _said(lines: Iterable[Line]) -> Iterator[tuple[Line, str]]:
    """Yield the messages of people and the answers, with what was said in them."""
    for line in lines:
        if kind_of(line) != "message" or line.get("role") not in ("user", "assistant"):
            continue
        text = said_in(line).strip()
        if text and text != FORGOTTEN:
            yield line, text


def said_in(line: Line) -> str:
    """Return what was said in a line: typed, and spoken in voice messages; nothing that others said or wrote."""
    content = line.get("content")
    typed = content if isinstance(content, str) else ""
    spoken = [str(fact["said"]) for fact in facts_in(line) if fact.get("said") and not fact.get("origin")]
    return "\n".join([typed, *spoken]) if spoken else typed
