"""Answers into parts that Telegram takes: 4,096 UTF-16 units, 100 entities, cut once and always the same."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from channels.telegram.codec.markup import FormattedText, TextEntity, styled_tree
from gateway.events import MessagePart, OutboundMessage, SessionKey
from gateway.i18n import translate
from gateway.ports import in_english
from gateway.text import LengthUnit, PartWriter, WrittenPart, pack, parse, plain_tree, split, width

_PLATFORM_LIMIT = 4096  # UTF-16 units after entities parsing (constants.MessageLimit)
_ENTITIES = 100  # what comes after them is shown without its setting
MAX_PARTS = 40
# A resend that may repeat something says so, in the same message: its room is kept free in every part.
LIMIT = _PLATFORM_LIMIT - 120


@dataclass(frozen=True, slots=True)
class OutgoingText:
    """The text of one call with its entities as Telegram's objects."""

    text: str
    entities: tuple[dict[str, Any], ...] = ()


def render(
    message: OutboundMessage, language: Callable[[SessionKey], str] = in_english, *, least: int = 0
) -> list[MessagePart]:
    """Cut and format *message*, and say in the chat's *language* where it is cut; only a blank text gives no part.

    The first part holds the first *least* characters, where they fit.
    """
    return [
        MessagePart(
            id=f"{message.id}.{n}",
            key=message.key,
            payload=part.payload,
            plain=part.plain,
            reply_to=message.reply_to if n == 1 else "",
            visible_to=message.visible_to,
            kind=message.kind,
        )
        for n, part in enumerate(
            pack(message.text, _WRITER, note=lambda: translate("delivery.cut", language(message.key)), least=least), 1
        )
    ]


def build_outgoing(
    part: MessagePart, *, may_be_duplicate: bool = False, language: Callable[[SessionKey], str] = in_english
) -> OutgoingText:
    """Return the text of *part*, plain if its payload is empty; *may_be_duplicate* adds that it may repeat another."""
    if part.payload:
        read = json.loads(part.payload)
        text, entities = str(read["text"]), tuple(read["entities"])
    else:
        text, entities = part.plain, ()
    if not may_be_duplicate:
        return OutgoingText(text, entities)
    mark = f"\n\n{translate('delivery.may_repeat', language(part.key))}"
    if width(text + mark, LengthUnit.UTF16) > _PLATFORM_LIMIT:  # a part that another version of us has cut
        text = split(text, limit=_PLATFORM_LIMIT - width(mark, LengthUnit.UTF16), unit=LengthUnit.UTF16)[0]
        entities = ()
    return OutgoingText(text + mark, entities)


def _write(markdown: str) -> WrittenPart:
    tree = parse(markdown)
    shown = styled_tree(tree)
    if not shown.text.strip():
        shown = FormattedText(markdown.strip())
    text = plain_tree(tree)
    fill = max(width(shown.text, LengthUnit.UTF16) / LIMIT, len(shown.entities) / _ENTITIES)
    return WrittenPart(
        _payload(shown), text if text.strip() and width(text, LengthUnit.UTF16) <= LIMIT else shown.text, fill
    )


def _literal(text: str) -> WrittenPart:
    return WrittenPart("", text, width(text, LengthUnit.UTF16) / LIMIT)


_WRITER = PartWriter(limit=LIMIT, unit=LengthUnit.UTF16, max_parts=MAX_PARTS, write=_write, literal=_literal)


def _payload(formatted: FormattedText) -> str:
    entities = [_entity(entity) for entity in formatted.entities]
    return json.dumps({"text": formatted.text, "entities": entities}, ensure_ascii=False, separators=(",", ":"))


def _entity(entity: TextEntity) -> dict[str, Any]:
    fields: dict[str, Any] = {"type": entity.type, "offset": entity.offset, "length": entity.length}
    if entity.extra:
        fields["url" if entity.type == "text_link" else "language"] = entity.extra
    return fields
