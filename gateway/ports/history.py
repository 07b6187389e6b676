"""What was said before somebody called us in (PEOPLE.md, Manners)."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Protocol, runtime_checkable

from gateway.events import InboundMessage


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
