"""/settings shows the settings of a chat; /language and /timezone set the person's, or those of a shared chat."""

from __future__ import annotations

import asyncio

from agent.commands.command import ANY, CommandContext, CommandNeed, CommandReply, command
from agent.commands.reminders import zone_question
from agent.turns.chat_profiles import EffectiveSetting
from gateway.events import Role
from gateway.i18n import time_zones, translate
from gateway.i18n.languages import list_languages, own_name, parse_language

_ORIGINS = frozenset({"everywhere", "block", "chosen"})
_DEFAULT_WORDS = frozenset({"default", "auto", "reset", "-"})
_LONGEST = 60
_CHOOSING = {ANY: CommandNeed(shared=Role.ADMIN)}


@command("settings", is_control=True)
async def settings(context: CommandContext) -> CommandReply:
    """List each setting by its name in the settings file."""
    effective = context.services.list_settings(context.key, context.message.guild, context.scope)
    lines = [f"- `{each.name}`: {each.value} ({_origin(context, each)})" for each in effective]
    text = "\n".join([context.translate("settings.title"), *lines])
    return CommandReply(text=f"{text}\n\n{context.translate('settings.more')}", is_private=True)


def _origin(context: CommandContext, setting: EffectiveSetting) -> str:
    if setting.said_by in _ORIGINS:
        return context.translate(f"settings.{setting.said_by}")
    return context.translate("settings.place", place=setting.said_by)


@command("language", words=_CHOOSING)
async def language(context: CommandContext) -> CommandReply:
    """Show or set the language of our own sentences; answers follow the language of the message."""
    services = context.services
    if not context.args:
        name = own_name(context.language)
        return context.reply("commands.language", name=name, languages=list_languages())
    if context.args.lower() in _DEFAULT_WORDS:
        await services.preferences.prefer(context.scope, "language", "")
        # Read again: the turn was claimed with the choice that has just been removed.
        return CommandReply(text=translate("commands.language_set", services.locales.language(context.key)))
    chosen = parse_language(context.args)
    if not chosen:
        return context.reply("commands.language_unknown", name=_short(context.args), languages=list_languages())
    await services.preferences.prefer(context.scope, "language", chosen)
    return CommandReply(text=translate("commands.language_set", chosen))


@command("timezone", words=_CHOOSING)
async def timezone(context: CommandContext) -> CommandReply:
    """Show or set the time zone, by its IANA name or by a city."""
    services = context.services
    if not context.args:
        return context.reply("commands.timezone", zone=context.turn.zone)
    if context.args.lower() in _DEFAULT_WORDS:
        await services.preferences.prefer(context.scope, "timezone", "")
        return await _zone_reply(context, services.locales.zone(context.scope))
    match = await asyncio.to_thread(time_zones.find_zone, context.args)
    if not match.name:
        zone, near = _short(context.args), ", ".join(match.near)
        return context.reply("commands.timezone_near" if near else "commands.timezone_unknown", zone=zone, near=near)
    await services.preferences.prefer(context.scope, "timezone", match.name)
    return await _zone_reply(context, match.name)


async def _zone_reply(context: CommandContext, zone: str) -> CommandReply:
    """Return the confirmation, and the question whether reminders of another zone move."""
    question, buttons = await zone_question(context, zone)
    texts = [context.translate("commands.timezone_set", zone=zone), question]
    return CommandReply(text="\n\n".join(filter(None, texts)), choices=buttons)


def _short(text: str) -> str:
    return " ".join(text.split())[:_LONGEST]
