"""What every small intake of a test has in common: events are handled as they come."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from gateway.intake import Intake
from gateway.ports.channel import MembershipChange, PlatformEvent


class OpenDoor(Intake):
    """The part of an intake that keeps no quarantine."""

    is_cautious = False

    def __init__(self) -> None:
        """Need nothing."""

    async def handle(self, event: PlatformEvent, work: Callable[[], Awaitable[None]]) -> None:
        """Run *work*; whatever it raises comes through."""
        assert event.id
        await work()

    async def membership_changed(self, place: MembershipChange) -> None:
        """Nobody here asks where we are."""
