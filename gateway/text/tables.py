"""Tables for platforms that have none: columns in a fixed typeface, and heads that return where a table is cut."""

from __future__ import annotations

import re
from collections.abc import Sequence
from itertools import pairwise, takewhile

from rich.cells import cell_len

# Possessive, so that a line of blanks costs one look at each.
_RULE = re.compile(r"[ \t>]*+\|?+[ \t]*+:?+-++:?+[ \t]*+(?:\|[ \t]*+:?+-++:?+[ \t]*+)*+\|?+[ \t]*+\Z")


def table_lines(rows: Sequence[Sequence[str]], *, gap: str, rule: str, widest: int) -> str | None:
    """Return *rows* (the head first) in columns; None if a line would be wider than *widest* columns.

    *gap* separates two cells. *rule* is drawn below the head: its first character fills a column, the others
    separate two columns. Widths are a terminal's: two columns for an ideograph or emoji, none for an accent.
    """
    columns = max((len(row) for row in rows), default=0)
    if not columns or len(gap) * (columns - 1) > widest:
        return None
    widths = [max(cell_len(row[n]) if n < len(row) else 0 for row in rows) for n in range(columns)]
    if sum(widths) + len(gap) * (columns - 1) > widest:
        return None
    lines = [_line(row, widths, gap) for row in rows]
    lines.insert(1, rule[1:].join(rule[0] * width for width in widths))
    return "\n".join(lines)


def open_head(markdown: str) -> str:
    """Return the head (two lines) of the table in which *markdown* ends, or ""."""
    rows = list(takewhile(_is_row, reversed(markdown.rstrip("\n").split("\n"))))[::-1]
    found = [f"{head}\n{rule}" for head, rule in pairwise(rows) if is_rule(rule)]
    return found[-1] if found else ""


def begins_in_table(markdown: str) -> bool:
    """Return True if the first line may be a row that has no head above it."""
    first, _, rest = markdown.partition("\n")
    return _is_row(first) and not is_rule(rest.partition("\n")[0])


def is_rule(line: str) -> bool:
    """Return True for the line below a table's head."""
    return "|" in line and _RULE.match(line) is not None


def cells(text: str) -> int:
    """Return the most cells that tables in *text* can have; the parser fills short rows up to the head's width."""
    if "|" not in text:
        return 0
    found = columns = 0
    for line in text.split("\n"):
        if not line.strip(" \t>"):
            columns = 0
        elif not columns and is_rule(line):
            columns = line.count("|") + 1
        found += columns
    return found


def _is_row(line: str) -> bool:
    return "|" in line


def _line(row: Sequence[str], widths: Sequence[int], gap: str) -> str:
    padded = (cell + " " * (width - cell_len(cell)) for cell, width in zip(row, widths, strict=False))
    return gap.join(padded).rstrip()
