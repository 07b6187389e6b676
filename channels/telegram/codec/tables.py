"""Tables for a platform that has none: columns in a fixed typeface, where a telephone shows them whole."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Sequence
from itertools import pairwise, takewhile

from gateway.text import Unit, width

_WIDEST = 40  # columns that a telephone shows without breaking the line
_GAP = "  "
_RULE = re.compile(r"\s*\|(\s*:?-+:?\s*\|)+\s*\Z")


def table_lines(rows: Sequence[Sequence[str]]) -> str | None:
    """Return *rows* (the head first) in columns; None when they are too wide for that."""
    columns = max((len(row) for row in rows), default=0)
    if not columns:
        return None
    cells = [[*row, *("" for _ in range(columns - len(row)))] for row in rows]
    widths = [max(_columns(row[n]) for row in cells) for n in range(columns)]
    if sum(widths) + len(_GAP) * (columns - 1) > _WIDEST:
        return None
    lines = [_line(row, widths) for row in cells]
    lines.insert(1, _GAP.join("─" * width for width in widths))
    return "\n".join(lines)


def heads(markdown: str) -> list[str]:
    """Return the first two lines of every table in *markdown*."""
    lines = markdown.splitlines()
    return [f"{head}\n{rule}" for head, rule in pairwise(lines) if _is_row(head) and _RULE.match(rule)]


def continued(pieces: Sequence[str], room: int) -> list[str]:
    """Return *pieces* of one text, cut between lines; one that begins in a table has its head, shorter than *room*."""
    whole: list[str] = []
    for piece in pieces:
        head = _open_table(whole[-1]) if whole else ""
        lines = piece.splitlines()
        goes_on = bool(head) and bool(lines) and _is_row(lines[0]) and not (lines[1:] and _RULE.match(lines[1]))
        whole.append(f"{head}\n{piece}" if goes_on and width(head, Unit.UTF16) < room else piece)
    return whole


def _open_table(piece: str) -> str:
    """Return the head of the table that *piece* ends in, or ""."""
    rows = list(takewhile(_is_row, reversed(piece.rstrip("\n").splitlines())))[::-1]
    found = heads("\n".join(rows))
    return found[-1] if found else ""


def _is_row(line: str) -> bool:
    return line.lstrip().startswith("|")


def _line(row: Sequence[str], widths: Sequence[int]) -> str:
    padded = (cell + " " * (width - _columns(cell)) for cell, width in zip(row, widths, strict=True))
    return _GAP.join(padded).rstrip()


def _columns(text: str) -> int:
    return sum(_of(char) for char in text)


def _of(char: str) -> int:
    if unicodedata.combining(char) or char in "\u200d\ufe0f":
        return 0
    return 2 if unicodedata.east_asian_width(char) in "WF" else 1
