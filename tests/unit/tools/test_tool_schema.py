"""A tool's schema comes from its signature."""

from __future__ import annotations

from typing import Annotated, Literal

import pytest
from pydantic import Field, ValidationError

from agent.memory.search.search_unit import SearchHit, SearchOptions
from agent.tools.tool import AskRule, JsonArguments, ResultContent, Tool, ToolContext, ToolKind, tool
from tests.fakes.llm_context import FakeSearchIndex, recall


@tool("Find things.", kind=ToolKind.ACT, ask=AskRule.NEVER, brings=ResultContent.WORDS, gives=["web"])
async def find(
    context: ToolContext,
    zeta: Annotated[str, "what to find"],
    alpha: Annotated[int, "how many", Field(ge=1, le=10)] = 5,
    order: Literal["new", "old"] = "new",
    tags: list[str] | None = None,
) -> str:
    """A tool with every kind of parameter."""
    return f"{zeta} {alpha} {order} {tags}"


def test_the_schema_says_what_the_signature_says() -> None:
    """Types, bounds, choices, defaults and descriptions arrive at the model; parameters keep their order."""
    function = find.schema["function"]
    assert (function["name"], function["description"]) == ("find", "Find things.")
    parameters = function["parameters"]
    assert list(parameters["properties"]) == ["zeta", "alpha", "order", "tags"]
    assert parameters["required"] == ["zeta"]
    assert parameters["properties"]["zeta"] == {"description": "what to find", "type": "string"}
    assert parameters["properties"]["alpha"] == {
        "default": 5,
        "description": "how many",
        "maximum": 10,
        "minimum": 1,
        "type": "integer",
    }
    assert parameters["properties"]["order"]["enum"] == ["new", "old"]


def test_what_tells_a_model_nothing_is_left_out() -> None:
    """Titles, empty defaults and the ban on other parameters take a tenth of a schema; all are checked all the same."""

    @tool("x", kind=ToolKind.LOOK)
    async def count(context: ToolContext, by: dict[str, int], unit: str = "", most: int = 0) -> str:
        return ""

    parameters = count.schema["function"]["parameters"]
    assert parameters == {
        "properties": {
            "by": {"additionalProperties": {"type": "integer"}, "type": "object"},
            "unit": {"type": "string"},
            "most": {"default": 0, "type": "integer"},
        },
        "required": ["by"],
        "type": "object",
    }
    assert not isinstance(count.arguments, JsonArguments)
    with pytest.raises(ValidationError, match="Extra inputs are not permitted"):
        count.arguments.model_validate({"by": {}, "title": "y"})


def test_what_has_effects_is_not_repeatable_unless_it_says_so() -> None:
    """The default is the careful one."""

    @tool("x", kind=ToolKind.ACT, ask=AskRule.NEVER, repeatable=True)
    async def put(context: ToolContext) -> str:
        return ""

    @tool("x", kind=ToolKind.LOOK)
    async def look(context: ToolContext) -> str:
        return ""

    assert [each.repeatable for each in (find, put, look)] == [False, True, True]


def test_a_parameter_may_be_called_title() -> None:
    """Dropping pydantic's titles does not drop a parameter of that name."""

    @tool("x", kind=ToolKind.LOOK)
    async def write(context: ToolContext, title: str) -> str:
        return title

    assert list(write.schema["function"]["parameters"]["properties"]) == ["title"]


def test_what_is_no_tool_is_found_when_it_is_made() -> None:
    """A function that is not async, has no context, or has untyped or open parameters is a programmer's mistake."""

    def plain(context: ToolContext) -> str:
        return ""

    async def no_context(query: str) -> str:
        return query

    async def untyped(context: ToolContext, query) -> str:  # type: ignore[no-untyped-def]
        return str(query)

    async def many(context: ToolContext, *queries: str) -> str:
        return ""

    async def nothing() -> str:
        return ""

    for function in (plain, no_context, untyped, many, nothing):
        with pytest.raises(TypeError):
            tool("x", kind=ToolKind.LOOK)(function)  # type: ignore[arg-type]


async def test_bound_recall_sees_one_scope() -> None:
    """Whatever a tool asks for, it asks in the scope of the turn's principal."""
    mine = SearchHit(source="MEMORY.md", line=1, text="a secret of Ann", score=1.0)
    theirs = SearchHit(source="MEMORY.md", line=1, text="a secret of Bob", score=1.0)
    sources = FakeSearchIndex({"people/ann": [mine], "people/bob": [theirs]})
    bound = recall(sources, "people/ann")
    assert await bound.search("secret people/bob", SearchOptions(limit=9)) == [mine]
    assert await bound.read("MEMORY.md", 1) == [mine]
    assert not hasattr(bound, "scope")


def test_a_tool_is_data() -> None:
    """Decorating gives a Tool, not a function."""
    assert isinstance(find, Tool)
