"""/search: find messages and memory of this chat."""

from __future__ import annotations

from collections.abc import Iterator

from agent.base.one_line import one_line
from agent.commands.command import CommandContext, CommandReply, command
from agent.memory.search.search_hits import SearchHit, SearchHits, SearchOptions
from gateway.i18n.formats import format_moment

_MOST = 40  # as many as fit into the token budget of a page
_LONGEST = 280  # characters of one


@command("search", is_control=True)
async def search(context: CommandContext) -> CommandReply:
    """Show the best hits with time and sender, to the sender of the command only."""
    query = " ".join(context.args.split())
    if not query:
        return context.private_reply("search.what")
    hits = await context.services.search.search(context.scope, query, SearchOptions(limit=_MOST))
    lines = [context.translate("search.nothing")]
    if hits:
        lines = [context.translate("search.found"), "", *(_line(context, hit) for hit in hits)]
    lines += [f"\n{context.translate(word)}" for word in _limitations(hits)]
    return CommandReply(text="\n".join(lines), is_private=True)


def _limitations(hits: SearchHits) -> Iterator[str]:
    if hits.is_words_only:
        yield "search.by_words"
    if hits.is_building:
        yield "search.building"


def _line(context: CommandContext, hit: SearchHit) -> str:
    text = one_line(hit.text.strip().removeprefix("- "), _LONGEST)
    when = format_moment(hit.at, context.turn.zone, context.language) if hit.role and hit.at else ""
    who = hit.who or (context.translate("search.bot") if hit.role == "assistant" else "")
    where = "" if hit.role else hit.source
    header = ", ".join(part for part in (when, who, where) if part)
    return f"- {header}: {text}"
