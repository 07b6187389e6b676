"""/pair: who waits to be let in, and the owner's word about them: by a button, by a code, in any chat."""

from __future__ import annotations

from agent.commands.command_context import CommandContext, CommandReply
from agent.commands.declaration import ANY, CommandNeed, command
from gateway.events import MessageButton, Role
from gateway.i18n import translate
from gateway.ports.pairing import Outcome, PairingDecision, PairingLocked, PairingRequest

_MOST = 5  # that one message has buttons for: Discord takes five rows


_DECIDE = CommandNeed(direct=Role.OWNER, shared=Role.OWNER)


@command("pair", who=Role.OWNER, looks=True, words={ANY: _DECIDE}, control_words={"yes", "no"})
async def pair(context: CommandContext) -> CommandReply:
    """Show who waits, approve by a code, or answer a question."""
    word, _, rest = context.args.strip().partition(" ")
    if not word:
        return _waiting(context)
    pairing = context.services.people.pairing
    if word.lower() in ("yes", "no"):
        outcome = await pairing.by_ref(rest.strip().lower(), context.decider, is_yes=word.lower() == "yes")
    else:
        outcome = await pairing.by_code(context.args, context.decider)
    audited = "done" if isinstance(outcome, PairingDecision) else "refused"
    return CommandReply(text=_told(context, outcome), is_private=True, settles=True, outcome=audited)


def _told(context: CommandContext, outcome: Outcome) -> str:
    match outcome:
        case PairingDecision(waiting, is_yes):
            ends = ("place_open", "place_shut") if waiting.is_place else ("let_in", "kept_out")
            name = ends[0] if is_yes else ends[1]
            entry, who = f"{waiting.channel}:{waiting.who}", _label(context, waiting)
            return translate(
                f"unknown_senders.decided_{name}", context.language, who=who, channel=waiting.channel, entry=entry
            )
        case PairingLocked(minutes):
            return translate("unknown_senders.locked", context.language, minutes=minutes)
        case _:
            return translate("unknown_senders.nobody_waits", context.language)


def _label(context: CommandContext, waiting: PairingRequest) -> str:
    key = "unknown_senders.person" if waiting.name else "unknown_senders.person_unnamed"
    return translate(key, context.language, id=waiting.who, name=waiting.name)


def _waiting(context: CommandContext) -> CommandReply:
    found = context.services.people.pairing.pending_requests()
    if not found:
        return CommandReply(text=translate("unknown_senders.waits_none", context.language), is_private=True)
    lines = [translate("unknown_senders.waits", context.language)]
    choices: list[MessageButton] = []
    for n, each in enumerate(found[:_MOST], 1):
        key = "unknown_senders.waits_place" if each.is_place else "unknown_senders.waits_person"
        who = _label(context, each)
        lines.append(translate(key, context.language, n=str(n), who=who, channel=each.channel))
        for answer in ("yes", "no"):
            number = f" ({n})" if len(found) > 1 else ""
            label = f"{translate(f'unknown_senders.{answer}', context.language)}{number}"
            choices.append(MessageButton(label, f"/pair {answer} {each.ref}", n - 1))
    if len(found) > _MOST:
        lines.append(translate("unknown_senders.waits_more", context.language, count=len(found) - _MOST))
    return CommandReply(text="\n".join(lines), is_private=True, choices=tuple(choices))
