"""/allow, /block, /people and /quota: owners change the allow list and caps of persons without a restart."""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import replace
from typing import Any
from zoneinfo import ZoneInfo

from agent.commands.command import ANY, CommandContext, CommandNeed, CommandReply, command
from gateway.events import UNKNOWN, PlatformAccount, Role
from gateway.i18n.formats import format_moment, format_time_of_day
from gateway.ports.access import (
    NO_QUOTA,
    AccessDecision,
    AccessListing,
    AccessStatus,
    DecisionOutcome,
    DecisionRefused,
    PersonAccess,
    PersonQuota,
)
from gateway.ports.caps import CapAllowance, CappedSender, format_micro_dollars, micro_dollars
from gateway.text.text_units import safe_display_name

_HERE = "here"  # in place of an id: the chat itself
_MOST = 40  # lines that one answer shows
_DECIDED: Mapping[tuple[str, DecisionOutcome], str] = {
    ("allow", DecisionOutcome.DONE): "people.allowed",
    ("allow", DecisionOutcome.SAME): "people.allowed_already",
    ("block", DecisionOutcome.DONE): "people.blocked",
    ("block", DecisionOutcome.SAME): "people.blocked_already",
}
_REFUSED: Mapping[DecisionOutcome, str] = {
    DecisionOutcome.NOBODY: "people.nobody",
    DecisionOutcome.ELSEWHERE: "people.elsewhere",
    DecisionOutcome.NO_PERSON: "quota.no_person",
    DecisionOutcome.BLOCKED_AS: "people.blocked_as",
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
_DEFAULT = "default"  # in place of a number: the cap of the chat or the installation
_CAP = re.compile(
    rf"(?:(turns|tokens)\s+(\d{{1,12}}|{_DEFAULT})|(usd)\s+\$?(\d{{1,6}}(?:\.\d{{1,6}})?|{_DEFAULT}))\Z", re.IGNORECASE
)
_DECIDE = CommandNeed(direct=Role.OWNER, shared=Role.OWNER)


@command("allow", who=Role.OWNER)
async def allow(context: CommandContext) -> CommandReply:
    """Admit a user or chat, given by id, mention, `here`, or as a reply to the user's message."""
    return await _decide(context, "allow", context.services.access.allow, "people.allow_whom")


@command("block", who=Role.OWNER)
async def block(context: CommandContext) -> CommandReply:
    """Block a user or chat, whatever else admits them."""
    return await _decide(context, "block", context.services.access.block, "people.block_whom")


async def _decide(
    context: CommandContext, what: str, decide: Callable[..., Awaitable[AccessDecision]], how: str
) -> CommandReply:
    """Return the reply to a decision about the subject of the command, or the sentence *how* without a subject."""
    subject = subject_of(context, context.args)
    if not subject:
        return CommandReply(text=context.translate(how), is_private=True, outcome="refused")
    try:
        decision = await decide(subject, context.decider, here=context.key.channel)
    except DecisionRefused as error:
        return _refusal(context, error)
    text = context.translate(_DECIDED[what, decision.ruling], whom=format_id(decision.whom))
    return CommandReply(text=text, is_private=True, whom=decision.whom)


@command("people", who=Role.OWNER, looks=True, is_control=True)
async def people(context: CommandContext) -> CommandReply:
    """List admitted and blocked users and chats, with the origin of each entry."""
    listed = context.services.access.list_access()
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
    return subject or ("" if by in (UNKNOWN, message.sender.id) else by)


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


@command("quota", who=Role.OWNER, looks=True, words={ANY: _DECIDE})
async def quota(context: CommandContext) -> CommandReply:
    """List all quotas, show one person's with its use, or set it: `USER tokens N turns N usd N`, `USER default`."""
    access = context.services.access
    if not context.args.strip() and not subject_of(context, ""):
        return _list_quotas(context)
    text, change = _parse(context.args)
    subject = subject_of(context, text)
    if not subject or " " in subject:
        return CommandReply(text=context.translate("quota.how"), is_private=True, outcome="refused")
    try:
        person = access.find_person(subject, here=context.key.channel)
    except DecisionRefused as error:
        return _refusal(context, error)
    if change is None:
        return CommandReply(text=await _describe(context, person), is_private=True, whom=person.whom)
    wanted = replace(person.quota, **change) if change else NO_QUOTA
    decision = await access.set_quota(subject, wanted, context.decider, here=context.key.channel)
    done = access.find_person(subject, here=context.key.channel)
    key = "quota.same" if decision.ruling is DecisionOutcome.SAME else "quota.set" if wanted else "quota.removed"
    lines = [context.translate(key, whom=format_id(person.whom)), await _describe(context, done)]
    return CommandReply(text="\n".join(lines), is_private=True, whom=person.whom)


def _parse(args: str) -> tuple[str, dict[str, Any] | None]:
    """Return the text before the caps, and the caps by name: {} for all defaults, None if the text names no caps."""
    text, caps = args.strip(), dict[str, Any]()
    while found := _CAP.search(text):
        name, value = (found[1] or found[3]).lower(), (found[2] or found[4]).lower()
        number = None if value == _DEFAULT else float(value) if name == "usd" else int(value)
        caps.setdefault(name, number)
        text = text[: found.start()].rstrip()
    if caps:
        return text, caps
    first, _, last = text.rpartition(" ")
    return (first.rstrip(), {}) if last.lower() == _DEFAULT else (text, None)


def _list_quotas(context: CommandContext) -> CommandReply:
    quotas = context.services.access.list_quotas()
    if not quotas:
        return context.private_reply("quota.none")
    lines = [f"- {_quota_line(context, whom, quota)}" for whom, quota in list(quotas.items())[:_MOST]]
    if len(quotas) > _MOST:
        lines.append(context.translate("people.more", count=len(quotas) - _MOST))
    return CommandReply(text="\n".join([context.translate("quota.title"), *lines]), is_private=True)


def _quota_line(context: CommandContext, whom: str, quota: PersonQuota) -> str:
    limits = (
        (quota.turns, "quota.turns", "quota.turns_unlimited"),
        (quota.tokens, "quota.tokens", "quota.tokens_unlimited"),
        (_format_usd(quota.usd), "quota.cost", "quota.cost_unlimited"),
    )
    caps = [context.translate(key if limit else free, limit=limit) for limit, key, free in limits if limit is not None]
    return f"`{format_id(whom)}`: {', '.join(caps)}"


def _format_usd(usd: float | None) -> str | None:
    """Return dollars as text; "" for no cap, None if it is not set."""
    if not usd:
        return None if usd is None else ""
    return format_micro_dollars(micro_dollars(usd))


async def _describe(context: CommandContext, person: PersonAccess) -> str:
    """Return the caps of a person with their use, a line each."""
    accounts = tuple(_with_team(each, context.turn.account) for each in person.accounts)
    sender = CappedSender(account=accounts[0], accounts=accounts, is_named=person.is_named)
    lines = [_quota_line(context, person.whom, person.quota)] if person.quota else []
    lines += [_use(context, each) for each in await context.services.usage.caps.allowances(None, sender)]
    return "\n".join(lines) or context.translate("quota.no_caps", whom=format_id(person.whom))


def _with_team(account: PlatformAccount, owner: PlatformAccount) -> PlatformAccount:
    """Return *account* in the workspace of the *owner*: decisions name users without one."""
    return replace(account, team=owner.team) if account.kind == owner.kind else account


def _use(context: CommandContext, allowance: CapAllowance) -> str:
    write = format_moment if allowance.cap.is_daily else format_time_of_day
    cap = allowance.cap
    key = "quota.used_cost" if cap.is_cost else "quota.used_tokens" if cap.is_daily else "quota.used_turns"
    line = context.translate(key, used=cap.format_amount(allowance.used), limit=cap.format_amount(allowance.limit))
    if allowance.until is None:
        return line
    until = write(allowance.until, context.turn.zone, context.language)
    return f"{line} {context.translate('quota.resets', until=until)}"


def _refusal(context: CommandContext, error: DecisionRefused) -> CommandReply:
    text = context.translate(_REFUSED[error.ruling], whom=format_id(error.whom), other=format_id(error.other))
    is_subject = error.ruling not in (DecisionOutcome.NOBODY, DecisionOutcome.ELSEWHERE)
    return CommandReply(text=text, is_private=True, whom=error.whom if is_subject else "", outcome="refused")
