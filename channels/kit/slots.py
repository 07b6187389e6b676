"""Slots of people and chats: limits on what runs for one of them at once, and on what waits."""

from __future__ import annotations

import asyncio
import math
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass

from gateway.errors import ParlourError


class SlotsTaken(ParlourError):
    """As much runs and waits for a key as may."""


@dataclass(slots=True)
class _Slot:
    free: asyncio.Semaphore
    users: int = 0  # at work and waiting


class KeyedSlots:
    """Slots of each key, a person or a chat, independent of other keys'; served in order, and dropped when unused."""

    def __init__(self, at_once: int, waiting_limit: float = math.inf) -> None:
        self._at_once = at_once
        self._most = at_once + waiting_limit
        self._slots: dict[str, _Slot] = {}

    def busy(self, key: str) -> int:
        """Return the number of holders of a slot of *key*, and of those who wait for one."""
        return self._slots[key].users if key in self._slots else 0

    @asynccontextmanager
    async def hold(self, key: str) -> AsyncIterator[None]:
        """Wait for a slot of *key* and hold it; raise SlotsTaken when too many wait already."""
        slot = self._slots.setdefault(key, _Slot(asyncio.Semaphore(self._at_once)))
        if slot.users >= self._most:
            raise SlotsTaken(key)
        slot.users += 1
        try:
            async with slot.free:
                yield
        finally:
            slot.users -= 1
            if not slot.users:
                del self._slots[key]
