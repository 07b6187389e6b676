"""The real channels in the process under test: real libraries, real addresses of the test's servers, short waits."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import Any

from pydantic import BaseModel

from channels.discord import DiscordSettings
from channels.discord.adapter import DiscordChannel
from channels.slack import SlackSettings
from channels.slack.adapter import SlackChannel
from channels.telegram import TelegramSettings
from channels.telegram.adapter import TelegramChannel
from gateway.admission import policy_of
from gateway.app.context import ExtraChannel
from gateway.channel import Channel, ChannelContext, SupportsShards
from gateway.settings.channel_blocks import combine_models
from tests.fakes import discord_records, slack_server, telegram_server
from tests.fakes.telegram_channel import QUICK
from tests.fakes.telegram_gateway import TEAM
from tests.faults.process_order import ProcessOrder

Quick = Callable[[ChannelContext], TelegramChannel | SlackChannel | DiscordChannel]


@dataclass(frozen=True, slots=True)
class _PlatformAddress:
    settings: type[BaseModel]
    fields: Callable[[str], Mapping[str, Any]]  # of the base address
    make: Quick


def _telegram(base: str) -> Mapping[str, Any]:
    address = {"base_url": f"{base}/bot", "file_url": f"{base}/file/bot"}
    return {"token": telegram_server.TOKEN, **address, "allow_from": ("42", f"chat:{TEAM}")}


def _slack(base: str) -> Mapping[str, Any]:
    tokens = {"bot_token": slack_server.BOT_TOKEN, "app_token": slack_server.APP_TOKEN}
    return {**tokens, "base_url": f"{base}/api/", "allow_from": (slack_server.ANN,)}


def _discord(base: str) -> Mapping[str, Any]:
    address = {"api_url": f"http://{base}/api/v10", "gateway_url": f"ws://{base}/gateway"}
    return {"token": discord_records.TOKEN, **address, "allow_from": (discord_records.ANN,)}


_PLATFORMS: Mapping[str, _PlatformAddress] = {
    "telegram": _PlatformAddress(TelegramSettings, _telegram, lambda context: TelegramChannel(context, waits=QUICK)),
    "slack": _PlatformAddress(SlackSettings, _slack, SlackChannel),
    "discord": _PlatformAddress(
        DiscordSettings, _discord, lambda context: DiscordChannel(context, identify_pause=0.01)
    ),
}


@dataclass(slots=True)
class _FastPreviewPlugin:
    """A channel kind whose previews come as fast as the test's model writes."""

    name: str
    settings: type[Any]
    make: Quick
    preview: timedelta
    notes: Mapping[str, str]

    def open(self, context: ChannelContext) -> Channel:
        """Build the real channel."""
        channel = self.make(context)
        channel.capabilities = replace(channel.capabilities, preview_every=self.preview)
        return _noted(channel, context, self.notes) if self.notes else channel

    def routes(self, channel: Channel) -> Sequence[Any]:
        """Return nothing."""
        return ()

    def check(self, settings: Any, environment: Mapping[str, str]) -> Sequence[str]:
        """Find nothing wrong."""
        return ()


def _noted(channel: Any, context: ChannelContext, notes: Mapping[str, str]) -> Channel:
    """Have *notes* stand in the channel's state before it runs, as an earlier life would have left them."""
    start = "shards" if isinstance(channel, SupportsShards) else "run"  # what the supervisor calls first
    work = getattr(channel, start)

    async def noted() -> Any:
        for name, value in notes.items():
            await context.state.save(name, value)
        return await work()

    setattr(channel, start, noted)
    found: Channel = channel
    return found


def is_up(channel: Channel) -> bool:
    """Say whether the channel hears its platform, so far as can be known while nobody speaks.

    Telegram's first poll is answered when there is something to say; that it knows who it is must do.
    """
    return bool(channel._inbound.bot.id) if isinstance(channel, TelegramChannel) else channel.is_ready()


def platform_channel(order: ProcessOrder) -> ExtraChannel:
    """Return the channel that *order* names, as its settings block would make it."""
    platform = _PLATFORMS[order.platform]
    block = combine_models(platform.settings).model_validate({"kind": order.platform, **platform.fields(order.base)})
    kind = _FastPreviewPlugin(
        order.platform, platform.settings, platform.make, timedelta(seconds=order.preview_seconds), order.notes
    )
    policy = policy_of(order.platform, block.allow_from, (), block.group_policy)
    return ExtraChannel(name=order.platform, kind=kind, settings=block, policy=policy, traits=block.traits)
