"""Discord's rate limit buckets, read as Discord documents them: a request waits only when its bucket is empty."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from datetime import timedelta

import aiohttp
import discord
from discord.http import Ratelimit

LONGEST_INLINE = 30.0  # seconds that a request waits by itself; a longer wait is discord.RateLimited
# Discord has named windows of more than a day. Asking again every 15 minutes costs 96 requests a day, against
# the 10,000 refused ones in ten minutes that it bans for.
LONGEST_WINDOW = timedelta(minutes=15)


class RateLimitBucket(Ratelimit):
    """One bucket of the library's REST client.

    discord.py's own bucket refuses a request whenever more than the inline wait is left of the window, however many
    requests are left in it, and keeps the request that empties the bucket waiting for the next window.
    """

    __slots__ = ("_changed",)

    def __init__(self) -> None:
        super().__init__(LONGEST_INLINE)
        self._changed = asyncio.Event()

    def update(self, response: aiohttp.ClientResponse, *, use_clock: bool = False) -> None:
        """Take over what *response* says of the bucket; no window is trusted for more than LONGEST_WINDOW."""
        super().update(response, use_clock=use_clock)
        self.limit = max(self.limit, 1)
        self.reset_after = min(self.reset_after, LONGEST_WINDOW.total_seconds())
        self.expires = self._loop.time() + self.reset_after

    def reset(self) -> None:
        """Forget the window: of the next one nothing is known but its size."""
        self.remaining = self.limit - self.outgoing
        self.expires = None
        self.reset_after = 0.0
        self.dirty = False

    async def acquire(self) -> None:
        """Take one request; wait for it up to LONGEST_INLINE. Raises discord.RateLimited when that is too short."""
        self._last_request = self._loop.time()
        while self._is_empty():
            # Before the first answer nothing is known of the bucket: one request is on its way to find out.
            left = None if self.expires is None else self.expires - self._loop.time()
            if left is not None and left > LONGEST_INLINE:
                raise discord.RateLimited(left)
            self._changed.clear()
            with suppress(TimeoutError):
                async with asyncio.timeout(left):
                    await self._changed.wait()
        self.remaining -= 1
        self.outgoing += 1

    def _is_empty(self) -> bool:
        if self.is_expired():
            self.reset()
        return self.remaining <= 0

    async def __aexit__(self, *_: object) -> None:
        """Give the request back, and let those that wait look at what is left."""
        self.outgoing -= 1
        if self.expires is None and self.remaining <= 0:
            self.reset()  # no answer, or one without the headers of a bucket
        self._changed.set()
