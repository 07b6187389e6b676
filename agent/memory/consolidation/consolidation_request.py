"""Ask a model to consolidate: the prompt and the tool of [001], the JSON of [004] for models without tools."""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

from agent.memory.editing.merge import NOTHING_YET
from agent.memory.model_calls import MOST_CHARACTERS, LlmProvider, UnusableAnswer, call_provider, clean, read_call

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
    """Return a fresh list with the tool's definition; some providers modify what they are given."""
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


@dataclass(frozen=True, slots=True)
class ConsolidationAnswer:
    """A consolidation as the model returned it; neither text is empty."""

    history_entry: str
    memory_update: str


async def request_consolidation(
    provider: LlmProvider, model: str, memory: str, lines: Sequence[str], *, deadline: timedelta
) -> ConsolidationAnswer | UnusableAnswer:
    """Return the model's consolidation of the conversation, or the reason why there is none. Never raises.

    The tool is forced; a provider that refuses this is asked with `auto`, then without tools.
    """
    response = await call_provider(provider, model, _attempts(memory, lines), deadline=deadline)
    if isinstance(response, UnusableAnswer):
        return response
    return parse_answer(getattr(response, "content", None), getattr(response, "tool_calls", None))


def _attempts(memory: str, lines: Sequence[str]) -> Iterator[dict[str, Any]]:
    yield {"messages": messages(memory, lines), "tools": tools(), "tool_choice": dict(TOOL_CHOICE)}
    yield {"messages": messages(memory, lines), "tools": tools(), "tool_choice": "auto"}
    yield {"messages": messages_without_tools(memory, lines)}


def parse_answer(content: object, tool_calls: object) -> ConsolidationAnswer | UnusableAnswer:
    """Return the consolidation in a tool call or in JSON text, or the reason why there is none.

    *tool_calls* are objects with `name` and `arguments`, or OpenAI's mappings. The arguments may be an object, a JSON
    string, or a list of one of these.
    """
    return read_call(content, tool_calls, SAVE_MEMORY, _answer)


def _answer(value: Mapping[str, Any]) -> ConsolidationAnswer | UnusableAnswer:
    texts = [value.get(name) for name in ("history_entry", "memory_update")]
    missing = [name for name, text in zip(("history_entry", "memory_update"), texts, strict=True) if not _says(text)]
    if missing:
        return UnusableAnswer(f"{' and '.join(missing)} missing")
    entry, update = (clean(str(text)) for text in texts)
    if len(entry) + len(update) > MOST_CHARACTERS:
        return UnusableAnswer("too long")
    return ConsolidationAnswer(entry, update)


def _says(text: object) -> bool:
    return isinstance(text, str) and bool(clean(text))
