"""Putting a model's message together: from the pieces of a stream, or from one whole body.

Both take OpenAI-shaped objects, litellm's or parsed JSON, which enter here as Any and leave as our own types.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from itertools import islice
from typing import Any

from agent.llm.answer_text import AnswerText
from agent.llm.chat_model import ANSWER_CHARS, ReplyEnding, TokenUsage, ToolCall
from agent.llm.completion_stream import plain_words
from gateway.errors import InvalidModelReply

_MOST_CALLS = 128  # what no honest answer holds
_LONGEST_FINISH = 40  # characters; it is part of errors
_OPAQUE_BYTES = 400_000  # of data that a provider wants back with one message
# What servers call a model's reasoning; a few want it back with the calls it led to.
_REASONING = ("reasoning_content", "reasoning")
# What a provider wants back with a call: Gemini's signature of its thoughts, as its own address and litellm write it.
_CALL_DATA = ("extra_content", "provider_specific_fields")
_SIGNATURE_IN_ID = "__thought__"  # litellm's, which also stands in `provider_specific_fields`


class ReplyBuilder:
    """A partial reply. The text grows until `is_full`; reading further has no effect."""

    def __init__(self, model: str, *, keeps_reasoning: bool = False, is_hidden: bool = False) -> None:
        """*keeps_reasoning*: plain reasoning that led to tool calls is part of `thinking`.

        *is_hidden*: nothing is shown before the model ends the thinking that it does not begin (`AnswerText`).
        """
        self._model = model
        self._keeps_reasoning = keeps_reasoning
        self._reasoning: dict[str, str] = {}
        self._calls: list[_ToolCallBuilder] = []
        self._by_index: dict[int, _ToolCallBuilder] = {}
        self._blocks: list[dict[str, Any]] = []
        self._details: list[dict[str, Any]] = []
        self._has_delta = False
        self._index: object = None  # of the choice that is the answer
        self._is_result = False  # what comes is the result of a tool of the provider's, and no answer
        self.tools: Sequence[Mapping[str, Any]] = ()  # that the model was offered
        self.answer = AnswerText(is_hidden=is_hidden, is_harmony="gpt-oss" in model.lower())
        self.usage: Any = None
        self.finish = ""
        self.error: Any = None  # beside the finish reason "error"

    @property
    def text(self) -> str:
        """The words so far, without thinking."""
        return self.answer.text

    @property
    def is_full(self) -> bool:
        """The text reached its bound, or only repeats itself."""
        return self.answer.is_repeated or len(self.answer) > ANSWER_CHARS

    @property
    def ending(self) -> ReplyEnding:
        """The end of the text, by the provider's reason and our bounds."""
        if self.answer.is_repeated:
            return ReplyEnding.REPEATED
        return ReplyEnding.LENGTH if self.is_full else _ENDINGS.get(self.finish.lower(), ReplyEnding.COMPLETE)

    @property
    def is_empty(self) -> bool:
        """Neither words nor a tool call."""
        return not any(call.name for call in self._calls) and not self.answer.text.strip()

    @property
    def called(self) -> int:
        """Number of tool calls that have begun."""
        return len(self._calls)

    def add(self, chunk: Any) -> bool:
        """Take one chunk of a stream, or a whole body; True when the text grew."""
        if not self._is_result and not self._index and (words := plain_words(chunk)):
            self._has_delta = True
            return self.answer.add(words)
        groq = getattr(chunk, "x_groq", None)
        self.usage = getattr(chunk, "usage", None) or getattr(groq, "usage", None) or self.usage
        self.error = getattr(chunk, "error", None) or self.error
        choice = self._choice_of(chunk)
        if choice is None:
            return False
        self.usage = getattr(choice, "usage", None) or self.usage  # Moonshot's place for it
        finish = choice.finish_reason
        self.finish = finish[:_LONGEST_FINISH] if isinstance(finish, str) and finish else self.finish
        self.error = getattr(choice, "error", None) or self.error
        delta, message = getattr(choice, "delta", None), None
        if delta:
            self._has_delta = True
        elif not self._has_delta:  # a whole body, or a server that streams messages
            delta = message = getattr(choice, "message", None)
        return bool(delta) and self._add_delta(delta, is_whole=message is not None)

    def _add_delta(self, delta: Any, *, is_whole: bool) -> bool:
        self._check_shape(delta)
        if isinstance(role := getattr(delta, "role", None), str) and role:
            self._is_result = role in _RESULT_ROLES
        if self._is_result:
            return False
        calls = delta.tool_calls
        for n, piece in enumerate((calls,) if isinstance(calls, Mapping) else calls if isinstance(calls, list) else ()):
            self._add_call(piece, n if is_whole else None)
        if (old := getattr(delta, "function_call", None)) is not None:
            self._add_piece(0, "", old)
        blocks = getattr(delta, "thinking_blocks", None)
        for block in blocks if isinstance(blocks, list) else ():
            self._add_thinking(block)
        self._add_reasoning(delta)
        words = _words(delta.content) or _words(getattr(delta, "refusal", None))
        return bool(words) and self.answer.add(words)

    def _choice_of(self, chunk: Any) -> Any:
        """Return the choice of *chunk* that is the answer, or None: servers may send more of them than was asked."""
        choices = chunk.choices
        choice = choices if isinstance(choices, Mapping) else next(iter(choices or ()), None)
        if choice is None:
            return None
        self._check_shape(choice)
        index = getattr(choice, "index", None) or 0
        if self._index is None and self._has_delta:
            self._index = 0
        self._index = index if self._index is None else self._index
        return choice if index == self._index else None

    def _check_shape(self, value: object) -> None:
        if isinstance(value, str | int | float | list):
            raise InvalidModelReply(f"{self._model}: a choice that is no object")

    def is_offered(self, name: str) -> bool:
        """Return True if the model was offered a tool called *name*."""
        return any(str((tool.get("function") or {}).get("name")) == name for tool in self.tools)

    def take(self, bodies: Sequence[Any]) -> None:
        """Take a whole answer: one body, or the chunks of a stream that was not asked for."""
        for body in bodies:
            self.add(body)
        self.close()

    def close(self) -> None:
        """Take the end of the answer."""
        self.answer.close()

    def tool_calls(self) -> tuple[ToolCall, ...]:
        """Return the calls in the model's order; raise InvalidModelReply for calls beyond the limits."""
        if len(self._calls) > _MOST_CALLS or sum(len(call.arguments) for call in self._calls) > ANSWER_CHARS:
            raise InvalidModelReply(f"{self._model}: tool calls too large")
        return tuple(ToolCall(call.id, call.name, clean(call.json)) for call in self._calls if call.name)

    def thinking(self) -> Mapping[str, Any] | None:
        """Return the provider data that the same model expects back with its message.

        `message` has keys of the message; `calls` has keys of each call, by its position among the calls.
        """
        named = [call for call in self._calls if call.name]
        message: dict[str, Any] = {"thinking_blocks": self._blocks} if self._blocks else {}
        if named and self._details:
            message["reasoning_details"] = self._details
        elif named and not message:
            whole = ((key, clean(text)) for key, text in self._reasoning.items() if len(text) <= ANSWER_CHARS)
            message |= dict(islice(whole, 1))  # a server that sends both keys sends the same text
        kept: dict[str, Any] = {"model": self._model, "message": message}
        if any(call.data for call in named):
            kept["calls"] = [call.data for call in named]
        if not message and "calls" not in kept:
            return None
        try:
            size = len(json.dumps(kept))
        except (TypeError, ValueError, RecursionError):
            return None
        return kept if size <= _OPAQUE_BYTES else None

    def tokens(self) -> TokenUsage | None:
        """Return the provider's figures; None if it gave none."""
        usage = self.usage
        sent = _count(usage, "prompt_tokens") or _count(usage, "input_tokens")
        answered = _count(usage, "completion_tokens") or _count(usage, "output_tokens")
        if not sent and not answered:
            return None
        details = getattr(usage, "prompt_tokens_details", None)
        cached = _count(details, "cached_tokens") or _count(usage, "prompt_cache_hit_tokens")  # the second: DeepSeek
        return TokenUsage(input=sent, output=answered, cached=min(cached, sent))

    def final_text(self) -> str:
        """Return the text, valid and bounded."""
        return clean(self.answer.text[:ANSWER_CHARS])

    def shown_text(self) -> str:
        """Return the part of the text so far that the preview may show."""
        return clean(self.answer.visible_text)

    def _add_call(self, piece: Any, position: int | None) -> None:
        if piece is None or isinstance(piece, str | int | float | list):
            return
        function = piece.function
        flat = piece if function is None and getattr(piece, "name", None) else function
        index = _index_of(getattr(piece, "index", None))
        call = self._add_piece(position if index is None else index, _words(piece.id), flat)
        for key in _CALL_DATA:
            if isinstance(data := getattr(piece, key, None), Mapping):
                call.data[key] = {**call.data.get(key, {}), **data}
        if len(self._calls) > _MOST_CALLS or len(call.arguments) > ANSWER_CHARS:
            raise InvalidModelReply(f"{self._model}: tool calls too large")

    def _add_piece(self, index: int | None, id: str, function: Any) -> _ToolCallBuilder:  # noqa: A002 - the provider's
        id = id.partition(_SIGNATURE_IN_ID)[0]  # noqa: A001
        name = _words(getattr(function, "name", None))
        arguments = _raw_json(getattr(function, "arguments", None))
        call = self._find_call(index, id)
        if call is None or self._begins_call(call, id, name, arguments):
            call = _ToolCallBuilder()
            self._calls.append(call)
        if index is not None:
            self._by_index[index] = call
        call.id = call.id or id
        if name and name != call.name and not call.arguments:
            call.name = name if name.startswith(call.name) else call.name + name
        call.add(arguments)
        return call

    def _find_call(self, index: int | None, id: str) -> _ToolCallBuilder | None:  # noqa: A002
        if index is not None:
            return self._by_index.get(index)
        same = next((call for call in self._calls if id and call.id == id), None)
        return same or (self._calls[-1] if self._calls else None)

    def _begins_call(self, call: _ToolCallBuilder, id: str, name: str, arguments: str) -> bool:  # noqa: A002
        """Return True if a piece with the index of *call* is another call: servers number every parallel call 0.

        Only a name begins a call. An id does not: there are servers with another id in every piece.
        """
        if not name or not call.name:
            return False
        if call.is_complete:
            is_other = bool(id and call.id) and id != call.id
            return is_other or (name, arguments.strip()) not in ((call.name, call.arguments.strip()), (call.name, ""))
        if call.arguments.lstrip().startswith("{") and not arguments.lstrip().startswith("{"):
            return False  # the rest of an object, whatever its id
        if id and call.id:
            return id != call.id
        # Either a name in two pieces, or a call without arguments and the next one.
        is_next = not call.arguments and call.name != name
        return is_next and self.is_offered(name) and self.is_offered(call.name)

    def _add_reasoning(self, source: Any) -> None:
        details = getattr(source, "reasoning_details", None)
        for each in details if isinstance(details, list) else ():
            self._add_detail(each)
        if not self._keeps_reasoning:
            return
        for key in _REASONING:
            words = getattr(source, key, None)
            if isinstance(words, str) and words and len(self._reasoning.get(key, "")) <= ANSWER_CHARS:
                self._reasoning[key] = self._reasoning.get(key, "") + words

    def _add_detail(self, piece: Any) -> None:
        """Take a piece of OpenRouter's `reasoning_details`: pieces of one kind and index are one detail."""
        if not isinstance(piece, Mapping) or len(self._details) > _MOST_CALLS:
            return
        last = self._details[-1] if self._details else None
        if last is None or any(last.get(key) != piece.get(key) for key in ("type", "index")):
            self._details.append(dict(piece))
            return
        for key, value in piece.items():
            if key in ("text", "summary", "data") and isinstance(value, str) and isinstance(last.get(key), str):
                last[key] = last[key] + value if len(last[key]) <= ANSWER_CHARS else last[key]
            elif value is not None:
                last[key] = value

    def _add_thinking(self, piece: Any) -> None:
        if not isinstance(piece, Mapping):
            return
        block = dict(piece)
        last = self._blocks[-1] if self._blocks else None
        if block.get("type") == "redacted_thinking" or last is None or "signature" in last:
            if len(self._blocks) <= _MOST_CALLS:
                self._blocks.append({name: value for name, value in block.items() if value})
            return
        if len(last.get("thinking", "")) <= ANSWER_CHARS:
            last["thinking"] = last.get("thinking", "") + (block.get("thinking") or "")
        if block.get("signature"):
            last["signature"] = block["signature"]


