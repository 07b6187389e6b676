"""/tools: the tools of this chat, the calls of its last turn, and those that wait for approval."""

from __future__ import annotations

from agent.commands.command_context import CommandContext, CommandReply
from agent.commands.declaration import CommandNeed, command, first_word
from agent.commands.tool_calls import list_last_calls
from agent.prompt_assembly import clean_name
from agent.tools.standing_decisions import build_decision, decision_job
from agent.tools.tool_questions import LASTING_NO, LASTING_YES, MOST_QUESTIONS, format_questions
from gateway.events import Role

_LONGEST_ID = 20


async def is_about_own(context: CommandContext) -> bool:
    """Return True if the sender requested the call, and may then decide without a role."""
    found = await context.services.approvals.find(context.key, _name(context))
    return found is not None and found[0].sender == context.message.sender.id


_DECIDES = CommandNeed(shared=Role.ADMIN, unless=is_about_own)
_SEES_CALLS = CommandNeed(others=Role.ADMIN, looks=True)


@command("tools", words={"allow": _DECIDES, "deny": _DECIDES, "last": _SEES_CALLS}, control_words=("allow", "deny"))
async def tools(context: CommandContext) -> CommandReply:
    """List tools and questions, or the `last` calls; `allow <id>` runs the stored call, `deny <id>` drops it.

    `allow <id> here` and `deny <id> never` also decide about further calls, until `revoke <id>`.
    """
    word = first_word(context.args)
    if word in ("allow", "deny") and _name(context):
        return await _decide(context, is_allowed=word == "allow")
    if word == "revoke" and _name(context):
        return await _revoke(context)
    if word == "last":
        return CommandReply(text=await list_last_calls(context), is_private=True)
    if word:
        return context.private_reply("tools.usage")
    names = context.turn.profile.toolbox.names
    listed = ", ".join(f"`{name}`" for name in names)
    lines = [context.translate("tools.here", names=listed) if names else context.translate("tools.none")]
    decisions = await context.services.decisions.read(context.scope, context.key, context.account.name)
    zone = context.services.chats.locales.zone(context.scope)
    if decisions:
        lines.append("\n".join(f"- {each.text(zone, context.language)}" for each, _ in decisions))
    waiting = [question for question, _ in await context.services.approvals.pending(context.key)][:MOST_QUESTIONS]
    text, buttons = format_questions(waiting, context.language)
    return CommandReply(text="\n\n".join([*lines, text] if text else lines), is_private=True, choices=buttons)


def _words(context: CommandContext) -> list[str]:
    """Return the words after the first: an id, and what the decision is beyond that call."""
    return [each.strip("`").lower()[:_LONGEST_ID] for each in context.args.split()[1:]]


def _name(context: CommandContext) -> str:
    return next(iter(_words(context)), "")


async def _decide(context: CommandContext, *, is_allowed: bool) -> CommandReply:
    approvals = context.services.approvals
    found = await approvals.find(context.key, _name(context))
    if found is None or not approvals.claim(found[0], context.turn.id):
        return CommandReply(text=context.translate("tools.settled"), is_private=True, settles=True)
    question, job = found
    if not is_allowed and await approvals.is_allowed(question):  # by a press that a kill ended
        approvals.release(question)
        return CommandReply(text=context.translate("tools.settled"), is_private=True, settles=True)
    extra = _words(context)[1:]
    if extra and extra != [LASTING_YES if is_allowed else LASTING_NO]:
        approvals.release(question)
        return context.private_reply("tools.usage")
    if extra and not (question.offers_yes if is_allowed else question.offers_no):
        approvals.release(question)
        return context.private_reply("tools.once_only", id=question.id)
    by = clean_name(context.message.sender.name) or context.message.sender.id
    if is_allowed and not await approvals.allow(question, by, context.now):
        approvals.release(question)
        return context.private_reply("tools.queue_full")
    approvals.count("allowed" if is_allowed else "denied")
    text = context.translate("tools.allowed" if is_allowed else "tools.denied", tool=question.tool)
    if not extra:
        return CommandReply(text=text, settles=True, ends=(job.id,))
    decision = build_decision(question, context.account.name, context.now, is_allowed=is_allowed)
    lasting = decision_job(decision, context.scope)
    text += "\n" + decision.text(context.services.chats.locales.zone(context.scope), context.language)
    return CommandReply(text=text, settles=True, ends=(job.id, lasting.id), jobs=(lasting,))


async def _revoke(context: CommandContext) -> CommandReply:
    decisions = await context.services.decisions.read(context.scope, context.key, context.account.name)
    for decision, job in decisions:
        if decision.id == _name(context):
            return CommandReply(text=context.translate("tools.revoked", what=decision.what), ends=(job.id,))
    return context.private_reply("tools.no_decision")
