"""The Slack channel under test: the real libraries before a workspace on this machine and a gateway of the test's."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

from channels.kit.background import ChatRateLimits
from channels.slack import SlackSettings, plugin
from channels.slack.adapter import SlackChannel
from gateway.errors import RetryLater
from gateway.events import MessagePart, OutboundKind, OutboundMessage, SessionKey
from gateway.settings.channel_blocks import ChannelSettings, combine_models
from tests.fakes.conditions import eventually
from tests.fakes.slack_server import APP_TOKEN, BOT_TOKEN, SlackServer, slack_server
from tests.fakes.web_services import FakePageServices

TURN = "tabcdefghijklmnop"
PING = timedelta(milliseconds=200)


def settings(server: SlackServer, **more: Any) -> ChannelSettings:
    """Return a block that leads to *server*."""
    tokens = {"bot_token": BOT_TOKEN, "app_token": APP_TOKEN}
    return combine_models(SlackSettings).model_validate(
        {"kind": "slack", **tokens, "base_url": f"{server.base}/api/", **more}
    )


def message(place: str, text: str, *, row: int = 1, kind: OutboundKind = OutboundKind.ANSWER, **more: Any) -> Any:
    """Return an outbound message to a place of the workspace."""
    return OutboundMessage(id=f"{TURN}.{row}", key=SessionKey("slack", place), text=text, kind=kind, **more)


@dataclass
class RunningSlack:
    """A channel that is up."""

    server: SlackServer
    channel: SlackChannel
    services: FakePageServices

    def render(self, place: str, text: str, **more: Any) -> list[MessagePart]:
        """Cut *text* for a place."""
        return list(self.channel.render(message(place, text, **more)))


def build(server: SlackServer, services: FakePageServices, **more: Any) -> SlackChannel:
    """Return a channel that is not connected yet."""
    built = plugin.open(services.context("slack", settings(server, **more)))
    assert isinstance(built, SlackChannel)
    built._ping = PING
    built._outbound.posts = ChatRateLimits(1_000, lambda _: 0.001)
    services.channel = built
    return built


async def _supervised(channel: SlackChannel) -> None:
    """Run it as a gateway does: once it was up, it begins anew when Slack, or a slow machine, was silent."""
    while True:
        try:
            return await channel.run()
        except RetryLater:
            if not channel._catch_up.passes:
                raise


@asynccontextmanager
async def running(server: SlackServer, services: FakePageServices, **more: Any) -> AsyncIterator[RunningSlack]:
    """Run the channel in front of *house* until the end of the block."""
    channel = build(server, services, **more)
    task = asyncio.create_task(_supervised(channel), name="slack channel")
    try:
        await eventually(lambda: (channel.is_ready() and channel._catch_up.passes > 0) or task.done())
        if task.done():
            await task
        yield RunningSlack(server, channel, services)
    finally:
        task.cancel()
        await asyncio.wait({task})
        await channel.close()


@asynccontextmanager
async def slack(services: FakePageServices | None = None, **more: Any) -> AsyncIterator[RunningSlack]:
    """Run a workspace and a channel."""
    async with slack_server() as server, running(server, services or FakePageServices(), **more) as up:
        yield up
