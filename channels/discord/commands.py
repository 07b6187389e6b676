"""Native slash commands of Discord's apps."""

from __future__ import annotations

import asyncio
import hashlib
import json
from collections.abc import Sequence
from typing import Any

import structlog

from channels.discord.api import DiscordApi
from channels.discord.shards import BotShard
from gateway.errors import SendFailed, SendRefused
from gateway.i18n import FALLBACK, HELP, command_names, translate
from gateway.ports import ChannelState
from gateway.text import render_plain

log = structlog.get_logger(__name__)

_DESCRIPTION_LIMIT = 100  # characters
_COMMAND_LIMIT = 100
_NOTE = "commands"
_EVERYWHERE = ""
_IN_GUILDS_AND_OWN_CHATS = {"integration_types": [0], "contexts": [0, 1]}  # not in chats of people without the bot
# Our languages as Discord's apps name them (docs.discord.com/developers/reference, locales).
_LOCALES = {"en": ("en-US", "en-GB"), "de": ("de",), "es": ("es-ES", "es-419"), "zh": ("zh-CN",)}
_NONE: tuple[dict[str, Any], ...] = ()


def definition(language: str = FALLBACK) -> Sequence[dict[str, Any]]:
    """Return the definitions of all commands, described by their help lines in the catalogue.

    Apps in another supported language show that one, all others *language*.
    """
    option = {"type": 3, "name": "text", **_descriptions("discord.option", language), "required": False}
    return [
        {"type": 1, "name": name, **_descriptions(f"{HELP}{name}", language), "options": [option]}
        for name in command_names()[:_COMMAND_LIMIT]
    ]


def _descriptions(key: str, language: str) -> dict[str, Any]:
    localized = {
        code: _short(translate(key, each)) for each, codes in _LOCALES.items() if each != language for code in codes
    }
    return {"description": _short(translate(key, language)), "description_localizations": localized}


def _short(text: str) -> str:
    return render_plain(text)[:_DESCRIPTION_LIMIT]


class DiscordCommands:
    """Registers the commands of a channel; sends only what changed."""

    def __init__(self, name: str, state: ChannelState, api: DiscordApi, *, where: str, language: str) -> None:
        """Register them `global`, in each `guild` (at once, but not in direct messages), or `off`."""
        self._name = name
        self._state = state
        self._api = api
        self._where = where
        self._language = language
        self._lock = asyncio.Lock()  # sessions may follow each other quickly

    async def register(self, guilds: Sequence[str], shard: BotShard = BotShard()) -> None:  # noqa: B008 - immutable
        """Update the registered commands of *shard*, which has *guilds*: those for everywhere are the first's.

        Raises StoreUnavailable, SendFailed.
        """
        async with self._lock:
            await self._register(guilds, shard)

    async def _register(self, guilds: Sequence[str], shard: BotShard) -> None:
        note = shard.note(_NOTE)
        registered: dict[str, str] = json.loads(await self._state.load(note) or "{}")
        wanted = {"global": (_EVERYWHERE,), "guild": tuple(guilds)}.get(self._where, ())
        places = [place for place in wanted if shard.has(place)]
        commands = definition(self._language)
        for place in (*places, *(set(registered) - set(places))):
            definitions = commands if place in places else _NONE
            if place == _EVERYWHERE:  # the commands of a guild have no contexts
                definitions = [{**each, **_IN_GUILDS_AND_OWN_CHATS} for each in definitions]
            text = json.dumps([self._api.me, *definitions])
            mark = hashlib.sha256(text.encode()).hexdigest()[:16] if definitions else ""
            if registered.get(place, "") != mark and await self._put(place, definitions):
                registered[place] = mark
                kept = {place: mark for place, mark in registered.items() if mark}
                await self._state.save(note, json.dumps(kept) if kept else None)

    async def _put(self, guild: str, commands: Sequence[dict[str, Any]]) -> bool:
        try:
            await self._api.put_commands(guild, commands)
        except SendRefused as error:
            hint = "invite the bot with the scope applications.commands"
            log.warning("discord.commands_refused", channel=self._name, guild=guild, reason=str(error), mend=hint)
            return False
        log.info("discord.commands_registered", channel=self._name, guild=guild, commands=len(commands))
        return True


async def try_to_register(commands: DiscordCommands, guilds: Sequence[str], shard: BotShard) -> None:
    """Register the commands; a failure is retried with the next session."""
    try:
        await commands.register(guilds, shard)
    except SendFailed as error:
        log.info("discord.commands_later", reason=str(error))
