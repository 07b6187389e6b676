"""Kinds of channel for settings tests: the real models, with adapters for all of them unless a test says otherwise."""

from __future__ import annotations

from channels.console import ConsoleSettings
from channels.discord import DiscordSettings
from channels.slack import SlackSettings
from channels.telegram import TelegramSettings
from channels.web import WebSettings
from gateway.settings import InstalledPlugins

TELEGRAM_TOKEN = "123456789:AAH-canary_canary-canary_canary-xyz"


def kinds() -> InstalledPlugins:
    """Return every kind's real model."""
    return InstalledPlugins(
        {
            "web": lambda: WebSettings,
            "console": lambda: ConsoleSettings,
            "telegram": lambda: TelegramSettings,
            "slack": lambda: SlackSettings,
            "discord": lambda: DiscordSettings,
        },
    )
