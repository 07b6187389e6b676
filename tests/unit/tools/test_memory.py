"""The two memory tools."""

from __future__ import annotations

import json

import pytest

from agent.llm.port import ToolCall
from agent.tools.memory import NOTHING, REMEMBERED
from gateway.ports import Hit
from tests.fakes.llm import Shelf, context, memory_tools

BOX = memory_tools()


async def test_hits_are_one_a_line_with_their_source() -> None:
    """A hit is `source:line text`, on one line whatever it was, and bounded."""
    hits = [
        Hit(source="MEMORY.md", line=4, text="the dog\nis called  Bello", score=1.0),
        Hit(source="notes/2026-11.md", line=17, text="dog " * 1000, score=0.5),
    ]
    outcome = await BOX.run(ToolCall("c", "memory_search", '{"query": "dog"}'), context(Shelf({"people/ann": hits})))
    first, second = outcome.text.splitlines()
    assert first == "MEMORY.md:4 the dog is called Bello"
    assert second.startswith("notes/2026-11.md:17 dog dog")
    assert len(second) < 600


@pytest.mark.parametrize("query", ["cat", "", "   "])
async def test_nothing_found_is_said(query: str) -> None:
    """No hit, and no question, give a plain line and no error."""
    outcome = await BOX.run(ToolCall("c", "memory_search", json.dumps({"query": query})), context(Shelf()))
    assert (outcome.text, outcome.is_error) == (NOTHING, False)


async def test_a_fact_is_staged_once_on_one_line() -> None:
    """Remembering stages the fact for the commit; nothing is written here."""
    staged: list[str] = []
    call = ToolCall("c", "remember", json.dumps({"fact": "  Ann's dog\nis called Bello "}))
    outcome = await BOX.run(call, context(staged=staged))
    assert outcome.text == REMEMBERED
    assert staged == ["Ann's dog is called Bello"]


@pytest.mark.parametrize("fact", ["", " \n ", "x" * 1_001])
async def test_what_is_no_fact_is_refused(fact: str) -> None:
    """An empty fact and a whole document are told back and not staged."""
    staged: list[str] = []
    outcome = await BOX.run(ToolCall("c", "remember", json.dumps({"fact": fact})), context(staged=staged))
    assert outcome.is_error
    assert staged == []


async def test_no_argument_names_another_scope() -> None:
    """A hijacked model that adds a scope is refused, and the search stays where it belongs."""
    shelf = Shelf({"people/bob": [Hit(source="MEMORY.md", line=1, text="a secret", score=1.0)]})
    stolen = json.dumps({"query": "secret", "scope": "people/bob"})
    outcome = await BOX.run(ToolCall("c", "memory_search", stolen), context(shelf))
    assert outcome.is_error
    assert shelf.asked == []
