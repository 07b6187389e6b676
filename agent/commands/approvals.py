"""/memory pending, approve and reject: staged changes. All three bypass the session queue and have buttons."""

from __future__ import annotations

from datetime import timedelta

from agent.commands import erasures
from agent.commands.command import CommandContext, CommandReply
from agent.memory.editing.staged_changes import MEMORY, StagedChange
from agent.memory.jobs.approval_questions import buttons, erasure_question, short, short_name
from gateway.events import InboundKind
from gateway.i18n.formats import format_moment

WORDS = ("pending", "approve", "reject")
_LEAST = 8  # characters that identify a name
_LOOK_BACK = timedelta(days=30)


async def pending(context: CommandContext, _: str) -> CommandReply:
    """List the staged changes, each with buttons to approve and to reject it."""
    changes = await context.services.memory.staging.pending_changes(context.scope)
    if not changes:
        return context.private_reply("memory.nothing_waits")
    shown, stored = (
        "\n\n".join(
            [
                context.translate("memory.waits"),
                *(_describe(context, each, has_examples=has_examples) for each in changes),
            ]
        )
        for has_examples in (True, False)
    )
    return CommandReply(
        text=shown, transcript_reply=stored, is_private=True, choices=buttons(changes, context.language)
    )


async def approve(context: CommandContext, name: str) -> CommandReply:
    """Apply the staged change *name*; an erasure erases what matches by now."""
    if name and (reply := await erasures.approve(context, name)) is not None:
        return reply
    done = await context.services.memory.staging.approve(context.scope, name, by=context.account.name)
    if done is None and await _was_approved(context, name):
        return CommandReply(text=context.translate("approvals.approved_before"), is_private=True, settles=True)
    return _decision_reply(context, "approve", done)


async def reject(context: CommandContext, name: str) -> CommandReply:
    """Discard the staged change *name*."""
    staging, scope = context.services.memory.staging, context.scope
    done = await staging.reject(scope, name)
    if done is None and not context.turn.is_shared:
        # The preview of an erasure in a group is shown to its requester in their direct chat on some platforms.
        asked = await staging.find_group_erasure(name, context.turn.accounts)
        done = await staging.reject(asked[0], name) if asked is not None else None
    return _decision_reply(context, "reject", done)


def _decision_reply(context: CommandContext, word: str, change: StagedChange | None) -> CommandReply:
    # A change that is not staged any more was decided or has expired: its button has no use left either.
    missing = "approvals.settled" if context.message.kind is InboundKind.BUTTON else "memory.no_such_waiting"
    return CommandReply(
        text=context.translate(f"memory.{word}_done" if change else missing), is_private=True, settles=True
    )


async def is_about_own(context: CommandContext) -> bool:
    """Return True if the change only removes lines about the sender, who may then decide on it without a role."""
    name = context.args.partition(" ")[2].strip()
    changes = [
        each
        for each in await context.services.memory.staging.pending_changes(context.scope)
        if name and each.name.startswith(name)
    ]
    return bool(changes) and all(each.account == context.account and _only_removes(each) for each in changes)


def _only_removes(change: StagedChange) -> bool:
    return change.erasure is not None or (
        bool(change.would_remove) and not change.would_add and not change.would_reword
    )


async def _was_approved(context: CommandContext, name: str) -> bool:
    """Return True if it was applied already: by an earlier press, or by this one before a crash."""
    if len(name) < _LEAST:
        return False
    done = await context.services.memory.documents.log(
        context.scope, limit=1, select=lambda version: version.why.startswith(f"approved {name}")
    )
    return bool(done) and context.now - done[0].at < _LOOK_BACK


def _describe(context: CommandContext, change: StagedChange, *, has_examples: bool) -> str:
    """Return the lines that approving would remove, reword and add; of an erasure the amounts, and *has_examples*."""
    at = format_moment(change.at, context.turn.zone, context.language)
    lines = [f"`{short_name(change)}` {at}"]
    if change.erasure is not None:
        return f"{lines[0]}\n{erasure_question(change.erasure, context.language, has_examples=has_examples)}"
    if change.document != MEMORY:
        lines[0] += f" {change.document}"
    lines += [f"- {context.translate('memory.would_remove', line=short(raw))}" for raw in change.would_remove]
    reworded = [(short(old), short(new)) for old, new in change.would_reword]
    lines += [f"- {context.translate('memory.would_reword', old=old, new=new)}" for old, new in reworded]
    lines += [f"- {context.translate('memory.would_add', line=short(text))}" for text in change.would_add]
    return "\n".join(lines)
