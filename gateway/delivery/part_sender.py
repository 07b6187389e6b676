"""Brings one part to its platform: adoption of the preview, doubt, and plain text, but no waiting."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from dataclasses import replace
from typing import TypeVar

import structlog

from gateway.delivery.delivery_context import AttachmentLost, DeliveryContext
from gateway.delivery.part_planner import shown_name
from gateway.errors import FormatRefused, RetryLater, SendFailed, SendRefused
from gateway.events import Attachment, DeliveryReceipt, MessagePart, OutboundKind
from gateway.i18n import translate
from gateway.ports import Channel, OutboxPart, PartState

log = structlog.get_logger(__name__)

T = TypeVar("T")

DOUBTFUL = (PartState.SENDING, PartState.UNKNOWN)


def placeholder(part: MessagePart, language: str) -> MessagePart:
    """Return the placeholder sent in place of *part* until its text is edited in."""
    blank = translate("delivery.placeholder", language)
    return replace(part, payload="", plain=blank, kind=OutboundKind.PREVIEW, choices=(), settles=False)


class PartSender:
    """Sends the parts of one chat, one after the other.

    `is_doubtful` says after each `post`, however it ended, whether the part may stand in the chat already.
    """

    def __init__(self, channel: Channel, context: DeliveryContext) -> None:
        self._channel = channel
        self._context = context
        self._first_sent: tuple[str, float] = ("", 0.0)  # a part, and when this process first sent it
        self.is_doubtful = False

    async def deliver_part(
        self, row: OutboxPart, preview: OutboxPart | None, *, is_marked_sending: bool
    ) -> DeliveryReceipt:
        """Send, edit or find *row*'s part and return the receipt; raise SendFailed.

        Whatever leaves for the platform is `sending` in the ledger before; *is_marked_sending* says that
        it is already, by us and for this attempt.
        """
        part = row.part
        self.is_doubtful = not is_marked_sending and row.state in DOUBTFUL
        is_preview_doubtful = False
        if preview is not None:
            standing, is_preview_doubtful = await self._find_preview(preview)
            if standing and (receipt := await self._adopt(standing, part, is_marked_sending)):
                return receipt
        if part.kind is OutboundKind.PREVIEW:
            # It only ever stood for the preview that is gone; there is nothing to point at.
            return DeliveryReceipt(part=part.id, message_id="", at=self._context.now())
        if part.is_placed:
            return await self._fill(row, is_marked_sending)
        is_keyed = self._is_key_good(part)
        if self.is_doubtful and not is_keyed and (found := await self._find(part)):
            return found
        if not is_marked_sending:
            await self._context.retry_store(lambda: self._context.outbox.sending(part))
        return await self._send(part, may_be_duplicate=(self.is_doubtful and not is_keyed) or is_preview_doubtful)

    # -- the preview ---------------------------------------------------------------------------

    async def _find_preview(self, preview: OutboxPart) -> tuple[str, bool]:
        """Return the platform's id of the preview, or "", and True if it may exist although its id is unknown."""
        if not self._channel.capabilities.edits:
            return "", preview.state in DOUBTFUL
        if preview.state is PartState.SENT:
            return preview.message_id, False
        if preview.state not in DOUBTFUL:
            return "", False
        try:
            receipt = await self._ask(preview.part, self._channel.find(preview.part))
        except RetryLater:
            raise
        except SendFailed:
            if not self._is_key_good(preview.part):
                # Of a preview that is placed nothing but the placeholder can stand there.
                return "", not preview.part.is_placed
            receipt = await self._send(preview.part, may_be_duplicate=False)
        if receipt is None:
            return "", False
        await self._context.retry_store(lambda: self._context.outbox.mark_sent(receipt))
        return receipt.message_id, False

    async def _adopt(self, message_id: str, part: MessagePart, is_marked_sending: bool) -> DeliveryReceipt | None:
        """Make the preview the part; None when the platform will not have it edited."""
        if not is_marked_sending:
            await self._context.retry_store(lambda: self._context.outbox.sending(part))
        try:
            return await self._edit(message_id, part)
        except SendRefused as error:
            log.info("delivery.preview_gone", channel=self._channel.name, part=part.id, reason=str(error))
            return None

    async def _edit(self, message_id: str, part: MessagePart) -> DeliveryReceipt:
        try:
            return await self._ask(part, self._channel.edit(message_id, part))
        except FormatRefused:
            self._count_retry("format")
        try:
            return await self._ask(part, self._channel.edit(message_id, replace(part, payload="")))
        except FormatRefused as error:
            raise SendRefused(f"not even as plain text: {error}") from error

    # -- the part itself -----------------------------------------------------------------------

    def _is_key_good(self, part: MessagePart) -> bool:
        """Return True if the platform would recognise a repeat of *part* now."""
        capabilities = self._channel.capabilities
        if not capabilities.send_key or capabilities.send_key_for is None:
            return capabilities.send_key
        name, at = self._first_sent
        age = asyncio.get_running_loop().time() - at
        return name == part.id and age < capabilities.send_key_for.total_seconds()

    async def _find(self, part: MessagePart) -> DeliveryReceipt | None:
        """Ask the platform for *part*; settles the doubt when it knows."""
        try:
            found = await self._ask(part, self._channel.find(part))
        except RetryLater:
            raise
        except SendFailed:
            return None
        self.is_doubtful = found is not None
        return found

    async def _send(self, part: MessagePart, *, may_be_duplicate: bool) -> DeliveryReceipt:
        if self._first_sent[0] != part.id:
            self._first_sent = (part.id, asyncio.get_running_loop().time())
        if may_be_duplicate:
            log.warning("delivery.marked", channel=self._channel.name, part=part.id)
        if part.file is not None:
            return await self._send_file(part, part.file, may_be_duplicate=may_be_duplicate)
        try:
            return await self._ask(part, self._channel.send(part, may_be_duplicate=may_be_duplicate))
        except FormatRefused:
            self._count_retry("format")
        try:
            return await self._ask(
                part, self._channel.send(replace(part, payload=""), may_be_duplicate=may_be_duplicate)
            )
        except FormatRefused as error:
            raise SendRefused(f"not even as plain text: {error}") from error

    async def _send_file(self, part: MessagePart, file: Attachment, *, may_be_duplicate: bool) -> DeliveryReceipt:
        """Send a file, or, when it is lost or not taken, the line that says so; dead is only what refuses both."""
        try:
            return await self._ask(part, self._channel.send(part, may_be_duplicate=may_be_duplicate))
        except (SendRefused, FormatRefused) as error:
            sentence = "delivery.file_lost" if isinstance(error, AttachmentLost) else "delivery.file_refused"
            log.warning("delivery.file_not_sent", channel=self._channel.name, part=part.id, reason=str(error))
        line = translate(sentence, self._context.language(part.key), name=shown_name(file))
        line_part = replace(part, file=None, payload="", plain=line)
        return await self._ask(line_part, self._channel.send(line_part, may_be_duplicate=may_be_duplicate))

    # -- delivery.once: strict -----------------------------------------------------------------

    async def _fill(self, row: OutboxPart, is_marked_sending: bool) -> DeliveryReceipt:
        """Edit the text into its placeholder, which is sent first; both may be repeated without a second answer."""
        part, place = row.part, row.message_id
        if not is_marked_sending:
            await self._context.retry_store(lambda: self._context.outbox.sending(part))
        if place:
            try:
                return await self._edit(place, part)
            except SendRefused as error:
                log.info("delivery.placeholder_gone", channel=self._channel.name, part=part.id, reason=str(error))
        blank = placeholder(part, self._context.language(part.key))
        placed = await self._ask(blank, self._channel.send(blank))
        await self._context.retry_store(lambda: self._context.outbox.mark_placed(part, placed.message_id))
        return await self._edit(placed.message_id, part)

    async def _ask(self, part: MessagePart, call: Awaitable[T]) -> T:
        async with self._context.slot(self._channel.name):
            return await self._context.call_channel(self._channel, part, call)

    def _count_retry(self, reason: str) -> None:
        self._context.meter.count("delivery_retries", channel=self._channel.name, reason=reason)
