"""/privacy and /export: what is kept here, for how long, who can read it, and having it all."""

from __future__ import annotations

from collections.abc import Iterator
from zoneinfo import ZoneInfo

from agent.commands.declared import command
from agent.commands.port import CommandContext, Reply
from agent.memory.rights.desk import Facts
from agent.memory.rights.inventory import Account
from gateway.events import ChatKind, Role
from gateway.words import say
from gateway.words.figures import day, file_size


@command("privacy")
async def privacy(context: CommandContext) -> Reply:
    """Say what is kept of this person or chat, how long, who can read it, and how it is forgotten or taken along."""
    facts = context.house.rights.facts
    kept = await context.house.rights.account(context.scope)
    lines = [
        say("rights.title", context.language),
        *(f"- {line}" for line in _kept(context, kept, facts)),
        "",
        say("rights.beside", context.language),
        *(f"- {line}" for line in _beside(context.language, facts)),
        "",
        say("rights.readers", context.language),
        *(f"- {line}" for line in _readers(context, facts)),
        "",
        say("rights.yours", context.language),
    ]
    return Reply(text="\n".join(lines), is_private=True)


@command("export", single=Role.OWNER)  # one memory for everything is the owner's
async def export(context: CommandContext) -> Reply:
    """Have everything that is kept of a person sent to them as a file; in their direct chat only."""
    if context.row.message.chat_kind is ChatKind.GROUP:
        return Reply(text=say("rights.export_here_not", context.language), is_private=True)
    exports = context.house.rights.exports
    if not exports.can(context.key.channel):
        return Reply(text=say("rights.export_no_files", context.language))
    if await exports.is_under_way(context.scope):
        return Reply(text=say("rights.export_under_way", context.language))
    job = exports.job(
        scope=context.scope,
        key=context.key,
        turn=context.turn,
        person=context.person,
        reply_to=context.row.message.message_id,
        language=context.language,
    )
    return Reply(text=say("rights.export_begun", context.language), jobs=(job,))


def _kept(context: CommandContext, kept: Account, facts: Facts) -> Iterator[str]:
    language, until = context.language, say("rights.until_forgotten", context.language)
    # What lapses is what was said; what was made of it stays.
    stays = say("rights.for_days", language, days=facts.retention_days) if facts.retention_days else until
    memory = say("rights.memory", language, remembered=kept.remembered, summaries=kept.summaries, notes=kept.notes)
    yield f"{memory} {until}"
    if kept.waiting:
        yield say("rights.waiting", language, waiting=kept.waiting)
    if kept.since is None:
        said = say("rights.transcripts_none", language)
    else:
        since = day(kept.since.astimezone(ZoneInfo(context.house.zone(context.scope))), language)
        said = say("rights.transcripts", language, conversations=kept.conversations, since=since)
    yield f"{said} {stays}"
    files = say("rights.files", language, files=kept.files, size=file_size(kept.file_bytes, language))
    yield f"{files} {stays}"
    yield say("rights.index", language)


def _beside(language: str, facts: Facts) -> Iterator[str]:
    yield say("rights.journal", language)
    yield say("rights.usage", language)
    if facts.has_uploads:
        yield say("rights.uploads", language)
    yield say("rights.quarantine", language)
    yield say("rights.operator", language)


def _readers(context: CommandContext, facts: Facts) -> Iterator[str]:
    language = context.language
    is_shared = context.row.message.chat_kind is ChatKind.GROUP
    yield say("rights.readers_group" if is_shared else "rights.readers_you", language)
    yield say("rights.readers_operator", language)
    if facts.models:
        yield say("rights.readers_model", language, models=", ".join(facts.models))
    else:
        yield say("rights.readers_nobody", language)
    if facts.listens:
        yield say("rights.readers_listens", language, model=facts.listens)
    if facts.embeds:
        yield say("rights.readers_embeds", language, model=facts.embeds)
    yield say("rights.readers_platform", language)
