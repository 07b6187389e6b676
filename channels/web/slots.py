"""Limits on one person's concurrent uploads or downloads, and on those waiting."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass

from gateway.errors import ParlourError


class SlotsTaken(ParlourError):
    """A person has as many at work and waiting as one person may."""


@dataclass(slots=True)
class _PersonSlot:
    free: asyncio.Semaphore
    users: int = 0  # at work and waiting


class PersonSlots:
    """Slots of each person, independent of other people's."""

    def __init__(self, at_once: int, waiting_limit: int = 0) -> None:
        self._at_once = at_once
        self._most = at_once + waiting_limit
        self._people: dict[str, _PersonSlot] = {}

    def busy(self, who: str) -> int:
        """Return the number of transfers of *who* that run or wait."""
        return self._people[who].users if who in self._people else 0

    @asynccontextmanager
    async def hold(self, who: str) -> AsyncIterator[None]:
        """Wait for a slot of *who* and hold it; raise SlotsTaken when too many wait already."""
        slot = self._people.setdefault(who, _PersonSlot(asyncio.Semaphore(self._at_once)))
        if slot.users >= self._most:
            raise SlotsTaken(who)
        slot.users += 1
        try:
            async with slot.free:
                yield
        finally:
            slot.users -= 1
            if not slot.users:
                del self._people[who]
