"""What a model may do with memory: look something up, and have something kept."""

from __future__ import annotations

from typing import Annotated

from agent.tools.port import ToolContext, tool
from gateway.errors import ToolFailed

NOTHING = "nothing found"
REMEMBERED = "will be remembered when this answer is sent"
_LONGEST_FACT = 1_000
_LONGEST_LINE = 500


@tool(
    "Search what is remembered of earlier conversations, notes and files of this chat. Returns one hit a line:"
    " source:line text.",
    gives=["memory"],
)
async def memory_search(
    context: ToolContext, query: Annotated[str, "what to look for, in the words it was probably said in"]
) -> str:
    """Return the best hits of the asking scope, best first, or `NOTHING`."""
    hits = await context.search(query) if query.strip() else ()
    return "\n".join(f"{hit.source}:{hit.line} {_one_line(hit.text, _LONGEST_LINE)}" for hit in hits) or NOTHING


@tool("Keep a fact for later conversations. Use it when somebody asks you to remember something.", gives=["memory"])
async def remember(
    context: ToolContext, fact: Annotated[str, "one self-contained sentence, names instead of pronouns"]
) -> str:
    """Stage the fact; it is stored with the turn's commit, once, however often the turn is tried."""
    kept = " ".join(fact.split())
    if not kept:
        raise ToolFailed("there is nothing to remember in an empty fact")
    if len(kept) > _LONGEST_FACT:
        raise ToolFailed(f"a fact is at most {_LONGEST_FACT} characters; this one has {len(kept)}")
    context.remember(kept)
    return REMEMBERED


def facts_in(result: str) -> list[str]:
    """Return the texts of a `memory_search` result for a person's eyes: what is kept as a fact, else what was said."""
    hits = [line.split(" ", 1) for line in result.splitlines() if " " in line]
    kept = [text for source, text in hits if not source.startswith("sessions/")] or [text for _, text in hits]
    return list(dict.fromkeys(text.removeprefix("- ") for text in kept))


def _one_line(text: str, length: int) -> str:
    flat = " ".join(text.split())
    return flat if len(flat) <= length else f"{flat[: length - 1]}…"
