"""Who somebody is now, where what an event said of them may be out of date (PEOPLE.md, Admission entries)."""

from __future__ import annotations

from typing import Protocol, runtime_checkable

from gateway.events import InboundMessage, Sender


@runtime_checkable
class SupportsSenderLookup(Protocol):
    """A channel whose platform gives people rights that can be taken from them: roles, membership, being an admin."""

    async def sender(self, message: InboundMessage) -> Sender:
        """Return who sent *message*, with roles, guest and admin as they are now: never by its words.

        What was heard or looked up within five minutes counts, unless the platform has said since that it changed.
        Raises SendFailed when the platform cannot be asked, or does not answer within a few seconds.
        """
        ...
