"""/model: which model answers in this chat, and choosing another of those that may be chosen."""

from __future__ import annotations

from agent.commands.declared import ANY, Need, command
from agent.commands.port import CommandContext, Reply
from agent.llm.choices import InForce, Origin
from agent.llm.offline import is_offline
from gateway.events import Choice, Role
from gateway.words import say

_USUAL = frozenset({"default", "auto", "reset", "-"})  # takes a choice back
_LONGEST = 60  # characters of what somebody typed that are said again
_LABEL = 40  # characters on a button
_IN_A_ROW = 2
_MOST_BUTTONS = 9  # with the one that takes a choice back; the text names all


@command("model", is_control=True, words={ANY: Need(shared=Role.STEWARD)})
async def model(context: CommandContext) -> Reply:
    """Show which model answers here and which others could, or let another one answer from the next turn on."""
    desk = context.house.models
    if not context.args:
        return _shown(context)
    if context.args.lower() in _USUAL:
        await desk.choose(context.key, "")
        return Reply(text=say("model.back", context.language, model=spoken(_in_force(context))))
    name = desk.models.find(context.args)
    if not name:
        return Reply(text=_unknown(context))
    await desk.choose(context.key, name)
    return Reply(text=say("model.set", context.language, model=spoken(_in_force(context))))


def spoken(model: InForce) -> str:
    """Return a model as people read it: its name, and whose it is where that says more."""
    full = model.client.name
    return f"`{model.name}`" if model.name == full else f"`{model.name}` ({full})"


def gone(model: InForce, language: str) -> str:
    """Return the line that says that a chosen model is none to choose any more, and which one answers instead."""
    return say("model.lost", language, lost=model.lost, model=spoken(model))


def has_model(context: CommandContext) -> bool:
    """Return True if a language model answers in the chat, and not what stands in for one."""
    return not is_offline(_in_force(context).client.name)


def _in_force(context: CommandContext) -> InForce:
    return context.house.models.in_force(context.key, context.row.message.guild)


def _shown(context: CommandContext) -> Reply:
    found, offered = _in_force(context), context.house.models.models.offered
    lines = [say(f"model.{found.origin}", context.language, model=spoken(found))]
    if found.lost:
        lines.append(gone(found, context.language))
    others = [name for name in offered if name != found.name]
    if not others and found.origin is not Origin.CHOSEN:
        return Reply(text="\n\n".join([*lines, say("model.none_offered", context.language)]))
    listed = "\n".join(f"- `{name}`" for name in offered)
    lines.append(say("model.offered", context.language, models=listed))
    return Reply(text="\n\n".join(lines), choices=_buttons(context, others, found))


def _buttons(context: CommandContext, others: list[str], found: InForce) -> tuple[Choice, ...]:
    wanted = [(name, f"/model {name}") for name in others[: _MOST_BUTTONS - 1]]
    if found.origin is Origin.CHOSEN:
        wanted.append((say("model.as_before", context.language), "/model default"))
    return tuple(
        Choice(label if len(label) <= _LABEL else f"{label[: _LABEL - 1]}…", typed, n // _IN_A_ROW)
        for n, (label, typed) in enumerate(wanted)
    )


def _unknown(context: CommandContext) -> str:
    typed = " ".join(context.args.replace("`", "").split())[:_LONGEST]
    models = context.house.models.models
    if not models.offered:
        return say("model.none_offered", context.language)
    if near := models.near(context.args):
        return say("model.near", context.language, name=typed, near=near)
    return say("model.unknown", context.language, name=typed, models=", ".join(f"`{each}`" for each in models.offered))
