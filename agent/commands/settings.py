"""/settings: what is in force in this chat, and who decided it."""

from __future__ import annotations

from agent.commands.declared import command
from agent.commands.port import CommandContext, Reply
from agent.manners import SettingInForce
from gateway.words import say

_ORIGINS = frozenset({"everywhere", "block", "chosen"})


@command("settings", is_control=True)
async def settings(context: CommandContext) -> Reply:
    """Show each setting by its name in the file, so that whoever runs us finds it there."""
    found = context.house.in_force(context.key, context.row.message.guild, context.scope)
    lines = [f"- `{each.name}`: {each.value} ({_origin(each, context.language)})" for each in found]
    text = "\n".join([say("settings.title", context.language), *lines])
    return Reply(text=f"{text}\n\n{say('settings.more', context.language)}", is_private=True)


def _origin(setting: SettingInForce, language: str) -> str:
    if setting.said_by in _ORIGINS:
        return say(f"settings.{setting.said_by}", language)
    return say("settings.place", language, place=setting.said_by)
