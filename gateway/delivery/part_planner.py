"""Decides what parts a message becomes: its texts, its files, and what stands in for either. Nothing here sends."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta

import structlog

from gateway.delivery.delivery_context import DeliveryContext
from gateway.delivery.growth import beginning
from gateway.events import Attachment, ChatKind, MessagePart, OutboundKind, OutboundMessage
from gateway.i18n import command_prefix, translate
from gateway.i18n.formats import format_file_size
from gateway.ports import Channel, OutboxPart, PartState
from gateway.text import LengthUnit, append_commands, render_plain, sanitize, split

log = structlog.get_logger(__name__)

LATE = timedelta(minutes=1)  # docs/using.md: after that much preview the last part is a new message
WHOLE = "answer.md"  # the file that holds an answer too long for its chat
PLACED_PARTS = 3  # texts of one answer that are placed: six calls, a few seconds
_STANDS = (PartState.SENT, PartState.SENDING, PartState.UNKNOWN)
_LONGEST_NAME = 64


class PartPlanner:
    """Plans the parts of one channel's messages. A plan is stored before its first part is sent and never changes."""

    def __init__(self, channel: Channel, context: DeliveryContext) -> None:
        self._channel = channel
        self._context = context

    def plan_parts(self, message: OutboundMessage, preview: OutboxPart | None) -> list[MessagePart]:
        """Return the parts in their order: text, then a part per attachment; none when there is nothing to show."""
        message = self._with_buttons(replace(message, text=self._context.redactor.redact(message.text)))
        least = self._previewed(message)
        texts = self._render(message, least=least)
        is_placed = self._context.uses_placeholders(self._channel, message)
        if self._is_too_long(message, len(texts), is_placed=is_placed):
            texts = self._with_file(message, least) or texts
        parts = [*texts, *(self._file(message, each) for each in message.attachments)]
        if is_placed:
            parts = [replace(part, is_placed=part.file is None) for part in parts]
        if parts and self._needs_pointer(message, parts, preview):
            parts = [self._pointer(message), *parts]
        parts = _with_choices(parts, message)
        return [replace(part, id=f"{message.id}.{n}") for n, part in enumerate(parts, 1)]

    # -- texts ---------------------------------------------------------------------------------

    def _with_buttons(self, message: OutboundMessage) -> OutboundMessage:
        """Return *message* as the channel can show its choices: as buttons, or as commands in the text."""
        capabilities = self._channel.capabilities
        # Elsewhere, in a chat of its own, the same command would be about that chat.
        is_elsewhere = bool(message.visible_to) and not capabilities.private_choices
        if len(message.choices) <= capabilities.choices and not (message.choices and is_elsewhere):
            return message
        prefix = command_prefix(self._context.language(message.key))
        return replace(message, text=append_commands(message.text, message.choices, prefix), choices=())

    def _previewed(self, message: OutboundMessage) -> int:
        """Return the length of the text that the turn's preview showed: the first part holds no less."""
        shown = self._context.previewed.get(message.turn, "")
        return len(shown) if sanitize(message.text[: 2 * len(shown)]).startswith(shown) else 0

    def _render(self, message: OutboundMessage, *, least: int = 0) -> list[MessagePart]:
        try:
            return [self._context.without_secrets(part) for part in self._channel.render(message, least=least)]
        except Exception:  # the channel boundary: an answer that cannot be formatted is still an answer
            log.exception("delivery.render_failed", channel=self._channel.name, message=message.id)
            capabilities = self._channel.capabilities
            pieces = split(
                render_plain(message.text), limit=capabilities.text_limit, unit=LengthUnit(capabilities.unit)
            )
            return [_plain_part(message, piece) for piece in pieces[: capabilities.max_parts]]

    def _is_too_long(self, message: OutboundMessage, texts: int, *, is_placed: bool) -> bool:
        """Return True if an answer of so many *texts* is to be its beginning and a file.

        In a group this spares the other members, except for messages that one person alone sees. With
        placeholders each text takes two calls in a chat that allows one a second, which delays the next answer.
        """
        is_shared = message.chat_kind is ChatKind.GROUP and not message.visible_to
        return (is_shared and texts > self._channel.capabilities.group_parts) or (is_placed and texts > PLACED_PARTS)

    def _with_file(self, message: OutboundMessage, least: int) -> list[MessagePart]:
        """Return the beginning and the file that a long answer becomes; nothing where it cannot be a file."""
        capabilities = self._channel.capabilities
        whole = sanitize(message.text)
        length = len(whole.encode())
        first = self._beginning(message, least) if length <= capabilities.file_limit else None
        if first is None:
            return []
        file = Attachment(kind="document", name=WHOLE, size=length, media_type="text/markdown")
        return [first, replace(_plain_part(message, whole), file=file)]

    def _beginning(self, message: OutboundMessage, least: int) -> MessagePart | None:
        """Return the answer's first part, which ends in a line that names the file; None if nothing fits."""
        able = self._channel.capabilities
        line = translate("delivery.in_the_file", self._context.language(message.key))
        source = sanitize(message.text[: 4 * able.text_limit])

        def render(text: str) -> list[MessagePart]:
            return self._render(replace(message, text=text, attachments=()))

        found = beginning(source, line, render, limit=able.text_limit, unit=LengthUnit(able.unit), least=least)
        return found[1] if found else None

    # -- files ---------------------------------------------------------------------------------

    def _file(self, message: OutboundMessage, file: Attachment) -> MessagePart:
        """Return *file* as a part, or the line that says why it cannot be one."""
        limit = self._channel.capabilities.file_limit
        if limit and file.size <= limit:
            return replace(_plain_part(message, ""), file=file)
        line = "delivery.file_large" if limit else "delivery.no_files"
        language = self._context.language(message.key)
        said = translate(
            line,
            language,
            name=shown_name(file),
            size=format_file_size(file.size, language),
            limit=format_file_size(limit, language),
        )
        return _plain_part(message, said)

    # -- the preview ---------------------------------------------------------------------------

    def _needs_pointer(self, message: OutboundMessage, parts: list[MessagePart], preview: OutboxPart | None) -> bool:
        """Return True if the preview becomes a pointer: a file cannot replace it, and a late answer must notify."""
        if preview is None or preview.state not in _STANDS or not self._channel.capabilities.edits:
            return False
        if parts[0].file is not None:
            return True
        is_late = preview.state is PartState.SENT and preview.at is not None and self._context.now() - preview.at > LATE
        rings = message.rings and self._channel.capabilities.rings and not parts[0].is_placed
        return len(parts) == 1 and is_late and rings

    def _pointer(self, message: OutboundMessage) -> MessagePart:
        line = translate("delivery.next_message", self._context.language(message.key))
        return replace(self._render(replace(message, text=line, attachments=()))[0], kind=OutboundKind.PREVIEW)


def _with_choices(parts: list[MessagePart], message: OutboundMessage) -> list[MessagePart]:
    """Return *parts* with the buttons below the last text, and with what they settle."""
    last = max((n for n, part in enumerate(parts) if part.file is None), default=-1)
    return [
        replace(part, choices=message.choices if n == last else (), settles=message.settles and not n)
        for n, part in enumerate(parts)
    ]


def _plain_part(message: OutboundMessage, text: str) -> MessagePart:
    return MessagePart(
        id=f"{message.id}.0",
        key=message.key,
        payload="",
        plain=text,
        reply_to=message.reply_to,
        visible_to=message.visible_to,
        kind=message.kind,
    )


def shown_name(file: Attachment) -> str:
    """Return a file's name as one short line of text."""
    name = " ".join(sanitize(file.name).split())
    return name if len(name) <= _LONGEST_NAME else f"{name[: _LONGEST_NAME - 1]}…"
