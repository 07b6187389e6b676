"""What the model is asked: the words and the tool of [001], and for models without tools those of [004]."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import Any

from agent.memory.consolidation.merge import NOTHING_YET

SAVE_MEMORY = "save_memory"

SYSTEM = "You are a memory consolidation agent. Call the save_memory tool with your consolidation of the conversation."

_SYSTEM_WITHOUT_TOOLS = (
    "You are a memory consolidation agent. Answer with the JSON of your consolidation of the conversation, and nothing"
    " else."
)

_TOOL: dict[str, Any] = {
    "type": "function",
    "function": {
        "name": SAVE_MEMORY,
        "description": "Save the memory consolidation result to persistent storage.",
        "parameters": {
            "type": "object",
            "properties": {
                "history_entry": {
                    "type": "string",
                    "description": "A paragraph (2-5 sentences) summarizing key events/decisions/topics. "
                    "Start with [YYYY-MM-DD HH:MM]. Include detail useful for grep search.",
                },
                "memory_update": {
                    "type": "string",
                    "description": "Full updated long-term memory as markdown. Include all existing facts plus new "
                    "ones. Return unchanged if nothing new.",
                },
            },
            "required": ["history_entry", "memory_update"],
        },
    },
}

TOOL_CHOICE: dict[str, Any] = {"type": "function", "function": {"name": SAVE_MEMORY}}


def tools() -> list[dict[str, Any]]:
    """Return the one tool, as a list of one's own: providers have been seen to write into what they are given."""
    return [copy.deepcopy(_TOOL)]


def messages(current_memory: str, conversation: Sequence[str]) -> list[dict[str, Any]]:
    """Return the prompt for a model that calls tools."""
    lines = "\n".join(conversation)
    asked = (
        "Process this conversation and call the save_memory tool with your consolidation.\n\n"
        f"## Current Long-term Memory\n{current_memory.strip() or NOTHING_YET}\n\n"
        f"## Conversation to Process\n{lines}"
    )
    return [{"role": "system", "content": SYSTEM}, {"role": "user", "content": asked}]


def messages_without_tools(current_memory: str, conversation: Sequence[str]) -> list[dict[str, Any]]:
    """Return the prompt for a model that cannot call tools; it answers the JSON of [004]."""
    lines = "\n".join(conversation)
    asked = (
        f"Current Long-term Memory: {current_memory.strip() or NOTHING_YET}\n\n"
        f"Conversation to Process: {lines}\n\n"
        "Return JSON:\n"
        "{\n"
        '  "history_entry": "<a paragraph of 2-5 sentences that begins with the time, YYYY-MM-DD HH:MM>",\n'
        '  "memory_update": "<the full long-term memory as markdown: all existing facts plus new ones>"\n'
        "}"
    )
    return [{"role": "system", "content": _SYSTEM_WITHOUT_TOOLS}, {"role": "user", "content": asked}]
