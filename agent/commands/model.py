"""/model: which model answers in this chat, and choosing another of those that may be chosen."""

from __future__ import annotations

from agent.commands.command_context import CommandContext, CommandReply
from agent.commands.declaration import ANY, CommandNeed, command
from agent.llm.model_catalog import ActiveModel, ModelChoiceOrigin
from agent.llm.offline_model import is_offline
from gateway.events import MessageButton, Role
from gateway.i18n import translate

_USUAL = frozenset({"default", "auto", "reset", "-"})  # takes a choice back
_LONGEST = 60  # characters of what somebody typed that are said again
_LABEL = 40  # characters on a button
_IN_A_ROW = 2
_MOST_BUTTONS = 9  # with the one that takes a choice back; the text names all


@command("model", is_control=True, words={ANY: CommandNeed(shared=Role.ADMIN)})
async def model(context: CommandContext) -> CommandReply:
    """Show which model answers here and which others could, or let another one answer from the next turn on."""
    selector = context.services.chats.profiles.models
    if not context.args:
        return _shown(context)
    if context.args.lower() in _USUAL:
        await selector.choose(context.key, "")
        return CommandReply(text=translate("model.back", context.language, model=model_label(_active_now(context))))
    name = selector.models.find(context.args)
    if not name:
        return CommandReply(text=_unknown(context))
    await selector.choose(context.key, name)
    return CommandReply(text=translate("model.set", context.language, model=model_label(_active_now(context))))


def model_label(model: ActiveModel) -> str:
    """Return a model as people read it: its name, and whose it is where that says more."""
    full = model.client.name
    return f"`{model.name}`" if model.name == full else f"`{model.name}` ({full})"


def model_gone_line(model: ActiveModel, language: str) -> str:
    """Return the line that says that a chosen model is none to choose any more, and which one answers instead."""
    return translate("model.lost", language, lost=model.lost, model=model_label(model))


def has_model(context: CommandContext) -> bool:
    """Return True if a language model answers in the chat, and not what stands in for one."""
    return not is_offline(context.turn.profile.model.name)


def _active_now(context: CommandContext) -> ActiveModel:
    # Read again: the command may just have changed the choice that the turn was claimed with.
    return context.services.chats.profiles.of(context.key, context.message.guild).active


def _shown(context: CommandContext) -> CommandReply:
    found, offered = context.turn.profile.active, context.services.chats.profiles.models.models.offered
    lines = [translate(f"model.{found.origin}", context.language, model=model_label(found))]
    if found.lost:
        lines.append(model_gone_line(found, context.language))
    others = [name for name in offered if name != found.name]
    if not others and found.origin is not ModelChoiceOrigin.CHOSEN:
        return CommandReply(text="\n\n".join([*lines, translate("model.none_offered", context.language)]))
    listed = "\n".join(f"- `{name}`" for name in offered)
    lines.append(translate("model.offered", context.language, models=listed))
    return CommandReply(text="\n\n".join(lines), choices=_buttons(context, others, found))


def _buttons(context: CommandContext, others: list[str], found: ActiveModel) -> tuple[MessageButton, ...]:
    wanted = [(name, f"/model {name}") for name in others[: _MOST_BUTTONS - 1]]
    if found.origin is ModelChoiceOrigin.CHOSEN:
        wanted.append((translate("model.as_before", context.language), "/model default"))
    return tuple(
        MessageButton(label if len(label) <= _LABEL else f"{label[: _LABEL - 1]}…", typed, n // _IN_A_ROW)
        for n, (label, typed) in enumerate(wanted)
    )


def _unknown(context: CommandContext) -> str:
    typed = " ".join(context.args.replace("`", "").split())[:_LONGEST]
    models = context.services.chats.profiles.models.models
    if not models.offered:
        return translate("model.none_offered", context.language)
    if near := models.near(context.args):
        return translate("model.near", context.language, name=typed, near=near)
    return translate(
        "model.unknown", context.language, name=typed, models=", ".join(f"`{each}`" for each in models.offered)
    )
