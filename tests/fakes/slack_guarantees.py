"""The table in docs/slack.md, row by row: what is promised there is what tests look for."""

from __future__ import annotations

from pathlib import Path

_PAGE = Path(__file__).parents[2] / "docs" / "slack.md"


def promised(row: str) -> str:
    """Return what the page says is seen when *row* happens; an unknown row is a test that promises by itself."""
    table = _PAGE.read_text("utf-8").partition("## What happens when")[2].partition("\n## ")[0]
    rows = {cells[1].strip(): cells[3].strip() for line in table.splitlines() if len(cells := line.split("|")) == 5}
    return rows[row]
