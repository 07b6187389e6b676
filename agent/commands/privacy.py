"""/privacy and /export: list what is stored, for how long and for whose eyes, and export all of it."""

from __future__ import annotations

from collections.abc import Iterator
from zoneinfo import ZoneInfo

from agent.commands.command import CommandContext, CommandReply, command
from agent.memory.privacy.export_jobs import PrivacyFacts, ScopeInventory
from gateway.events import Role
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
    if facts.embeds:
        yield translate("privacy.readers_embeds", language, model=facts.embeds)
    yield translate("privacy.readers_platform", language)
