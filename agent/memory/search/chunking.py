"""Split texts into search units: Markdown by bullet and paragraph, conversations by message, or fixed-size chunks."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from datetime import datetime, timedelta

import regex

from agent.memory.search.search_unit import SearchUnit, split_text

SITTING = timedelta(hours=6)  # a longer silence separates groups: earlier messages are not context of later ones
_HEADING = regex.compile(r"(#{1,6})\s+(.*?)\s*#*\s*$")
_BULLET = regex.compile(r"\s*(?:[-*+]|\d+[.)])\s+\S")
_FENCE = regex.compile(r"\s*(?:```|~~~)")


def chunk_markdown(text: str, at: datetime | None = None) -> list[SearchUnit]:
    """Return one unit per bullet and paragraph, several for long ones; each has the headings above it."""
    return [unit for start, lines, above in _passages(text) for unit in _units(start, lines, above, at)]


def _passages(text: str) -> Iterator[tuple[int, list[str], str]]:
    """Yield the first line's number, the lines, and the headings above them."""
    above: list[tuple[int, str]] = []
    start, lines, is_fenced = 0, [""] * 0, False
    for n, line in enumerate(text.splitlines(), start=1):
        heading = None if is_fenced else _HEADING.match(line)
        is_end = not is_fenced and (not line.strip() or heading or (_BULLET.match(line) and lines))
        if is_end and lines:
            yield start, lines, " / ".join(title for _, title in above)
            lines = []
        if heading:
            depth = len(heading.group(1))
            above = [each for each in above if each[0] < depth] + [(depth, heading.group(2))]
        elif line.strip() or is_fenced:
            start = start if lines else n
            lines.append(line)
        if _FENCE.match(line):
            is_fenced = not is_fenced
    if lines:
        yield start, lines, " / ".join(title for _, title in above)


def _units(start: int, lines: list[str], above: str, at: datetime | None) -> Iterator[SearchUnit]:
    text = "\n".join(lines).strip()
    for piece in split_text(text):
        yield SearchUnit(text=piece, line=start, end=start + len(lines) - 1, at=at, about=above)


def chunk_message(
    text: str, *, line: int, at: datetime | None, who: str, role: str, origin: str = ""
) -> list[SearchUnit]:
    """Return a message as one unit, a long one as several."""
    pieces = split_text(text)
    return [SearchUnit(text=piece, line=line, at=at, who=who, role=role, origin=origin) for piece in pieces]


def group_by_silence(units: Iterable[SearchUnit], *, last: SearchUnit | None = None) -> list[SearchUnit]:
    """Group messages by silence; a group is named after its first line. *last* is the message before them."""
    found: list[SearchUnit] = []
    for unit in units:
        previous = found[-1] if found else last
        is_same = previous is not None and (unit.at is None or previous.at is None or unit.at - previous.at <= SITTING)
        found.append(replace(unit, group=previous.group if previous is not None and is_same else str(unit.line)))
    return found


def chunks(
    lines: Sequence[str], *, tokens: int = 512, overlap: int = 64, at: datetime | None = None
) -> list[SearchUnit]:
    """Return *lines* in chunks of at most *tokens*, each beginning with the last *overlap* tokens of the one before.

    These are the units of the seed profile. Only complete lines overlap; a line longer than a chunk is split.
    """
    most, shared = tokens * 4, overlap * 4
    found: list[SearchUnit] = []
    pending: list[tuple[int, str]] = []
    size = 0
    for n, text in _short_lines(lines, most):
        if pending and size + len(text) + 1 > most:
            found.append(_chunk(pending, at))
            pending = _tail(pending, shared)
            size = sum(len(each) + 1 for _, each in pending)
        pending.append((n, text))
        size += len(text) + 1
    return [*found, _chunk(pending, at)] if pending else found


def _short_lines(lines: Sequence[str], most: int) -> Iterator[tuple[int, str]]:
    for n, line in enumerate(lines, start=1):
        for start in range(0, max(1, len(line)), most):
            yield n, line[start : start + most]


def _tail(lines: Sequence[tuple[int, str]], overlap: int) -> list[tuple[int, str]]:
    kept: list[tuple[int, str]] = []
    for each in reversed(lines):
        overlap -= len(each[1]) + 1
        if overlap < 0:
            break
        kept.insert(0, each)
    return kept


def _chunk(lines: Sequence[tuple[int, str]], at: datetime | None) -> SearchUnit:
    return SearchUnit(text="\n".join(text for _, text in lines), line=lines[0][0], end=lines[-1][0], at=at)
