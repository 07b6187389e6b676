"""Telegram: bots by long polling over python-telegram-bot."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from importlib.util import find_spec
from typing import Any

from channels.telegram.settings import TelegramSettings
from gateway.errors import SettingsMistake
from gateway.ports import Channel, ChannelContext


class TelegramKind:
    """The kind `telegram`."""

    name = "telegram"
    settings: type[Any] = TelegramSettings

    def open(self, context: ChannelContext) -> Channel:
        """Build the channel; it connects when it runs."""
        try:
            from channels.telegram.adapter import TelegramChannel
        except ModuleNotFoundError as missing:
            raise SettingsMistake(
                f"channels.{context.name} needs {missing.name}; run pip install 'parlour[telegram]',"
                " or set `enabled` to false"
            ) from missing
        return TelegramChannel(context)

    def routes(self, channel: Channel) -> Sequence[Any]:
        """Return where Telegram calls in webhook mode; nobody is answered there otherwise."""
        from starlette.routing import Route

        from channels.telegram.adapter import TelegramChannel

        if not isinstance(channel, TelegramChannel) or not channel.is_called:
            return ()
        return (Route(f"/hooks/{channel.name}", channel.hook, methods=["POST"]),)

    def check(self, settings: Any, environment: Mapping[str, str]) -> Sequence[str]:  # noqa: ARG002 - the port's signature
        """Return what is wrong with the block; no network."""
        wrong: list[str] = []
        if find_spec("telegram") is None:
            wrong.append("python-telegram-bot is not installed; run pip install 'parlour[telegram]'")
        for name in ("base_url", "file_url"):
            address = str(getattr(settings, name))
            if address.startswith("http://") and not _is_near(address):
                wrong.append(f"{name} sends the token unencrypted; use an https:// address")
        return wrong


def _is_near(address: str) -> bool:
    """Say whether *address* is this machine or a name of its own network, where a self-hosted server stands."""
    host = address.removeprefix("http://").partition("/")[0]
    host = host.partition("]")[0] + "]" if host.startswith("[") else host.partition(":")[0]
    return host in ("127.0.0.1", "localhost", "[::1]") or "." not in host


kind = TelegramKind()