_ENDINGS = dict.fromkeys(
    ("length", "max_tokens", "max_output_tokens", "model_length", "model_context_window_exceeded"), ReplyEnding.LENGTH
)
_ENDINGS |= dict.fromkeys(
    ("content_filter", "safety", "refusal", "sensitive", "recitation", "prohibited_content", "blocklist", "spii"),
    ReplyEnding.FILTERED,
)
_ENDINGS |= dict.fromkeys(
    (
        "error",
        "network_error",
        "insufficient_system_resource",
        "abort",
        "cancelled",
        "timeout",
        "malformed_function_call",
    ),
    ReplyEnding.BROKEN,
)
_RESULT_ROLES = ("tool", "function")
_BRACES = re.compile(r'["\\{}\[\]]')


class _ToolCallBuilder:
    __slots__ = ("_depth", "_is_escaped", "_is_quoted", "_last", "arguments", "data", "id", "is_complete", "name")

    def __init__(self) -> None:
        self.id = ""
        self.name = ""
        self.arguments = ""
        self.data: dict[str, Any] = {}
        self.is_complete = False  # the arguments are a whole JSON object
        self._last = ""  # the last piece
        self._depth = 0
        self._is_quoted = False
        self._is_escaped = -1  # position of the character that a backslash takes with it

    @property
    def json(self) -> str:
        """The arguments, also of a server that sends all of them so far in each piece, or that encodes them twice."""
        if not self.is_complete and len(self._last) < len(self.arguments) and _is_object(self._last):
            return self._last
        if self.arguments.lstrip().startswith('"') and isinstance(inner := _decoded(self.arguments), str):
            return inner if _is_object(inner) else self.arguments
        return self.arguments

    def add(self, piece: str) -> None:
        """Take more of the arguments. Text after a whole object repeats it and is dropped."""
        if self.is_complete and self.arguments.strip() == "{}" and piece.lstrip().startswith("{"):
            self.arguments, self.is_complete = "", False  # an empty object before the real one
        if self.is_complete or not piece:
            return
        self._last = piece
        start = len(self.arguments)
        self.arguments += piece
        if self._depth == 0 and not self.arguments.lstrip().startswith("{"):
            return
        for found in _BRACES.finditer(piece):
            at, sign = start + found.start(), found[0]
            if at == self._is_escaped:
                continue
            if sign == "\\":
                self._is_escaped = at + 1
            elif sign == '"':
                self._is_quoted = not self._is_quoted
            elif not self._is_quoted:
                self._depth += 1 if sign in "{[" else -1
                if self._depth == 0:
                    self.is_complete = True
                    self.arguments = (
                        self.arguments[: at + 1] if piece[found.end() :].lstrip()[:1] == "{" else (self.arguments)
                    )
                    return


