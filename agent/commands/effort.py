"""/effort: show or choose how long the model thinks before it answers in this chat."""

from __future__ import annotations

from agent.commands.command import ANY, CommandContext, CommandNeed, CommandReply, command
from agent.llm.effort_fields import EFFORTS
from gateway.errors import ModelAbility
from gateway.events import MessageButton, Role

_DEFAULT_WORDS = frozenset({"default", "auto", "reset", "-"})
_IN_A_ROW = 2


@command("effort", is_control=True, words={ANY: CommandNeed(shared=Role.ADMIN)})
async def effort(context: CommandContext) -> CommandReply:
    """Show the effort of answers here, or choose one from the next turn on."""
    profiles, wanted = context.services.profiles, context.args.strip().lower()
    if not wanted:
        return _show(context)
    if wanted not in EFFORTS and wanted not in _DEFAULT_WORDS:
        return context.reply("effort.unknown", efforts=", ".join(f"`{each}`" for each in EFFORTS))
    await profiles.choose_effort(context.key, "" if wanted in _DEFAULT_WORDS else wanted)
    # Read again: the turn was claimed with the choice before.
    chosen = profiles.of(context.key, context.message.guild).effort
    key = "effort.set" if wanted in EFFORTS else "effort.back"
    return CommandReply(text=_with_refusal(context, context.translate(key, effort=_label(context, chosen))))


def _show(context: CommandContext) -> CommandReply:
    profile = context.turn.profile
    text = context.translate("effort.now", effort=_label(context, profile.effort))
    text = f"{_with_refusal(context, text)}\n\n{context.translate('effort.how')}"
    labels = [(each, f"/effort {each}") for each in EFFORTS if each != profile.effort]
    if profile.has_chosen_effort:
        labels.append((context.translate("model.as_before"), "/effort default"))
    buttons = (MessageButton(label, line, n // _IN_A_ROW) for n, (label, line) in enumerate(labels))
    return CommandReply(text=text, choices=tuple(buttons))


def _label(context: CommandContext, effort: str) -> str:
    return f"`{effort}`" if effort else context.translate("effort.unset")


def _with_refusal(context: CommandContext, text: str) -> str:
    """Return *text*, followed by the line that the model here has refused the setting if it has."""
    model = context.turn.profile.model
    if not model.lacks(ModelAbility.EFFORT):
        return text
    return f"{text}\n{context.translate('effort.refused', model=model.name)}"
