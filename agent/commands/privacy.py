"""/privacy, /export and /forget: what is stored, for how long and for whose eyes; all of it exported, or erased."""

from __future__ import annotations

import re
from collections.abc import Iterator
from urllib.parse import unquote
from zoneinfo import ZoneInfo

from agent.commands.command import CommandContext, CommandNeed, CommandReply, command
from agent.memory.editing.staged_changes import StagedChange, StagedErasure
from agent.memory.erasure.scope_eraser import CHATS
from agent.memory.erasure.word_eraser import ErasureRequester, WordErasureResult
from agent.memory.erasure.word_match import SHORTEST, ErasurePattern
from agent.memory.jobs.approval_questions import buttons, erasure_question, short
from agent.memory.privacy import PrivacyFacts, ScopeInventory
from gateway.events import Role, SessionKey
from gateway.i18n import translate
from gateway.i18n.formats import format_day, format_file_size


@command("privacy")
async def privacy(context: CommandContext) -> CommandReply:
    """List the data stored about this person or chat, retention periods, readers, and how to erase or export it."""
    facts = context.services.privacy.facts
    stored = await context.services.privacy.count(context.scope)
    lines = [
        context.translate("privacy.title"),
        *(f"- {line}" for line in _inventory_lines(context, stored, facts)),
        "",
        context.translate("privacy.beside"),
        *(f"- {line}" for line in _beside(context.language, facts)),
        "",
        context.translate("privacy.readers"),
        *(f"- {line}" for line in _readers(context, facts)),
        "",
        context.translate("privacy.yours"),
    ]
    return CommandReply(text="\n".join(lines), is_private=True)


@command("export", single=Role.OWNER)  # an installation's single memory is its owner's
async def export(context: CommandContext) -> CommandReply:
    """Send everything stored about a person as a file, in their direct chat only."""
    if context.turn.is_shared:
        return context.private_reply("privacy.export_here_not")
    exports = context.services.privacy.exports
    if not exports.can_send(context.key.channel):
        return context.reply("privacy.export_no_files")
    if await exports.is_running(context.scope):
        return context.reply("privacy.export_under_way")
    job = exports.job(
        scope=context.scope,
        key=context.key,
        turn=context.turn.id,
        person=context.account.name,
        reply_to=context.message.message_id,
        language=context.language,
    )
    return CommandReply(text=context.translate("privacy.export_begun"), jobs=(job,))


def _inventory_lines(context: CommandContext, inventory: ScopeInventory, facts: PrivacyFacts) -> Iterator[str]:
    language, until = context.language, context.translate("privacy.until_forgotten")
    # Retention removes messages; summaries and memory stay.
    stays = translate("privacy.for_days", language, days=facts.retention_days) if facts.retention_days else until
    memory = translate(
        "privacy.memory",
        language,
        remembered=inventory.remembered,
        summaries=inventory.summaries,
        notes=inventory.notes,
    )
    yield f"{memory} {until}"
    if inventory.waiting:
        yield translate("privacy.waiting", language, waiting=inventory.waiting)
    if inventory.since is None:
        said = translate("privacy.transcripts_none", language)
    else:
        since = format_day(inventory.since.astimezone(ZoneInfo(context.turn.zone)), language)
        said = translate("privacy.transcripts", language, conversations=inventory.conversations, since=since)
    yield f"{said} {stays}"
    files = translate(
        "privacy.files", language, files=inventory.files, size=format_file_size(inventory.file_bytes, language)
    )
    yield f"{files} {stays}"
    yield translate("privacy.index", language)


def _beside(language: str, facts: PrivacyFacts) -> Iterator[str]:
    yield translate("privacy.journal", language)
    yield translate("privacy.usage", language)
    if facts.has_uploads:
        yield translate("privacy.uploads", language)
    yield translate("privacy.quarantine", language)
    yield translate("privacy.operator", language)


def _readers(context: CommandContext, facts: PrivacyFacts) -> Iterator[str]:
    language = context.language
    is_shared = context.turn.is_shared
    yield translate("privacy.readers_group" if is_shared else "privacy.readers_you", language)
    yield translate("privacy.readers_operator", language)
    if facts.models:
        yield translate("privacy.readers_model", language, models=", ".join(facts.models))
    else:
        yield translate("privacy.readers_nobody", language)
    if facts.listens:
        yield translate("privacy.readers_listens", language, model=facts.listens)
    if facts.speaks:
        yield translate("privacy.readers_speaks", language, model=facts.speaks)
    if facts.draws:
        yield translate("privacy.readers_draws", language, model=facts.draws)
    if facts.embeds:
        yield translate("privacy.readers_embeds", language, model=facts.embeds)
    yield translate("privacy.readers_platform", language)


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
    return await ask_erasure(context, pattern, context.scope, is_purge=bool(purges))


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


async def ask_erasure(
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


async def approve_erasure(context: CommandContext, name: str) -> CommandReply | None:
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
