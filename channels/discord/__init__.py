"""Discord: servers, threads and direct messages. See docs/discord.md."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from typing import Annotated, Any, ClassVar, Literal

from pydantic import BaseModel, BeforeValidator, Field, SecretStr, model_validator

from channels.discord import setup
from channels.kit import secret_matching, text_matching
from gateway.channel import Channel, ChannelContext
from gateway.ports.setup import Finding, SetupQuestion

MOST_SHARDS = 64
_SNOWFLAKE = r"[1-9][0-9]{0,19}"

_token = secret_matching(
    r"[A-Za-z0-9_-]{18,}\.[A-Za-z0-9_-]{6,}\.[A-Za-z0-9_-]{25,}",
    "is not a Discord bot token; copy it from the developer portal: three parts separated by dots, without spaces or"
    " the word Bot",
)
_reaction = text_matching(
    r"|[^\x00-\x7f]\S{0,15}|[A-Za-z0-9_]{2,32}:[1-9][0-9]{0,19}",
    "must be one emoji such as 👀, name:id for a server's custom emoji, or empty for none",
)
_api_url = text_matching(r"https?://[^\s/]+/\S*", "must be a complete address, such as https://discord.com/api/v10")
_gateway_url = text_matching(r"wss?://[^\s/]+(/\S*)?", "must be a WebSocket address, such as wss://gateway.discord.gg/")

_auto_as_zero = BeforeValidator(lambda value: 0 if value == "auto" else value)


class DiscordSettings(BaseModel):
    """A bot made in the developer portal."""

    entry_shapes: ClassVar[Mapping[str, str]] = dict.fromkeys(("user", "role", "guild", "chat"), _SNOWFLAKE)
    one_bot: ClassVar[Sequence[str]] = ("token",)

    enabled: bool = True
    token: Annotated[SecretStr | None, _token] = None
    api_url: Annotated[str, _api_url] = "https://discord.com/api/v10"
    gateway_url: Annotated[str, _gateway_url] = "wss://gateway.discord.gg/"
    commands: Literal["global", "guild", "off"] = (
        "global"  # where native commands are registered; guild = at once, in guilds only
    )
    shards: Annotated[int, _auto_as_zero, Field(ge=0, le=MOST_SHARDS)] = (
        1  # connections over which Discord divides the servers; auto or 0 = as many as it recommends
    )
    reaction: Annotated[str, _reaction] = "👀"  # on accepted messages until they are answered; empty = none

    @model_validator(mode="after")
    def _check_required(self) -> DiscordSettings:
        if self.enabled and self.token is None:
            raise ValueError("needs a token from the developer portal; set `token`, or `enabled` to false")
        return self


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
