"""/dream, /dream-log and /dream-restore: running it now, seeing what it changed, going back behind a change ([003])."""

from __future__ import annotations

from agent.commands.declared import ANY, Need, command
from agent.commands.port import CommandContext, Reply
from agent.memory.dream.restoring import InTheWay
from agent.memory.dream.state import CAUSE, DREAM
from agent.memory.dream.telling import Asked
from agent.memory.versioning.versions import Version
from gateway.events import ChatKind, InboundKind, Role
from gateway.ports import Job
from gateway.words import say
from gateway.words.figures import moment

_TYPED = frozenset({InboundKind.MESSAGE, InboundKind.COMMAND})  # what stands in the chat, so that one can answer to it


@command("dream")
async def dream(context: CommandContext) -> Reply:
    """Run Dream now: the answer comes at once, and what came of it when it is done."""
    if not context.house.dreams.can_run:
        return Reply(text=say("dream.offline", context.language), is_private=True)
    message = context.row.message
    is_shared = message.chat_kind is ChatKind.GROUP
    asked = Asked(
        key=str(context.key),
        reply_to=message.message_id if message.kind in _TYPED else "",
        visible_to=message.sender.id if is_shared else "",
        chat_kind=message.chat_kind.value,
        language=context.language,
    )
    job = Job(
        id=f"{DREAM}:{context.turn}", kind=DREAM, scope=context.scope, payload=asked.payload(), due_at=context.now
    )
    budget = (await context.house.status())["budget"]
    word = "dream.begins_later" if budget is not None and budget.is_spent else "dream.begins"
    return Reply(text=say(word, context.language), is_private=True, jobs=(job,))


@command("dream-log")
async def dream_log(context: CommandContext) -> Reply:
    """Show Dream's latest change, or the one that is named."""
    return Reply(text=await _log(context, context.args.strip()), is_private=True)


async def _log(context: CommandContext, sha: str) -> str:
    if not sha:
        newest = await context.house.dreams.log(context.scope, limit=1)
        if not newest:
            return say("dream.no_changes", context.language)
        sha = newest[0].sha
    found = await context.house.memory.diff(context.scope, sha)
    if found is None:
        return say("memory.no_such_change", context.language, sha=sha[:40])
    version, changed = found
    if not version.why.startswith(CAUSE):
        return say("dream.not_dreams", context.language, sha=version.short)
    return f"{_line(context, version)}\n\n```diff\n{changed}\n```"


@command("dream-restore", words={ANY: Need(shared=Role.STEWARD, single=Role.OWNER)})
async def dream_restore(context: CommandContext) -> Reply:
    """List Dream's changes, or return to the state before one; in a shared chat its admins do that."""
    return Reply(text=await _restore(context, context.args.strip()), is_private=True)


async def _restore(context: CommandContext, sha: str) -> str:
    if not sha:
        found = await context.house.dreams.log(context.scope)
        if not found:
            return say("dream.no_changes", context.language)
        lines = [say("dream.log_title", context.language), *(f"- {_line(context, each)}" for each in found)]
        return "\n".join(lines)
    done = await context.house.dreams.restore(context.scope, sha, by=context.person)
    if done is None:
        return say("memory.no_such_change", context.language, sha=sha[:40])
    if isinstance(done, InTheWay):
        return say("dream.in_the_way", context.language, sha=sha[:8], other=done.version.short)
    if not done.changed:
        return say("dream.is_so", context.language)
    return say("dream.restored", context.language, sha=sha[:8], kept=done.kept)


def _line(context: CommandContext, version: Version) -> str:
    at = moment(version.at, context.house.zone(context.scope), context.language)
    return say(
        "dream.log_line",
        context.language,
        sha=version.short,
        at=at,
        names=", ".join(version.names),
    )
