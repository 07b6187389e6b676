"""/settings: what is in force in this chat, and who decided it."""

from __future__ import annotations

from agent.chat_profiles import EffectiveSetting
from agent.commands.command_context import CommandContext, CommandReply
from agent.commands.declaration import command
from gateway.i18n import translate

_ORIGINS = frozenset({"everywhere", "block", "chosen"})


@command("settings", is_control=True)
async def settings(context: CommandContext) -> CommandReply:
    """Show each setting by its name in the file, so that whoever runs us finds it there."""
    found = context.services.chats.list_settings(context.key, context.message.guild, context.scope)
    lines = [f"- `{each.name}`: {each.value} ({_origin(each, context.language)})" for each in found]
    text = "\n".join([translate("settings.title", context.language), *lines])
    return CommandReply(text=f"{text}\n\n{translate('settings.more', context.language)}", is_private=True)


def _origin(setting: EffectiveSetting, language: str) -> str:
    if setting.said_by in _ORIGINS:
        return translate(f"settings.{setting.said_by}", language)
    return translate("settings.place", language, place=setting.said_by)
