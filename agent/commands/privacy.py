"""/privacy and /export: what is kept here, for how long, who can read it, and having it all."""

from __future__ import annotations

from collections.abc import Iterator
from zoneinfo import ZoneInfo

from agent.commands.command_context import CommandContext, CommandReply
from agent.commands.declaration import command
from agent.memory.privacy.data_inventory import ScopeInventory
from agent.memory.privacy.privacy_service import PrivacyFacts
from gateway.events import Role
from gateway.i18n import translate
from gateway.i18n.formats import format_day, format_file_size


@command("privacy")
async def privacy(context: CommandContext) -> CommandReply:
    """Say what is kept of this person or chat, how long, who can read it, and how it is forgotten or taken along."""
    facts = context.services.memory.privacy.facts
    kept = await context.services.memory.privacy.account(context.scope)
    lines = [
        translate("privacy.title", context.language),
        *(f"- {line}" for line in _kept(context, kept, facts)),
        "",
        translate("privacy.beside", context.language),
        *(f"- {line}" for line in _beside(context.language, facts)),
        "",
        translate("privacy.readers", context.language),
        *(f"- {line}" for line in _readers(context, facts)),
        "",
        translate("privacy.yours", context.language),
    ]
    return CommandReply(text="\n".join(lines), is_private=True)


@command("export", single=Role.OWNER)  # one memory for everything is the owner's
async def export(context: CommandContext) -> CommandReply:
    """Have everything that is kept of a person sent to them as a file; in their direct chat only."""
    if context.turn.is_shared:
        return CommandReply(text=translate("privacy.export_here_not", context.language), is_private=True)
    exports = context.services.memory.privacy.exports
    if not exports.can(context.key.channel):
        return CommandReply(text=translate("privacy.export_no_files", context.language))
    if await exports.is_under_way(context.scope):
        return CommandReply(text=translate("privacy.export_under_way", context.language))
    job = exports.job(
        scope=context.scope,
        key=context.key,
        turn=context.turn.id,
        person=context.account,
        reply_to=context.message.message_id,
        language=context.language,
    )
    return CommandReply(text=translate("privacy.export_begun", context.language), jobs=(job,))


def _kept(context: CommandContext, kept: ScopeInventory, facts: PrivacyFacts) -> Iterator[str]:
    language, until = context.language, translate("privacy.until_forgotten", context.language)
    # What lapses is what was said; what was made of it stays.
    stays = translate("privacy.for_days", language, days=facts.retention_days) if facts.retention_days else until
    memory = translate(
        "privacy.memory", language, remembered=kept.remembered, summaries=kept.summaries, notes=kept.notes
    )
    yield f"{memory} {until}"
    if kept.waiting:
        yield translate("privacy.waiting", language, waiting=kept.waiting)
    if kept.since is None:
        said = translate("privacy.transcripts_none", language)
    else:
        since = format_day(kept.since.astimezone(ZoneInfo(context.turn.zone)), language)
        said = translate("privacy.transcripts", language, conversations=kept.conversations, since=since)
    yield f"{said} {stays}"
    files = translate("privacy.files", language, files=kept.files, size=format_file_size(kept.file_bytes, language))
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
    if facts.embeds:
        yield translate("privacy.readers_embeds", language, model=facts.embeds)
    yield translate("privacy.readers_platform", language)
