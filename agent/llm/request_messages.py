"""Messages and tools of a request as a provider wants them: reasoning, cache marks, pictures."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from agent.llm.chat_model import ChatRequest
from gateway.errors import ModelAbility

# Providers read a cached prefix only up to a mark when they are of this family.
_MARKED = ("claude",)
CACHED_PURPOSE = "answer"  # of prompts that the next turn, or the next step, sends again
# Providers that refuse a history with calls beside no tools, as where a chat has none any more.
_WANTS_A_TOOL = ("bedrock/",)
_NO_TOOL = {
    "type": "function",
    "function": {
        "name": "no_tool",
        "description": "There are no tools in this chat. Never call this.",
        "parameters": {"type": "object", "properties": {}},
    },
}


def offered_tools(request: ChatRequest, model: str) -> list[dict[str, Any]]:
    """Return the tools that *model* is offered: those of *request*, or one in their place where there has to be one."""
    if ModelAbility.TOOLS in request.without:
        return []
    is_wanted = model.startswith(_WANTS_A_TOOL) and any(message.get("tool_calls") for message in request.messages)
    return [dict(tool) for tool in request.tools or ((_NO_TOOL,) if is_wanted else ())]


def stream_options(request: ChatRequest) -> dict[str, Any]:
    """Return the field that asks for the usage at the end of a stream; nothing for a server that refuses it."""
    return {} if ModelAbility.STREAM_OPTIONS in request.without else {"stream_options": {"include_usage": True}}


def outgoing(messages: Sequence[Mapping[str, Any]], model: str, *, marks: bool = True) -> list[dict[str, Any]]:
    """Return *messages* as sent to *model*: with its own reasoning restored, without that of other models.

    Equal messages come out as equal bytes. For providers that cache only what is marked, the system prompt and the
    last message carry a mark; before tool results, which cannot carry one, the last message that can. *marks* is False
    for a prompt that is not sent again: writing a cache costs more than sending the prompt.
    """
    sent = [_with_thinking(message, model) for message in messages]
    if marks and any(name in model.lower() for name in _MARKED) and sent:
        last = next((n for n in range(len(sent) - 1, -1, -1) if _can_carry_mark(sent[n])), 0)
        for index in {0, last}:
            sent[index] = _with_cache_mark(sent[index])
    return sent


def _with_thinking(message: Mapping[str, Any], model: str) -> dict[str, Any]:
    kept = {name: value for name, value in message.items() if name != "thinking"}
    thinking = message.get("thinking")
    if isinstance(thinking, Mapping) and thinking.get("model") == model:
        kept |= thinking["message"]
    return kept


def without_pictures(message: dict[str, Any]) -> dict[str, Any]:
    """Return *message* for a model that cannot see: a fallback may be another kind than the model it stands in for."""
    content = message.get("content")
    if not isinstance(content, list) or not any(_is_picture(part) for part in content):
        return message
    words = [part for part in content if not _is_picture(part)]
    return {**message, "content": [*words, {"type": "text", "text": "(pictures that you cannot see)"}]}


def _is_picture(part: object) -> bool:
    return isinstance(part, Mapping) and part.get("type") == "image_url"


_MARK = {"type": "ephemeral"}


def _can_carry_mark(message: Mapping[str, Any]) -> bool:
    content = message.get("content")
    return isinstance(content, str | list) and bool(content) and message.get("role") != "tool"


def _with_cache_mark(message: dict[str, Any]) -> dict[str, Any]:
    content = message.get("content")
    if not _can_carry_mark(message):
        return message
    if isinstance(content, list):
        return {**message, "content": [*content[:-1], {**content[-1], "cache_control": _MARK}]}
    return {**message, "content": [{"type": "text", "text": content, "cache_control": _MARK}]}
