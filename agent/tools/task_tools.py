"""The tool that starts a background task."""

from __future__ import annotations

from dataclasses import replace
from typing import Annotated

from agent.tools.tool import ToolContext, ToolKind, tool


@tool(
    "Look into something beside this chat, when it takes many steps and the person need not wait. It sees nothing of"
    " this conversation, and can only look up, read and calculate. Its result comes here by itself.",
    kind=ToolKind.SPEND,
    repeatable=True,  # it is started by the turn's commit, once
)
async def task(context: ToolContext, goal: Annotated[str, "all it has to know, and what the result should be"]) -> str:
    """Stage a task; it is started with the turn's commit. Raises ToolFailed."""
    started = await context.tasks.build(goal, call_key=context.call_key, is_tainted=context.is_tainted)
    context.stage_job(replace(started.to_job(context.scope), limit=context.tasks.limit))
    context.stage_job(started.late_job(context.scope))
    return f"task {started.id} is started once this answer is sent; its result comes here by itself"
