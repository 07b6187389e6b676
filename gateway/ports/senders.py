"""Who somebody is now, where what an event said of them may be out of date (PEOPLE.md, Admission entries)."""

from __future__ import annotations

from typing import Protocol, runtime_checkable

from gateway.events import InboundMessage, Sender


@runtime_checkable
class KnowsSenders(Protocol):
    """A channel whose platform gives people rights that can be taken from them, such as roles."""

    async def sender(self, message: InboundMessage) -> Sender:
        """Return who sent *message*, with the facts of now. Raises SendFailed when the platform cannot be asked."""
        ...
