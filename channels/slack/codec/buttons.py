"""Buttons: choices as blocks below a text, and a press (`block_actions`) as what it says.

https://docs.slack.dev/reference/interaction-payloads/block_actions-payload
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from gateway.events import MessageButton
from gateway.text import button_rows, split

_SECTION = 2_900  # characters; Slack takes 3,000 in a section's text
_ROW = "parlour-row-"  # then a number: the id of a row's block
ACTION = "parlour-"  # then a number: the id of a button


@dataclass(frozen=True, slots=True)
class SlackButtonPress:
    """A pressed button, and its message."""

    chat: str
    ts: str
    thread: str
    value: str
    row: str  # id of the button's block
    text: str
    blocks: tuple[Mapping[str, Any], ...]
    response_url: str  # where a message that one person alone sees can be changed; "" for any other


def blocks(text: str, choices: Sequence[MessageButton], *, is_plain: bool) -> list[dict[str, Any]]:
    """Return *text* (mrkdwn) and the buttons below it. With blocks, Slack shows no text beside them."""
    # What is a link is written as one: `verbatim` keeps Slack from making others, in code too.
    form = {"type": "plain_text"} if is_plain else {"type": "mrkdwn", "verbatim": True}
    shown: list[dict[str, Any]] = [
        {"type": "section", "text": {**form, "text": piece}} for piece in split(text, limit=_SECTION)
    ]
    number = 0
    for n, row in enumerate(button_rows(choices)):
        buttons = []
        for choice in row:
            buttons.append(
                {
                    "type": "button",
                    "action_id": f"{ACTION}{number}",
                    "text": {"type": "plain_text", "text": choice.label},
                    "value": choice.command,
                }
            )
            number += 1
        shown.append({"type": "actions", "block_id": f"{_ROW}{n}", "elements": buttons})
    return shown


def is_press(body: Mapping[str, Any]) -> bool:
    """Return True if *body* is a press."""
    return body.get("type") == "block_actions"


def parse_press(body: Mapping[str, Any]) -> SlackButtonPress | None:
    """Return the press, or None for another app's element. Raises KeyError and the like for a malformed payload."""
    action = body["actions"][0]
    if action.get("type") != "button" or not str(action["action_id"]).startswith(ACTION):
        return None
    container = body["container"]
    message = body.get("message") or {}
    ts = str(container["message_ts"])
    thread = str(container.get("thread_ts") or message.get("thread_ts") or "")
    return SlackButtonPress(
        chat=str(container["channel_id"]),
        ts=ts,
        thread="" if thread == ts else thread,
        value=str(action["value"]),
        row=str(action.get("block_id") or ""),
        text=str(message.get("text") or ""),
        blocks=tuple(message.get("blocks") or ()),
        response_url=str(body.get("response_url") or "") if container.get("is_ephemeral") else "",
    )


def without_row(blocks: Iterable[Mapping[str, Any]], row: str) -> list[Mapping[str, Any]]:
    """Return *blocks* without the one whose id is *row*."""
    return [block for block in blocks if block.get("block_id") != row]
