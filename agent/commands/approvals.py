"""/memory pending, approve and reject: what waits for a yes. All of it passes the queue, and has buttons."""

from __future__ import annotations

from datetime import timedelta

from agent.commands.command_context import CommandContext, CommandReply
from agent.memory.editing.staged_changes import MEMORY, StagedChange
from agent.memory.jobs.approval_questions import buttons, short, short_name
from gateway.events import InboundKind
from gateway.i18n import translate
from gateway.i18n.formats import format_moment

WORDS = ("pending", "approve", "reject")
_LEAST = 8  # characters of a name that tell it from every other
_LOOK_BACK = timedelta(days=30)


async def pending(context: CommandContext, _: str) -> CommandReply:
    """Show what waits, each with a button for yes and one for no."""
    waiting = await context.services.memory.staging.pending_changes(context.scope)
    if not waiting:
        return CommandReply(text=translate("memory.nothing_waits", context.language), is_private=True)
    shown = [translate("memory.waits", context.language), *(_staged(context, each) for each in waiting)]
    return CommandReply(text="\n\n".join(shown), is_private=True, choices=buttons(waiting, context.language))


async def approve(context: CommandContext, name: str) -> CommandReply:
    """Do what waits under *name*."""
    done = await context.services.memory.staging.approve(context.scope, name, by=context.account)
    if done is None and await _was_approved(context, name):
        return CommandReply(
            text=translate("approvals.approved_before", context.language), is_private=True, settles=True
        )
    return _decided(context, "approve", done)


async def reject(context: CommandContext, name: str) -> CommandReply:
    """Drop what waits under *name*."""
    return _decided(context, "reject", await context.services.memory.staging.reject(context.scope, name))


def _decided(context: CommandContext, word: str, done: StagedChange | None) -> CommandReply:
    # What is gone was decided or has lapsed: a button for it is done with, too.
    gone = "approvals.settled" if context.message.kind is InboundKind.BUTTON else "memory.no_such_waiting"
    return CommandReply(
        text=translate(f"memory.{word}_done" if done else gone, context.language), is_private=True, settles=True
    )


async def is_about_own(context: CommandContext) -> bool:
    """Say whether what is approved or rejected is that the sender's own words go: anybody decides on losing those."""
    name = context.args.partition(" ")[2].strip()
    found = [
        each
        for each in await context.services.memory.staging.pending_changes(context.scope)
        if name and each.name.startswith(name)
    ]
    return bool(found) and all(each.person == context.account and _only_removes(each) for each in found)


def _only_removes(waiting: StagedChange) -> bool:
    return bool(waiting.would_remove) and not waiting.would_add and not waiting.would_reword


async def _was_approved(context: CommandContext, name: str) -> bool:
    """Say whether it was done a while ago: by a second press, or by this one before a crash."""
    if len(name) < _LEAST:
        return False
    done = await context.services.memory.documents.log(
        context.scope, limit=1, select=lambda version: version.why.startswith(f"approved {name}")
    )
    return bool(done) and context.now - done[0].at < _LOOK_BACK


def _staged(context: CommandContext, waiting: StagedChange) -> str:
    """Return what a yes would do, in a few lines."""
    at = format_moment(waiting.at, context.turn.zone, context.language)
    lines = [f"`{short_name(waiting)}` {at}"]
    if waiting.document != MEMORY:
        lines[0] += f" {waiting.document}"
    lines += [
        f"- {translate('memory.would_remove', context.language, line=short(raw))}" for raw in waiting.would_remove
    ]
    reworded = [(short(old), short(new)) for old, new in waiting.would_reword]
    lines += [f"- {translate('memory.would_reword', context.language, old=old, new=new)}" for old, new in reworded]
    lines += [f"- {translate('memory.would_add', context.language, line=short(text))}" for text in waiting.would_add]
    return "\n".join(lines)
