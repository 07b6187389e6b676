"""/search: what was said and remembered here, for a person's eyes."""

from __future__ import annotations

from collections.abc import Iterator

from agent.commands.declared import command
from agent.commands.port import CommandContext, Reply
from gateway.ports import Hit, Hits
from gateway.words import say
from gateway.words.figures import moment

_MOST = 6
_LONGEST = 280  # characters of one


@command("search", is_control=True)
async def search(context: CommandContext) -> Reply:
    """Show the best places for the words, with when and by whom, to whoever asked alone."""
    wanted = " ".join(context.args.split())
    if not wanted:
        return Reply(text=say("search.what", context.language), is_private=True)
    hits = await context.house.recall.search(context.scope, wanted, limit=_MOST)
    lines = [say("search.nothing", context.language)]
    if hits:
        lines = [say("search.found", context.language), "", *(_line(context, hit) for hit in hits)]
    lines += [f"\n{say(word, context.language)}" for word in _lacks(hits)]
    return Reply(text="\n".join(lines), is_private=True)


def _lacks(hits: Hits) -> Iterator[str]:
    if hits.by_words_alone:
        yield "search.by_words"
    if hits.is_building:
        yield "search.building"


def _line(context: CommandContext, hit: Hit) -> str:
    text = " ".join(hit.text.split()).removeprefix("- ")
    text = text if len(text) <= _LONGEST else f"{text[: _LONGEST - 1]}…"
    zone = context.house.zone(context.scope)
    when = moment(hit.at, zone, context.language) if hit.role and hit.at else ""
    who = hit.who or (say("search.bot", context.language) if hit.role == "assistant" else "")
    where = "" if hit.role else hit.source
    told = ", ".join(part for part in (when, who, where) if part)
    return f"- {told}: {text}"
