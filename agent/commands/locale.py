"""/language and /timezone: a person's own in a direct chat, the chat's in a shared one."""

from __future__ import annotations

import asyncio

from agent.commands.command_context import CommandContext, CommandReply
from agent.commands.declaration import ANY, CommandNeed, command
from gateway.events import Role
from gateway.i18n import time_zones, translate
from gateway.i18n.languages import list_languages, own_name, parse_language

_USUAL = frozenset({"default", "auto", "reset", "-"})  # takes a choice back
_LONGEST = 60


_CHOOSING = {ANY: CommandNeed(shared=Role.ADMIN)}  # to look is everybody's


@command("language", words=_CHOOSING)
async def language(context: CommandContext) -> CommandReply:
    """Show or set the language of what is said beside the answers; those follow whoever writes."""
    if not context.args:
        name = own_name(context.language)
        return CommandReply(
            text=translate("commands.language", context.language, name=name, languages=list_languages())
        )
    if context.args.lower() in _USUAL:
        await context.services.chats.preferences.prefer(context.scope, "language", "")
        return CommandReply(
            text=translate("commands.language_set", context.services.chats.locales.language(context.key))
        )
    wanted = parse_language(context.args)
    if not wanted:
        text = translate(
            "commands.language_unknown", context.language, name=_short(context.args), languages=list_languages()
        )
        return CommandReply(text=text)
    await context.services.chats.preferences.prefer(context.scope, "language", wanted)
    return CommandReply(text=translate("commands.language_set", wanted))


@command("timezone", words=_CHOOSING)
async def timezone(context: CommandContext) -> CommandReply:
    """Show or set the time zone, by its IANA name or by a city."""
    if not context.args:
        return CommandReply(text=translate("commands.timezone", context.language, zone=context.turn.zone))
    if context.args.lower() in _USUAL:
        await context.services.chats.preferences.prefer(context.scope, "timezone", "")
        return CommandReply(
            text=translate(
                "commands.timezone_set", context.language, zone=context.services.chats.locales.zone(context.scope)
            )
        )
    found = await asyncio.to_thread(time_zones.find_zone, context.args)
    if not found.name:
        return CommandReply(text=_no_zone(context, found.near))
    await context.services.chats.preferences.prefer(context.scope, "timezone", found.name)
    return CommandReply(text=translate("commands.timezone_set", context.language, zone=found.name))


def _no_zone(context: CommandContext, near: tuple[str, ...]) -> str:
    zone = _short(context.args)
    if near:
        return translate("commands.timezone_near", context.language, zone=zone, near=", ".join(near))
    return translate("commands.timezone_unknown", context.language, zone=zone)


def _short(text: str) -> str:
    return " ".join(text.split())[:_LONGEST]
