"""Settings of a Discord channel. No library is imported here: settings are read on every start."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated, ClassVar, Literal

from pydantic import BaseModel, BeforeValidator, Field, SecretStr, model_validator

from channels.kit.settings import secret_matching, text_matching

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
