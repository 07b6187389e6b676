"""Staying under Telegram's limits by ourselves.

They are 30 calls a second in all, a message a second in a chat, 20 a minute in a group (constants.FloodLimit);
bursts are allowed.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass

_ALL_PER_SECOND = 30.0
_BURST = 20.0  # messages that a quiet chat takes at once
_DIRECT_PER_SECOND = 1.0
_GROUP_PER_SECOND = 20.0 / 60.0
_RESERVE = 6.0  # of a group's allowance that previews leave to messages
_MANY = 1000  # chats that are remembered before the rested ones are forgotten


@dataclass(slots=True)
class _TokenBucket:
    left: float
    at: float


class TelegramRateLimits:
    """The allowances of one bot, on the clock of the loop."""

    def __init__(self, clock: Callable[[], float] | None = None) -> None:
        self._given_clock = clock
        self._buckets: dict[str, _TokenBucket] = {}
        self._free_at = 0.0

    async def wait_turn(self) -> None:
        """Wait for a place among all calls of this bot."""
        now = self._clock()
        self._free_at = max(self._free_at, now) + 1 / _ALL_PER_SECOND
        ahead = self._free_at - now - 1.0  # a second's worth may go at once
        if ahead > 0:
            await asyncio.sleep(ahead)

    def try_acquire(self, chat: str) -> float:
        """Use one message of the chat's allowance and return 0, or return the seconds until there is one."""
        bucket = self._filled(chat)
        if bucket.left < 1.0:
            return (1.0 - bucket.left) / _rate(chat)
        bucket.left -= 1.0
        return 0.0

    def take_spare(self, chat: str) -> bool:
        """Use one message of the allowance if there are plenty; a preview's edit can be left out."""
        if self._filled(chat).left < 1.0 + _RESERVE:
            return False
        self.try_acquire(chat)
        return True

    def _filled(self, chat: str) -> _TokenBucket:
        now = self._clock()
        if len(self._buckets) > _MANY:
            self._buckets = {name: each for name, each in self._buckets.items() if _level(name, each, now) < _BURST}
        bucket = self._buckets.setdefault(chat, _TokenBucket(_BURST, now))
        bucket.left, bucket.at = _level(chat, bucket, now), now
        return bucket

    def _clock(self) -> float:
        return self._given_clock() if self._given_clock else asyncio.get_running_loop().time()


def _level(chat: str, bucket: _TokenBucket, now: float) -> float:
    return min(bucket.left + (now - bucket.at) * _rate(chat), _BURST)


def _rate(chat: str) -> float:
    return _GROUP_PER_SECOND if chat.startswith("-") else _DIRECT_PER_SECOND
