"""A conversation as units: one a message. Read once; from then on only what is new, however long it is."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from datetime import datetime, timedelta
from pathlib import Path

from agent.attachments.facts import facts_in
from agent.memory.files.blocks import parse
from agent.memory.files.chain import Chain
from agent.memory.files.disk import Disk
from agent.memory.files.lines import FORGOTTEN, kind_of, read_stamp, stamp
from agent.memory.search.unit import Unit, pieces
from gateway.ports import Line

SITTING = timedelta(hours=4)  # a longer silence begins another sitting: what was said before it is no context
_FULL_SEGMENT = re.compile(r"\.\d{4}\.jsonl\Z")


@dataclass(frozen=True, slots=True)
class Fresh:
    """What a source has that the index has not."""

    units: tuple[Unit, ...]
    mark: str  # what was read by now, for the next time
    is_whole: bool  # the units replace what stands there; else they come behind it


@dataclass(frozen=True, slots=True)
class _Read:
    """How far a transcript was read, as its mark says."""

    end: int = 0  # bytes
    files: tuple[int, ...] = ()  # inodes: a file that was written anew has another
    sitting: str = ""
    last: str = ""  # when the last message was said


def transcript_files(disk: Disk, sessions: Path) -> Iterator[tuple[str, Path]]:
    """Yield each transcript of a folder: its id, and the newest of its files."""
    for path in sorted(sessions.glob("*.jsonl")):
        if not _FULL_SEGMENT.search(path.name) and (transcript := Chain(disk, path).transcript):
            yield transcript, path


def transcript_units(disk: Disk, path: Path, mark: str) -> Fresh | None:
    """Return what came to the transcript at *path* since *mark*; None when nothing did. Costs what is new. Blocks.

    When a file was written anew (somebody took words back), the whole of it is read again.
    """
    chain = Chain(disk, path)
    known = _known(mark)
    files = _inodes(path, chain.transcript)
    is_whole = not mark or known.end > chain.end or not set(known.files) <= set(files)
    known = _Read() if is_whole else known
    if chain.end == known.end and not is_whole:
        return None
    parsed = parse(chain.read(known.end, chain.end), known.end)
    units, read = _sittings(_said(line for block in parsed.blocks for line in block.lines), known)
    if parsed.complete == known.end and not is_whole:
        return None
    read = replace(read, end=parsed.complete, files=tuple(files))
    return Fresh(tuple(units), json.dumps(asdict(read), separators=(",", ":")), is_whole)


def _known(mark: str) -> _Read:
    try:
        found = json.loads(mark or "{}")
        return _Read(int(found["end"]), tuple(found["files"]), str(found["sitting"]), str(found["last"]))
    except (ValueError, KeyError, TypeError):
        return _Read()


def _inodes(path: Path, transcript: str) -> list[int]:
    found = []
    for each in [path, *path.parent.glob(f"{transcript}.*.jsonl")]:
        try:
            found.append(each.stat().st_ino)
        except FileNotFoundError:  # it is renamed under our hands; the next look sees it
            continue
    return sorted(set(found))


def _said(lines: Iterable[Line]) -> Iterator[tuple[Line, str]]:
    """Yield the messages of people and the answers, with what was said in them."""
    for line in lines:
        if kind_of(line) != "message" or line.get("role") not in ("user", "assistant"):
            continue
        text = said_in(line)
        if text.strip() and text != FORGOTTEN:
            yield line, text.strip()


def said_in(line: Line) -> str:
    """Return what was said in a line: typed, and spoken in voice messages; nothing that others said or wrote."""
    content = line.get("content")
    typed = content if isinstance(content, str) else ""
    spoken = [str(fact["said"]) for fact in facts_in(line) if fact.get("said") and not fact.get("origin")]
    return "\n".join([typed, *spoken]) if spoken else typed


def _sittings(said: Iterable[tuple[Line, str]], known: _Read) -> tuple[Sequence[Unit], _Read]:
    units: list[Unit] = []
    sitting, last = known.sitting, read_stamp(known.last)
    for line, text in said:
        at = read_stamp(line.get("timestamp"))
        if not sitting or (at and last and at - last > SITTING):
            sitting = f"{line['i']}"
        last = at or last
        units += _units(line, text, at, sitting)
    return units, _Read(known.end, known.files, sitting, stamp(last) if last else "")


def _units(line: Line, text: str, at: datetime | None, sitting: str) -> Iterator[Unit]:
    by = line.get("by")
    who = str(by.get("name", "")) if isinstance(by, dict) and line["role"] == "user" else ""
    for piece in pieces(text):
        yield Unit(text=piece, line=line["i"] + 1, at=at, who=who, role=line["role"], group=sitting)
