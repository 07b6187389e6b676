"""/forget: erase words, or purge them, or erase everything, after a preview and a yes; and the replies about it."""

from __future__ import annotations

import re
from urllib.parse import unquote

from agent.commands.command import CommandContext, CommandNeed, CommandReply, command
from agent.memory.editing.staged_changes import StagedChange, StagedErasure
from agent.memory.erasure.scope_eraser import CHATS
from agent.memory.erasure.word_eraser import ErasureRequester, WordErasureResult
from agent.memory.erasure.word_match import SHORTEST, ErasurePattern
from agent.memory.jobs.approval_questions import buttons, erasure_question, short
from gateway.events import Role, SessionKey

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
    return await ask(context, pattern, context.scope, is_purge=bool(purges))


async def _everything(context: CommandContext, *, is_confirmed: bool) -> CommandReply:
    """Erase the chat's memory scope: the person's own, or the group's."""
    whose = "chat" if context.turn.is_shared else "own"
    if not is_confirmed:
        return context.private_reply(f"erasure.everything_{whose}")
    untouched = await describe_downloads(context)
    job = await context.services.erasure.erase_scope(context.scope, turn=context.turn.id)
    lines = [
        context.translate(f"erasure.erased_{whose}"),
        context.translate(f"erasure.remains_{whose}"),
        *untouched,
    ]
    return CommandReply(text="\n".join(lines), is_private=True, new_transcript=True, jobs=(job,))


async def ask(
    context: CommandContext, pattern: ErasurePattern, scope: str, *, is_purge: bool = False, command: str = "memory"
) -> CommandReply:
    """Return the preview of an erasure, with a yes and a no that *command* takes; nothing is erased before the yes."""
    erasure = context.services.erasure
    requester = ErasureRequester(account=context.account, sender=context.message.sender.id, may_all=context.may_all)
    # The purged words must not be stored as typed either.
    typed = context.translate("erasure.typed") if is_purge else ""
    staged = await erasure.stage(scope, pattern, requester, turn=context.turn.id, is_purge=is_purge)
    if isinstance(staged, StagedChange) and staged.erasure is not None:
        return CommandReply(
            text=erasure_question(staged.erasure, context.language),
            transcript_reply=erasure_question(staged.erasure, context.language, has_examples=False),
            is_private=True,
            choices=buttons([staged], context.language, command=command),
            transcript_text=typed,
        )
    lines = [context.translate("erasure.nothing")]
    if isinstance(staged, WordErasureResult) and staged.others:
        lines.append(context.translate("erasure.others"))
    elif near := await erasure.word_eraser.near_words(scope, pattern):
        lines.append(context.translate("erasure.near", words=", ".join(map(short, near))))
    return CommandReply(text="\n".join(lines), is_private=True, transcript_text=typed)


async def approve(context: CommandContext, name: str) -> CommandReply | None:
    """Erase what the staged erasure *name* asks for; return None if it was decided or has expired."""
    may_all = not context.turn.is_shared or context.turn.role.covers(Role.ADMIN)
    done = await context.services.erasure.approve(
        context.scope, name, may_all=may_all, key=context.key, upto=context.turn.row.seq, turn=context.turn.id
    )
    if done is None:
        return await _approve_for_group(context, name)
    erasure, result, job = done
    lines = [*_result_lines(context, result), *await _remaining_lines(context, erasure, may_all=may_all)]
    return CommandReply(text="\n".join(lines), is_private=True, settles=True, advances=(job,))


async def _approve_for_group(context: CommandContext, name: str) -> CommandReply | None:
    """Approve an erasure in a group, whose preview was shown to its requester in this direct chat."""
    services = context.services
    asked = None if context.turn.is_shared else await services.staging.find_group_erasure(name, context.turn.accounts)
    if asked is None:
        return None
    scope, erasure = asked
    is_owner = context.turn.role.covers(Role.OWNER)
    if erasure.may_all and not is_owner:  # only the group knows who its admins are
        return CommandReply(text=context.translate("erasure.answer_in_group"), is_private=True)
    done = await services.erasure.approve(
        scope,
        name,
        may_all=is_owner,
        key=SessionKey.parse(unquote(scope.removeprefix(CHATS))),
        upto=context.turn.row.seq,
        turn=context.turn.id,
        is_deferred=True,
    )
    if done is None:
        return None
    text = context.translate("erasure.started_in_group")
    return CommandReply(text=text, is_private=True, settles=True, advances=done[2:])


def _result_lines(context: CommandContext, result: WordErasureResult) -> list[str]:
    """Return the numbers of erased items, and nothing of their content."""
    lines = [
        context.translate(
            "erasure.done",
            remembered=result.remembered,
            summaries=result.summaries,
            messages=result.messages,
        )
    ]
    if result.files:
        lines.append(context.translate("erasure.files", files=result.files))
    return [*lines, context.translate("erasure.others")] if result.others else lines


async def _remaining_lines(context: CommandContext, erasure: StagedErasure, *, may_all: bool) -> list[str]:
    """Return the lines about the erasure in the background, and about data that is out of reach."""
    if not erasure.is_purge:
        return [context.translate("erasure.purge_does"), context.translate("erasure.remains")]
    return [
        context.translate("erasure.purging" if erasure.may_all and may_all else "erasure.purging_own"),
        context.translate("erasure.remains_purged"),
        *await describe_downloads(context),
    ]


async def describe_downloads(context: CommandContext) -> list[str]:
    """Return a line about the downloads folder, which erasure leaves unchanged, if the requester's files are there."""
    has_downloads = await context.services.erasure.has_downloads(context.scope, context.key)
    return [context.translate("erasure.beyond_downloads")] if has_downloads else []
