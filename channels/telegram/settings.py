"""What only a Telegram block holds. No library is imported here: settings are read on every start."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import ClassVar

from pydantic import BaseModel, SecretStr, field_validator, model_validator

_TOKEN = re.compile(r"[0-9]+:[A-Za-z0-9_-]{30,}\Z")

# Some of the emoji that Telegram lets a bot react with (core.telegram.org/bots/api#reactiontypeemoji).
_REACTIONS = ("👀", "👍", "👌", "🤔", "✍", "🫡", "⚡", "❤", "🔥", "🤝", "🙏", "🤓", "👨‍💻")


class TelegramSettings(BaseModel):
    """A bot, as BotFather made it. The two addresses are as python-telegram-bot takes them."""

    entry_shapes: ClassVar[Mapping[str, str]] = {"user": r"[1-9][0-9]{0,19}", "chat": r"-?[1-9][0-9]{0,19}"}

    enabled: bool = True
    token: SecretStr | None = None
    base_url: str = "https://api.telegram.org/bot"
    file_url: str = "https://api.telegram.org/file/bot"
    reaction: str = "👀"

    @field_validator("token")
    @classmethod
    def _looks_like_one(cls, token: SecretStr | None) -> SecretStr | None:
        if token is not None and not token.get_secret_value():
            raise ValueError("is empty; give it a value, or remove it")
        if token is not None and not _TOKEN.match(token.get_secret_value()):
            raise ValueError(
                "is no Telegram token; copy it from @BotFather, it looks like 123456789:AA followed by letters"
            )
        return token

    @field_validator("base_url", "file_url")
    @classmethod
    def _address(cls, address: str) -> str:
        if not re.match(r"https?://[^\s/]+/.*bot\Z", address):
            raise ValueError("must be an address that ends in /bot, such as https://api.telegram.org/bot")
        return address

    @field_validator("reaction")
    @classmethod
    def _one_that_bots_may_give(cls, reaction: str) -> str:
        if reaction not in ("", *_REACTIONS):
            raise ValueError(f"must be empty or one of {' '.join(_REACTIONS)}; bots may give no other")
        return reaction

    @model_validator(mode="after")
    def _has_a_token(self) -> TelegramSettings:
        if self.enabled and self.token is None:
            raise ValueError("needs a token from @BotFather; set `token`, or `enabled` to false")
        return self
