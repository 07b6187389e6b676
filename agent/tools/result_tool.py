"""The tool that reads further pages of a long result."""

from __future__ import annotations

from agent.tools.sources import LONGEST_RESULT
from agent.tools.tool import ToolContext, ToolKind, tool


@tool("Read a further page of a long result, as its last line says.", kind=ToolKind.LOOK, page=LONGEST_RESULT)
async def read_result(context: ToolContext, result: str, page: int) -> str:
    """Return the page; it is untrusted if the result was."""
    return await context.read_page(result.strip(), page)
