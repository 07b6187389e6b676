"""/search: what was said and remembered here, for a person's eyes."""

from __future__ import annotations

from collections.abc import Iterator

from agent.commands.command_context import CommandContext, CommandReply
from agent.commands.declaration import command
from gateway.i18n import translate
from gateway.i18n.formats import format_moment
from gateway.ports import SearchHit, SearchHits

_MOST = 6
_LONGEST = 280  # characters of one


@command("search", is_control=True)
async def search(context: CommandContext) -> CommandReply:
    """Show the best places for the words, with when and by whom, to whoever asked alone."""
    wanted = " ".join(context.args.split())
    if not wanted:
        return CommandReply(text=translate("search.what", context.language), is_private=True)
    hits = await context.services.memory.search.search(context.scope, wanted, limit=_MOST)
    lines = [translate("search.nothing", context.language)]
    if hits:
        lines = [translate("search.found", context.language), "", *(_line(context, hit) for hit in hits)]
    lines += [f"\n{translate(word, context.language)}" for word in _lacks(hits)]
    return CommandReply(text="\n".join(lines), is_private=True)


def _lacks(hits: SearchHits) -> Iterator[str]:
    if hits.by_words_alone:
        yield "search.by_words"
    if hits.is_building:
        yield "search.building"


def _line(context: CommandContext, hit: SearchHit) -> str:
    text = " ".join(hit.text.split()).removeprefix("- ")
    text = text if len(text) <= _LONGEST else f"{text[: _LONGEST - 1]}…"
    zone = context.turn.zone
    when = format_moment(hit.at, zone, context.language) if hit.role and hit.at else ""
    who = hit.who or (translate("search.bot", context.language) if hit.role == "assistant" else "")
    where = "" if hit.role else hit.source
    told = ", ".join(part for part in (when, who, where) if part)
    return f"- {told}: {text}"
