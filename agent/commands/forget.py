"""/forget: erase words, purge them, or erase everything; effective from the next message on."""

from __future__ import annotations

import re

from agent.commands.command_context import CommandContext, CommandReply
from agent.commands.declaration import CommandNeed, command
from agent.memory.erasure.word_eraser import ErasureRequester, WordErasureResult
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
    """Erase words from memory, summaries and messages of this chat; with --purge from every byte stored."""
    asked = context.args.casefold().split()
    if asked in (_EVERYTHING, _CONFIRMED):
        return await _everything(context, is_confirmed=asked == _CONFIRMED)
    words, purges = _PURGE.subn(" ", context.args)
    pattern = ErasurePattern.of(words, context.language)
    if pattern is None:
        return context.private_reply("memory.forget_what", least=SHORTEST)
    if purges:
        return await _purge(context, pattern)
    result = await context.services.memory.erasure.forget(
        context.scope, pattern, _requester(context), turn=context.turn.id
    )
    lines = _result_lines(context, result)
    if result.total:
        lines += [context.translate("erasure.purge_does"), context.translate("erasure.remains")]
    return CommandReply(text="\n".join(lines), is_private=True)


async def _purge(context: CommandContext, pattern: ErasurePattern) -> CommandReply:
    requester = _requester(context)
    result, job = await context.services.memory.erasure.purge(
        context.scope, pattern, requester, key=context.key, upto=context.turn.row.seq, turn=context.turn.id
    )
    lines = [
        *_result_lines(context, result),
        context.translate("erasure.purging" if requester.may_all else "erasure.purging_own"),
        context.translate("erasure.remains_purged"),
        *await _untouched_folders(context),
    ]
    # The command itself contains the words, so it is stored without them.
    hidden = context.translate("erasure.typed")
    return CommandReply(text="\n".join(lines), is_private=True, transcript_text=hidden, jobs=(job,))


async def _everything(context: CommandContext, *, is_confirmed: bool) -> CommandReply:
    """Erase the chat's memory scope: the person's own, or the group's."""
    whose = "chat" if context.turn.is_shared else "own"
    if not is_confirmed:
        return context.private_reply(f"erasure.everything_{whose}")
    untouched = await _untouched_folders(context, is_all=True)
    job = await context.services.memory.erasure.erase_scope(context.scope, turn=context.turn.id)
    lines = [
        context.translate(f"erasure.erased_{whose}"),
        context.translate(f"erasure.remains_{whose}"),
        *untouched,
    ]
    return CommandReply(text="\n".join(lines), is_private=True, new_transcript=True, jobs=(job,))


async def _untouched_folders(context: CommandContext, *, is_all: bool = False) -> list[str]:
    """Name the folders that erasure leaves unchanged."""
    names = await context.services.memory.erasure.untouched_folders(context.scope, context.key, is_all=is_all)
    return [context.translate(f"erasure.beyond_{each}") for each in names]


def _requester(context: CommandContext) -> ErasureRequester:
    return ErasureRequester(person=context.account.name, sender=context.message.sender.id, may_all=context.may_all)


def _result_lines(context: CommandContext, result: WordErasureResult) -> list[str]:
    """Return the numbers of erased items, and nothing of their content."""
    lines = [
        context.translate(
            "erasure.done" if result.total else "erasure.nothing",
            remembered=result.remembered,
            summaries=result.summaries,
            messages=result.messages,
        )
    ]
    return [*lines, context.translate("erasure.others")] if result.others else lines
