"""/allow, /block and /people: owners decide who may write, at once and without a restart."""

from __future__ import annotations

from collections.abc import Mapping
from zoneinfo import ZoneInfo

from agent.commands.command_context import CommandContext, CommandReply
from agent.commands.declaration import command
from gateway.events import UNKNOWN, ChatKind, Role
from gateway.i18n import translate
from gateway.ports.access import AccessDecision, AccessListing, AccessStatus, DecisionOutcome
from gateway.text.display_names import safe_display_name

_HERE = "here"  # in place of an id: the chat itself
_MOST = 40  # lines that one answer shows
_GOOD = frozenset({DecisionOutcome.DONE, DecisionOutcome.SAME})

_ALLOW: Mapping[DecisionOutcome, str] = {
    DecisionOutcome.DONE: "people.allowed",
    DecisionOutcome.SAME: "people.allowed_already",
    DecisionOutcome.BLOCKED_AS: "people.blocked_as",
    DecisionOutcome.NOBODY: "people.nobody",
    DecisionOutcome.ELSEWHERE: "people.elsewhere",
}
_BLOCK: Mapping[DecisionOutcome, str] = {
    DecisionOutcome.DONE: "people.blocked",
    DecisionOutcome.SAME: "people.blocked_already",
    DecisionOutcome.SET_OWNER: "people.owner_set",
    DecisionOutcome.OWNER: "people.owner_claimed",
    DecisionOutcome.NOBODY: "people.nobody",
    DecisionOutcome.ONLY_LET_IN: "people.only_let_in",
    DecisionOutcome.ELSEWHERE: "people.elsewhere",
}
_CAME: Mapping[tuple[AccessStatus, str], str] = {
    (AccessStatus.OWNER, "setting"): "people.owner_by_setting",
    (AccessStatus.OWNER, "code"): "people.owner_by_code",
    (AccessStatus.ALLOWED, "setting"): "people.allowed_by_setting",
    (AccessStatus.ALLOWED, "decision"): "people.allowed_by",
    (AccessStatus.PAIRED, "decision"): "people.paired_by",
    (AccessStatus.BLOCKED, "decision"): "people.blocked_by",
}


@command("allow", who=Role.OWNER)
async def allow(context: CommandContext) -> CommandReply:
    """Let somebody or a place in: an id, a mention, `here`, or in answer to a message of theirs."""
    wanted = _wanted(context)
    if not wanted:
        return _ask(context, "people.allow_whom")
    decided = await context.services.people.access.allow(wanted, context.decider, here=context.key.channel)
    return _told(context, decided, _ALLOW)


@command("block", who=Role.OWNER)
async def block(context: CommandContext) -> CommandReply:
    """Shut somebody or a place out, whatever else lets them in."""
    wanted = _wanted(context)
    if not wanted:
        return _ask(context, "people.block_whom")
    decided = await context.services.people.access.block(wanted, context.decider, here=context.key.channel)
    return _told(context, decided, _BLOCK)


@command("people", who=Role.OWNER, looks=True, is_control=True)
async def people(context: CommandContext) -> CommandReply:
    """List who may write and who may not, and how each came in."""
    listed = context.services.people.access.list_access()
    if not listed:
        return CommandReply(text=translate("people.none", context.language), is_private=True)
    lines = [translate("people.title", context.language), *(_line(context, each) for each in listed[:_MOST])]
    if len(listed) > _MOST:
        lines.append(translate("people.more", context.language, count=len(listed) - _MOST))
    return CommandReply(text="\n".join(lines), is_private=True)


def _wanted(context: CommandContext) -> str:
    """Return whom the command is about: its argument, or else who wrote the message that it answers."""
    message = context.message
    if context.args.casefold() == _HERE:  # a direct chat has nobody in it but the owner who says so
        return f"chat:{context.key.parent.chat}" if message.chat_kind is ChatKind.GROUP else ""
    wanted = context.args.strip()
    if wanted.startswith("@"):  # how people read a mention: the platform says whose it is, where it knows
        return message.mentioned[0] if len(message.mentioned) == 1 else wanted
    by = message.quoted_by
    return wanted or ("" if by == UNKNOWN else by)


def _ask(context: CommandContext, sentence: str) -> CommandReply:
    return CommandReply(text=translate(sentence, context.language), is_private=True, outcome="refused")


def _told(context: CommandContext, decided: AccessDecision, sentences: Mapping[DecisionOutcome, str]) -> CommandReply:
    is_good = decided.ruling in _GOOD
    text = translate(
        sentences[decided.ruling], context.language, whom=_shown(decided.whom), other=_shown(decided.other)
    )
    return CommandReply(
        text=text,
        is_private=True,
        whom=decided.whom if decided.ruling not in (DecisionOutcome.NOBODY, DecisionOutcome.ELSEWHERE) else "",
        outcome="done" if is_good else "refused",
    )


def _line(context: CommandContext, each: AccessListing) -> str:
    whom = f"`{_shown(f'{each.channel}:{each.who}')}`"
    name = safe_display_name(each.name)
    how = translate(_CAME[each.standing, each.came_by], context.language, by=_shown(each.by))
    zone = ZoneInfo(context.turn.zone)
    when = f", {each.at.astimezone(zone):%Y-%m-%d}" if each.at is not None else ""
    return f"- {whom}{f' ({name})' if name else ''}: {how}{when}"


def _shown(whom: str) -> str:
    """Return an id as it may stand between backticks."""
    return safe_display_name(whom.replace("_", "\u2017"), 80).replace("\u2017", "_")
