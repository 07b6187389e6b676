"""Telegram: bots by long polling over python-telegram-bot."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from importlib.util import find_spec
from typing import Any

from channels.telegram.settings import TelegramSettings
from gateway.channel import Channel, ChannelContext
from gateway.errors import SettingsError
from gateway.installation import HOW_TO_INSTALL
from gateway.ports.setup import Finding, SetupQuestion

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
