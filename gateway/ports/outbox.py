"""The outbox: parts that are cut once, sent in order, and accounted for one by one."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from typing import Protocol

from gateway.events import DeliveryReceipt, InboundMessage, MessagePart, OutboundMessage, SessionKey
from gateway.ports.journal import TurnLease

LinkFinder = Callable[[str], tuple[str, ...]]  # returns the addresses in a Markdown text that may be links, comparable


class PartState(StrEnum):
    """State of a part. A part found `sending` at start is unknown."""

    PENDING = "pending"
    SENDING = "sending"  # stored before the platform is called
    SENT = "sent"
    UNKNOWN = "unknown"  # perhaps sent; looked up by the platform's key, else resent with a notice
    DEAD = "dead"
    CANCELLED = "cancelled"


@dataclass(frozen=True, slots=True, kw_only=True)
class OutboxPart:
    """A frozen part and its ledger entry."""

    part: MessagePart
    state: PartState
    attempts: int = 0
    message_id: str = ""  # the platform's id once sent; before that, the placeholder's
    at: datetime | None = None  # when it entered this state, if known


@dataclass(frozen=True, slots=True, kw_only=True)
class PendingDelivery:
    """The oldest undelivered message of a chat."""

    message: OutboundMessage
    parts: tuple[OutboxPart, ...]  # empty until frozen
    preview: OutboxPart | None  # the turn's row 0, to be adopted by the answer's first part
    is_marked: bool = False  # its commit marked the first part as sending, for an attempt that was not made yet


@dataclass(frozen=True, slots=True, kw_only=True)
class DeadLetterGroup:
    """Dead letters of one channel that died of one reason."""

    channel: str
    reason: str
    count: int
    newest: datetime


@dataclass(frozen=True, slots=True, kw_only=True)
class DelayedDelivery:
    """A chat whose oldest message was not delivered yet, although it was tried or its platform asked us to wait."""

    key: SessionKey
    since: datetime  # the first wait
    until: datetime  # the next attempt
    reason: str  # for the operator


class Outbox(Protocol):
    """Durable deliveries, in order per chat. The same durability promise as the journal."""

    def chats(self) -> AsyncIterator[SessionKey]:
        """Yield each chat that has something to deliver: the last run's first, then as commits enqueue.

        Who delivers a message asks for the next one of its chat.
        """

    async def next(self, key: SessionKey) -> PendingDelivery | None:
        """Return the chat's oldest message with an unfinished part; previews never come out of here."""

    async def freeze(self, message: OutboundMessage, parts: Sequence[MessagePart]) -> tuple[OutboxPart, ...]:
        """Store the parts once and mark the first as sending; a second call returns the stored parts.

        Stores and returns none of a message that was cancelled meanwhile, or whose words an erasure has changed.
        """

    async def sending(self, part: MessagePart) -> MessagePart | None:
        """Mark *part* as sending, and return it as it is stored now, when that is durable; None if it was cancelled.

        An erasure may have changed it since it was read: send what is returned.
        """

    async def mark_sent(self, receipt: DeliveryReceipt, *, then: MessagePart | None = None) -> bool:
        """Store the receipt; in the same transaction mark *then* as sending. Return False if the chat has no more."""

    async def mark_placed(self, part: MessagePart, message_id: str) -> None:
        """Store the message id of the placeholder of *part*. Its state stays; after `cancel` it can still be filled."""

    async def mark_uncertain(self, part: MessagePart, reason: str) -> None:
        """Mark *part* as unknown."""

    async def mark_unsent(self, part: MessagePart, reason: str) -> None:
        """Mark *part* as pending again: it was certainly not sent."""

    async def dead_letter(self, part: MessagePart, reason: str) -> None:
        """Dead-letter *part* and the later parts of its message."""

    async def question(self, turn: str) -> InboundMessage | None:
        """Return the first message of *turn*; None if its words have expired."""

    async def move(
        self, message: OutboundMessage, part: MessagePart, parts: Sequence[MessagePart], question: InboundMessage
    ) -> bool:
        """Replace *part* and the later parts of *message* by *parts*, which go to another chat.

        Returns False, without effect, if *part* is finished, or if an erasure changed *message* or *question*.
        """

    async def preview(self, lease: TurnLease, part: MessagePart) -> OutboxPart:
        """Store the turn's row 0 as sending, before its first send; a second call returns the stored row."""

    async def cancel(self, turn: str) -> tuple[int, ...]:
        """Cancel the turn's parts that are not yet sending; return the numbers of those shown."""

    async def undelivered(self, key: SessionKey) -> tuple[PendingDelivery, ...]:
        """Return everything of a chat that has not reached its end state, in order."""

    async def messages_of(self, turn: str) -> tuple[PendingDelivery, ...]:
        """Return the messages of *turn* with their parts, whatever has become of them; expired texts are empty."""

    async def sent_message(self, key: SessionKey, message_id: str) -> OutboundMessage | None:
        """Return the message that the chat of *key* shows as *message_id*; None if it is unknown.

        Only the newest messages are searched. An expired text is empty.
        """

    async def messages_of_all(self, turns: Sequence[str]) -> Mapping[str, tuple[PendingDelivery, ...]]:
        """Return `messages_of` of each of *turns*, read at once."""

    async def dead(self, *, limit: int) -> tuple[DeadLetterGroup, ...]:
        """Return the dead letters that are kept, grouped, those of the latest date first, *limit* groups at most."""


class Preview(Protocol):
    """One turn's streaming preview. `show` and `status` return at once and never fail the turn."""

    @property
    def shown_at(self) -> datetime | None:
        """Time when the first words were shown in the chat; None before."""

    def show(self, text: str, links: LinkFinder | None = None) -> None:
        """Offer the full text so far; the last one wins, at the channel's own pace.

        *links* returns the only addresses of a text that may be links; None = all may.
        """

    def status(self, text: str) -> None:
        """Show the current action (a tool's name) if the channel can; an empty text clears it."""

    async def close(self) -> None:
        """Stop editing and typing, on every path. Waits briefly for the running call.

        The turn's answer is not sent before that call has ended.
        """


class NullPreview:
    """A preview that nobody sees. Implements `Preview`."""

    shown_at: datetime | None = None

    def show(self, text: str, links: LinkFinder | None = None) -> None:
        """Show nothing."""

    def status(self, text: str) -> None:
        """Show nothing."""

    async def close(self) -> None:
        """Do nothing."""


class PreviewFactory(Protocol):
    """Creates previews of turns. Implemented by delivery, which owns the rate limits."""

    def open(self, lease: TurnLease, language: str) -> Preview:
        """Start typing in the chat; *language* is that of our own sentences. Stores nothing before the first words."""

    def plan_at_once(self, message: OutboundMessage) -> tuple[MessagePart, ...]:
        """Return the parts of *message* if it can be sent as soon as its turn is stored; none if it has to wait."""

    def is_watched(self, key: SessionKey) -> bool:
        """Return True if a user would see a stream in this chat now (streaming costs CPU)."""
