"""Reading on from a hit: what stands around a place, from the files themselves. Blocks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from agent.memory.messages.taint import origin_of_words
from agent.memory.search.search_unit import UnitSource
from agent.memory.search.sources.scope_source import HISTORY, SESSIONS, ScopeSource, origin_of
from agent.memory.search.sources.transcript_source import said_in
from agent.memory.storage.transcript_lines import FORGOTTEN, parse_time
from agent.memory.storage.transcript_reader import read_messages
from gateway.ports import SearchHit

_REACH = 5  # messages, or lines, on each side
_LONGEST = 2_000  # characters of one


def read_surroundings(sources: ScopeSource, name: str, line: int) -> Sequence[SearchHit]:
    """Return what stands around *line* of the source *name*; nothing for what is no place of these sources."""
    source = UnitSource(name=name)
    if line < 1 or source not in sources.marks():
        return ()
    if name == HISTORY:
        return [
            SearchHit(source=name, line=line, text=each.content, origin=origin_of(each)) for each in sources.entry(line)
        ]
    if name.startswith(SESSIONS):
        return _said_around(sources, source, line)
    return lines_around(name, sources.text(source), line)


def lines_around(name: str, text: str, line: int) -> Sequence[SearchHit]:
    """Return the lines of a text around one of them; nothing where it has no such line."""
    lines = text.splitlines()
    if not 1 <= line <= len(lines):
        return ()
    low, high = max(line - 1 - _REACH, 0), min(line + _REACH, len(lines))
    return [SearchHit(source=name, line=n + 1, text=lines[n][:_LONGEST]) for n in range(low, high)]


def _said_around(sources: ScopeSource, source: UnitSource, line: int) -> Sequence[SearchHit]:
    low, high = max(line - 1 - _REACH, 0), line + _REACH
    transcript = source.name.removeprefix(SESSIONS)
    found = read_messages(sources.disk, sources.path_of(source), transcript, low, high)
    if not any(each["i"] == line - 1 for each in found):
        return ()
    said = [(each, said_in(each).strip()) for each in found if each.get("role") in ("user", "assistant")]
    return [_said(source.name, each, text) for each, text in said if text and text != FORGOTTEN]


def _said(name: str, line: Mapping[str, object], text: str) -> SearchHit:
    by = line.get("by")
    return SearchHit(
        source=name,
        line=int(str(line["i"])) + 1,
        text=text[:_LONGEST],
        at=parse_time(line.get("timestamp")),
        who=str(by.get("name", "")) if isinstance(by, dict) and line.get("role") == "user" else "",
        role=str(line.get("role", "")),
        origin=origin_of_words(line),
    )
