"""Buttons in a workspace: blocks as strict as Slack's, a press, and the address where a private message is changed."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tests.fakes.slack_workspace import TEAM, SlackError, SlackWorkspace


def checked_blocks(arguments: Mapping[str, Any]) -> dict[str, Any]:
    """Return what is kept of a message's blocks, or refuse them as Slack does."""
    blocks = arguments.get("blocks")
    if blocks is None:
        return {}
    ids: list[str] = []
    for block in blocks:
        if block["type"] == "section":
            if not 1 <= len(block["text"]["text"]) <= 3_000:
                raise SlackError("invalid_blocks")
        elif block["type"] == "actions":
            ids += [block["block_id"], *(each["action_id"] for each in block["elements"])]
            if not 1 <= len(block["elements"]) <= 25 or any(not _is_button(each) for each in block["elements"]):
                raise SlackError("invalid_blocks")
        else:
            raise SlackError("invalid_blocks")
    if len(blocks) > 50 or len(set(ids)) < len(ids):
        raise SlackError("invalid_blocks")
    return {"blocks": [dict(block) for block in blocks]}


def _is_button(element: Mapping[str, Any]) -> bool:
    label = element["text"]
    return (
        element["type"] == "button"
        and label["type"] == "plain_text"
        and 1 <= len(label["text"]) <= 75
        and len(element["value"]) <= 2_000
        and len(element["action_id"]) <= 255
    )


def buttons(message: Mapping[str, Any]) -> list[list[str]]:
    """Return what the buttons below a message say, in rows."""
    rows = [block["elements"] for block in message.get("blocks", ()) if block["type"] == "actions"]
    return [[each["text"]["text"] for each in row] for row in rows]


class FakeSlackButtons(SlackWorkspace):
    """Adds presses to a workspace."""

    is_interactive = True  # the app's *Interactivity* is on

    def press(self, place: str, user: str, message: Mapping[str, Any], label: str, *, again: str = "") -> str:
        """Let somebody press the button *label*; return the trigger id. *again*: the same press once more."""
        assert self.is_interactive
        found = [
            (block, each)
            for block in message["blocks"]
            if block["type"] == "actions"
            for each in block["elements"]
            if each["text"]["text"] == label
        ]
        (block, button), *_ = found
        trigger = again or f"{next(self._numbers)}.fake"
        is_ephemeral = message in self.places[place].whispers
        where = {"type": "message", "message_ts": message["ts"], "channel_id": place, "is_ephemeral": is_ephemeral}
        if thread := message.get("thread_ts"):
            where["thread_ts"] = thread
        payload = {
            "type": "block_actions",
            "team": {"id": TEAM, "domain": "home"},
            "user": {"id": user, "username": user.lower(), "name": user.lower(), "team_id": TEAM},
            "api_app_id": "A0PARLOUR",
            "container": where,
            "channel": {"id": place, "name": "room"},
            "trigger_id": trigger,
            "response_url": f"{self.base}/actions/{place}/{message['ts']}",
            "actions": [{**button, "block_id": block["block_id"], "action_ts": message["ts"]}],
        }
        if not is_ephemeral:  # of a message for one person Slack tells nothing more
            payload["message"] = {key: value for key, value in message.items() if key != "was"}
        self._send("interactive", payload)
        return trigger

    def respond(self, place: str, ts: str, body: Mapping[str, Any]) -> bool:
        """Do what was asked at a message's own address."""
        found = [each for each in self.places[place].whispers if each["ts"] == ts]
        if not found or body != {"delete_original": True}:
            return False
        self.places[place].whispers.remove(found[0])
        self._change()
        return True
