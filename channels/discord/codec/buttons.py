"""Buttons below a message: Discord's components, and which of them stay when one was pressed.

Field names are Discord's (docs.discord.com/developers/components/reference).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from gateway.events import MessageButton
from gateway.text import button_rows

MOST_BUTTONS = 20  # five in each of five rows are Discord's most
_ROW, _BUTTON = 1, 2  # component types
_GREY = 2  # style: nothing that is asked is the right answer


def render_buttons(choices: Sequence[MessageButton]) -> list[dict[str, Any]]:
    """Return *choices* as rows of buttons; the command is what a press sends back."""
    return [
        {
            "type": _ROW,
            "components": [
                {"type": _BUTTON, "style": _GREY, "label": each.label, "custom_id": each.command} for each in row
            ],
        }
        for row in button_rows(choices)
    ]


def remaining_rows(payload: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """Return the rows that stay below the message of a press when the pressed button's row is done with."""
    pressed = payload["data"]["custom_id"]
    rows = (payload.get("message") or {}).get("components") or ()
    return [row for row in rows if all(each.get("custom_id") != pressed for each in row.get("components") or ())]
