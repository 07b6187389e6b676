"""The list of what is shown of Telegram names tests that are there."""

from __future__ import annotations

import re
from pathlib import Path

FOLDER = Path(__file__).resolve().parents[2] / "e2e" / "telegram"


def test_every_row_of_the_list_has_its_test() -> None:
    """tests/e2e/telegram/README.md: each row names a test of that folder."""
    rows = re.findall(r"\| (\S+\.py)::(\S+) \|", (FOLDER / "README.md").read_text("utf-8"))
    assert len(rows) > 20
    missing = [row for row in rows if f"async def {row[1]}(" not in (FOLDER / row[0]).read_text("utf-8")]
    assert missing == []
