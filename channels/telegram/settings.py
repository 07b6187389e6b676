"""Settings of a Telegram channel. No library is imported here: settings are read on every start."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated, ClassVar, Literal

from pydantic import BaseModel, SecretStr, field_validator, model_validator

from channels.kit.settings import secret_matching, text_matching
from gateway.ports.channel import PlatformTraits

# Some of the emoji that bots may react with (core.telegram.org/bots/api#reactiontypeemoji).
_REACTIONS = ("👀", "👍", "👌", "🤔", "✍", "🫡", "⚡", "❤", "🔥", "🤝", "🙏", "🤓", "👨‍💻")

_token = secret_matching(
    r"[0-9]+:[A-Za-z0-9_-]{30,}",
    "is not a Telegram bot token; copy it from @BotFather; it looks like 123456789:AAF-8x_…, without spaces",
)
_bot_url = text_matching(
    r"https?://[^\s/]+/.*bot", "must be an address that ends in /bot, such as https://api.telegram.org/bot"
)
_webhook_url = text_matching(
    r"|https?://[^\s/?#]+(/[^\s?#]*)?",
    "must be the address that Telegram calls: https://<your host>/hooks/<name of the channel>",
)
_SHAPE_ERROR = (
    "must be 16 to 256 of A-Z a-z 0-9 _ -; make one with python3 -c 'import secrets; print(secrets.token_urlsafe(32))'"
)
_webhook_secret = secret_matching(r"[A-Za-z0-9_-]{16,256}", _SHAPE_ERROR, empty=_SHAPE_ERROR)


class TelegramSettings(BaseModel):
    """A bot made with BotFather. The two addresses have the form that python-telegram-bot expects."""

    entry_shapes: ClassVar[Mapping[str, str]] = {"user": r"[1-9][0-9]{0,19}", "chat": r"-?[1-9][0-9]{0,19}"}
    traits: ClassVar[PlatformTraits] = PlatformTraits(chat_is_person=True, group_prefix="-")
    one_bot: ClassVar[Sequence[str]] = ("token",)

    enabled: bool = True
    token: Annotated[SecretStr | None, _token] = None
    base_url: Annotated[str, _bot_url] = "https://api.telegram.org/bot"
    file_url: Annotated[str, _bot_url] = "https://api.telegram.org/file/bot"
    reaction: str = "👀"
    mode: Literal["polling", "webhook"] = "polling"
    webhook_url: Annotated[str, _webhook_url] = ""
    webhook_secret: Annotated[SecretStr | None, _webhook_secret] = None

    @field_validator("reaction")
    @classmethod
    def _check_reaction(cls, reaction: str) -> str:
        if reaction not in ("", *_REACTIONS):
            raise ValueError(f"must be empty or one of {' '.join(_REACTIONS)}; bots may use no others")
        return reaction

    @model_validator(mode="after")
    def _check_required(self) -> TelegramSettings:
        if self.enabled and self.mode == "webhook" and not (self.webhook_url and self.webhook_secret):
            raise ValueError("needs `webhook_url` and `webhook_secret` for `mode: webhook`; or set it to polling")
        if self.enabled and self.token is None:
            raise ValueError("needs a token from @BotFather; set `token`, or `enabled` to false")
        return self
