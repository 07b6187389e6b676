"""An answer as Discord's messages: cut, written in its dialect, within its limits."""

from __future__ import annotations

from collections.abc import Callable

from channels.discord.codec.markup import literal, render_markup, write_tree
from gateway.events import MessagePart, OutboundMessage, SessionKey
from gateway.i18n import translate
from gateway.i18n.languages import LANGUAGES
from gateway.ports import in_english
from gateway.text import PartWriter, WrittenPart, pack, parse, plain_tree

LIMIT = 2_000  # characters of a message (docs.discord.com/developers/resources/message, content)
FILE_LIMIT = 10 << 20  # bytes of a file, where a server has no boosts
MOST_PARTS = 40
_MARK_ROOM = 110  # for the line that says a part may repeat: it joins a part that was cut long before
_ROOM = LIMIT - _MARK_ROOM


def render(
    message: OutboundMessage, language: Callable[[SessionKey], str] = in_english, *, least: int = 0
) -> list[MessagePart]:
    """Split and format *message*, with a note in the chat's *language* where it is cut; pure.

    Each part leaves space for the mark of a resend. The first one contains the first *least* characters if they fit.
    """
    return [
        MessagePart(
            id=f"{message.id}.{n}",
            key=message.key,
            payload=part.payload,
            plain=part.plain,
            reply_to=message.reply_to,
            visible_to=message.visible_to,
            kind=message.kind,
        )
        for n, part in enumerate(
            pack(message.text, _WRITER, note=lambda: translate("delivery.cut", language(message.key)), least=least), 1
        )
    ]


def _write(markdown: str) -> WrittenPart:
    tree = parse(markdown)
    payload, text = write_tree(tree), plain_tree(tree)
    if not payload.strip() or not text.strip():  # nothing but definitions: better as they stand than not at all
        return _literal(markdown)
    return WrittenPart(payload, text, max(len(payload), len(text)) / _ROOM)


def _literal(text: str) -> WrittenPart:
    # Discord has no plain text: what would be a mark or a link is escaped.
    payload = literal(text)
    return WrittenPart(payload, text, len(payload) / _ROOM)


_WRITER = PartWriter(limit=_ROOM, max_parts=MOST_PARTS, write=_write, literal=_literal)


def message_content(
    part: MessagePart, *, may_be_duplicate: bool = False, language: Callable[[SessionKey], str] = in_english
) -> str:
    """Return the content of *part*; a marked one starts with a note that it may repeat another."""
    text = part.payload or part.plain
    if part.file is not None:
        text = render_markup(part.file.caption)[:_ROOM]
    return f"{translate('delivery.may_repeat', language(part.key))}\n{text}"[:LIMIT] if may_be_duplicate else text


def matches_part(content: str, part: MessagePart) -> bool:
    """Return True if the content of a message is *part*, marked or not; Discord trims white space."""
    standing = content.strip()
    for language in LANGUAGES:  # it may have been another one's when it was sent
        standing = standing.removeprefix(translate("delivery.may_repeat", language)).strip()
    return bool(standing) and standing in (part.payload.strip(), part.plain.strip())
