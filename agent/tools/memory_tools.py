"""The memory tools: search, read, remember, correct and forget."""

from __future__ import annotations

import calendar
import re
from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field

from agent.base.transcript_lines import indent_lines
from agent.memory.editing.staged_changes import is_redacted
from agent.memory.editing.text_operations import LONGEST_KEYS, AddLines, DocumentEdit, RemoveLines, ReplaceLines
from agent.memory.jobs.chat_edits import LONGEST_FACT
from agent.memory.search.search_unit import MEMORY, MissingTime, SearchHit, SearchHits, SearchOptions, name_speaker
from agent.tools.tool import ToolContext, ToolKind, tool
from gateway.errors import ToolFailed
from gateway.text.message_text import one_line

NOTHING = "No memories found"
MOST_EDITS = 20  # operations of one call
LONGEST_EDIT = 4_000  # bytes of a line

REMEMBERED = "will be remembered when this answer is sent"
ASKED = "will be remembered if the person says yes: they are asked when this answer is sent"
_LONGEST_HIT = 1_200
_LONGEST_BESIDE = 240  # characters of what was said before or after a hit
_KEYS = "words to find it by: class, spellings, occasions"
_LONGEST_SHOWN = 300  # of a hit, for a person's eyes
_MOST = 10  # hits of documents and of the seed profile [002]
_MOST_LINES = 40  # hits on a page
_LAST_PAGE = 20
_MOST_SHOWN = 5
_OURS = re.compile(r"(?:\d{4}-\d\d-\d\d \d\d:\d\d )?you: ")
_HIT = re.compile(r"\[\d+\] \S+ \(lines \d+-\d+, score: -?\d+\.\d\d\)")
_SOURCE = re.compile(r"(?P<short>[a-z]+) = (?P<source>\S+)")
_LINE = re.compile(r"(?P<short>[a-z]+):\d+ (?P<text>.*)")
_DATE = re.compile(r"\d{4}-\d\d-\d\d")


@tool(
    "Search memory, notes and summaries. Use it to recall past conversations, decisions, facts and preferences. Hits"
    " are lines of `place date who: text`, best first.",
    kind=ToolKind.LOOK,
    gives=["memory"],
)
async def memory_search(
    context: ToolContext,
    query: Annotated[str, "a question, keywords or a description"],
    since: Annotated[str, "from this date or time on, as 2026-05-03T14:00"] = "",
    until: Annotated[str, "up to this date, inclusive, or time"] = "",
    page: Annotated[int, "of the hits"] = 1,
) -> str:
    """Return a page of hits of the asking scope, best first, or a line that says none. Raises ToolFailed.

    The seed profile has the format of [002].
    """
    wanted = _required_query(query)
    if not 1 <= page <= _LAST_PAGE:
        raise ToolFailed(f"page must be from 1 to {_LAST_PAGE}")
    first, last = _parse_time(since, "since"), _parse_time(until, "until", is_end=True)
    if first and last and (first.tzinfo is None) == (last.tzinfo is None) and last <= first:
        raise ToolFailed("until is before since")
    hits = await context.recall.search(wanted, SearchOptions(limit=_MOST_LINES, since=first, until=last, page=page))
    if not hits:
        return append_missing(f"{NOTHING} for '{wanted}'{f' on page {page}' if page > 1 else ''}.", hits)
    if hits.is_seed:
        return append_missing(format_hits(wanted, hits, "memory result(s)"), hits)
    return append_missing(format_lines(hits, page), hits)


@tool("Search the documents of a project (a folder under docs/).", kind=ToolKind.LOOK)
async def vector_search(
    context: ToolContext,
    query: Annotated[str, "a question, keywords or a description"],
    project: str,
) -> str:
    """Return the best hits among the documents of *project*. Raises ToolFailed, naming the projects there are."""
    wanted = _required_query(query)
    known = await context.recall.projects()
    if project not in known:
        there = f"there are: {', '.join(known)}" if known else "there are none"
        raise ToolFailed(f"no project is called {project[:100]!r}; {there}")
    hits = await context.recall.search(wanted, SearchOptions(project=project, limit=_MOST))
    nothing = f"No results found for '{wanted}' in project '{project}'."
    return append_missing(format_hits(wanted, hits, "result(s)") if hits else nothing, hits)


@tool(
    "Read a place that a search named in full, and what stands or was said around it.",
    kind=ToolKind.LOOK,
)
async def memory_get(
    context: ToolContext,
    source: Annotated[str, "as the search named it, not its short name"],
    line: int,
    project: Annotated[str, "for documents"] = "",
) -> str:
    """Return the passage at *place* with its surroundings, in order. Raises ToolFailed if it does not exist."""
    hits = await context.recall.read(source, line, project=project or MEMORY)
    if not hits:
        raise ToolFailed(f"there is no line {line} in {source[:200]!r}; take source and line from a search")
    lines = [f"{hit.line}: {_when_and_who(hit)}{indent_lines(hit.text.strip())}" for hit in hits]
    return "\n".join([*_zone_label(hits), *lines])


