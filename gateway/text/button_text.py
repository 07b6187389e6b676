"""Layout of buttons, and their commands as text for platforms without buttons."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby

from gateway.events import MessageButton


def button_rows(choices: Sequence[MessageButton]) -> list[list[MessageButton]]:
    """Return *choices* as rows of buttons."""
    return [list(row) for _, row in groupby(choices, key=lambda choice: choice.row)]


def append_commands(text: str, choices: Sequence[MessageButton], prefix: str = "/") -> str:
    """Return *text* (Markdown) with what would be buttons as commands that can be typed, behind *prefix*."""
    if not choices:
        return text
    lines = [
        " · ".join(f"{each.label}: `{prefix}{each.command.removeprefix('/')}`" for each in row)
        for row in button_rows(choices)
    ]
    return "\n".join([text, "", *(f"- {line}" for line in lines)])
