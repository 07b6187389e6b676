"""What only a Telegram block holds. No library is imported here: settings are read on every start."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import ClassVar, Literal

from pydantic import BaseModel, SecretStr, field_validator, model_validator

from gateway.ports import PlatformTraits

_TOKEN = re.compile(r"[0-9]+:[A-Za-z0-9_-]{30,}\Z")
_SECRET = re.compile(r"[A-Za-z0-9_-]{16,256}\Z")

# Some of the emoji that Telegram lets a bot react with (core.telegram.org/bots/api#reactiontypeemoji).
_REACTIONS = ("👀", "👍", "👌", "🤔", "✍", "🫡", "⚡", "❤", "🔥", "🤝", "🙏", "🤓", "👨‍💻")


class TelegramSettings(BaseModel):
    """A bot, as BotFather made it. The two addresses are as python-telegram-bot takes them."""

    entry_shapes: ClassVar[Mapping[str, str]] = {"user": r"[1-9][0-9]{0,19}", "chat": r"-?[1-9][0-9]{0,19}"}
    traits: ClassVar[PlatformTraits] = PlatformTraits(chat_is_person=True, group_prefix="-")
    one_bot: ClassVar[Sequence[str]] = ("token",)

    enabled: bool = True
    token: SecretStr | None = None
    base_url: str = "https://api.telegram.org/bot"
    file_url: str = "https://api.telegram.org/file/bot"
    reaction: str = "👀"
    mode: Literal["polling", "webhook"] = "polling"
    webhook_url: str = ""
    webhook_secret: SecretStr | None = None

    @field_validator("token")
    @classmethod
    def _looks_like_one(cls, token: SecretStr | None) -> SecretStr | None:
        if token is not None and not token.get_secret_value():
            raise ValueError("is empty; give it a value, or remove it")
        if token is not None and not _TOKEN.match(token.get_secret_value()):
            raise ValueError(
                "is no Telegram token; copy it from @BotFather, it looks like 123456789:AA followed by letters,"
                " without blanks"
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

    @field_validator("webhook_url")
    @classmethod
    def _reachable(cls, address: str) -> str:
        if address and not re.match(r"https?://[^\s/?#]+(/[^\s?#]*)?\Z", address):
            raise ValueError("must be the address that Telegram calls: https://<your host>/hooks/<name of the block>")
        return address

    @field_validator("webhook_secret")
    @classmethod
    def _hard_to_guess(cls, secret: SecretStr | None) -> SecretStr | None:
        if secret is not None and not _SECRET.match(secret.get_secret_value()):
            raise ValueError(
                "must be 16 to 256 of A-Z a-z 0-9 _ -; make one with"
                " python3 -c 'import secrets; print(secrets.token_urlsafe(32))'"
            )
        return secret

    @model_validator(mode="after")
    def _can_be_called(self) -> TelegramSettings:
        if self.enabled and self.mode == "webhook" and not (self.webhook_url and self.webhook_secret):
            raise ValueError("needs `webhook_url` and `webhook_secret` for `mode: webhook`; or set it to polling")
        return self

    @model_validator(mode="after")
    def _has_a_token(self) -> TelegramSettings:
        if self.enabled and self.token is None:
            raise ValueError("needs a token from @BotFather; set `token`, or `enabled` to false")
        return self
