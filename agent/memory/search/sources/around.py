"""Reading on from a hit: what stands around a place, from the files themselves. Blocks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from agent.memory.files.lines import FORGOTTEN, read_stamp
from agent.memory.files.passages import read_passage
from agent.memory.prompt.taint import origin_of_words
from agent.memory.search.sources.scope import HISTORY, SESSIONS, ScopeSources, origin_of
from agent.memory.search.sources.transcripts import said_in
from agent.memory.search.unit import Source
from gateway.ports import Hit

_REACH = 5  # messages, or lines, on each side
_LONGEST = 2_000  # characters of one


def place(sources: ScopeSources, name: str, line: int) -> Sequence[Hit]:
    """Return what stands around *line* of the source *name*; nothing for what is no place of these sources."""
    source = Source(name=name)
    if line < 1 or source not in sources.marks():
        return ()
    if name == HISTORY:
        return [Hit(source=name, line=line, text=each.content, origin=origin_of(each)) for each in sources.entry(line)]
    if name.startswith(SESSIONS):
        return _said_around(sources, source, line)
    return lines_around(name, sources.text(source), line)


def lines_around(name: str, text: str, line: int) -> Sequence[Hit]:
    """Return the lines of a text around one of them; nothing where it has no such line."""
    lines = text.splitlines()
    if not 1 <= line <= len(lines):
        return ()
    low, high = max(line - 1 - _REACH, 0), min(line + _REACH, len(lines))
    return [Hit(source=name, line=n + 1, text=lines[n][:_LONGEST]) for n in range(low, high)]


def _said_around(sources: ScopeSources, source: Source, line: int) -> Sequence[Hit]:
    low, high = max(line - 1 - _REACH, 0), line + _REACH
    transcript = source.name.removeprefix(SESSIONS)
    found = read_passage(sources.disk, sources.path_of(source), transcript, low, high)
    if not any(each["i"] == line - 1 for each in found):
        return ()
    said = [(each, said_in(each).strip()) for each in found if each.get("role") in ("user", "assistant")]
    return [_said(source.name, each, text) for each, text in said if text and text != FORGOTTEN]


def _said(name: str, line: Mapping[str, object], text: str) -> Hit:
    by = line.get("by")
    return Hit(
        source=name,
        line=int(str(line["i"])) + 1,
        text=text[:_LONGEST],
        at=read_stamp(line.get("timestamp")),
        who=str(by.get("name", "")) if isinstance(by, dict) and line.get("role") == "user" else "",
        role=str(line.get("role", "")),
        origin=origin_of_words(line),
    )
