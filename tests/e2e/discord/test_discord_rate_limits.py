"""Discord's rate limits, through the real discord.py: a request waits only when its bucket is empty."""

from __future__ import annotations

import asyncio
from datetime import timedelta

import pytest

from gateway.errors import RetryLater
from gateway.events import MessagePart, OutboundMessage, SessionKey
from tests.fakes.discord_harness import NotedChannel, connected
from tests.fakes.discord_records import GENERAL, RANDOM
from tests.fakes.discord_server import DiscordServer
from tests.fakes.web_services import FakePageServices

WINDOWS = [60.0, 102_737.0]  # seconds; the real service has answered with the second


def part(channel: NotedChannel, n: int, chat: str = GENERAL) -> MessagePart:
    """Return the only part of the answer number *n*."""
    key = SessionKey("discord", chat)
    (only,) = channel.render(OutboundMessage(id=f"tabcdefghijklmnop.{n}", key=key, text=f"answer {n}"))
    return only


@pytest.mark.parametrize("seconds", WINDOWS)
async def test_requests_are_sent_while_any_are_left(
    discord: DiscordServer, services: FakePageServices, seconds: float
) -> None:
    """50 requests in a window of any length are 50 messages, whether one at a time or all at once."""
    async with connected(services, discord) as channel:
        discord.limit = (50, seconds)
        for n in range(3):
            await channel.send(part(channel, n))
        await asyncio.gather(*(channel.send(part(channel, n)) for n in range(3, 50)))
        await asyncio.gather(*(channel.send(part(channel, n, RANDOM)) for n in range(50, 60)))
    assert sorted(discord.chat(GENERAL)) == sorted(f"answer {n}" for n in range(50))
    assert len(discord.chat(RANDOM)) == 10


@pytest.mark.parametrize("seconds", WINDOWS)
async def test_an_empty_bucket_asks_delivery_to_wait_at_most_fifteen_minutes(
    discord: DiscordServer, services: FakePageServices, seconds: float
) -> None:
    """With nothing left no request is sent, and delivery hears how long to wait; another chat does not notice."""
    async with connected(services, discord) as channel:
        discord.limit = (1, seconds)
        await channel.send(part(channel, 1))
        posts = len(discord.requests)
        for _ in range(3):
            with pytest.raises(RetryLater) as raised:
                await channel.send(part(channel, 2))
            assert min(seconds, 900) - 5 < raised.value.delay.total_seconds() <= min(seconds, 900)
        assert len(discord.requests) == posts
        await channel.send(part(channel, 3, RANDOM))
    assert (discord.chat(GENERAL), discord.chat(RANDOM)) == (["answer 1"], ["answer 3"])


async def test_a_429_of_a_day_is_tried_again_after_fifteen_minutes(
    discord: DiscordServer, services: FakePageServices
) -> None:
    """A wait that Discord names in the answer itself has the same bound."""
    async with connected(services, discord) as channel:
        for what in ("limit", "cloudflare"):
            discord.fail("POST", "messages", what, seconds=102_737)
            with pytest.raises(RetryLater) as raised:
                await channel.send(part(channel, 1))
            assert raised.value.delay == timedelta(minutes=15)


async def test_the_last_request_of_a_window_is_not_held_back_itself(
    discord: DiscordServer, services: FakePageServices
) -> None:
    """A request that empties its bucket returns at once; the window is the next one's to wait for."""
    async with connected(services, discord) as channel:
        discord.limit = (1, 29.0)
        async with asyncio.timeout(20):
            await channel.send(part(channel, 1))
    assert discord.chat(GENERAL) == ["answer 1"]
