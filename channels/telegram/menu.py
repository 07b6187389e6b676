"""The command menu: what a person sees behind the slash. The commands themselves are the gateway's."""

from __future__ import annotations

from collections.abc import Sequence

import structlog
from telegram import Bot, BotCommand
from telegram.error import TelegramError

from channels.telegram.wire import described
from gateway.text import plain
from gateway.words import catalogue, say

log = structlog.get_logger(__name__)

_HELP = "commands.help_"
_MOST = 8
_FIRST = ("new", "stop", "status", "help", "queue", "retry", "timezone", "usage", "start")
_LONGEST = 256  # characters of a description


def commands() -> Sequence[str]:
    """Return the name of every command: each has its line of help in the catalogue."""
    names = (key.removeprefix(_HELP) for key in catalogue("en") if key.startswith(_HELP))
    return sorted(name for name in names if name != "title")


async def put_menu(bot: Bot) -> None:
    """Show the most useful commands; tells Telegram only what it does not show already."""
    known = commands()
    names = [name for name in _FIRST if name in known] + [name for name in known if name not in _FIRST]
    menu = [BotCommand(name, plain(say(f"{_HELP}{name}"))[:_LONGEST]) for name in names[:_MOST]]
    try:
        if list(await bot.get_my_commands()) != menu:
            await bot.set_my_commands(menu)
    except TelegramError as error:
        log.info("telegram.menu_failed", reason=described(error))
