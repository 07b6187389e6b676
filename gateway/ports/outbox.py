"""The outbox: parts that are cut once, sent in order, and accounted for one by one."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from typing import Protocol

from gateway.events import MessagePart, OutboundMessage, SessionKey
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
