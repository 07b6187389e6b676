"""Telegram: bots by long polling over python-telegram-bot."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from importlib.util import find_spec
from typing import Annotated, Any, ClassVar, Literal

from pydantic import BaseModel, SecretStr, field_validator, model_validator

from channels.kit import secret_matching, text_matching
from gateway.channel import Channel, ChannelContext
from gateway.errors import SettingsError
from gateway.installation import HOW_TO_INSTALL
from gateway.ports.channel import PlatformTraits
from gateway.ports.setup import Finding, SetupQuestion

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


# Below this level the library logs addresses, headers or bodies, which hold the token.
logging.getLogger("telegram").setLevel(logging.WARNING)


class TelegramPlugin:
    """Builds Telegram channels. Implements `ChannelPlugin` and `SupportsSetup`."""

    name = "telegram"
    settings: type[Any] = TelegramSettings
    title = "Telegram"
    steps: Sequence[str] = (
        "In Telegram, open a chat with @BotFather and send /newbot; choose a name, and a username that ends in bot.",
        "It answers with a token such as 123456789:AA…: whoever has it is the bot, so keep it to yourself.",
    )

    def open(self, context: ChannelContext) -> Channel:
        """Build the channel; it connects when it runs."""
        try:
            from channels.telegram.adapter import TelegramChannel
        except ModuleNotFoundError as missing:
            raise SettingsError(
                f"channels.{context.name} needs {missing.name}; {HOW_TO_INSTALL}, or set `enabled` to false"
            ) from missing
        return TelegramChannel(context)

    def routes(self, channel: Channel) -> Sequence[Any]:
        """Return the route of the webhook; none in polling mode."""
        from starlette.routing import Route

        from channels.telegram.adapter import TelegramChannel

        if not isinstance(channel, TelegramChannel) or not channel.has_webhook:
            return ()
        return (Route(f"/hooks/{channel.name}", channel.hook, methods=["POST"]),)

    def questions(self) -> Sequence[SetupQuestion]:
        """Return the questions of `parlour init`: the token and the first senders."""
        return (
            SetupQuestion(
                setting="token",
                text="The bot's token",
                help="@BotFather, /mybots, the bot, API Token",
                is_secret=True,
            ),
            SetupQuestion(
                setting="allow_from",
                text="Your own Telegram id, so that you are heard (several with commas)",
                help="write to @userinfobot, which answers with it; or leave it empty, write to your bot, and read"
                " the log line admission.refused, which names it",
                is_optional=True,
            ),
        )

    async def verify(self, settings: Any, environment: Mapping[str, str]) -> Sequence[Finding]:
        """Return findings on token, privacy mode, webhook and other pollers, by real calls."""
        from channels.telegram.setup import verify

        return await verify(settings, environment)

    def check(self, settings: Any, environment: Mapping[str, str]) -> Sequence[str]:  # noqa: ARG002 - the port's signature
        """Return the errors of the settings; makes no calls."""
        errors: list[str] = []
        if find_spec("telegram") is None:
            errors.append(f"python-telegram-bot is not installed; {HOW_TO_INSTALL}")
        for name in ("base_url", "file_url"):
            address = str(getattr(settings, name))
            if address.startswith("http://") and not _is_local(address):
                errors.append(f"{name} sends the token unencrypted; use an https:// address")
        if settings.webhook_url.startswith("http://") and not _is_local(settings.webhook_url):
            errors.append("webhook_url would bring messages unencrypted, which Telegram refuses; use https://")
        return errors


def _is_local(address: str) -> bool:
    """Return True if *address* is this machine or a host name of its network."""
    host = address.removeprefix("http://").partition("/")[0]
    host = host.partition("]")[0] + "]" if host.startswith("[") else host.partition(":")[0]
    return host in ("127.0.0.1", "localhost", "[::1]") or "." not in host


plugin = TelegramPlugin()
