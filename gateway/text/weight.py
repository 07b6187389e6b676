"""The cost of parsing a text as Markdown, estimated before parsing."""

from __future__ import annotations

from gateway.text.tables import cells

_SIGNS = "\n!&*<>[\\]_`~|"  # where a parser stops to look; each costs it some ten microseconds
MOST = 20_000  # of one text: a page of dense notes has 500, a second of processor time on a small machine 50,000


def weight(text: str) -> int:
    """Return the number of signs and table cells in *text*: its cost as Markdown grows with it, and no faster."""
    return sum(map(text.count, _SIGNS)) + cells(text)
