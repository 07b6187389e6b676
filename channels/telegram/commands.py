"""The command menu of Telegram's apps."""

from __future__ import annotations

from collections.abc import Sequence

import structlog
from telegram import Bot, BotCommand
from telegram.error import TelegramError

from channels.telegram.api import describe_error
from gateway.i18n import load_catalogue, translate
from gateway.i18n.languages import LANGUAGES
from gateway.text import render_plain

log = structlog.get_logger(__name__)

_HELP = "commands.help_"
_LIMIT = 8
_FIRST = ("new", "stop", "status", "help", "queue", "retry", "timezone", "usage", "start")
_LONGEST = 256  # characters of a description


def commands() -> Sequence[str]:
    """Return the names of all commands: each has a help line in the catalogue."""
    names = (key.removeprefix(_HELP) for key in load_catalogue("en") if key.startswith(_HELP))
    return sorted(name for name in names if name != "title")


async def set_command_menu(bot: Bot, language: str) -> None:
    """Show the most useful commands in *language*, and in each supported language to apps that use it.

    Only menus that differ are sent. Failures are logged.
    """
    known = commands()
    names = [name for name in _FIRST if name in known] + [name for name in known if name not in _FIRST]
    try:
        await _set_menu(bot, names[:_LIMIT], language, None)
        for other in LANGUAGES:
            await _set_menu(bot, names[:_LIMIT], other, other)
    except TelegramError as error:
        log.info("telegram.menu_failed", reason=describe_error(error))


async def _set_menu(bot: Bot, names: Sequence[str], language: str, code: str | None) -> None:
    """Show *names* in *language* to apps in the language *code*; None means all apps without a menu for theirs."""
    menu = [BotCommand(name, render_plain(translate(f"{_HELP}{name}", language))[:_LONGEST]) for name in names]
    if list(await bot.get_my_commands(language_code=code)) != menu:
        await bot.set_my_commands(menu, language_code=code)
