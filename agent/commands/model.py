"""/model: show or choose the model that answers in this chat."""

from __future__ import annotations

from agent.commands.command import ANY, CommandContext, CommandNeed, CommandReply, command
from agent.tools.offline_model import is_offline
from agent.turns.chat_profiles import ActiveModel, ModelChoiceOrigin
from gateway.events import MessageButton, Role
from gateway.i18n import translate

_DEFAULT_WORDS = frozenset({"default", "auto", "reset", "-"})
_LONGEST = 60  # characters of an unknown name that the reply repeats
_LABEL = 40  # characters on a button
_IN_A_ROW = 2
_MOST_BUTTONS = 9  # including the default; the text lists every model


@command("model", is_control=True, words={ANY: CommandNeed(shared=Role.ADMIN)})
async def model(context: CommandContext) -> CommandReply:
    """Show the model that answers here and the others on offer, or choose one from the next turn on."""
    selector = context.services.profiles.models
    if not context.args:
        return _show(context)
    if context.args.lower() in _DEFAULT_WORDS:
        await selector.choose(context.key, "")
        return context.reply("model.back", model=model_label(_active_now(context)))
    name = selector.models.find(context.args)
    if not name:
        return CommandReply(text=_unknown(context))
    await selector.choose(context.key, name)
    return context.reply("model.set", model=model_label(_active_now(context)))


def model_label(model: ActiveModel) -> str:
    """Return the model's name, with the provider's name for it if that differs."""
    full = model.client.name
    return f"`{model.name}`" if model.name == full else f"`{model.name}` ({full})"


def model_gone_line(model: ActiveModel, language: str) -> str:
    """Return the line that the chosen model is no longer offered, and which one answers instead."""
    return translate("model.lost", language, lost=model.lost, model=model_label(model))


def has_model(context: CommandContext) -> bool:
    """Return True if a language model answers in the chat, not the offline stand-in."""
    return not is_offline(context.turn.profile.model.name)


def _active_now(context: CommandContext) -> ActiveModel:
    # Read again: the command may just have changed the choice that the turn was claimed with.
    return context.services.profiles.of(context.key, context.message.guild).active


def _show(context: CommandContext) -> CommandReply:
    active, offered = context.turn.profile.active, context.services.profiles.models.models.offered
    lines = [context.translate(f"model.{active.origin}", model=model_label(active))]
    if active.lost:
        lines.append(model_gone_line(active, context.language))
    others = [name for name in offered if name != active.name]
    if not others and active.origin is not ModelChoiceOrigin.CHOSEN:
        return CommandReply(text="\n\n".join([*lines, context.translate("model.none_offered")]))
    listed = "\n".join(f"- `{name}`" for name in offered)
    lines.append(context.translate("model.offered", models=listed))
    return CommandReply(text="\n\n".join(lines), choices=_buttons(context, others, active))


def _buttons(context: CommandContext, others: list[str], active: ActiveModel) -> tuple[MessageButton, ...]:
    labels = [(name, f"/model {name}") for name in others[: _MOST_BUTTONS - 1]]
    if active.origin is ModelChoiceOrigin.CHOSEN:
        labels.append((context.translate("model.as_before"), "/model default"))
    return tuple(
        MessageButton(label if len(label) <= _LABEL else f"{label[: _LABEL - 1]}…", command_text, n // _IN_A_ROW)
        for n, (label, command_text) in enumerate(labels)
    )


def _unknown(context: CommandContext) -> str:
    typed = " ".join(context.args.replace("`", "").split())[:_LONGEST]
    models = context.services.profiles.models.models
    if not models.offered:
        return context.translate("model.none_offered")
    if near := models.near(context.args):
        return context.translate("model.near", name=typed, near=near)
    return context.translate("model.unknown", name=typed, models=", ".join(f"`{each}`" for each in models.offered))
