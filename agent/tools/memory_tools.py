"""The memory tools: search, read, remember, correct and forget."""

from __future__ import annotations

import re
from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field

from agent.memory.editing.document_edits import DocumentEdit
from agent.memory.editing.text_operations import AddLines, RemoveLines, ReplaceLines
from agent.memory.jobs.memory_jobs import LONGEST_FACT
from agent.memory.storage.transcript_lines import indent_lines
from agent.tools.tool import ToolContext, tool
from gateway.errors import ToolFailed
from gateway.ports import MEMORY, SearchHit, SearchHits

NOTHING = "No memories found"
MOST_EDITS = 20  # operations of one call
LONGEST_EDIT = 4_000  # bytes of a line

REMEMBERED = "will be remembered when this answer is sent"
ASKED = "will be remembered if the person says yes: they are asked when this answer is sent"
_LONGEST_HIT = 1_200
_LONGEST_BESIDE = 240  # characters of what was said before or after a hit
_LONGEST_SHOWN = 300  # of a hit, for a person's eyes
_MOST = 10  # hits [002]
_MOST_SHOWN = 5
_OURS = re.compile(r"(?:\d{4}-\d\d-\d\d \d\d:\d\d, )?you: ")
_HIT = re.compile(r"\[\d+\] (?P<source>\S+) \(lines \d+-\d+, score: -?\d+\.\d\d\)")


@tool(
    "Search what is remembered here: long-term memory, notes, summaries and everything that was said in earlier"
    " conversations. Use it to recall past conversations, decisions, facts and preferences.",
    gives=["memory"],
)
async def memory_search(
    context: ToolContext,
    query: Annotated[str, "a question, keywords, or a description of what you are looking for"],
    since: Annotated[str, "only from this date or time on, as 2026-05-03 or 2026-05-03T14:00"] = "",
    until: Annotated[str, "only up to this date, inclusive, or this time"] = "",
) -> str:
    """Return the best hits of the asking scope, best first, in the format of [002], or a line that says none."""
    wanted = _required_query(query)
    first, last = _parse_time(since, "since"), _parse_time(until, "until", is_end=True)
    if first and last and (first.tzinfo is None) == (last.tzinfo is None) and last <= first:
        raise ToolFailed("until is before since")
    hits = await context.recall.search(wanted, limit=_MOST, since=first, until=last)
    return append_missing(format_hits(wanted, hits, "memory result(s)") if hits else f"{NOTHING} for '{wanted}'.", hits)


@tool("Search the documents of a project (a folder under docs/).")
async def vector_search(
    context: ToolContext,
    query: Annotated[str, "a question, keywords, or a description of what you are looking for"],
    project: Annotated[str, "the project's name"],
) -> str:
    """Return the best hits among the documents of *project*. Raises ToolFailed, naming the projects there are."""
    wanted = _required_query(query)
    known = await context.recall.projects()
    if project not in known:
        there = f"there are: {', '.join(known)}" if known else "there are none"
        raise ToolFailed(f"no project is called {project[:100]!r}; {there}")
    hits = await context.recall.search(wanted, project=project, limit=_MOST)
    nothing = f"No results found for '{wanted}' in project '{project}'."
    return append_missing(format_hits(wanted, hits, "result(s)") if hits else nothing, hits)


@tool("Read more of one place that a search named: what stands or was said around it.")
async def memory_get(
    context: ToolContext,
    source: Annotated[str, "the source as the search named it"],
    line: Annotated[int, "the line as the search named it"],
    project: Annotated[str, "the project, for documents; empty for memory"] = "",
) -> str:
    """Return the passage at *place* with its surroundings, in order. Raises ToolFailed if it does not exist."""
    hits = await context.recall.read(source, line, project=project or MEMORY)
    if not hits:
        raise ToolFailed(f"there is no line {line} in {source[:200]!r}; take source and line from a search")
    return "\n".join(f"{hit.line}: {_when_and_who(hit)}{indent_lines(hit.text.strip())}" for hit in hits)


def format_hits(query: str, hits: Sequence[SearchHit], what: str) -> str:
    """Return hits as a model reads them: where, how good, when, who, and what it says [002]."""
    lines = [f"Found {len(hits)} {what} for '{query}':\n"]
    for n, hit in enumerate(hits, start=1):
        lines.append(f"[{n}] {hit.source} (lines {hit.line}-{hit.end or hit.line}, score: {hit.score:.2f})")
        # What somebody said stays on one line, or it could pass for another hit.
        text = " ".join(hit.text.split()) if hit.role else hit.text.strip()
        lines.append(f"{_when_and_who(hit)}{_short(text, _LONGEST_HIT)}")
        beside = (("before", hit.before), ("after", hit.after))
        lines += [f"  {where}: {_short(' '.join(said.split()), _LONGEST_BESIDE)}" for where, said in beside if said]
        lines.append("")
    return "\n".join(lines)


def _short(text: str, most: int) -> str:
    return text if len(text) <= most else f"{text[: most - 1]}…"


def append_missing(text: str, hits: SearchHits) -> str:
    """Return *text* with a line for each source that the search had to omit."""
    lines = [text]
    if hits.is_words_only:
        lines.append("(Found by words alone: what they mean could not be asked. Try other words for the same thing.)")
    if hits.is_building:
        lines.append("(The index is being built: there may be more in a minute.)")
    return "\n".join(lines)


def _when_and_who(hit: SearchHit) -> str:
    """Return ``2026-03-02 14:10, Ann: `` for what was said, and nothing for what was written."""
    if not hit.role:
        return ""
    who = hit.who or ("you" if hit.role == "assistant" else "somebody")
    return f"{hit.at:%Y-%m-%d %H:%M}, {who}: " if hit.at else f"{who}: "


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


@tool("Keep a fact for later conversations. Use it when somebody asks you to remember something.", gives=["memory"])
async def remember(
    context: ToolContext, fact: Annotated[str, "one self-contained sentence, names instead of pronouns"]
) -> str:
    """Stage the fact; it is stored with the turn's commit, once, however often the turn is tried."""
    kept = " ".join(fact.split())
    if not kept:
        raise ToolFailed("there is nothing to remember in an empty fact")
    if len(kept) > LONGEST_FACT:
        raise ToolFailed(f"a fact is at most {LONGEST_FACT} characters; this one has {len(kept)}")
    context.remember(kept)
    return ASKED if context.is_tainted else REMEMBERED


class MemoryEditOperation(BaseModel):
    """One change of a line, as the model gives it."""

    model_config = ConfigDict(extra="forbid")

    op: Literal["add", "replace", "remove"]
    old: Annotated[str, Field(description="the exact line")] = ""
    text: str = ""
    under: Annotated[str, Field(description="heading")] = ""
    document: Literal["MEMORY.md", "USER.md"] = "MEMORY.md"


@tool(
    "Correct or forget lines of your memory when a person asks or corrects you; say how to undo it. `erase`: words to"
    " erase from messages too, after the person has confirmed.",
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
    match operation.op:
        case "add" if text:
            return DocumentEdit(operation.document, AddLines(text, operation.under))
        case "replace" if old.strip() and text:
            return DocumentEdit(operation.document, ReplaceLines(old, text, operation.under))
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
    lines = result.splitlines()
    for n, line in enumerate(lines[:-1]):
        if hit := _HIT.match(line):
            (said if hit["source"].startswith("sessions/") else kept).append(lines[n + 1])
    told = kept or [text for text in said if not _OURS.match(text)]
    return list(dict.fromkeys(_short(text.removeprefix("- "), _LONGEST_SHOWN) for text in told))[:_MOST_SHOWN]
