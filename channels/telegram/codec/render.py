"""Answers into parts that Telegram takes: 4,096 UTF-16 units, 100 entities, cut once and always the same."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from channels.telegram.codec.entities import Entity, Styled, styled
from channels.telegram.codec.tables import continued, heads
from gateway.events import OutboundMessage, Part
from gateway.text import Unit, bound, plain, split, width
from gateway.words import FALLBACK, say

_PLATFORM_LIMIT = 4096  # UTF-16 units after entities parsing (constants.MessageLimit)
_ENTITIES = 100  # what comes after them is shown without its setting
MAX_PARTS = 40
# A resend that may repeat something says so, in the same message: its room is kept free in every part.
LIMIT = _PLATFORM_LIMIT - 120
_SMALLEST = 16  # units below which a piece is not cut any further


@dataclass(frozen=True, slots=True)
class Outgoing:
    """What one call shows: the text and its entities as Telegram's own objects."""

    text: str
    entities: tuple[dict[str, Any], ...] = ()


def render(message: OutboundMessage, language: str = FALLBACK) -> list[Part]:
    """Cut and format *message*, and say in *language* where it is cut; nothing but a blank text gives no part."""
    note = say("delivery.cut", language)
    shown = [each for piece in _cut(message.text, note) for each in _fitting(piece)]
    if len(shown) > MAX_PARTS:  # formatting took more room than the Markdown: rare, and cut as visibly
        shown = [*shown[: MAX_PARTS - 1], _Piece(note, Styled(note))]
    return [
        Part(
            id=f"{message.id}.{n}",
            key=message.key,
            payload=_payload(piece.shown),
            plain=_plain(piece),
            reply_to=message.reply_to if n == 1 else "",
            visible_to=message.visible_to,
            kind=message.kind,
        )
        for n, piece in enumerate(shown, 1)
    ]


def _cut(markdown: str, note: str) -> list[str]:
    """Cut *markdown* for the limit, *note* being what says so; a table that is cut has its head in every piece."""
    if width(markdown, Unit.UTF16) <= LIMIT:
        return bound(markdown, limit=LIMIT, unit=Unit.UTF16, max_parts=MAX_PARTS, note=note)
    longest = max((width(head, Unit.UTF16) + 1 for head in heads(markdown)), default=0)
    room = longest if longest <= LIMIT // 4 else 0
    return continued(bound(markdown, limit=LIMIT - room, unit=Unit.UTF16, max_parts=MAX_PARTS, note=note), room)


def outgoing(part: Part, *, marked: bool = False, language: str = FALLBACK) -> Outgoing:
    """Return what *part* shows; an empty payload is its plain text, *marked* adds that it may repeat another."""
    if part.payload:
        read = json.loads(part.payload)
        text, entities = str(read["text"]), tuple(read["entities"])
    else:
        text, entities = part.plain, ()
    if not marked:
        return Outgoing(text, entities)
    mark = f"\n\n{say('delivery.may_repeat', language)}"
    if width(text + mark, Unit.UTF16) > _PLATFORM_LIMIT:  # a part that another version of us has cut
        text = split(text, limit=_PLATFORM_LIMIT - width(mark, Unit.UTF16), unit=Unit.UTF16)[0]
        entities = ()
    return Outgoing(text + mark, entities)


@dataclass(frozen=True, slots=True)
class _Piece:
    markdown: str
    shown: Styled


def _fitting(markdown: str) -> Iterator[_Piece]:
    """Yield *markdown* in as many pieces as its formatted text needs: a table may grow, entities are counted."""
    shown = styled(markdown)
    if not shown.text.strip():
        shown = Styled(markdown.strip())
    size = width(markdown, Unit.UTF16)
    if width(shown.text, Unit.UTF16) <= LIMIT and len(shown.entities) <= _ENTITIES:
        yield _Piece(markdown, shown)
    elif size <= _SMALLEST:
        yield _Piece(markdown, Styled(markdown))
    else:
        # A head takes a quarter at most, so that each piece is smaller than what it was cut from.
        halves = split(markdown, limit=max(size // 2 + 1, _SMALLEST), unit=Unit.UTF16)
        for piece in continued(halves, size // 4):
            yield from _fitting(piece)


def _plain(piece: _Piece) -> str:
    text = plain(piece.markdown)
    return text if text.strip() and width(text, Unit.UTF16) <= LIMIT else piece.shown.text


def _payload(shown: Styled) -> str:
    entities = [_entity(entity) for entity in shown.entities]
    return json.dumps({"text": shown.text, "entities": entities}, ensure_ascii=False, separators=(",", ":"))


def _entity(entity: Entity) -> dict[str, Any]:
    fields: dict[str, Any] = {"type": entity.type, "offset": entity.offset, "length": entity.length}
    if entity.extra:
        fields["url" if entity.type == "text_link" else "language"] = entity.extra
    return fields
