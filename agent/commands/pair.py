"""/pair: unknown senders and chats that wait for approval, and the owner's decision by button or code."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from agent.commands.command import ANY, CommandContext, CommandNeed, CommandReply, command
from gateway.events import MessageButton, Role
from gateway.ports.access import PairingRefused

_MOST = 5  # rows of buttons in one message: Discord takes five

_DECIDE = CommandNeed(direct=Role.OWNER, shared=Role.OWNER)


@command("pair", who=Role.OWNER, looks=True, words={ANY: _DECIDE}, control_words={"yes", "no"})
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
    for n, each in enumerate(requests[:_MOST], 1):
        key = "unknown_senders.waits_place" if each["is_place"] else "unknown_senders.waits_person"
        who = _label(context, each["who"], each["name"])
        lines.append(context.translate(key, n=str(n), who=who, channel=each["channel"]))
        for answer in ("yes", "no"):
            number = f" ({n})" if len(requests) > 1 else ""
            label = f"{context.translate(f'unknown_senders.{answer}')}{number}"
            choices.append(MessageButton(label, f"/pair {answer} {each['ref']}", n - 1))
    if len(requests) > _MOST:
        lines.append(context.translate("unknown_senders.waits_more", count=len(requests) - _MOST))
    return CommandReply(text="\n".join(lines), is_private=True, choices=tuple(choices))
