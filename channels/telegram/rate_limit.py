"""Telegram's outgoing rate limits (constants.FloodLimit).

A bot may make 30 calls a second, send one message a second to a user and 20 a minute to a group; bursts are allowed.
"""

from __future__ import annotations

from channels.kit.rate_limit import ChatRateLimits, Clock, TokenBucket, loop_time

_CALLS_PER_SECOND = 30
_CHAT_BURST = 20  # messages that a quiet chat takes at once
_DIRECT_INTERVAL = 1.0  # seconds
_GROUP_INTERVAL = 3.0
_RESERVE = 6  # messages of a chat's burst that previews leave to answers


class TelegramRateLimits:
    """The limits of one bot: `calls` for every call, and one bucket for the messages of each chat."""

    def __init__(self, clock: Clock = loop_time) -> None:
        self.calls = TokenBucket(_CALLS_PER_SECOND, 1 / _CALLS_PER_SECOND, clock=clock)
        self.chats = ChatRateLimits(_CHAT_BURST, _chat_interval, clock=clock)

    def try_acquire(self, chat: str) -> float:
        """Count one message to *chat* and return 0, or return the seconds until it may go."""
        return self.chats.of(chat).try_acquire()

    def try_acquire_preview(self, chat: str) -> bool:
        """Count one preview edit and return True if enough of the burst is left; a preview can be dropped."""
        return self.chats.of(chat).try_acquire(reserve=_RESERVE) == 0


def _chat_interval(chat: str) -> float:
    return _GROUP_INTERVAL if chat.startswith("-") else _DIRECT_INTERVAL
