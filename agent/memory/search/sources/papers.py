"""A text as units: one a bullet or a paragraph, with the headings above it; long ones in pieces."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import datetime

from agent.memory.search.unit import Unit, pieces

_HEADING = re.compile(r"(#{1,6})\s+(.*?)\s*#*\s*\Z")
_BULLET = re.compile(r"(\s*)(?:[-*+•]|\d{1,4}[.)])\s+\S")
_FENCE = re.compile(r"\s*(```|~~~)")
_COMMENT = re.compile(r"\s*<!--.*-->\s*\Z")


@dataclass(slots=True)
class _Stretch:
    """Lines that belong together."""

    start: int
    about: str
    indent: int = -1  # of the bullet it begins with; -1 = a paragraph
    lines: list[str] = field(default_factory=list)


def paper_units(text: str, *, at: datetime | None = None) -> list[Unit]:
    """Return *text* (Markdown, or plain) as units; lines count from 1."""
    return [unit for stretch in _stretches(text) for unit in _units(stretch, at)]


def _stretches(text: str) -> Iterator[_Stretch]:
    headings: list[tuple[int, str]] = []
    open_: _Stretch | None = None
    fence = ""
    for number, line in enumerate(text.splitlines(), start=1):
        heading = None if fence else _HEADING.match(line)
        if heading or (not fence and (not line.strip() or _COMMENT.match(line))):
            if open_ is not None:
                yield open_
            open_ = None
            if heading:
                headings = [each for each in headings if each[0] < len(heading[1])] + [(len(heading[1]), heading[2])]
            continue
        bullet = None if fence else _BULLET.match(line)
        if open_ is None or (bullet and not (0 <= open_.indent < len(bullet[1]))):
            if open_ is not None:
                yield open_
            about = " / ".join(name for _, name in headings)
            open_ = _Stretch(number, about, len(bullet[1]) if bullet else -1)
        open_.lines.append(line)
        if mark := _FENCE.match(line):
            fence = "" if fence == mark[1] else fence or mark[1]
    if open_ is not None:
        yield open_


def _units(stretch: _Stretch, at: datetime | None) -> Iterator[Unit]:
    whole = "\n".join(stretch.lines)
    position = 0
    for piece in pieces(whole):
        begin = whole.index(piece, position)
        position = begin + len(piece)
        yield Unit(
            text=piece,
            line=stretch.start + whole.count("\n", 0, begin),
            end=stretch.start + whole.count("\n", 0, position),
            at=at,
            about=stretch.about,
        )
