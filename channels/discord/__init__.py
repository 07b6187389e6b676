"""Discord: servers, threads and direct messages. See docs/discord.md."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from typing import Any

from channels.discord import setup
from channels.discord.settings import DiscordSettings
from gateway.channel import Channel, ChannelContext
from gateway.ports.setup import Finding, SetupQuestion

# Below this level the library logs addresses, headers or bodies, which hold the token.
logging.getLogger("discord").setLevel(logging.WARNING)


class DiscordPlugin:
    """Builds Discord channels. Implements `ChannelPlugin` and `SupportsSetup`."""

    name = "discord"
    title = setup.TITLE
    steps: Sequence[str] = setup.STEPS
    settings: type[Any] = DiscordSettings

    def open(self, context: ChannelContext) -> Channel:
        """Build the channel; discord.py is imported here only."""
        from channels.discord.adapter import DiscordChannel

        return DiscordChannel(context)

    def routes(self, channel: Channel) -> Sequence[Any]:  # noqa: ARG002 - the port's signature
        """Return nothing: the bot connects to Discord."""
        return ()

    def check(self, settings: Any, environment: Mapping[str, str]) -> Sequence[str]:  # noqa: ARG002 - the port's signature
        """Return no errors; raise ImportError without discord.py."""
        import discord  # noqa: F401 - doctor tells a missing library by its ImportError

        return ()

    def questions(self) -> Sequence[SetupQuestion]:
        """Return the questions of `parlour init`, in order."""
        return setup.questions()

    async def verify(self, settings: Any, environment: Mapping[str, str]) -> Sequence[Finding]:
        """Return findings on token, intent, sessions and guilds, by real calls."""
        return await setup.verify(settings, proxy=environment.get("PARLOUR_PROXY", ""))


plugin = DiscordPlugin()
