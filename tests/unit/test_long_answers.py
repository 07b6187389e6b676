"""Long answers on every platform: tables keep their head and their columns, and one dense part shrinks no other."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence

import pytest
from rich.cells import cell_len

from channels.discord.render import render as for_discord
from channels.slack.render import render as for_slack
from channels.telegram.render import render as for_telegram
from gateway.events import MessagePart, OutboundMessage, SessionKey

PLATFORMS: dict[str, Callable[[OutboundMessage], Sequence[MessagePart]]] = {
    "telegram": for_telegram,
    "discord": for_discord,
    "slack": for_slack,
}


ROWS = "".join(f"| row {n} | {n * n} |\n" for n in range(600))


TABLES = {
    "pipes around": f"| name | square |\n| --- | ---: |\n{ROWS}",
    "pipes between": "name | square\n--- | ---\n" + ROWS.replace("| row", "row").replace(" |\n", "\n"),
}
NAMES = ["plain", "漢字の名前", "한국어", "👩‍👩‍👧 family", "flag 🇩🇪", "e\u0301te\u0301", "❤️"]


def rendered(platform: str, text: str) -> list[str]:
    """Return what stands in each message."""
    message = OutboundMessage(id="tabcdefghijklmnop.1", key=SessionKey("telegram", "1"), text=text)
    return [_text_of(part) for part in PLATFORMS[platform](message)]


def _text_of(part: MessagePart) -> str:
    return str(json.loads(part.payload)["text"]) if part.payload.startswith('{"text"') else part.payload


@pytest.mark.parametrize("table", TABLES)
@pytest.mark.parametrize("platform", PLATFORMS)
def test_a_table_that_is_cut_has_its_head_in_every_part(platform: str, table: str) -> None:
    """No part shows raw pipes without a head, and each row stands once."""
    parts = rendered(platform, f"Here it is.\n\n{TABLES[table]}\nThat was it, in a | b form.")
    assert len(parts) >= 2
    for part in parts:
        assert part.count("square") == 1
        assert "---|" not in part
        assert "| ---" not in part
    rows = [line for part in parts for line in part.splitlines() if line.startswith("row ")]
    assert [line.split()[1] for line in rows] == [str(n) for n in range(600)]


@pytest.mark.parametrize("platform", PLATFORMS)
def test_what_follows_a_table_has_no_head(platform: str) -> None:
    """A paragraph with a pipe in it, at the start of a part, is no row."""
    text = "| a | b |\n|---|---|\n| 1 | 2 |\n\n" + "this | that, and so on. " * 400
    first, *others = rendered(platform, text)
    assert others
    assert not any("───" in part or "-+-" in part for part in others)
    assert "1" in first


@pytest.mark.parametrize("platform", PLATFORMS)
def test_columns_are_as_wide_as_they_look(platform: str) -> None:
    """Ideographs and emoji take two columns, accents none: what separates or begins the second column stands below."""
    table = "| name | n |\n|---|---|\n" + "".join(f"| {name} | #{n} |\n" for n, name in enumerate(NAMES))
    (part,) = rendered(platform, table)
    places = {cell_len(line[: line.index("#")]) for line in part.splitlines() if "#" in line}
    assert len(places) == 1


def test_code_in_a_list_keeps_no_extra_blanks_on_slack() -> None:
    """Slack shows blanks in code: a block in an item, in a nested one or in a quoted one begins at the margin."""
    text = "- do:\n\n  ```py\n  if x:\n      y()\n\n  z()\n  ```\n\n  - and\n\n    ```\n    a\n      b\n    ```\n\nend"
    (part,) = rendered("slack", text)
    assert "```\nif x:\n    y()\n\nz()\n```" in part
    assert "```\na\n  b\n```" in part
    assert "\x00" not in part
    (quoted,) = rendered("slack", "> - x\n>\n>   ```\n>   a\n>   ```\n")
    assert quoted.splitlines()[-3:] == ["> ```", "> a", "> ```"]


@pytest.mark.parametrize("platform", ["slack", "discord"])
def test_one_dense_part_shrinks_no_other(platform: str) -> None:
    """Signs that a dialect writes longer cost a part or two where they stand; the rest is cut as if they were not."""
    prose = "A sentence of the usual kind, with nothing in it that a platform minds. " * 370
    dense = "a & b < c > d & e_f*g " * 100
    alone = len(rendered(platform, prose))
    beside = len(rendered(platform, f"{prose[:9_000]}\n\n{dense}\n\n{prose[9_000:]}"))
    assert beside <= alone + 4
