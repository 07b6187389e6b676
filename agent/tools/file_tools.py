"""The file tool: sends a file with the answer."""

from __future__ import annotations

from typing import Annotated

from agent.attachments.file_names import format_size
from agent.tools.tool import ToolContext, tool
from gateway.errors import ToolFailed


@tool(
    "Send a file with your answer. With `text` a file is made of it (a table as CSV, a script, a long text as"
    " Markdown); without it, a file that was sent in this chat before is sent again, found by its name. People see"
    " the file beside your answer, so do not repeat in the answer what is in it.",
    gives=["files"],
)
async def send_file(
    context: ToolContext,
    name: Annotated[str, "the file's name with its ending, such as prices.csv"],
    text: Annotated[str, "what shall stand in the file; leave it out to send a file that is there"] = "",
) -> str:
    """Stage the file; it is sent with the turn's commit, once, however often the turn is tried."""
    if not name.strip():
        raise ToolFailed("a file needs a name")
    attachment = await context.send(name.strip(), text)
    return f"{attachment.name} ({format_size(attachment.size)}) will be sent with your answer"
