"""Native commands: what a person sees behind the slash. The commands themselves are the gateway's."""

from __future__ import annotations

import asyncio
import hashlib
import json
from collections.abc import Sequence
from typing import Any

import structlog

from channels.discord.api import DiscordApi
from gateway.errors import SendFailed, SendRefused
from gateway.i18n import FALLBACK, HELP, command_names, translate
from gateway.ports import ChannelState
from gateway.text import render_plain

log = structlog.get_logger(__name__)

_LONGEST = 100  # characters of a description
_MOST = 100  # commands of a bot
_NOTE = "commands"
_EVERYWHERE = ""
# Our languages as Discord's apps name them (docs.discord.com/developers/reference, locales).
_LOCALES = {"en": ("en-US", "en-GB"), "de": ("de",), "es": ("es-ES", "es-419"), "zh": ("zh-CN",)}
_NONE: tuple[dict[str, Any], ...] = ()


def definition(language: str = FALLBACK) -> Sequence[dict[str, Any]]:
    """Return every command as Discord is told it: each has its line of help in the catalogue.

    Whose app speaks another of our languages reads that, everybody else *language*.
    """
    option = {"type": 3, "name": "text", **_described("discord.option", language), "required": False}
    return [
        {"type": 1, "name": name, **_described(f"{HELP}{name}", language), "options": [option]}
        for name in command_names()[:_MOST]
    ]


def _described(key: str, language: str) -> dict[str, Any]:
    said = {
        code: _short(translate(key, each)) for each, codes in _LOCALES.items() if each != language for code in codes
    }
    return {"description": _short(translate(key, language)), "description_localizations": said}


def _short(text: str) -> str:
    return render_plain(text)[:_LONGEST]


class DiscordCommands:
    """Registers the commands of a block; tells Discord only what changed."""

    def __init__(self, name: str, state: ChannelState, rest: DiscordApi, *, where: str, language: str) -> None:
        """Register them `global`, in each `guild` (at once, but not in direct messages), or `off`."""
        self._name = name
        self._state = state
        self._rest = rest
        self._where = where
        self._language = language
        self._alone = asyncio.Lock()  # sessions may follow each other quickly

    async def register(self, guilds: Sequence[str]) -> None:
        """Bring what Discord shows up to date; *guilds* are ours. Raises StoreUnavailable, SendFailed."""
        async with self._alone:
            await self._register(guilds)

    async def _register(self, guilds: Sequence[str]) -> None:
        noted: dict[str, str] = json.loads(await self._state.load(_NOTE) or "{}")
        places = {"global": (_EVERYWHERE,), "guild": tuple(guilds)}.get(self._where, ())
        commands = definition(self._language)
        for place in (*places, *(set(noted) - set(places))):
            wanted = commands if place in places else _NONE
            mark = hashlib.sha256(json.dumps([self._rest.me, *wanted]).encode()).hexdigest()[:16] if wanted else ""
            if noted.get(place, "") != mark and await self._put(place, wanted):
                noted[place] = mark
                kept = {place: mark for place, mark in noted.items() if mark}
                await self._state.save(_NOTE, json.dumps(kept) if kept else None)

    async def _put(self, guild: str, commands: Sequence[dict[str, Any]]) -> bool:
        try:
            await self._rest.put_commands(guild, commands)
        except SendRefused as error:
            hint = "invite the bot with the scope applications.commands"
            log.warning("discord.commands_refused", channel=self._name, guild=guild, reason=str(error), mend=hint)
            return False
        log.info("discord.commands_registered", channel=self._name, guild=guild, commands=len(commands))
        return True


async def try_to_register(commands: DiscordCommands, guilds: Sequence[str]) -> None:
    """Register; what fails now is tried again with the next session."""
    try:
        await commands.register(guilds)
    except SendFailed as error:
        log.info("discord.commands_later", reason=str(error))
