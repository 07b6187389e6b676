"""How fast we speak: a chat takes about a message a second, a workspace about fifty edits a minute."""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from dataclasses import dataclass

_KEPT = 2_000


@dataclass(slots=True)
class SlackRateLimit:
    """So many at once, then one every *seconds*. Times are the event loop's."""

    burst: int
    seconds: float
    _free_at: float = 0.0  # when the bucket is full again

    def wait(self) -> float:
        """Return how many seconds the next one has to wait, 0 when it may go."""
        now = asyncio.get_running_loop().time()
        return max(self._free_at - now - self.seconds * (self.burst - 1), 0.0)

    def take(self) -> float:
        """Take one and return how many seconds it has to wait first."""
        wait = self.wait()
        self._free_at = max(self._free_at, asyncio.get_running_loop().time()) + self.seconds
        return wait


class SlackRateLimits:
    """One bucket for each chat."""

    def __init__(self, burst: int, seconds: float) -> None:
        self._burst = burst
        self._seconds = seconds
        self._chats: OrderedDict[str, SlackRateLimit] = OrderedDict()

    async def turn(self, chat: str) -> None:
        """Return when it is this message's turn in *chat*."""
        bucket = self._chats.pop(chat, None) or SlackRateLimit(self._burst, self._seconds)
        self._chats[chat] = bucket
        while len(self._chats) > _KEPT:
            self._chats.popitem(last=False)
        if wait := bucket.take():
            await asyncio.sleep(wait)