def _decoded(text: str) -> object:
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return None


def _is_object(text: str) -> bool:
    return text.lstrip().startswith("{") and isinstance(_decoded(text), dict)


def clean(text: str) -> str:
    """Join surrogate halves that came in two pieces, and replace lone ones: nothing else stores them."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")
    return text


def _words(content: object) -> str:
    """Return the text of a content field: a string, null, a part, or a list of parts."""
    if isinstance(content, str):
        return content
    if isinstance(content, list):
        return "".join(map(_words, content))
    if isinstance(content, Mapping) and content.get("type") not in _THOUGHTS:
        return next((words for key in ("text", "refusal", "value") if (words := _words(content.get(key)))), "")
    return ""


_THOUGHTS = ("thinking", "reasoning", "reasoning_text")


def _index_of(index: object) -> int | None:
    """Return the position of a call; None where a server gives none."""
    if isinstance(index, str) and index.isascii() and index.isdigit() and len(index) < 9:
        return int(index)
    return index if isinstance(index, int) and not isinstance(index, bool) else None


def _raw_json(arguments: object) -> str:
    """Return a call's arguments as text; some servers send them as an object."""
    is_json = isinstance(arguments, Mapping | list)
    return json.dumps(arguments, ensure_ascii=False) if is_json else str(arguments or "")


def _count(source: object, name: str) -> int:
    """Return a figure of the provider's, or 0 if it is not a number of tokens."""
    value = source.get(name) if isinstance(source, Mapping) else getattr(source, name, None)
    if isinstance(value, str) and value.isascii() and value.isdigit() and len(value) < 13:
        value = int(value)
    return int(value) if isinstance(value, int | float) and 0 < value < 1e12 else 0
