"""/settings: the effective settings of this chat, and their origins."""

from __future__ import annotations

from agent.chat_profiles import EffectiveSetting
from agent.commands.command import CommandContext, CommandReply, command

_ORIGINS = frozenset({"everywhere", "block", "chosen"})


@command("settings", is_control=True)
async def settings(context: CommandContext) -> CommandReply:
    """List each setting by its name in the settings file."""
    effective = context.services.chats.list_settings(context.key, context.message.guild, context.scope)
    lines = [f"- `{each.name}`: {each.value} ({_origin(context, each)})" for each in effective]
    text = "\n".join([context.translate("settings.title"), *lines])
    return CommandReply(text=f"{text}\n\n{context.translate('settings.more')}", is_private=True)


def _origin(context: CommandContext, setting: EffectiveSetting) -> str:
    if setting.said_by in _ORIGINS:
        return context.translate(f"settings.{setting.said_by}")
    return context.translate("settings.place", place=setting.said_by)
