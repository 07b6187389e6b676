"""/allow, /block and /people: owners decide who may write, at once and without a restart."""

from __future__ import annotations

from collections.abc import Mapping
from zoneinfo import ZoneInfo

from agent.commands.declared import command
from agent.commands.port import CommandContext, Reply
from gateway.events import UNKNOWN, ChatKind, Role
from gateway.ports.access import Decided, Listed, Ruling, Standing
from gateway.text.names import quiet_name
from gateway.words import say

_HERE = "here"  # in place of an id: the chat itself
_MOST = 40  # lines that one answer shows
_GOOD = frozenset({Ruling.DONE, Ruling.SAME})

_ALLOW: Mapping[Ruling, str] = {
    Ruling.DONE: "people.allowed",
    Ruling.SAME: "people.allowed_already",
    Ruling.BLOCKED_AS: "people.blocked_as",
    Ruling.NOBODY: "people.nobody",
    Ruling.ELSEWHERE: "people.elsewhere",
}
_BLOCK: Mapping[Ruling, str] = {
    Ruling.DONE: "people.blocked",
    Ruling.SAME: "people.blocked_already",
    Ruling.SET_OWNER: "people.owner_set",
    Ruling.OWNER: "people.owner_claimed",
    Ruling.NOBODY: "people.nobody",
    Ruling.ONLY_LET_IN: "people.only_let_in",
    Ruling.ELSEWHERE: "people.elsewhere",
}
_CAME: Mapping[tuple[Standing, str], str] = {
    (Standing.OWNER, "setting"): "people.owner_by_setting",
    (Standing.OWNER, "code"): "people.owner_by_code",
    (Standing.ALLOWED, "setting"): "people.allowed_by_setting",
    (Standing.ALLOWED, "decision"): "people.allowed_by",
    (Standing.PAIRED, "decision"): "people.paired_by",
    (Standing.BLOCKED, "decision"): "people.blocked_by",
}


@command("allow", who=Role.OWNER)
async def allow(context: CommandContext) -> Reply:
    """Let somebody or a place in: an id, a mention, `here`, or in answer to a message of theirs."""
    wanted = _wanted(context)
    if not wanted:
        return _ask(context, "people.allow_whom")
    decided = await context.house.access.allow(wanted, context.decider, here=context.key.channel)
    return _told(context, decided, _ALLOW)


@command("block", who=Role.OWNER)
async def block(context: CommandContext) -> Reply:
    """Shut somebody or a place out, whatever else lets them in."""
    wanted = _wanted(context)
    if not wanted:
        return _ask(context, "people.block_whom")
    decided = await context.house.access.block(wanted, context.decider, here=context.key.channel)
    return _told(context, decided, _BLOCK)


@command("people", who=Role.OWNER, looks=True, is_control=True)
async def people(context: CommandContext) -> Reply:
    """List who may write and who may not, and how each came in."""
    listed = context.house.access.listed()
    if not listed:
        return Reply(text=say("people.none", context.language), is_private=True)
    lines = [say("people.title", context.language), *(_line(context, each) for each in listed[:_MOST])]
    if len(listed) > _MOST:
        lines.append(say("people.more", context.language, count=len(listed) - _MOST))
    return Reply(text="\n".join(lines), is_private=True)


def _wanted(context: CommandContext) -> str:
    """Return whom the command is about: its argument, or else who wrote the message that it answers."""
    message = context.row.message
    if context.args.casefold() == _HERE:  # a direct chat has nobody in it but the owner who says so
        return f"chat:{context.key.parent.chat}" if message.chat_kind is ChatKind.GROUP else ""
    wanted = context.args.strip()
    if wanted.startswith("@"):  # how people read a mention: the platform says whose it is, where it knows
        return message.mentioned[0] if len(message.mentioned) == 1 else wanted
    by = message.quoted_by
    return wanted or ("" if by == UNKNOWN else by)


def _ask(context: CommandContext, sentence: str) -> Reply:
    return Reply(text=say(sentence, context.language), is_private=True, outcome="refused")


def _told(context: CommandContext, decided: Decided, sentences: Mapping[Ruling, str]) -> Reply:
    is_good = decided.ruling in _GOOD
    text = say(sentences[decided.ruling], context.language, whom=_shown(decided.whom), other=_shown(decided.other))
    return Reply(
        text=text,
        is_private=True,
        whom=decided.whom if decided.ruling not in (Ruling.NOBODY, Ruling.ELSEWHERE) else "",
        outcome="done" if is_good else "refused",
    )


def _line(context: CommandContext, each: Listed) -> str:
    whom = f"`{_shown(f'{each.channel}:{each.who}')}`"
    name = quiet_name(each.name)
    how = say(_CAME[each.standing, each.came_by], context.language, by=_shown(each.by))
    zone = ZoneInfo(context.house.zone(context.scope))
    when = f", {each.at.astimezone(zone):%Y-%m-%d}" if each.at is not None else ""
    return f"- {whom}{f' ({name})' if name else ''}: {how}{when}"


def _shown(whom: str) -> str:
    """Return an id as it may stand between backticks."""
    return quiet_name(whom.replace("_", "\u2017"), 80).replace("\u2017", "_")
