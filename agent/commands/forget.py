"""/forget: words, words for good, or everything; effective from the next message on."""

from __future__ import annotations

import re

from agent.commands.command_context import CommandContext, CommandReply
from agent.commands.declaration import CommandNeed, command
from agent.memory.erasure.word_eraser import ErasureRequester, WordErasureResult
from agent.memory.erasure.word_match import SHORTEST, ErasurePattern
from gateway.events import Role
from gateway.i18n import translate

_PURGE = re.compile(r"(?:^|\s)(?:--|—|–)purge(?=\s|$)", re.IGNORECASE)  # telephones make a dash of two hyphens

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
    """Clear words from what is remembered, summarised and said here; with --purge from every byte of ours."""
    asked = context.args.casefold().split()
    if asked in (_EVERYTHING, _CONFIRMED):
        return await _everything(context, is_confirmed=asked == _CONFIRMED)
    words, purges = _PURGE.subn(" ", context.args)
    wanted = ErasurePattern.of(words)
    if wanted is None:
        return CommandReply(text=translate("memory.forget_what", context.language, least=SHORTEST), is_private=True)
    if purges:
        return await _purge(context, wanted)
    gone = await context.services.memory.erasure.forget(context.scope, wanted, _asker(context), turn=context.turn.id)
    lines = _told(context, gone)
    if gone.total:
        lines += [translate("erasure.purge_does", context.language), translate("erasure.remains", context.language)]
    return CommandReply(text="\n".join(lines), is_private=True)


async def _purge(context: CommandContext, wanted: ErasurePattern) -> CommandReply:
    asker = _asker(context)
    gone, job = await context.services.memory.erasure.purge(
        context.scope, wanted, asker, key=context.key, upto=context.turn.row.seq, turn=context.turn.id
    )
    lines = [
        *_told(context, gone),
        translate("erasure.purging" if asker.may_all else "erasure.purging_own", context.language),
    ]
    lines.append(translate("erasure.remains_purged", context.language))
    lines += await _beyond(context)
    # The words stand in the command itself, so it is stored without them.
    typed = translate("erasure.typed", context.language)
    return CommandReply(text="\n".join(lines), is_private=True, typed=typed, jobs=(job,))


async def _everything(context: CommandContext, *, is_confirmed: bool) -> CommandReply:
    """Erase the scope of the chat: the person's own, or a group's."""
    is_shared = context.turn.is_shared
    whose = "chat" if is_shared else "own"
    if not is_confirmed:
        return CommandReply(text=translate(f"erasure.everything_{whose}", context.language), is_private=True)
    stays = await _beyond(context, is_all=True)
    job = await context.services.memory.erasure.everything(context.scope, turn=context.turn.id)
    lines = [
        translate(f"erasure.erased_{whose}", context.language),
        translate(f"erasure.remains_{whose}", context.language),
        *stays,
    ]
    return CommandReply(text="\n".join(lines), is_private=True, new_transcript=True, jobs=(job,))


async def _beyond(context: CommandContext, *, is_all: bool = False) -> list[str]:
    """Name the folders that stay as they are."""
    found = await context.services.memory.erasure.beyond(context.scope, context.key, is_all=is_all)
    return [translate(f"erasure.beyond_{each}", context.language) for each in found]


def _asker(context: CommandContext) -> ErasureRequester:
    return ErasureRequester(person=context.account, sender=context.message.sender.id, may_all=context.may_all)


def _told(context: CommandContext, gone: WordErasureResult) -> list[str]:
    """Return how much is gone, and nothing of what it was."""
    lines = [
        translate(
            "erasure.done" if gone.total else "erasure.nothing",
            context.language,
            remembered=gone.remembered,
            summaries=gone.summaries,
            messages=gone.messages,
        )
    ]
    return [*lines, translate("erasure.others", context.language)] if gone.others else lines
