"""Optional capabilities of channels and plugins, one Protocol each, and what the agent reads through them."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Sequence
from datetime import datetime
from typing import Protocol, runtime_checkable

from gateway.events import Attachment, InboundMessage, Sender, SessionKey
from gateway.ports.channel import PlatformEvent


@runtime_checkable
class SupportsReplay(Protocol):
    """A channel that takes in an event that the quarantine kept."""

    async def replay(self, event: PlatformEvent) -> None:
        """Parse *event* and hand it to `Intake.receive`, as when it came; called only while the channel is ready.

        Raises Unreadable for an event that cannot be taken in any more, and what `receive` raises.
        """
        ...


@runtime_checkable
class SupportsCommandPrefix(Protocol):
    """A kind on whose platform "/stop" does not reach us everywhere."""

    def command_sign(self, key: SessionKey) -> str:
        """Return what people type before a command's name in the chat *key*, a blank included where one stands."""
        ...


@runtime_checkable
class SupportsFiles(Protocol):
    """A channel whose messages can carry files in."""

    def fetch(self, attachment: Attachment) -> AsyncGenerator[bytes, None]:
        """Yield the file in pieces as the platform sends them; the caller stops when it has had enough.

        Raises FileUnavailable. An address that the platform did not make is never followed, and no
        address is logged: some hold the token.
        """
        ...


@runtime_checkable
class SupportsSenderLookup(Protocol):
    """A channel whose platform gives people rights that can be taken from them: roles, membership, being an admin."""

    async def sender(self, message: InboundMessage) -> Sender:
        """Return who sent *message*, with roles, guest and admin as they are now: never by its words.

        What was heard or looked up within five minutes counts, unless the platform has said since that it changed.
        Raises SendFailed when the platform cannot be asked, or does not answer within a few seconds.
        """
        ...


@runtime_checkable
class SupportsHistory(Protocol):
    """A channel that can say what was said in a chat, by asking its platform or from what it heard."""

    async def messages_before(
        self, message: InboundMessage, *, since: datetime | None, limit: int
    ) -> Sequence[InboundMessage]:
        """Return what people said in the place of *message* before it, oldest first; our own words left out.

        The start of its thread and the newest *limit* messages; nothing that is not newer than *since*.
        With the senders' facts as admission needs them. Empty where there is nothing, or where every
        word of that place comes to us anyway. Raises SendFailed when the platform cannot be asked now.
        """
        ...


class HistoryReader(Protocol):
    """What the agent asks the gateway for: the words before a mention, of those whom the chat admits."""

    async def messages_before(self, message: InboundMessage, *, since: datetime | None) -> tuple[InboundMessage, ...]:
        """Return them, oldest first; empty when there are none or the platform did not answer in time. Never raises."""
        ...

    def admits(self, message: InboundMessage, sender: str) -> bool:
        """Say whether the words of *sender* are admitted where *message* was said."""
        ...
