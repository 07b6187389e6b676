"""Tools outside the prompt: a call through `use_tool` is the call of the tool that it names."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent.llm.chat_model import ToolCall
from agent.tools.deferred_tools import inner_call, outer_call, rank_tools
from agent.tools.tool import ResultContent, Tool, ToolContext, ToolKind, tool
from agent.tools.toolbox import Toolbox

_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)


@given(st.text(min_size=1), st.dictionaries(st.text(), _VALUES, max_size=4))
def test_a_call_is_the_same_through_use_tool_and_back(name: str, arguments: dict[str, Any]) -> None:
    """A question stores the inner call; when a person has allowed it, the model's message has the outer one."""
    made = ToolCall("c", "use_tool", json.dumps({"name": name, "arguments": arguments}))
    inner = inner_call(made)
    assert (inner.name, json.loads(inner.arguments)) == (name, arguments)
    assert inner_call(outer_call(inner)) == inner


@pytest.mark.parametrize(
    "arguments",
    ["", "{", "[]", "null", '{"name": "x"}', '{"name": 1, "arguments": {}}', '{"name": "x", "arguments": [1]}'],
)
def test_what_names_no_tool_stays_as_it_is(arguments: str) -> None:
    """The tool itself then says what is wrong."""
    call = ToolCall("c", "use_tool", arguments)
    assert inner_call(call) is call


def test_arguments_written_as_text_are_read() -> None:
    """Some models write an object within an object as a string."""
    made = ToolCall("c", "use_tool", json.dumps({"name": "x", "arguments": '{"a": 1}'}))
    assert inner_call(made).arguments == '{"a": 1}'


def service_tool(name: str, description: str, *parameters: str, kind: ToolKind = ToolKind.WEB) -> Tool:
    """Return a tool of a service."""

    @tool(description, kind=kind, name=name, brings=ResultContent.WORDS)
    async def run(context: ToolContext) -> str:
        return ""

    run.schema["function"]["parameters"]["properties"] = {name: {} for name in parameters}
    return run


TOOLS = [
    service_tool("mcp_tracker_search_issues", "Search the issues.", "query"),
    service_tool("mcp_tracker_createIssue", "Create an issue.", "title", kind=ToolKind.ACT),
    service_tool("mcp_cal_list_events", "List the events of a day.", "day", "calendar"),
]


@pytest.mark.parametrize(
    ("query", "first"),
    [
        ("create an issue", "mcp_tracker_createIssue"),
        ("Which events are in my calendar?", "mcp_cal_list_events"),
        ("ISSUES search", "mcp_tracker_search_issues"),
    ],
)
def test_the_tool_that_fits_best_comes_first(query: str, first: str) -> None:
    """By the words of its name, its text and its parameters, in the singular as in the plural."""
    assert rank_tools(query, TOOLS)[0].name == first


def test_nothing_that_fits_is_nothing() -> None:
    """Not the whole list."""
    assert not rank_tools("weather", TOOLS)
    assert not rank_tools("", TOOLS)


def test_an_inner_call_has_the_kind_and_the_repeatability_of_its_tool() -> None:
    """Whatever is decided by a call is decided by the tool that it names; a tool that is gone may have acted."""
    box = Toolbox([]).extended(TOOLS, None, {})
    search, create, gone = (
        ToolCall("c", "use_tool", json.dumps({"name": f"mcp_tracker_{name}", "arguments": {}}))
        for name in ("search_issues", "createIssue", "delete_all")
    )
    assert (box.kind_of(search), box.kind_of(create), box.kind_of(gone)) == (ToolKind.WEB, ToolKind.ACT, None)
    assert (box.has_effects(search), box.has_effects(create)) == (False, True)
    assert (box.is_repeatable(search), box.is_repeatable(create), box.is_repeatable(gone)) == (True, False, False)
    assert box.can_ask(create)
    assert box.names == ("find_tools", "use_tool")


def test_the_schemas_are_the_same_bytes_with_any_number_of_tools() -> None:
    """The prompt's prefix, which providers cache, does not grow with a service."""
    many = [service_tool(f"mcp_tracker_tool{n}", f"Do {n}.") for n in range(500)]
    few, lots = Toolbox([]).extended(TOOLS, None, {}), Toolbox([]).extended(many, None, {})
    assert json.dumps(few.schemas) == json.dumps(lots.schemas)
    assert len(json.dumps(few.schemas)) < 1_000
