"""The file tool: sends a file with the answer."""

from __future__ import annotations

from typing import Annotated

from agent.attachments.file_names import format_size
from agent.tools.tool import ToolContext, ToolKind, tool
from gateway.errors import ToolFailed


@tool(
    "Send a file with your answer: one made of `text` (a table as CSV, a long text as Markdown), or, without it, one"
    " that was sent here before, by its name. Do not repeat its content in the answer.",
    kind=ToolKind.KEEP,
    gives=["files"],
)
async def send_file(
    context: ToolContext,
    name: Annotated[str, "the file's name with its ending, such as prices.csv"],
    text: Annotated[str, "the content of a new file"] = "",
) -> str:
    """Stage the file; it is sent with the turn's commit, once, however often the turn is tried."""
    if not name.strip():
        raise ToolFailed("a file needs a name")
    attachment = await context.send(name.strip(), text)
    return f"{attachment.name} ({format_size(attachment.size)}) will be sent with your answer"
