"""Signs beside the words, on virtual time."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from typing import cast

from channels.discord.activity import DiscordActivity
from channels.discord.api import DiscordApi
from gateway.errors import RetryLater, SendRefused
from tests.fakes.clock import Clock


class QuietRest:
    """Takes typing, and fails as told."""

    def __init__(self, clock: Clock) -> None:
        self.clock = clock
        self.typed: list[float] = []
        self.failures: list[Exception] = []

    async def typing(self, chat: str) -> None:
        """Note when."""
        assert chat == "7"
        if self.failures:
            raise self.failures.pop()
        self.typed.append(self.clock.seconds)


async def seventh() -> str:
    """Return the chat."""
    return "7"


def signs(rest: QuietRest) -> DiscordActivity:
    """Build the signs of a channel."""
    return DiscordActivity(cast("DiscordApi", rest), name="discord")


async def test_typing_lasts_until_it_is_ended(clock: Clock) -> None:
    """Repeated before Discord forgets it, waiting where Discord says so, and over at once when it is over."""
    rest = QuietRest(clock)
    rest.failures.append(RetryLater(timedelta(seconds=3)))
    begun = signs(rest)
    begun.typing("7", seventh, on=True)
    begun.typing("7", seventh, on=True)
    await asyncio.sleep(30)
    assert rest.typed == [11.0, 19.0, 27.0]
    begun.typing("7", seventh, on=False)
    begun.typing("7", seventh, on=False)
    await asyncio.sleep(60)
    assert len(rest.typed) == 3


async def test_typing_ends_with_the_channel_and_with_a_refusal(clock: Clock) -> None:
    """A closed channel types no more; a chat that is closed to us is left alone, and may be tried again."""
    rest = QuietRest(clock)
    rest.failures.append(SendRefused("closed"))
    begun = signs(rest)
    begun.typing("7", seventh, on=True)
    await asyncio.sleep(20)
    assert rest.typed == []
    begun.typing("7", seventh, on=True)
    await asyncio.sleep(1)
    await begun.close()
    await asyncio.sleep(60)
    assert rest.typed == [20.0]
