"""/pair: unknown senders and chats that wait for approval, and the owner's decision by button or code."""

from __future__ import annotations

from agent.commands.command import ANY, CommandContext, CommandNeed, CommandReply, command
from gateway.events import MessageButton, Role
from gateway.ports.pairing import Outcome, PairingDecision, PairingLocked, PairingRequest

_MOST = 5  # rows of buttons in one message: Discord takes five

_DECIDE = CommandNeed(direct=Role.OWNER, shared=Role.OWNER)


@command("pair", who=Role.OWNER, looks=True, words={ANY: _DECIDE}, control_words={"yes", "no"})
async def pair(context: CommandContext) -> CommandReply:
    """List the pending requests, approve one by its code, or decide on one."""
    word, _, rest = context.args.strip().partition(" ")
    if not word:
        return _list_requests(context)
    pairing = context.services.pairing
    if word.lower() in ("yes", "no"):
        outcome = await pairing.by_ref(rest.strip().lower(), context.decider, is_yes=word.lower() == "yes")
    else:
        outcome = await pairing.by_code(context.args, context.decider)
    audit_outcome = "done" if isinstance(outcome, PairingDecision) else "refused"
    return CommandReply(text=_outcome_line(context, outcome), is_private=True, settles=True, outcome=audit_outcome)


def _outcome_line(context: CommandContext, outcome: Outcome) -> str:
    match outcome:
        case PairingDecision(request, is_yes):
            ends = ("place_open", "place_shut") if request.is_place else ("let_in", "kept_out")
            name = ends[0] if is_yes else ends[1]
            entry, who = f"{request.channel}:{request.who}", _label(context, request)
            return context.translate(f"unknown_senders.decided_{name}", who=who, channel=request.channel, entry=entry)
        case PairingLocked(minutes):
            return context.translate("unknown_senders.locked", minutes=minutes)
        case _:
            return context.translate("unknown_senders.nobody_waits")


def _label(context: CommandContext, request: PairingRequest) -> str:
    key = "unknown_senders.person" if request.name else "unknown_senders.person_unnamed"
    return context.translate(key, id=request.who, name=request.name)


def _list_requests(context: CommandContext) -> CommandReply:
    requests = context.services.pairing.pending_requests()
    if not requests:
        return context.private_reply("unknown_senders.waits_none")
    lines = [context.translate("unknown_senders.waits")]
    choices: list[MessageButton] = []
    for n, each in enumerate(requests[:_MOST], 1):
        key = "unknown_senders.waits_place" if each.is_place else "unknown_senders.waits_person"
        who = _label(context, each)
        lines.append(context.translate(key, n=str(n), who=who, channel=each.channel))
        for answer in ("yes", "no"):
            number = f" ({n})" if len(requests) > 1 else ""
            label = f"{context.translate(f'unknown_senders.{answer}')}{number}"
            choices.append(MessageButton(label, f"/pair {answer} {each.ref}", n - 1))
    if len(requests) > _MOST:
        lines.append(context.translate("unknown_senders.waits_more", count=len(requests) - _MOST))
    return CommandReply(text="\n".join(lines), is_private=True, choices=tuple(choices))
