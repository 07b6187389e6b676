"""Blocks that a cut must not tear: tables, also written as columns in a fixed typeface, and code fences."""

from __future__ import annotations

import re
from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import pairwise, takewhile

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
    widths = [max(_width(row[n]) if n < len(row) else 0 for row in rows) for n in range(columns)]
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


def _width(cell: str) -> int:
    from rich.cells import cell_len  # half a MB of widths, which a gateway without tables does not need

    return cell_len(cell)


def _line(row: Sequence[str], widths: Sequence[int], gap: str) -> str:
    padded = (cell + " " * (width - _width(cell)) for cell, width in zip(row, widths, strict=False))
    return gap.join(padded).rstrip()


# Possessive throughout: ten thousand nested quotes cost one look at each character.
_OPENER = re.compile(
    r"^(?P<lead>(?:[ ]{0,3}+>[ ]?+|[ \t]*+(?:[-*+]|\d{1,9}+[.)])[ \t]++)*+[ \t]*+)"
    r"(?P<marks>`{3,}+|~{3,}+)(?P<info>[^\n]*+)$",
    re.MULTILINE,
)
_NO_QUOTE = re.compile(r"^(?![ ]{0,3}>)", re.MULTILINE)
_MARKER = re.compile(r"[^>\s]")
_DEEPEST = 12  # columns of list content that are told apart


@dataclass(frozen=True, slots=True)
class CodeFence:
    """One fenced block of a text, by index: opener, body, closer, and what follows."""

    start: int  # of the opener's line
    body: int  # of the first line after it
    close: int  # of the closer's line; the end of the block where it has none
    end: int  # of what follows the block
    lead: str  # what a line that reopens or closes it begins with: quote marks, up to three spaces
    marks: str
    info: str

    @property
    def opener(self) -> str:
        """The line that opens the block again, with its info string."""
        return f"{self.lead}{self.marks}{self.info}\n"

    @property
    def closer(self) -> str:
        """The line that closes it, without a newline."""
        return f"{self.lead}{self.marks}"


class CodeFences:
    """All fences of a text."""

    def __init__(self, text: str) -> None:
        self._fences = _find(text)
        self._starts = [fence.start for fence in self._fences]

    def around(self, index: int) -> CodeFence | None:
        """Return the fence that a cut at *index* would tear: start < index < end."""
        place = bisect_left(self._starts, index) - 1
        if place < 0:
            return None
        fence = self._fences[place]
        return fence if index < fence.end else None


def _find(text: str) -> list[CodeFence]:
    fences: list[CodeFence] = []
    if "```" not in text and "~~~" not in text:
        return fences
    place = 0
    while opener := _OPENER.search(text, place):
        if opener["marks"][0] == "`" and "`" in opener["info"]:
            place = opener.end()  # inline code, not a fence
            continue
        fence = _block(text, opener)
        fences.append(fence)
        if fence.end >= len(text):
            break
        place = fence.end
    return fences


def _block(text: str, opener: re.Match[str]) -> CodeFence:
    body = min(opener.end() + 1, len(text))
    limit = _container_end(text, opener["lead"], body)
    closer = _closer(opener["marks"][0], len(opener["marks"])).search(text, body, limit)
    close = closer.start() if closer else limit
    end = min(closer.end() + 1, len(text)) if closer else limit
    return CodeFence(opener.start(), body, close, end, _lead(opener["lead"]), opener["marks"], opener["info"].rstrip())


def _container_end(text: str, lead: str, body: int) -> int:
    """Return where the quote or list item that holds the fence ends."""
    if ">" in lead:
        outside = _NO_QUOTE.search(text, body)
    elif lead.strip():
        outside = _dedent(min(len(lead), _DEEPEST)).search(text, body)
    else:
        return len(text)
    return outside.start() if outside else len(text)


def _lead(lead: str) -> str:
    if ">" in lead:
        return _MARKER.sub(" ", lead[: lead.rindex(">") + 1]) + " "
    # Four spaces would make the reopened fence an indented code block.
    return " " * min(len(lead), 3)


@lru_cache(maxsize=64)
def _closer(mark: str, length: int) -> re.Pattern[str]:
    return re.compile(rf"^[ \t>]*+{re.escape(mark)}{{{length},}}+[ \t]*+$", re.MULTILINE)


@lru_cache(maxsize=_DEEPEST + 1)
def _dedent(columns: int) -> re.Pattern[str]:
    return re.compile(rf"^(?![ ]{{{columns}}}|\t)(?=[ \t]*+\S)", re.MULTILINE)
