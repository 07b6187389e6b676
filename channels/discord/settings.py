"""What only a Discord block holds. No library is imported here: settings are read on every start."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import ClassVar, Literal

from pydantic import BaseModel, SecretStr, field_validator, model_validator

_TOKEN = re.compile(r"[A-Za-z0-9_-]{18,}\.[A-Za-z0-9_-]{6,}\.[A-Za-z0-9_-]{25,}\Z")
_SNOWFLAKE = r"[1-9][0-9]{0,19}"


class DiscordSettings(BaseModel):
    """A bot, as the developer portal made it."""

    entry_shapes: ClassVar[Mapping[str, str]] = dict.fromkeys(("user", "role", "guild", "chat"), _SNOWFLAKE)
    one_bot: ClassVar[Sequence[str]] = ("token",)

    enabled: bool = True
    token: SecretStr | None = None
    api_url: str = "https://discord.com/api/v10"
    gateway_url: str = "wss://gateway.discord.gg/"
    commands: Literal["global", "guild", "off"] = (
        "global"  # where native commands are; guild = at once, in servers only
    )
    reaction: str = "👀"  # on what was heard, until it is answered; empty = none

    @field_validator("token")
    @classmethod
    def _looks_like_one(cls, token: SecretStr | None) -> SecretStr | None:
        if token is not None and not token.get_secret_value():
            raise ValueError("is empty; give it a value, or remove it")
        if token is not None and not _TOKEN.match(token.get_secret_value()):
            raise ValueError(
                "is no Discord bot token; copy it from the developer portal, it is three parts with dots, without"
                " blanks and without the word Bot"
            )
        return token

    @field_validator("reaction")
    @classmethod
    def _one_emoji(cls, reaction: str) -> str:
        if not re.fullmatch(r"|[^\x00-\x7f]\S{0,15}|[A-Za-z0-9_]{2,32}:[1-9][0-9]{0,19}", reaction):
            raise ValueError("must be one emoji such as 👀, name:id for one of a server's own, or empty for none")
        return reaction

    @field_validator("api_url")
    @classmethod
    def _address(cls, address: str) -> str:
        if not re.match(r"https?://[^\s/]+/\S*\Z", address):
            raise ValueError("must be a whole address, such as https://discord.com/api/v10")
        return address

    @field_validator("gateway_url")
    @classmethod
    def _socket(cls, address: str) -> str:
        if not re.match(r"wss?://[^\s/]+(/\S*)?\Z", address):
            raise ValueError("must be a WebSocket address, such as wss://gateway.discord.gg/")
        return address

    @model_validator(mode="after")
    def _has_a_token(self) -> DiscordSettings:
        if self.enabled and self.token is None:
            raise ValueError("needs a token from the developer portal; set `token`, or `enabled` to false")
        return self
