"""/allow, /block, /people, /quota and /pair: the operations on people, in the owner's language."""

from __future__ import annotations

import re
from collections.abc import Mapping
from datetime import datetime
from typing import Any
from zoneinfo import ZoneInfo

from agent.commands.command import ANY, CommandContext, CommandNeed, CommandReply, command
from gateway.events import UNKNOWN, MessageButton, Role
from gateway.i18n.formats import format_moment, format_time_of_day
from gateway.ports.access import (
    AccessStatus,
    CapKind,
    DecisionOutcome,
    DecisionRefused,
    PairingRefused,
    format_micro_dollars,
    micro_dollars,
)
from gateway.text.message_text import safe_display_name

_HERE = "here"  # in place of an id: the chat itself
_MOST = 40  # lines that one answer shows
_DECIDED: Mapping[tuple[str, str], str] = {
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
_CAME: Mapping[tuple[str, str], str] = {
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
    return await _decide(context, "allow", "people.allow_whom")


@command("block", who=Role.OWNER)
async def block(context: CommandContext) -> CommandReply:
    """Block a user or chat, whatever else admits them."""
    return await _decide(context, "block", "people.block_whom")


async def _decide(context: CommandContext, what: str, how: str) -> CommandReply:
    """Return the reply to a decision about the subject of the command, or the sentence *how* without a subject."""
    subject = subject_of(context, context.args)
    if not subject:
        return CommandReply(text=context.translate(how), is_private=True, outcome="refused")
    try:
        (line,) = await context.call(f"people {what}", {"who": subject, "here": context.key.channel})
    except DecisionRefused as error:
        return _refusal(context, error)
    text = context.translate(_DECIDED[what, line["ruling"]], whom=format_id(line["whom"]))
    return CommandReply(text=text, is_private=True, whom=line["whom"])


@command("people", who=Role.OWNER, looks=True, is_control=True)
async def people(context: CommandContext) -> CommandReply:
    """List admitted and blocked users and chats, with the origin of each entry."""
    listed = await context.call("people list", {})
    if not listed:
        return context.private_reply("people.none")
    lines = [context.translate("people.title"), *(_line(context, each) for each in listed[:_MOST])]
    if len(listed) > _MOST:
        lines.append(context.translate("people.more", count=len(listed) - _MOST))
    return CommandReply(text="\n".join(lines), is_private=True)


def subject_of(context: CommandContext, text: str) -> str:
    """Return the subject of a command: *text* of its arguments, or the sender of the message that it replies to."""
    message = context.message
    if text.casefold() == _HERE:  # in a direct chat that would be the owner
        return f"chat:{context.key.parent.chat}" if context.turn.is_shared else ""
    subject = text.strip()
    if subject.startswith("@"):  # a mention as displayed; the platform may have resolved it
        return message.mentioned[0] if len(message.mentioned) == 1 else subject
    by = message.quoted_by
    return subject or ("" if by in (UNKNOWN, message.sender.id) else by)


def _line(context: CommandContext, line: Mapping[str, Any]) -> str:
    whom, name = f"`{format_id('{channel}:{who}'.format(**line))}`", safe_display_name(line["name"])
    how = context.translate(_CAME[line["standing"], line["came_by"]], by=format_id(line["by"]))
    zone = ZoneInfo(context.turn.zone)
    when = f", {datetime.fromisoformat(line['at']).astimezone(zone):%Y-%m-%d}" if line["at"] else ""
    return f"- {whom}{f' ({name})' if name else ''}: {how}{when}"


def format_id(whom: str) -> str:
    """Return an id that is safe between backticks."""
    return safe_display_name(whom.replace("_", "\u2017"), 80).replace("\u2017", "_")


@command("quota", who=Role.OWNER, looks=True, words={ANY: _DECIDE})
async def quota(context: CommandContext) -> CommandReply:
    """List all quotas, show one person's with its use, or set it: `USER tokens N turns N usd N`, `USER default`."""
    if not context.args.strip() and not subject_of(context, ""):
        return await _list_quotas(context)
    text, caps = _parse(context.args)
    subject = subject_of(context, text)
    if not subject or " " in subject:
        return CommandReply(text=context.translate("quota.how"), is_private=True, outcome="refused")
    arguments = {"who": subject, "here": context.key.channel, "team": context.turn.account.team, **caps}
    try:
        (line,) = await context.call("people quota", arguments)
    except DecisionRefused as error:
        return _refusal(context, error)
    lines = []
    if caps:
        key = "quota.set" if line["quota"] else "quota.removed"
        key = "quota.same" if line["ruling"] == DecisionOutcome.SAME else key
        lines = [context.translate(key, whom=format_id(line["whom"]))]
    lines.append(_describe(context, line))
    return CommandReply(text="\n".join(lines), is_private=True, whom=line["whom"])


def _parse(args: str) -> tuple[str, Mapping[str, str]]:
    """Return the text before the caps, and the caps by name, as they were typed; none if the text names none."""
    text, caps = args.strip(), dict[str, str]()
    while found := _CAP.search(text):
        caps.setdefault((found[1] or found[3]).lower(), (found[2] or found[4]).lower())
        text = text[: found.start()].rstrip()
    first, _, last = text.rpartition(" ")
    if not caps and last.lower() == _DEFAULT:
        return first.rstrip(), dict.fromkeys(("turns", "tokens", "usd"), _DEFAULT)
    return text, caps


async def _list_quotas(context: CommandContext) -> CommandReply:
    quotas = await context.call("people quota", {})
    if not quotas:
        return context.private_reply("quota.none")
    lines = [f"- {_quota_line(context, each['whom'], each)}" for each in quotas[:_MOST]]
    if len(quotas) > _MOST:
        lines.append(context.translate("people.more", count=len(quotas) - _MOST))
    return CommandReply(text="\n".join([context.translate("quota.title"), *lines]), is_private=True)


def _quota_line(context: CommandContext, whom: str, quota: Mapping[str, Any]) -> str:
    limits = (
        (quota["turns"], "quota.turns", "quota.turns_unlimited"),
        (quota["tokens"], "quota.tokens", "quota.tokens_unlimited"),
        (_format_usd(quota["usd"]), "quota.cost", "quota.cost_unlimited"),
    )
    caps = [context.translate(key if limit else free, limit=limit) for limit, key, free in limits if limit is not None]
    return f"`{format_id(whom)}`: {', '.join(caps)}"


def _format_usd(usd: float | None) -> str | None:
    """Return dollars as text; "" for no cap, None if it is not set."""
    if not usd:
        return None if usd is None else ""
    return format_micro_dollars(micro_dollars(usd))


def _describe(context: CommandContext, line: Mapping[str, Any]) -> str:
    """Return the caps of a person with their use, a line each."""
    lines = [_quota_line(context, line["whom"], line["quota"])] if line["quota"] else []
    lines += [_use(context, each) for each in line["caps"]]
    return "\n".join(lines) or context.translate("quota.no_caps", whom=format_id(line["whom"]))


def _use(context: CommandContext, allowance: Mapping[str, Any]) -> str:
    cap = CapKind(allowance["cap"])
    key = "quota.used_cost" if cap.is_cost else "quota.used_tokens" if cap.is_daily else "quota.used_turns"
    used, limit = (cap.format_amount(allowance[name]) for name in ("used", "limit"))
    line = context.translate(key, used=used, limit=limit)
    if allowance["until"] is None:
        return line
    write = format_moment if cap.is_daily else format_time_of_day
    until = write(datetime.fromisoformat(allowance["until"]), context.turn.zone, context.language)
    return f"{line} {context.translate('quota.resets', until=until)}"


def _refusal(context: CommandContext, error: DecisionRefused) -> CommandReply:
    text = context.translate(_REFUSED[error.ruling], whom=format_id(error.whom), other=format_id(error.other))
    is_subject = error.ruling not in (DecisionOutcome.NOBODY, DecisionOutcome.ELSEWHERE)
    return CommandReply(text=text, is_private=True, whom=error.whom if is_subject else "", outcome="refused")


_MOST_REQUESTS = 5  # rows of buttons in one message: Discord takes five

_DECIDE_REQUEST = CommandNeed(direct=Role.OWNER, shared=Role.OWNER)


@command("pair", who=Role.OWNER, looks=True, words={ANY: _DECIDE_REQUEST}, control_words={"yes", "no"})
async def pair(context: CommandContext) -> CommandReply:
    """List the pending requests, approve one by its code, or decide on one."""
    word, _, rest = context.args.strip().lower().partition(" ")
    if not word:
        return await _list_requests(context)
    who, operation = (rest, word) if word in ("yes", "no") else (context.args, "yes")
    try:
        (line,) = await context.call("people deny" if operation == "no" else "people approve", {"who": who})
    except PairingRefused as refused:
        key = "unknown_senders.locked" if refused.minutes else "unknown_senders.nobody_waits"
        text = context.translate(key, minutes=refused.minutes)
        return CommandReply(text=text, is_private=True, settles=True, outcome="refused")
    return CommandReply(text=_decided_line(context, line), is_private=True, settles=True)


def _decided_line(context: CommandContext, line: Mapping[str, Any]) -> str:
    channel, _, who = line["who"].partition(":")
    ends = ("place_open", "place_shut") if who.startswith(("chat:", "guild:")) else ("let_in", "kept_out")
    name = ends[0] if line["yes"] else ends[1]
    return context.translate(
        f"unknown_senders.decided_{name}", who=_label(context, who, line["name"]), channel=channel, entry=line["who"]
    )


def _label(context: CommandContext, who: str, name: str) -> str:
    key = "unknown_senders.person" if name else "unknown_senders.person_unnamed"
    return context.translate(key, id=who, name=name)


async def _list_requests(context: CommandContext) -> CommandReply:
    requests = await context.call("people pending", {})
    if not requests:
        return context.private_reply("unknown_senders.waits_none")
    lines = [context.translate("unknown_senders.waits")]
    choices: list[MessageButton] = []
    for n, each in enumerate(requests[:_MOST_REQUESTS], 1):
        key = "unknown_senders.waits_place" if each["is_place"] else "unknown_senders.waits_person"
        who = _label(context, each["who"], each["name"])
        lines.append(context.translate(key, n=str(n), who=who, channel=each["channel"]))
        for answer in ("yes", "no"):
            number = f" ({n})" if len(requests) > 1 else ""
            label = f"{context.translate(f'unknown_senders.{answer}')}{number}"
            choices.append(MessageButton(label, f"/pair {answer} {each['ref']}", n - 1))
    if len(requests) > _MOST_REQUESTS:
        lines.append(context.translate("unknown_senders.waits_more", count=len(requests) - _MOST_REQUESTS))
    return CommandReply(text="\n".join(lines), is_private=True, choices=tuple(choices))
