"""Answers as parts in mrkdwn, and parts as the body of a call."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from channels.slack.codec.buttons import blocks
from channels.slack.codec.markup import escape, mrkdwn_tree
from gateway.events import MessagePart, OutboundMessage, SessionKey
from gateway.i18n import translate
from gateway.ports import in_english
from gateway.text import PartWriter, WrittenPart, pack, parse, plain_tree

LIMIT = 4_000  # characters of a message: chat.update refuses more, and a post may be edited later
_ROOM = 3_850  # what is left beside the mark of a repeated send
_SOURCE = 3_600  # characters of a part's Markdown; marks and escapes make it longer
_EVENT = "parlour_part"
LINE: Mapping[str, Any] = {"event_type": "parlour_line", "event_payload": {}}  # of what is no part of an answer


def render(
    message: OutboundMessage, *, max_parts: int, language: Callable[[SessionKey], str] = in_english, least: int = 0
) -> list[MessagePart]:
    """Cut and format *message*, and say in the chat's *language* where it is cut; pure.

    The first part holds the first *least* characters, where they fit.
    """
    writer = PartWriter(limit=_SOURCE, max_parts=max_parts, write=_write, literal=_literal)
    return [
        MessagePart(
            id=f"{message.id}.{number}",
            key=message.key,
            payload=part.payload,
            plain=part.plain,
            reply_to=message.reply_to,  # of every part: it says since when the part can stand in the chat
            visible_to=message.visible_to,
            kind=message.kind,
        )
        for number, part in enumerate(
            pack(message.text, writer, note=lambda: translate("delivery.cut", language(message.key)), least=least), 1
        )
    ]


def _write(markdown: str) -> WrittenPart:
    tree = parse(markdown)
    payload, shown = mrkdwn_tree(tree) or escape(markdown), plain_tree(tree)
    return WrittenPart(payload, shown if 0 < len(shown) <= _ROOM else markdown, len(payload) / _ROOM)


def _literal(text: str) -> WrittenPart:
    return WrittenPart("", text, len(escape(text)) / _ROOM)


def message_body(
    part: MessagePart, *, may_be_duplicate: bool, language: Callable[[SessionKey], str] = in_english
) -> dict[str, Any]:
    """Return the fields of *part* for chat.postMessage, chat.update and chat.postEphemeral."""
    text = part.payload or escape(part.plain)
    if may_be_duplicate:
        text = f"_{translate('delivery.may_repeat', language(part.key))}_\n{text}"
    below = {"blocks": blocks(text, part.choices, is_plain=not part.payload)} if part.choices else {}
    return {
        "channel": part.key.parent.chat,
        "text": text,
        "mrkdwn": bool(part.payload),
        "parse": "none",
        "link_names": False,
        **below,
    }


def metadata(part: MessagePart) -> Mapping[str, Any]:
    """Return the send key as Slack keeps it with the message."""
    return {"event_type": _EVENT, "event_payload": {"part": part.id}}


def part_of(message: Mapping[str, Any]) -> str:
    """Return the id of the part that *message* is, as its metadata says, or ""."""
    found = message.get("metadata") or {}
    if found.get("event_type") != _EVENT:
        return ""
    return str((found.get("event_payload") or {}).get("part") or "")