def format_lines(hits: SearchHits, page: int = 1) -> str:
    """Return hits as lines of ``place date who: text``; the first lines name the zone and the sources.

    Each hit is one line, or its text could pass for another hit.
    """
    short = {source: _short_name(n) for n, source in enumerate(dict.fromkeys(hit.source for hit in hits))}
    lines = [*_zone_label(hits), *(f"{name} = {source}" for source, name in short.items()), ""]
    for hit in hits:
        beside = (("before", hit.before), ("after", hit.after))
        lines.append(f"{short[hit.source]}:{hit.line} {_when_and_who(hit)}{one_line(hit.text, _LONGEST_HIT)}")
        lines += [f"  {where}: {one_line(said, _LONGEST_BESIDE)}" for where, said in beside if said]
    if hits.has_more and page < _LAST_PAGE:
        lines.append(f"(More on page {page + 1}.)")
    return "\n".join(lines)


def _zone_label(hits: Sequence[SearchHit]) -> list[str]:
    """Return a line that names the zone of the times in *hits*, if there are any."""
    zone = next((hit.at.tzinfo for hit in hits if hit.at and hit.role), None)
    return [f"Times are in {zone}."] if zone else []


def _short_name(n: int) -> str:
    """Return "a" for 0, "z" for 25, "ba" for 26."""
    return (_short_name(n // 26) if n >= 26 else "") + chr(ord("a") + n % 26)


def format_hits(query: str, hits: Sequence[SearchHit], what: str) -> str:
    """Return passages of documents as a model reads them: where, how good, and what they say [002]."""
    lines = [f"Found {len(hits)} {what} for '{query}':\n"]
    for n, hit in enumerate(hits, start=1):
        lines.append(f"[{n}] {hit.source} (lines {hit.line}-{hit.end or hit.line}, score: {hit.score:.2f})")
        lines += [_short(hit.text.strip(), _LONGEST_HIT), ""]
    return "\n".join(lines)


def _short(text: str, most: int) -> str:
    return text if len(text) <= most else f"{text[: most - 1]}…"


def append_missing(text: str, hits: SearchHits) -> str:
    """Return *text* with a line for each source that the search had to omit, and each time that holds nothing."""
    lines = [text, *map(_describe_missing, hits.missing)]
    if hits.is_words_only:
        lines.append("(Found by words alone: what they mean could not be asked. Try other words for the same thing.)")
    if hits.is_building:
        lines.append("(The index is being built: there may be more in a minute.)")
    return "\n".join(lines)


def _describe_missing(missing: MissingTime) -> str:
    """Return the line for a model about a time from which nothing is stored."""
    if missing.conversations is not None:
        return f"(There is no such conversation: there have been {missing.conversations}.)"
    when = _describe_span(missing.start, missing.end)
    if missing.is_to_come:
        return f"(Nothing was said {when}: that time is still to come. Only reminders and plans bear on it.)"
    nearest = ", ".join(dict.fromkeys(_date(at) for at in missing.nearest))
    return f"(Nothing was said {when}{f'; nearest: {nearest}' if nearest else ''}.)"


def _describe_span(start: datetime | None, end: datetime | None) -> str:
    """Return "on 3 May 2026", or the first and last day of a longer time, with hours where it is part of a day."""
    if start is None or end is None:
        return f"since {_date(start)}" if start else f"before {_date(end)}" if end else "at any time"
    if end - start < timedelta(days=1):
        return f"on {_date(start)} from {start:%H:%M} to {end:%H:%M}"
    last = end - timedelta(seconds=1)
    return f"on {_date(start)}" if start.date() == last.date() else f"from {_date(start)} to {_date(last)}"


def _date(at: datetime) -> str:
    return f"{at.day} {calendar.month_name[at.month]} {at.year}"


def _when_and_who(hit: SearchHit) -> str:
    """Return ``2026-03-02 14:10 Ann: `` for what was said, and ``2026-03-02 `` for what was written then."""
    if not hit.role:
        return f"{hit.at:%Y-%m-%d} " if hit.at and not _DATE.search(hit.source) else ""
    who = name_speaker(hit.who, hit.role)
    return f"{hit.at:%Y-%m-%d %H:%M} {who}: " if hit.at else f"{who}: "


def _parse_time(text: str, name: str, *, is_end: bool = False) -> datetime | None:
    """Return an ISO date or time, naive without an offset; the end of a date is the next midnight.

    Raises ToolFailed.
    """
    if not text.strip():
        return None
    try:
        at = datetime.fromisoformat(text.strip())
        return at + timedelta(days=1) if is_end and len(text.strip()) <= len("2026-05-03") else at
    except (ValueError, OverflowError) as error:
        raise ToolFailed(f"{name} must be a date or a time such as 2026-05-03 or 2026-05-03T14:00") from error


def _required_query(query: str) -> str:
    wanted = " ".join(query.split())
    if not wanted:
        raise ToolFailed("query is required.")
    return wanted


@tool(
    "Keep a fact for later conversations, when somebody asks you to remember something.",
    kind=ToolKind.KEEP,
    gives=["memory"],
)
async def remember(
    context: ToolContext,
    fact: Annotated[str, "one self-contained sentence, names instead of pronouns"],
    keys: Annotated[str, _KEYS] = "",
) -> str:
    """Stage the fact; it is stored with the turn's commit, once, however often the turn is tried."""
    kept = " ".join(fact.split())
    if not kept:
        raise ToolFailed("there is nothing to remember in an empty fact")
    if len(kept) > LONGEST_FACT:
        raise ToolFailed(f"a fact is at most {LONGEST_FACT} characters; this one has {len(kept)}")
    if context.is_tainted and is_redacted(AddLines(kept)):
        raise ToolFailed(
            "the person would have to be shown the fact, and a part of it looks like a secret: leave it out"
        )
    context.remember(kept, " ".join(keys.split())[:LONGEST_KEYS])
    return ASKED if context.is_tainted else REMEMBERED


class MemoryEditOperation(BaseModel):
    """One change of a line, as the model gives it."""

    model_config = ConfigDict(extra="forbid")

    op: Literal["add", "replace", "remove"]
    old: Annotated[str, Field(description="the exact line")] = ""
    text: str = ""
    under: Annotated[str, Field(description="heading")] = ""
    document: Literal["MEMORY.md", "USER.md"] = "MEMORY.md"
    keys: Annotated[str, Field(description=_KEYS)] = ""


@tool(
    "Correct or forget lines of your memory when a person asks or corrects you; say how to undo it. Messages keep the"
    " words. `erase`: words a person wants gone from messages too, once they confirm.",
    kind=ToolKind.KEEP,
    gives=["memory"],
)
async def memory_edit(context: ToolContext, operations: tuple[MemoryEditOperation, ...] = (), erase: str = "") -> str:
    """Apply the changes at once, or stage them for approval; return the changes and how to undo them.

    With *erase* the person is asked after the turn whether these words are to be erased everywhere.
    """
    if not operations and not erase.strip():
        raise ToolFailed("give at least one operation, or words to erase")
    if len(operations) > MOST_EDITS:
        raise ToolFailed(f"at most {MOST_EDITS} operations in one call; these are {len(operations)}")
    edits = [_document_edit(n, each) for n, each in enumerate(operations, 1)]
    done = [await context.edit(edits)] if edits else []
    if erase.strip():
        done.append(await context.ask_to_erase(_required_query(erase)))
    return "\n".join(done)


def _document_edit(n: int, operation: MemoryEditOperation) -> DocumentEdit:
    old, text = operation.old.strip("\n"), " ".join(operation.text.split())
    for name, value in (("old", old), ("text", text), ("under", operation.under)):
        if len(value.encode("utf-8", "replace")) > LONGEST_EDIT:
            raise ToolFailed(f"operation {n}: {name} is longer than {LONGEST_EDIT} bytes")
    if len(old.splitlines()) > 1 and operation.op == "replace":
        raise ToolFailed(f"operation {n}: replace one line at a time")
    keys = " ".join(operation.keys.split())[:LONGEST_KEYS]
    match operation.op:
        case "add" if text:
            return DocumentEdit(operation.document, AddLines(text, operation.under), keys=keys)
        case "replace" if old.strip() and text:
            return DocumentEdit(operation.document, ReplaceLines(old, text, operation.under), keys=keys)
        case "remove" if old.strip():
            return DocumentEdit(operation.document, RemoveLines(old, operation.under))
    needed = {"add": "text", "replace": "old and text", "remove": "old"}[operation.op]
    raise ToolFailed(f"operation {n}: {operation.op} needs {needed}")


def facts_in(result: str) -> list[str]:
    """Return the texts of a `memory_search` result for a person: stored facts first, else people's messages.

    The bot's answers are left out: they repeat people's messages, and answers that repeat answers grow without end.
    """
    kept: list[str] = []
    said: list[str] = []
    sources: dict[str, str] = {}
    lines = result.splitlines()
    for n, line in enumerate(lines):
        if _HIT.fullmatch(line):
            kept += lines[n + 1 : n + 2]
        elif source := _SOURCE.fullmatch(line):
            sources.setdefault(source["short"], source["source"])
        elif hit := _LINE.fullmatch(line):
            (said if sources.get(hit["short"], "").startswith("sessions/") else kept).append(hit["text"])
    told = kept or [text for text in said if not _OURS.match(text)]
    return list(dict.fromkeys(_short(text.removeprefix("- "), _LONGEST_SHOWN) for text in told))[:_MOST_SHOWN]
