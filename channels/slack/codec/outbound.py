"""What we send: an answer cut into parts of mrkdwn, and a part as the body of a call."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from channels.slack.codec.buttons import blocks
from channels.slack.codec.mrkdwn import escape, mrkdwn
from gateway.events import OutboundMessage, Part
from gateway.text import bound, plain
from gateway.words import FALLBACK, say

LIMIT = 4_000  # characters of a message: chat.update refuses more, and a post may be edited later
_ROOM = 3_850  # what is left beside the mark of a repeated send
# Escaping and marks make a text longer, five times at the worst: tried from the top, the same way every time.
_SOURCES = (3_600, 2_400, 1_500, 700)
_EVENT = "parlour_part"
LINE: Mapping[str, Any] = {"event_type": "parlour_line", "event_payload": {}}  # of what is no part of an answer


def render(message: OutboundMessage, *, max_parts: int, language: str = FALLBACK) -> list[Part]:
    """Cut and format *message*, and say in *language* where it is cut; pure."""
    pieces = _pieces(message.text, max_parts, say("delivery.cut", language))
    return [
        Part(
            id=f"{message.id}.{number}",
            key=message.key,
            payload=payload,
            plain=shown,
            reply_to=message.reply_to,  # of every part: it says since when the part can stand in the chat
            visible_to=message.visible_to,
            kind=message.kind,
        )
        for number, (payload, shown) in enumerate(pieces, 1)
    ]


def _pieces(text: str, max_parts: int, note: str) -> Sequence[tuple[str, str]]:
    for limit in _SOURCES:
        sources = bound(text, limit=limit, max_parts=max_parts, note=note)
        payloads = [mrkdwn(source) for source in sources]
        if all(len(payload) <= _ROOM for payload in payloads):
            break
    else:
        # A quote forty levels deep grows without end; as it was written it fits.
        payloads = [
            payload if len(payload) <= _ROOM else escape(source)
            for source, payload in zip(sources, payloads, strict=True)
        ]
    return [(payload or escape(source), _plain(source)) for source, payload in zip(sources, payloads, strict=True)]


def _plain(source: str) -> str:
    shown = plain(source)
    return shown if 0 < len(shown) <= _ROOM else source


def body(part: Part, *, marked: bool, language: str = FALLBACK) -> dict[str, Any]:
    """Return what chat.postMessage, chat.update and chat.postEphemeral have in common for *part*."""
    text = part.payload or escape(part.plain)
    if marked:
        text = f"_{say('delivery.may_repeat', language)}_\n{text}"
    below = {"blocks": blocks(text, part.choices, is_plain=not part.payload)} if part.choices else {}
    return {
        "channel": part.key.parent.chat,
        "text": text,
        "mrkdwn": bool(part.payload),
        "parse": "none",
        "link_names": False,
        **below,
    }


def metadata(part: Part) -> Mapping[str, Any]:
    """Return the send key as Slack keeps it with the message."""
    return {"event_type": _EVENT, "event_payload": {"part": part.id}}


def part_of(message: Mapping[str, Any]) -> str:
    """Return the id of the part that *message* is, as its metadata says, or ""."""
    found = message.get("metadata") or {}
    if found.get("event_type") != _EVENT:
        return ""
    return str((found.get("event_payload") or {}).get("part") or "")
