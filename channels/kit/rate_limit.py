"""Outgoing rate limits: token buckets that report how long a call has to wait.

Delivery needs the delay as a number (`RetryLater`), and previews are dropped when few calls are left. aiolimiter
only waits, so it does not fit.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TypeAlias

Clock: TypeAlias = Callable[[], float]  # seconds

_PRUNE_ABOVE = 1_000  # buckets of chats; full ones are dropped, since a new one is full too


def loop_time() -> float:
    """Return the time of the running event loop, in seconds."""
    return asyncio.get_running_loop().time()


class TokenBucket:
    """Allow *burst* calls at once, then one every *interval* seconds."""

    __slots__ = ("_burst", "_clock", "_full_at", "_interval")

    def __init__(self, burst: int, interval: float, *, clock: Clock = loop_time) -> None:
        self._burst = burst
        self._interval = interval
        self._clock = clock
        self._full_at = 0.0

    @property
    def is_full(self) -> bool:
        """Return True if no call counts any more."""
        return self._full_at <= self._clock()

    def delay(self, *, reserve: int = 0) -> float:
        """Return the seconds until a call may go that leaves *reserve* others; 0 if it may go now."""
        return max(self._full_at - self._clock() - self._interval * (self._burst - 1 - reserve), 0.0)

    def try_acquire(self, *, reserve: int = 0) -> float:
        """Count one call and return 0 if it may go now; else count nothing and return `delay`."""
        delay = self.delay(reserve=reserve)
        if not delay:
            self._count()
        return delay

    async def acquire(self) -> None:
        """Count one call and wait until it may go; callers are served in order."""
        delay = self.delay()
        self._count()
        if delay:
            await asyncio.sleep(delay)

    def _count(self) -> None:
        self._full_at = max(self._full_at, self._clock()) + self._interval


class ChatRateLimits:
    """One token bucket for each chat. *interval* returns a chat's seconds for each call."""

    def __init__(self, burst: int, interval: Callable[[str], float], *, clock: Clock = loop_time) -> None:
        self._burst = burst
        self._interval = interval
        self._clock = clock
        self._buckets: dict[str, TokenBucket] = {}

    def of(self, chat: str) -> TokenBucket:
        """Return the bucket of *chat*."""
        if chat not in self._buckets:
            if len(self._buckets) > _PRUNE_ABOVE:
                self._buckets = {name: bucket for name, bucket in self._buckets.items() if not bucket.is_full}
            self._buckets[chat] = TokenBucket(self._burst, self._interval(chat), clock=self._clock)
        return self._buckets[chat]
