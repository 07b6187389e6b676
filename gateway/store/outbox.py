"""The Outbox port over the writer."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from datetime import datetime
from functools import partial

from gateway.errors import StoreUnavailable
from gateway.events import DeliveryReceipt, MessagePart, OutboundMessage, SessionKey
from gateway.ports.journal import TurnLease
from gateway.ports.outbox import DeadLetterGroup, OutboxPart, PartState, PendingDelivery
from gateway.ports.store import BLANK_AFTER
from gateway.store import outbox_parts
from gateway.store.engine import StoreEngine
from gateway.store.expiry import KEEP
from gateway.store.outbox_parts import FinishedMessage
from gateway.store.row_codec import micros, write_part

_RETRY_SECONDS = 1.0


class SqliteOutbox:
    """Durable deliveries, in order per chat (see the Outbox port)."""

    def __init__(self, engine: StoreEngine) -> None:
        self._engine = engine

    def chats(self) -> AsyncIterator[SessionKey]:
        """Yield each chat that has something to deliver."""
        return self._engine.chats.stream()

    def _wake_next(self, finished: FinishedMessage) -> None:
        if finished.chat is not None:
            self._engine.chats.put(finished.chat)

    async def next(self, key: SessionKey) -> PendingDelivery | None:
        """Return the chat's oldest message with an unfinished part."""
        try:
            return await self._engine.writer.submit(lambda database: outbox_parts.next_delivery(database, key))
        except StoreUnavailable:
            self._engine.wake_at(_RETRY_SECONDS, partial(self._engine.chats.put, key))
            raise

    async def freeze(self, message: OutboundMessage, parts: Sequence[MessagePart]) -> tuple[OutboxPart, ...]:
        """Store the parts once and mark the first as sending."""
        now, payloads, adopted = self._engine.now(), outbox_parts.encode_parts(parts), self._engine.adopted
        rows, _ = await self._engine.writer.submit(
            lambda database: outbox_parts.freeze(database, message, payloads, now, adopted),
            lambda result: self._wake_next(result[1]),
        )
        return rows

    async def sending(self, part: MessagePart) -> None:
        """Mark *part* as sending."""
        now = self._engine.now()
        await self._engine.writer.submit(lambda database: outbox_parts.mark_sending(database, part.id, now))

    async def mark_sent(self, receipt: DeliveryReceipt, *, then: MessagePart | None = None) -> None:
        """Store the receipt; in the same transaction mark *then* as sending."""
        now, stamp = self._engine.now(), micros(receipt.at)
        following = then.id if then is not None else None
        await self._engine.writer.submit(
            lambda database: outbox_parts.mark_sent(database, receipt, stamp, following, now), self._wake_next
        )

    async def mark_placed(self, part: MessagePart, message_id: str) -> None:
        """Store the message id of the placeholder of *part*."""
        await self._engine.writer.submit(lambda database: outbox_parts.mark_placed(database, part.id, message_id))

    async def mark_uncertain(self, part: MessagePart, reason: str) -> None:
        """Mark *part* as unknown."""
        await self._mark(part, PartState.UNKNOWN, reason)

    async def mark_unsent(self, part: MessagePart, reason: str) -> None:
        """Mark *part* as pending again."""
        await self._mark(part, PartState.PENDING, reason)

    async def _mark(self, part: MessagePart, state: PartState, reason: str) -> None:
        now = self._engine.now()
        await self._engine.writer.submit(lambda database: outbox_parts.mark(database, part.id, state, reason, now))

    async def dead_letter(self, part: MessagePart, reason: str) -> None:
        """Dead-letter *part* and the later parts of its message."""
        now = self._engine.now()
        await self._engine.writer.submit(
            lambda database: outbox_parts.bury(database, part.id, reason, now), self._wake_next
        )

    async def preview(self, lease: TurnLease, part: MessagePart) -> OutboxPart:
        """Write the turn's row 0 as sending, once."""
        engine, now, payload = self._engine, self._engine.now(), write_part(part)
        return await engine.writer.submit(
            lambda database: outbox_parts.open_preview(database, lease, part, payload, engine.owner, now)
        )

    async def cancel(self, turn: str) -> tuple[int, ...]:
        """Cancel the turn's parts that are not yet sending; return the numbers of those shown."""
        now = self._engine.now()

        def wake(result: tuple[tuple[int, ...], set[SessionKey]]) -> None:
            for key in result[1]:
                self._engine.chats.put(key)

        shown, _ = await self._engine.writer.submit(lambda database: outbox_parts.cancel(database, turn, now), wake)
        return shown

    async def undelivered(self, key: SessionKey) -> tuple[PendingDelivery, ...]:
        """Return everything of a chat that has not reached its end state, in order."""
        return await self._engine.writer.submit(lambda database: outbox_parts.undelivered(database, key))

    async def dead(self, *, limit: int) -> tuple[DeadLetterGroup, ...]:
        """Return the dead letters that are kept, by channel and reason, the latest first."""
        return await self._engine.writer.submit(lambda database: outbox_parts.dead_groups(database)[:limit])

    async def purge(self, older_than: datetime) -> int:
        """Blank the texts of what ended before *older_than*; remove the rows another 23 days later."""
        blank_before = micros(older_than)
        forget_before = micros(older_than - (KEEP - BLANK_AFTER))
        return await self._engine.writer.submit(
            lambda database: outbox_parts.purge(database, (0, blank_before), forget_before)
        )
