"""/dream, /dream-log and /dream-restore: running it now, seeing what it changed, going back behind a change ([003])."""

from __future__ import annotations

from agent.commands.command_context import CommandContext, CommandReply
from agent.commands.declaration import ANY, CommandNeed, command
from agent.memory.documents.version_store import DREAM_CAUSE, DocumentVersion
from agent.memory.dream.dream_notifier import DreamRequester
from agent.memory.dream.dream_service import RestoreConflict
from agent.memory.dream.dream_state import DREAM
from gateway.events import ChatKind, InboundKind, Role
from gateway.i18n import translate
from gateway.i18n.formats import format_moment
from gateway.ports import Job

_TYPED = frozenset({InboundKind.MESSAGE, InboundKind.COMMAND})  # what stands in the chat, so that one can answer to it


@command("dream")
async def dream(context: CommandContext) -> CommandReply:
    """Run Dream now: the answer comes at once, and what came of it when it is done."""
    if not context.services.memory.dreams.can_run:
        return CommandReply(text=translate("dream.offline", context.language), is_private=True)
    message = context.message
    is_shared = message.chat_kind is ChatKind.GROUP
    asked = DreamRequester(
        key=str(context.key),
        reply_to=message.message_id if message.kind in _TYPED else "",
        visible_to=message.sender.id if is_shared else "",
        chat_kind=message.chat_kind.value,
        language=context.language,
    )
    job = Job(
        id=f"{DREAM}:{context.turn.id}", kind=DREAM, scope=context.scope, payload=asked.payload(), due_at=context.now
    )
    budget = (await context.services.status.status())["budget"]
    word = "dream.begins_later" if budget is not None and budget.is_spent else "dream.begins"
    return CommandReply(text=translate(word, context.language), is_private=True, jobs=(job,))


@command("dream-log")
async def dream_log(context: CommandContext) -> CommandReply:
    """Show Dream's latest change, or the one that is named."""
    return CommandReply(text=await _log(context, context.args.strip()), is_private=True)


async def _log(context: CommandContext, sha: str) -> str:
    if not sha:
        newest = await context.services.memory.dreams.log(context.scope, limit=1)
        if not newest:
            return translate("dream.no_changes", context.language)
        sha = newest[0].sha
    found = await context.services.memory.documents.diff(context.scope, sha)
    if found is None:
        return translate("memory.no_such_change", context.language, sha=sha[:40])
    version, changed = found
    if not version.why.startswith(DREAM_CAUSE):
        return translate("dream.not_dreams", context.language, sha=version.short)
    return f"{_line(context, version)}\n\n```diff\n{changed}\n```"


@command("dream-restore", words={ANY: CommandNeed(shared=Role.ADMIN, single=Role.OWNER)})
async def dream_restore(context: CommandContext) -> CommandReply:
    """List Dream's changes, or return to the state before one; in a shared chat its admins do that."""
    return CommandReply(text=await _restore(context, context.args.strip()), is_private=True)


async def _restore(context: CommandContext, sha: str) -> str:
    if not sha:
        found = await context.services.memory.dreams.log(context.scope)
        if not found:
            return translate("dream.no_changes", context.language)
        lines = [translate("dream.log_title", context.language), *(f"- {_line(context, each)}" for each in found)]
        return "\n".join(lines)
    done = await context.services.memory.dreams.restore(context.scope, sha, by=context.account)
    if done is None:
        return translate("memory.no_such_change", context.language, sha=sha[:40])
    if isinstance(done, RestoreConflict):
        return translate("dream.in_the_way", context.language, sha=sha[:8], other=done.version.short)
    if not done.changed:
        return translate("dream.is_so", context.language)
    return translate("dream.restored", context.language, sha=sha[:8], kept=done.kept)


def _line(context: CommandContext, version: DocumentVersion) -> str:
    at = format_moment(version.at, context.turn.zone, context.language)
    return translate(
        "dream.log_line",
        context.language,
        sha=version.short,
        at=at,
        names=", ".join(version.names),
    )
