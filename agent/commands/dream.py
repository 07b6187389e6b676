"""/dream, /dream-log and /dream-restore: run Dream now, show what it changed, restore the state before a change."""

from __future__ import annotations

from agent.commands.command import ANY, CommandContext, CommandNeed, CommandReply, command
from agent.memory.documents.scope_documents import DREAM_CAUSE
from agent.memory.update.dream_applier import DreamRequester, RestoreConflict
from agent.memory.update.dream_phases import DREAM
from gateway.events import InboundKind, Role
from gateway.i18n.formats import format_moment
from gateway.ports.journal import Job
from gateway.ports.memory import DocumentChange

_TYPED = frozenset({InboundKind.MESSAGE, InboundKind.COMMAND})  # messages in the chat that a reply can refer to


@command("dream")
async def dream(context: CommandContext) -> CommandReply:
    """Start Dream now: reply at once, and report the result when it is done."""
    if not context.services.dreams.can_run:
        return context.private_reply("dream.offline")
    message = context.message
    requester = DreamRequester(
        key=str(context.key),
        reply_to=message.message_id if message.kind in _TYPED else "",
        visible_to=message.sender.id if context.turn.is_shared else "",
        chat_kind=message.chat_kind.value,
        language=context.language,
    )
    job = Job(
        id=f"{DREAM}:{context.turn.id}",
        kind=DREAM,
        scope=context.scope,
        payload=requester.payload(),
        due_at=context.now,
    )
    budget = await context.services.runner.budget()
    word = "dream.begins_later" if budget is not None and budget.is_spent else "dream.begins"
    return CommandReply(text=context.translate(word), is_private=True, jobs=(job,))


@command("dream-log")
async def dream_log(context: CommandContext) -> CommandReply:
    """Show Dream's latest change, or the one given."""
    return CommandReply(text=await _log(context, context.args.strip()), is_private=True)


async def _log(context: CommandContext, sha: str) -> str:
    if not sha:
        newest = await context.services.dreams.log(context.scope, limit=1)
        if not newest:
            return context.translate("dream.no_changes")
        sha = newest[0].id
    version_and_diff = await context.services.documents.diff(context.scope, sha)
    if version_and_diff is None:
        return context.translate("memory.no_such_change", sha=sha[:40])
    version, diff = version_and_diff
    if not version.why.startswith(DREAM_CAUSE):
        return context.translate("dream.not_dreams", sha=version.short)
    return f"{_line(context, version)}\n\n```diff\n{diff}\n```"


@command("dream-restore", words={ANY: CommandNeed(shared=Role.ADMIN, single=Role.OWNER)})
async def dream_restore(context: CommandContext) -> CommandReply:
    """List Dream's changes, or restore the state before one."""
    return CommandReply(text=await _restore(context, context.args.strip()), is_private=True)


async def _restore(context: CommandContext, sha: str) -> str:
    if not sha:
        versions = await context.services.dreams.log(context.scope)
        if not versions:
            return context.translate("dream.no_changes")
        lines = [context.translate("dream.log_title"), *(f"- {_line(context, each)}" for each in versions)]
        return "\n".join(lines)
    done = await context.services.dreams.restore(context.scope, sha, by=context.account.name, turn=context.turn.id)
    if done is None:
        return context.translate("memory.no_such_change", sha=sha[:40])
    if isinstance(done, RestoreConflict):
        return context.translate("dream.in_the_way", sha=sha[:8], other=done.version.short)
    if not done.changed:
        return context.translate("dream.is_so")
    return context.translate("dream.restored", sha=sha[:8], kept=done.kept)


def _line(context: CommandContext, version: DocumentChange) -> str:
    at = format_moment(version.at, context.turn.zone, context.language)
    return context.translate("dream.log_line", sha=version.short, at=at, names=", ".join(version.names))
