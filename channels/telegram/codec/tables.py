"""Tables for a platform that has none: columns in a fixed typeface, where a telephone shows them whole."""

from __future__ import annotations

import unicodedata
from collections.abc import Sequence

_WIDEST = 40  # columns that a telephone shows without breaking the line
_GAP = "  "


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


def _line(row: Sequence[str], widths: Sequence[int]) -> str:
    padded = (cell + " " * (width - _columns(cell)) for cell, width in zip(row, widths, strict=True))
    return _GAP.join(padded).rstrip()


def _columns(text: str) -> int:
    return sum(_of(char) for char in text)


def _of(char: str) -> int:
    if unicodedata.combining(char) or char in "\u200d\ufe0f":
        return 0
    return 2 if unicodedata.east_asian_width(char) in "WF" else 1
