"""Typing indicators, on virtual time."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from typing import cast

from channels.discord.api import DiscordApi
from channels.discord.outbound import DiscordActivity
from channels.kit.background import BackgroundTasks
from gateway.errors import RetryLater, SendRefused
from gateway.events import SessionKey
from tests.fakes.clock import VirtualClock

KEY = SessionKey("discord", "7")


class QuietRest:
    """Accepts typing, and fails as planned."""

    def __init__(self, clock: VirtualClock) -> None:
        self.clock = clock
        self.typed: list[float] = []
        self.failures: list[Exception] = []

    async def typing(self, chat: str) -> None:
        """Record the time."""
        assert chat == "7"
        if self.failures:
            raise self.failures.pop()
        self.typed.append(self.clock.seconds)


async def chat_of(key: SessionKey) -> str:
    """Return the chat."""
    return key.chat


def build(rest: QuietRest, tasks: BackgroundTasks) -> DiscordActivity:
    """Build the typing indicators of a channel."""
    return DiscordActivity(cast("DiscordApi", rest), tasks, chat_of)


async def test_typing_lasts_until_it_is_ended(clock: VirtualClock) -> None:
    """Repeated before Discord forgets it, not before Discord allows it, and over at once when it is over."""
    rest = QuietRest(clock)
    rest.failures.append(RetryLater(timedelta(seconds=11)))
    activity = build(rest, BackgroundTasks("discord"))
    activity.start(KEY)
    activity.start(KEY)
    await asyncio.sleep(30)
    assert rest.typed == [11.0, 19.0, 27.0]
    await activity.stop(KEY)
    await activity.stop(KEY)
    await asyncio.sleep(60)
    assert len(rest.typed) == 3


async def test_typing_ends_with_the_channel_and_with_a_refusal(clock: VirtualClock) -> None:
    """A closed channel types no more; a chat that is closed to us is left alone, and may be tried again."""
    rest, tasks = QuietRest(clock), BackgroundTasks("discord")
    rest.failures.append(SendRefused("closed"))
    activity = build(rest, tasks)
    activity.start(KEY)
    await asyncio.sleep(20)
    assert rest.typed == []
    activity.start(KEY)
    await asyncio.sleep(1)
    await tasks.close()
    await asyncio.sleep(60)
    assert rest.typed == [20.0]
