"""An answer as Discord's messages: cut, written in its dialect, within its limits."""

from __future__ import annotations

from collections.abc import Iterator

from channels.discord.codec.dialect import write
from gateway.events import OutboundMessage, Part
from gateway.text import bound, plain, split
from gateway.words import FALLBACK, say
from gateway.words.languages import LANGUAGES

LIMIT = 2_000  # characters of a message (docs.discord.com/developers/resources/message, content)
FILE_LIMIT = 10 << 20  # bytes of a file, where a server has no boosts
MOST_PARTS = 40
_MARK_ROOM = 110  # for the line that says a part may repeat: it joins a part that was cut long before
_ROOM = LIMIT - _MARK_ROOM
_SMALLEST = 120  # characters of source that are not cut again; marks never make twenty of one


def render(message: OutboundMessage, language: str = FALLBACK) -> list[Part]:
    """Cut and write *message*, and say in *language* where it is cut; pure.

    Each part holds enough room for the mark of a resend.
    """
    note = say("delivery.cut", language)
    shapes: list[tuple[str, str]] = []
    for piece in bound(message.text, limit=_ROOM, max_parts=MOST_PARTS, note=note):
        shapes.extend(_fitting(piece))
    if len(shapes) > MOST_PARTS:
        # Escapes made it longer than its source.
        shapes = [*shapes[: MOST_PARTS - 1], (write(note), note)]
    return [
        Part(
            id=f"{message.id}.{n}",
            key=message.key,
            payload=payload,
            plain=text,
            reply_to=message.reply_to,
            visible_to=message.visible_to,
            kind=message.kind,
        )
        for n, (payload, text) in enumerate(shapes, 1)
    ]


def _fitting(piece: str) -> Iterator[tuple[str, str]]:
    """Yield *piece* written and plain, in halves where the writing is too long for one message."""
    payload, text = write(piece), plain(piece)
    if len(payload) <= _ROOM and len(text) <= _ROOM:
        if text.strip() or payload.strip():
            yield (payload if payload.strip() else "", text if text.strip() else payload)
    elif len(piece) <= _SMALLEST:
        yield "", text[:_ROOM]
    else:
        for half in split(piece, limit=max(len(piece) // 2, _SMALLEST)):
            yield from _fitting(half)


def written(part: Part, *, marked: bool = False, language: str = FALLBACK) -> str:
    """Return what is sent for *part*; a marked one says so first."""
    text = part.payload or part.plain
    if part.file is not None:
        text = write(part.file.caption)[:_ROOM]
    return f"{say('delivery.may_repeat', language)}\n{text}"[:LIMIT] if marked else text


def is_the_same(content: str, part: Part) -> bool:
    """Say whether a message that stands in a chat is *part*, marked or not; Discord trims what it is sent."""
    standing = content.strip()
    for language in LANGUAGES:  # it may have been another one's when it was sent
        standing = standing.removeprefix(say("delivery.may_repeat", language)).strip()
    return bool(standing) and standing in (part.payload.strip(), part.plain.strip())
