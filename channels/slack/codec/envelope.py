"""Facts about a payload before it is parsed: its id, chat, user and origin. These functions never raise."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from typing import Any

from gateway.ports import EventOrigin


def event_of(body: Mapping[str, Any], raw: str) -> str:
    """Return an id that is the same when Slack redelivers *body*.

    It is the event or trigger id; for a message of the history the kind, the chat and the ts.
    """
    for name in ("event_id", "trigger_id"):
        if isinstance(body.get(name), str) and body[name]:
            return str(body[name])
    event = body.get("event")
    if isinstance(event, dict):
        return "/".join(str(event.get(name, "")) for name in ("type", "channel", "ts"))
    return hashlib.sha256(raw.encode("utf-8", "surrogatepass")).hexdigest()[:32]


def chat_of(body: Mapping[str, Any]) -> str:
    """Return the chat of *body*, "" if it is unknown."""
    event = body.get("event")
    container = body.get("container")  # of a press
    place = container if isinstance(container, dict) else body
    found = event.get("channel") if isinstance(event, dict) else place.get("channel_id")
    return found if isinstance(found, str) else ""


def user_of(body: Mapping[str, Any]) -> str:
    """Return the user who caused *body*, "" if it is unknown."""
    event = body.get("event")
    pressed = body.get("user")
    if isinstance(event, dict):
        message = event.get("message")  # of an edit
        found = message.get("user") if isinstance(message, dict) else event.get("user")
    else:
        found = pressed.get("id") if isinstance(pressed, dict) else body.get("user_id")
    return found if isinstance(found, str) else ""


def origin_of(body: Mapping[str, Any]) -> EventOrigin | None:
    """Return the origin of a message, or None for other events."""
    event = body.get("event")
    if not isinstance(event, dict) or event.get("type") not in ("message", "app_mention"):
        return None
    chat, user, thread, ts = chat_of(body), user_of(body), event.get("thread_ts"), event.get("ts")
    if not chat or not user:
        return None
    is_direct = chat.startswith("D")
    place = f"{chat}/{thread}" if isinstance(thread, str) and thread and not is_direct else chat
    return EventOrigin(chat=place, sender=user, message_id=ts if isinstance(ts, str) else "", is_direct=is_direct)


def raw_of(body: Mapping[str, Any]) -> str:
    """Return *body* as text, for the quarantine."""
    return json.dumps(body)
