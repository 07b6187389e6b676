"""Putting a model's message together: from the pieces of a stream, or from one whole body.

Both take OpenAI-shaped objects, litellm's or parsed JSON, which enter here as Any and leave as our own types.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from itertools import islice
from typing import Any

from agent.llm.chat_model import ANSWER_CHARS, TokenUsage, ToolCall
from gateway.errors import InvalidModelReply

_MOST_CALLS = 128  # what no honest answer holds
# What servers call a model's reasoning; a few want it back with the calls it led to.
_REASONING = ("reasoning_content", "reasoning")


class ReplyBuilder:
    """A partial reply. `text` grows until `is_full`; reading further has no effect."""

    def __init__(self, model: str, *, keeps_reasoning: bool = False) -> None:
        """*keeps_reasoning*: plain reasoning that led to tool calls is part of `thinking`."""
        self._model = model
        self._keeps_reasoning = keeps_reasoning
        self._reasoning: dict[str, str] = {}
        self._calls: list[_ToolCallBuilder] = []
        self._by_index: dict[int, _ToolCallBuilder] = {}
        self._blocks: list[dict[str, Any]] = []
        self.text = ""
        self.usage: Any = None
        self.finish = ""

    @property
    def is_full(self) -> bool:
        """The text reached its bound."""
        return len(self.text) > ANSWER_CHARS

    @property
    def is_cut(self) -> bool:
        """The model's token limit or our bound ended the text early."""
        return self.is_full or self.finish == "length"

    @property
    def is_empty(self) -> bool:
        """Neither words nor a tool call."""
        return not self._calls and not self.text.strip()

    def add(self, chunk: Any) -> bool:
        """Take one chunk of a stream; True when the text grew."""
        self.usage = getattr(chunk, "usage", None) or self.usage
        choice = next(iter(chunk.choices or ()), None)
        if choice is None:
            return False
        self.finish = choice.finish_reason or self.finish
        delta = choice.delta
        if delta is None:
            return False
        for piece in delta.tool_calls or ():
            self._add_call(piece)
        for block in getattr(delta, "thinking_blocks", None) or ():
            self._add_thinking(block)
        self._add_reasoning(delta)
        words = _words(delta.content)
        self.text += words
        return bool(words)

    def take(self, response: Any) -> None:
        """Take a whole body."""
        self.usage = getattr(response, "usage", None)
        choice = next(iter(response.choices or ()), None)
        if choice is None or choice.message is None:
            return
        self.finish = choice.finish_reason or ""
        self.text = _words(choice.message.content)
        for index, call in enumerate(choice.message.tool_calls or ()):
            self._add(index, call)
        self._blocks = [dict(block) for block in getattr(choice.message, "thinking_blocks", None) or ()]
        self._add_reasoning(choice.message)

    def tool_calls(self) -> tuple[ToolCall, ...]:
        """Return the calls in the model's order; raise InvalidModelReply for calls beyond the limits."""
        if len(self._calls) > _MOST_CALLS or sum(len(call.arguments) for call in self._calls) > ANSWER_CHARS:
            raise InvalidModelReply(f"{self._model}: tool calls too large")
        return tuple(ToolCall(call.id, call.name, clean(call.arguments)) for call in self._calls if call.name)

    def thinking(self) -> Mapping[str, Any] | None:
        """Return the provider data that the same model expects back with its message."""
        kept: dict[str, Any] = {"thinking_blocks": self._blocks} if self._blocks else {}
        if self._calls and not kept:
            whole = ((key, clean(text)) for key, text in self._reasoning.items() if len(text) <= ANSWER_CHARS)
            kept |= dict(islice(whole, 1))  # a server that sends both keys sends the same text
        return {"model": self._model, "message": kept} if kept else None

    def tokens(self) -> TokenUsage | None:
        """Return the provider's figures; None if it gave none."""
        usage = self.usage
        sent, answered = _count(usage, "prompt_tokens"), _count(usage, "completion_tokens")
        if not sent and not answered:
            return None
        details = getattr(usage, "prompt_tokens_details", None)
        cached = _count(details, "cached_tokens") or _count(usage, "prompt_cache_hit_tokens")  # the second: DeepSeek
        return TokenUsage(input=sent, output=answered, cached=min(cached, sent))

    def final_text(self) -> str:
        """Return the text, valid and bounded."""
        return clean(self.text[:ANSWER_CHARS])

    def _add_call(self, piece: Any) -> None:
        index = piece.index if isinstance(piece.index, int) else len(self._calls)
        self._add(index, piece)
        if len(self._calls) > _MOST_CALLS or len(self._by_index[index].arguments) > ANSWER_CHARS:
            raise InvalidModelReply(f"{self._model}: tool calls too large")

    def _add(self, index: int, piece: Any) -> None:
        call = self._by_index.get(index)
        # Some servers number every parallel call 0; a new id then begins a new call.
        if call is None or (piece.id and call.id and piece.id != call.id):
            call = _ToolCallBuilder()
            self._calls.append(call)
            self._by_index[index] = call
        call.id = call.id or piece.id or ""
        if piece.function is not None:
            call.name = call.name or piece.function.name or ""
            call.arguments += _raw_json(piece.function.arguments)

    def _add_reasoning(self, source: Any) -> None:
        if not self._keeps_reasoning:
            return
        for key in _REASONING:
            words = getattr(source, key, None)
            if isinstance(words, str) and words and len(self._reasoning.get(key, "")) <= ANSWER_CHARS:
                self._reasoning[key] = self._reasoning.get(key, "") + words

    def _add_thinking(self, piece: Any) -> None:
        block = dict(piece)
        last = self._blocks[-1] if self._blocks else None
        if block.get("type") == "redacted_thinking" or last is None or "signature" in last:
            self._blocks.append({name: value for name, value in block.items() if value})
            return
        last["thinking"] = last.get("thinking", "") + (block.get("thinking") or "")
        if block.get("signature"):
            last["signature"] = block["signature"]


class _ToolCallBuilder:
    __slots__ = ("arguments", "id", "name")

    def __init__(self) -> None:
        self.id = ""
        self.name = ""
        self.arguments = ""


def clean(text: str) -> str:
    """Join surrogate halves that came in two pieces, and replace lone ones: nothing else stores them."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")
    return text


def _words(content: object) -> str:
    """Return the text of a content field: a string, null, or a list of parts."""
    if isinstance(content, str):
        return content
    if isinstance(content, list):
        return "".join(str(part.get("text") or "") for part in content if isinstance(part, Mapping))
    return ""


def _raw_json(arguments: object) -> str:
    """Return a call's arguments as text; some servers send them as an object."""
    return json.dumps(arguments, ensure_ascii=False) if isinstance(arguments, Mapping) else str(arguments or "")


def _count(source: object, name: str) -> int:
    """Return a figure of the provider's, or 0 if it is not a number of tokens."""
    value = getattr(source, name, None)
    return int(value) if isinstance(value, int | float) and 0 < value < 1e12 else 0
