"""/forget: erase words or purge them, after a preview and a yes; or erase everything."""

from __future__ import annotations

import re

from agent.commands import erasures
from agent.commands.command import CommandContext, CommandNeed, CommandReply, command
from agent.memory.erasure.word_match import SHORTEST, ErasurePattern
from gateway.events import Role

_PURGE = re.compile(r"(?:^|\s)(?:--|—|–)purge(?=\s|$)", re.IGNORECASE)  # phones turn two hyphens into a dash

_EVERYTHING, _CONFIRMED = ["everything"], ["everything", "yes"]


def _word(args: str) -> str:
    return "everything" if args.casefold().split() in (_EVERYTHING, _CONFIRMED) else ""


@command(
    "forget",
    others=Role.ADMIN,
    words={"everything": CommandNeed(shared=Role.ADMIN, single=Role.OWNER)},
    word=_word,
)
async def forget(context: CommandContext) -> CommandReply:
    """Ask whether to erase words from memory, summaries and messages of this chat; with --purge from every byte."""
    asked = context.args.casefold().split()
    if asked in (_EVERYTHING, _CONFIRMED):
        return await _everything(context, is_confirmed=asked == _CONFIRMED)
    words, purges = _PURGE.subn(" ", context.args)
    pattern = ErasurePattern.of(words, context.language)
    if pattern is None:
        return context.private_reply("memory.forget_what", least=SHORTEST)
    return await erasures.ask(context, pattern, context.scope, is_purge=bool(purges))


async def _everything(context: CommandContext, *, is_confirmed: bool) -> CommandReply:
    """Erase the chat's memory scope: the person's own, or the group's."""
    whose = "chat" if context.turn.is_shared else "own"
    if not is_confirmed:
        return context.private_reply(f"erasure.everything_{whose}")
    untouched = await erasures.untouched_folders(context, is_all=True)
    job = await context.services.memory.erasure.erase_scope(context.scope, turn=context.turn.id)
    lines = [
        context.translate(f"erasure.erased_{whose}"),
        context.translate(f"erasure.remains_{whose}"),
        *untouched,
    ]
    return CommandReply(text="\n".join(lines), is_private=True, new_transcript=True, jobs=(job,))
