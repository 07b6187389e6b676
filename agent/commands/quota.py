"""/quota: an owner shows, sets and removes the usage caps of one person."""

from __future__ import annotations

import re
from dataclasses import replace

from agent.commands.command import ANY, CommandContext, CommandNeed, CommandReply, command
from agent.commands.people import DECISION_SENTENCES, format_id, subject_of
from gateway.events import PlatformAccount, Role
from gateway.i18n.formats import format_moment, format_time_of_day
from gateway.ports.access import NO_QUOTA, AccessDecision, DecisionOutcome, PersonAccess, PersonQuota
from gateway.ports.caps import CapAllowance, CappedSender

_DEFAULT = "default"  # in place of a number: the cap of the chat or the installation
_CAP = re.compile(rf"(turns|tokens)\s+(\d{{1,12}}|{_DEFAULT})\Z", re.IGNORECASE)
_MOST = 40  # lines that one answer shows

_DECIDE = CommandNeed(direct=Role.OWNER, shared=Role.OWNER)


@command("quota", who=Role.OWNER, looks=True, words={ANY: _DECIDE})
async def quota(context: CommandContext) -> CommandReply:
    """List all quotas, show one person's with its use, or set it: `USER tokens N turns N`, `USER default`."""
    access = context.services.people.access
    if not context.args.strip() and not subject_of(context, ""):
        return _list_quotas(context)
    text, change = _parse(context.args)
    subject = subject_of(context, text)
    person = access.find_person(subject, here=context.key.channel) if subject and " " not in subject else None
    if person is None:
        return CommandReply(text=context.translate("quota.how"), is_private=True, outcome="refused")
    if isinstance(person, AccessDecision):
        return _refusal(context, person)
    if change is None:
        return CommandReply(text=await _describe(context, person), is_private=True, whom=person.whom)
    wanted = replace(person.quota, **change) if change else NO_QUOTA
    decision = await access.set_quota(subject, wanted, context.decider, here=context.key.channel)
    done = access.find_person(subject, here=context.key.channel)
    if isinstance(done, AccessDecision):
        return _refusal(context, done)
    key = "quota.same" if decision.ruling is DecisionOutcome.SAME else "quota.set" if wanted else "quota.removed"
    lines = [context.translate(key, whom=format_id(person.whom)), await _describe(context, done)]
    return CommandReply(text="\n".join(lines), is_private=True, whom=person.whom)


def _parse(args: str) -> tuple[str, dict[str, int | None] | None]:
    """Return the text before the caps, and the caps by name: {} for all defaults, None if the text names no caps."""
    text, caps = args.strip(), dict[str, int | None]()
    while found := _CAP.search(text):
        value = found[2].lower()
        caps.setdefault(found[1].lower(), None if value == _DEFAULT else int(value))
        text = text[: found.start()].rstrip()
    if caps:
        return text, caps
    first, _, last = text.rpartition(" ")
    return (first.rstrip(), {}) if last.lower() == _DEFAULT else (text, None)


def _list_quotas(context: CommandContext) -> CommandReply:
    quotas = context.services.people.access.list_quotas()
    if not quotas:
        return context.private_reply("quota.none")
    lines = [f"- {_line(context, whom, quota)}" for whom, quota in list(quotas.items())[:_MOST]]
    if len(quotas) > _MOST:
        lines.append(context.translate("people.more", count=len(quotas) - _MOST))
    return CommandReply(text="\n".join([context.translate("quota.title"), *lines]), is_private=True)


def _line(context: CommandContext, whom: str, quota: PersonQuota) -> str:
    limits = (
        (quota.turns, "quota.turns", "quota.turns_unlimited"),
        (quota.tokens, "quota.tokens", "quota.tokens_unlimited"),
    )
    caps = [context.translate(key if limit else free, limit=limit) for limit, key, free in limits if limit is not None]
    return f"`{format_id(whom)}`: {', '.join(caps)}"


async def _describe(context: CommandContext, person: PersonAccess) -> str:
    """Return the caps of a person with their use, a line each."""
    accounts = tuple(_with_team(each, context.turn.account) for each in person.accounts)
    sender = CappedSender(account=accounts[0], accounts=accounts, is_named=person.is_named)
    lines = [_line(context, person.whom, person.quota)] if person.quota else []
    lines += [_use(context, each) for each in await context.services.usage.caps.allowances(None, sender)]
    return "\n".join(lines) or context.translate("quota.no_caps", whom=format_id(person.whom))


def _with_team(account: PlatformAccount, owner: PlatformAccount) -> PlatformAccount:
    """Return *account* in the workspace of the *owner*: decisions name users without one."""
    return replace(account, team=owner.team) if account.kind == owner.kind else account


def _use(context: CommandContext, allowance: CapAllowance) -> str:
    write = format_moment if allowance.cap.is_daily else format_time_of_day
    key = "quota.used_tokens" if allowance.cap.is_daily else "quota.used_turns"
    line = context.translate(key, used=allowance.used, limit=allowance.limit)
    if allowance.until is None:
        return line
    until = write(allowance.until, context.turn.zone, context.language)
    return f"{line} {context.translate('quota.resets', until=until)}"


def _refusal(context: CommandContext, decision: AccessDecision) -> CommandReply:
    text = context.translate(
        DECISION_SENTENCES[decision.ruling], whom=format_id(decision.whom), other=format_id(decision.other)
    )
    return CommandReply(text=text, is_private=True, outcome="refused")
