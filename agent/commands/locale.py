"""/language and /timezone: a person's own in a direct chat, the chat's in a shared one."""

from __future__ import annotations

import asyncio

from agent.commands.declared import ANY, Need, command
from agent.commands.port import CommandContext, Reply
from gateway.events import Role
from gateway.words import say, zones
from gateway.words.languages import listed, named, own_name

_USUAL = frozenset({"default", "auto", "reset", "-"})  # takes a choice back
_LONGEST = 60


_CHOOSING = {ANY: Need(shared=Role.STEWARD)}  # to look is everybody's


@command("language", words=_CHOOSING)
async def language(context: CommandContext) -> Reply:
    """Show or set the language of what is said beside the answers; those follow whoever writes."""
    if not context.args:
        name = own_name(context.language)
        return Reply(text=say("commands.language", context.language, name=name, languages=listed()))
    if context.args.lower() in _USUAL:
        await context.house.prefer(context.scope, "language", "")
        return Reply(text=say("commands.language_set", context.house.language(context.key)))
    wanted = named(context.args)
    if not wanted:
        text = say("commands.language_unknown", context.language, name=_short(context.args), languages=listed())
        return Reply(text=text)
    await context.house.prefer(context.scope, "language", wanted)
    return Reply(text=say("commands.language_set", wanted))


@command("timezone", words=_CHOOSING)
async def timezone(context: CommandContext) -> Reply:
    """Show or set the time zone, by its IANA name or by a city."""
    if not context.args:
        return Reply(text=say("commands.timezone", context.language, zone=context.house.zone(context.scope)))
    if context.args.lower() in _USUAL:
        await context.house.prefer(context.scope, "timezone", "")
        return Reply(text=say("commands.timezone_set", context.language, zone=context.house.zone(context.scope)))
    found = await asyncio.to_thread(zones.find, context.args)
    if not found.name:
        return Reply(text=_no_zone(context, found.near))
    await context.house.prefer(context.scope, "timezone", found.name)
    return Reply(text=say("commands.timezone_set", context.language, zone=found.name))


def _no_zone(context: CommandContext, near: tuple[str, ...]) -> str:
    zone = _short(context.args)
    if near:
        return say("commands.timezone_near", context.language, zone=zone, near=", ".join(near))
    return say("commands.timezone_unknown", context.language, zone=zone)


def _short(text: str) -> str:
    return " ".join(text.split())[:_LONGEST]
