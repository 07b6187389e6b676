"""/allow, /block and /people: owners change the allow list without a restart."""

from __future__ import annotations

from collections.abc import Mapping
from zoneinfo import ZoneInfo

from agent.commands.command import CommandContext, CommandReply, command
from gateway.events import UNKNOWN, Role
from gateway.ports.access import AccessDecision, AccessListing, AccessStatus, DecisionOutcome
from gateway.text.text_units import safe_display_name

_HERE = "here"  # in place of an id: the chat itself
_MOST = 40  # lines that one answer shows
_GOOD = frozenset({DecisionOutcome.DONE, DecisionOutcome.SAME})

DECISION_SENTENCES: Mapping[DecisionOutcome, str] = {
    DecisionOutcome.NOBODY: "people.nobody",
    DecisionOutcome.ELSEWHERE: "people.elsewhere",
    DecisionOutcome.NO_PERSON: "quota.no_person",
}
_ALLOW: Mapping[DecisionOutcome, str] = {
    **DECISION_SENTENCES,
    DecisionOutcome.DONE: "people.allowed",
    DecisionOutcome.SAME: "people.allowed_already",
    DecisionOutcome.BLOCKED_AS: "people.blocked_as",
}
_BLOCK: Mapping[DecisionOutcome, str] = {
    **DECISION_SENTENCES,
    DecisionOutcome.DONE: "people.blocked",
    DecisionOutcome.SAME: "people.blocked_already",
    DecisionOutcome.SET_OWNER: "people.owner_set",
    DecisionOutcome.OWNER: "people.owner_claimed",
    DecisionOutcome.ONLY_LET_IN: "people.only_let_in",
}
_CAME: Mapping[tuple[AccessStatus, str], str] = {
    (AccessStatus.OWNER, "setting"): "people.owner_by_setting",
    (AccessStatus.OWNER, "code"): "people.owner_by_code",
    (AccessStatus.OWNER, "decision"): "people.owner_by",
    (AccessStatus.ALLOWED, "setting"): "people.allowed_by_setting",
    (AccessStatus.ALLOWED, "decision"): "people.allowed_by",
    (AccessStatus.PAIRED, "decision"): "people.paired_by",
    (AccessStatus.BLOCKED, "decision"): "people.blocked_by",
}


@command("allow", who=Role.OWNER)
async def allow(context: CommandContext) -> CommandReply:
    """Admit a user or chat, given by id, mention, `here`, or as a reply to the user's message."""
    subject = subject_of(context, context.args)
    if not subject:
        return _ask(context, "people.allow_whom")
    decision = await context.services.people.access.allow(subject, context.decider, here=context.key.channel)
    return _decision_reply(context, decision, _ALLOW)


@command("block", who=Role.OWNER)
async def block(context: CommandContext) -> CommandReply:
    """Block a user or chat, whatever else admits them."""
    subject = subject_of(context, context.args)
    if not subject:
        return _ask(context, "people.block_whom")
    decision = await context.services.people.access.block(subject, context.decider, here=context.key.channel)
    return _decision_reply(context, decision, _BLOCK)


@command("people", who=Role.OWNER, looks=True, is_control=True)
async def people(context: CommandContext) -> CommandReply:
    """List admitted and blocked users and chats, with the origin of each entry."""
    listed = context.services.people.access.list_access()
    if not listed:
        return context.private_reply("people.none")
    lines = [context.translate("people.title"), *(_line(context, each) for each in listed[:_MOST])]
    if len(listed) > _MOST:
        lines.append(context.translate("people.more", count=len(listed) - _MOST))
    return CommandReply(text="\n".join(lines), is_private=True)


def subject_of(context: CommandContext, text: str) -> str:
    """Return whom a command is about: *text* of its arguments, or the sender of the message that it replies to."""
    message = context.message
    if text.casefold() == _HERE:  # in a direct chat that would be the owner
        return f"chat:{context.key.parent.chat}" if context.turn.is_shared else ""
    subject = text.strip()
    if subject.startswith("@"):  # a mention as displayed; the platform may have resolved it
        return message.mentioned[0] if len(message.mentioned) == 1 else subject
    by = message.quoted_by
    return subject or ("" if by == UNKNOWN else by)


def _ask(context: CommandContext, sentence: str) -> CommandReply:
    return CommandReply(text=context.translate(sentence), is_private=True, outcome="refused")


def _decision_reply(
    context: CommandContext, decision: AccessDecision, sentences: Mapping[DecisionOutcome, str]
) -> CommandReply:
    is_good = decision.ruling in _GOOD
    text = context.translate(sentences[decision.ruling], whom=format_id(decision.whom), other=format_id(decision.other))
    return CommandReply(
        text=text,
        is_private=True,
        whom=decision.whom if decision.ruling not in (DecisionOutcome.NOBODY, DecisionOutcome.ELSEWHERE) else "",
        outcome="done" if is_good else "refused",
    )


def _line(context: CommandContext, each: AccessListing) -> str:
    whom = f"`{format_id(f'{each.channel}:{each.who}')}`"
    name = safe_display_name(each.name)
    how = context.translate(_CAME[each.standing, each.came_by], by=format_id(each.by))
    zone = ZoneInfo(context.turn.zone)
    when = f", {each.at.astimezone(zone):%Y-%m-%d}" if each.at is not None else ""
    return f"- {whom}{f' ({name})' if name else ''}: {how}{when}"


def format_id(whom: str) -> str:
    """Return an id that is safe between backticks."""
    return safe_display_name(whom.replace("_", "\u2017"), 80).replace("\u2017", "_")
