"""Tools that are not in the prompt: two fixed schemas stand for all of them, so that the prompt's prefix never changes.

`find_tools` returns the names and schemas of those that fit a question, and `use_tool` calls one. A call through
`use_tool` is judged, asked about, run and recorded as a call of the tool that it names.
"""

from __future__ import annotations

import asyncio
import json
import math
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Annotated, Any

from agent.llm.chat_model import ToolCall
from agent.tools.tool import Tool, ToolContext, ToolKind, tool
from gateway.errors import ToolFailed

FIND_TOOLS, USE_TOOL = "find_tools", "use_tool"
FINDERS = frozenset({FIND_TOOLS, USE_TOOL})
_MOST_FOUND = 10
_WORD = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[^\W_A-Z]+")
_WEIGHTS = (4, 2, 1)  # of name, description and parameters
_LONGEST_QUERY = 500  # characters
_LONGEST_LIST = 100  # names that are listed where nothing fits


def build_finder(tools: Mapping[str, Tool]) -> tuple[Tool, Tool]:
    """Return `find_tools` and `use_tool` over *tools*, by name."""

    @tool(
        "Find tools of connected services (issues, calendars, files …) that are not listed here. Returns their names"
        " and parameters for use_tool.",
        kind=ToolKind.LOOK,
        name=FIND_TOOLS,
    )
    async def find_tools(
        context: ToolContext,  # noqa: ARG001 - the same for everybody
        query: Annotated[str, "what the tool should do, in a few words"],
        count: int = 5,
    ) -> str:
        """Return the best tools for *query*, with their schemas."""
        # In a thread, since there may be a thousand of them.
        ranked = await asyncio.to_thread(rank_tools, query, list(tools.values()))
        best = ranked[: max(1, min(count, _MOST_FOUND))]
        if best:
            return "\n\n".join(map(_describe, best))
        return f"no tool fits; there are: {', '.join(list(tools)[:_LONGEST_LIST])}"

    @tool(
        "Call a tool that find_tools has returned, with an object of its parameters.", kind=ToolKind.LOOK, name=USE_TOOL
    )
    async def use_tool(context: ToolContext, name: str, arguments: dict[str, Any]) -> str:  # noqa: ARG001 - see below
        """Raise ToolFailed: the toolbox runs what is named, so this is reached only where that cannot be read."""
        raise ToolFailed("name must be a tool's name and arguments an object, as find_tools has returned them")

    return find_tools, use_tool


def inner_call(call: ToolCall) -> ToolCall:
    """Return the call that *call* makes through `use_tool`; *call* itself if it is another one, or cannot be read.

    The arguments of the inner call are written in one way, so that the same call always has the same text.
    """
    if call.name != USE_TOOL:
        return call
    try:
        given = json.loads(call.arguments)
        arguments = given["arguments"]
        arguments = json.loads(arguments) if isinstance(arguments, str) else arguments
    except (ValueError, KeyError, TypeError, RecursionError):
        return call
    name = given.get("name")
    if not isinstance(name, str) or not isinstance(arguments, dict):
        return call
    return ToolCall(call.id, name, json.dumps(arguments, ensure_ascii=False))


def outer_call(call: ToolCall) -> ToolCall:
    """Return the call of `use_tool` that makes *call*; the reverse of `inner_call`."""
    arguments = json.dumps({"name": call.name, "arguments": json.loads(call.arguments)}, ensure_ascii=False)
    return ToolCall(call.id, USE_TOOL, arguments)


def rank_tools(query: str, tools: Sequence[Tool]) -> Sequence[Tool]:
    """Return those of *tools* that have a word of *query*, the best first: rare words count more, in names most."""
    wanted = _words(query[:_LONGEST_QUERY])
    words = [(_words(each.name), _words(each.description), _words(" ".join(_parameter_names(each)))) for each in tools]
    count = {word: sum(any(word in part for part in each) for each in words) for word in wanted}
    scores = [
        sum(
            weight * math.log(1 + len(tools) / count[word])
            for word in wanted
            if count[word]
            for part, weight in zip(each, _WEIGHTS, strict=True)
            if word in part
        )
        for each in words
    ]
    best = sorted(range(len(tools)), key=lambda n: (-scores[n], tools[n].name))
    return [tools[n] for n in best if scores[n]]


def _words(text: str) -> frozenset[str]:
    """Return the words of *text* in small letters without an ending "s"; `listIssues` and `list_issues` have two."""
    return frozenset(word.lower().rstrip("s") or word for word in _WORD.findall(text))


def _parameter_names(tool: Tool) -> Iterable[str]:
    properties = tool.schema["function"]["parameters"].get("properties")
    return properties if isinstance(properties, dict) else ()


def _describe(tool: Tool) -> str:
    parameters = json.dumps(tool.schema["function"]["parameters"], ensure_ascii=False)
    return f"{tool.name}: {' '.join(tool.description.split())}\n{parameters}"
