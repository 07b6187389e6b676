"""Kinds of channel for settings tests: the real models, with adapters for all of them unless a test says otherwise."""

from __future__ import annotations

from collections.abc import Iterable

from channels.console.settings import ConsoleSettings
from channels.discord.settings import DiscordSettings
from channels.slack.settings import SlackSettings
from channels.telegram.settings import TelegramSettings
from channels.web.settings import WebSettings
from gateway.settings import InstalledPlugins

TELEGRAM_TOKEN = "123456789:AAH-canary_canary-canary_canary-xyz"
ALL = ("web", "console", "telegram", "slack", "discord")


def kinds(adapters: Iterable[str] = ALL) -> InstalledPlugins:
    """Return every kind's real model, with the adapters that a test wants."""
    return InstalledPlugins(
        {
            "web": lambda: WebSettings,
            "console": lambda: ConsoleSettings,
            "telegram": lambda: TelegramSettings,
            "slack": lambda: SlackSettings,
            "discord": lambda: DiscordSettings,
        },
        frozenset(adapters),
    )
