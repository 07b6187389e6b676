"""Calls to a chat model from memory jobs: the provider interface of [001], deadlines, tolerant parsing of answers."""

from __future__ import annotations

import asyncio
import copy
import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Protocol, TypeVar

import structlog

from agent.llm.chat_model import ChatModel, ChatRequest, TokenUsage
from gateway.errors import (
    ContextOverflow,
    InvalidModelReply,
    ModelRateLimited,
    ModelRefused,
    ModelTimeout,
    ModelUnreachable,
    exponential_delay,
)

log = structlog.get_logger(__name__)

MOST_CHARACTERS = 400_000  # of an answer's text; a memory is a fraction of it
TOO_LONG = "the prompt is too long"  # the reason of an UnusableAnswer that a retry does not fix
CUT_OFF = "the answer was cut off"
Read = TypeVar("Read")
_MOST_NESTED = 3  # a list of a string of an object
_MOST_TRIES = 8  # JSON objects looked for in a text
_FENCE = re.compile(r"```[a-zA-Z]*[ \t]*\n(.*?)```", re.DOTALL)
_CONTROLS = {code: None for code in (*range(32), 127) if chr(code) not in "\n\t"}
_NOT_NOW = (TimeoutError, OSError, ModelRateLimited, ModelUnreachable, ModelTimeout)
_REFUSED = (ModelRefused, TypeError, ValueError, NotImplementedError)
_REQUEST_STATUS = frozenset({400, 413, 415, 422})  # of this request; any other error status is the provider's state
_FIRST_WAIT, _LONGEST_WAIT = timedelta(minutes=2), timedelta(days=1)  # between tries during an outage
_SAME_PROMPT, _MOST_HALVES = 6, 4  # attempts with the whole prompt; how often it is halved then
_ABOUT_TOOLS = re.compile(r"tool|\b400\b|bad.?request|unsupported|not support|invalid", re.IGNORECASE)
_NONE = TokenUsage()


@dataclass(frozen=True, slots=True)
class ProviderReply:
    """The reply of a provider of [001]. *is_cut*: a token limit ended it early, so that it is not all of it."""

    content: str
    tool_calls: object  # as `read_call` takes them
    tokens: TokenUsage = _NONE
    is_cut: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelProvider:
    """A `ChatModel` as a provider, for one purpose; its tokens are charged to the session *key*."""

    model: ChatModel
    purpose: str
    turn: str
    key: str = ""

    async def chat(self, **asked: Any) -> ProviderReply:
        """Take `messages`, `tools`, `tool_choice` and `max_tokens`; the model is configured. Raises ModelFailed.

        The model itself retries and falls back.
        """
        request = ChatRequest(
            messages=asked["messages"],
            tools=asked.get("tools") or (),
            tool_choice=asked.get("tool_choice") or "",
            turn=self.turn,
            purpose=self.purpose,
            chat=self.key,
            max_tokens=asked.get("max_tokens"),
        )
        reply = await self.model.complete(request)
        return ProviderReply(reply.text, reply.tool_calls, reply.tokens, reply.is_cut)


class LlmProvider(Protocol):
    """The LLMProvider of the seeds."""

    async def chat(self, **asked: Any) -> Any:
        """Take `messages`, `model`, `tools` and `tool_choice`; return `.content` and `.tool_calls`."""
        ...


async def unlimited() -> int:
    """Return 0: no limit of a prompt's tokens."""
    return 0


@dataclass(frozen=True, slots=True)
class UnusableAnswer:
    """Why an answer cannot be used; safe to log, it quotes nothing of the answer."""

    reason: str
    is_outage: bool = False  # the model did not answer: rate limit, 5xx, timeout, no connection, key or quota


def outage_delay(attempts: int) -> timedelta:
    """Return the time that a job waits after *attempts* in a row that the model did not answer: up to a day."""
    return exponential_delay(attempts, _FIRST_WAIT, _LONGEST_WAIT)


def reduced_limit(tokens: int, attempts: int) -> int:
    """Return the prompt limit *tokens*, halved for each of *attempts* without an answer from the sixth on, four times.

    A server may refuse a prompt that is too long in words that nobody knows: the same one is not sent for ever.
    """
    return tokens >> min(max(attempts - _SAME_PROMPT + 1, 0), _MOST_HALVES)


def build_prompt(system: str, text: str) -> list[dict[str, str]]:
    """Return the messages of a question."""
    return [{"role": "system", "content": system}, {"role": "user", "content": text}]


def force_tool(tool: Mapping[str, Any]) -> dict[str, Any]:
    """Return the `tool_choice` that makes a model call *tool*."""
    return {"type": "function", "function": {"name": tool["function"]["name"]}}


def tool_attempts(
    messages: Sequence[Mapping[str, Any]], tool: Mapping[str, Any], plain_messages: Sequence[Mapping[str, Any]]
) -> Iterator[dict[str, Any]]:
    """Yield the attempts of a question: *tool* is forced, then offered; with *plain_messages*, JSON is asked for."""
    # A copy of the tool for each: some providers modify what they are given.
    yield {"messages": messages, "tools": [copy.deepcopy(tool)], "tool_choice": force_tool(tool)}
    yield {"messages": messages, "tools": [copy.deepcopy(tool)], "tool_choice": "auto"}
    yield {"messages": plain_messages}


async def call_provider(
    provider: LlmProvider, model: str, attempts: Iterable[dict[str, Any]], *, deadline: timedelta
) -> ProviderReply | UnusableAnswer:
    """Return the response to the first of *attempts* that the provider accepts, or UnusableAnswer. Never raises.

    An attempt is the arguments of `chat`. No further one is made after an outage (busy, unreachable, timeout, key).
    """
    refused = ""
    for attempt in attempts:
        try:
            async with asyncio.timeout(deadline.total_seconds()):
                response = await provider.chat(model=model, **attempt)
        except _NOT_NOW as error:
            log.warning("consolidation.not_now", error=type(error).__name__)
            return UnusableAnswer(type(error).__name__, is_outage=True)
        except ContextOverflow:
            return UnusableAnswer(TOO_LONG)
        except Exception as error:  # noqa: BLE001 - the provider's boundary: its libraries raise whatever they like
            if type(error).__name__ == "ContextWindowExceededError":  # litellm's own, in the hands of a library
                return UnusableAnswer(TOO_LONG)
            if _is_outage(error) or not _may_be_about_tools(error):
                # No trace and no text of it: providers quote what they were sent.
                log.warning("consolidation.provider_failed", error=type(error).__name__)
                return UnusableAnswer(type(error).__name__, is_outage=not isinstance(error, InvalidModelReply))
            refused = type(error).__name__
            continue
        if isinstance(response, ProviderReply):
            return response
        finish_reason, content = _field(response, "finish_reason"), _field(response, "content")
        if finish_reason == "error":  # some providers return errors instead of raising
            refused = "the provider's error"
            if _ABOUT_TOOLS.search(str(content)):
                continue
            return UnusableAnswer(refused, is_outage=True)
        return ProviderReply(
            content if isinstance(content, str) else "",
            _field(response, "tool_calls"),
            is_cut=finish_reason == "length",
        )
    log.warning("consolidation.refused", error=refused)
    return UnusableAnswer(f"refused: {refused}")


def _is_outage(error: Exception) -> bool:
    """Return True if any other request would fail like this one."""
    if isinstance(error, ModelRefused):
        return error.is_about_account
    status = getattr(error, "status_code", None)
    return isinstance(status, int) and status not in _REQUEST_STATUS


def _may_be_about_tools(error: Exception) -> bool:
    return isinstance(error, _REFUSED) or bool(_ABOUT_TOOLS.search(f"{type(error).__name__} {error}"))


# -- parsing ---------------------------------------------------------------------------------------


def read_call(
    content: object, tool_calls: object, tool: str, read: Callable[[Mapping[str, Any]], Read | UnusableAnswer]
) -> Read | UnusableAnswer:
    """Return *read* of the first usable object: the arguments of a call of *tool*, or JSON in the text.

    The arguments may be an object, a JSON string, or a list of one of these. *read* never raises.
    """
    reason = ""
    for name, arguments in _calls(tool_calls):
        if name != tool:
            reason = reason or "another tool was called"
            continue
        found = _object(arguments)
        made = found if isinstance(found, UnusableAnswer) else read(found)
        if not isinstance(made, UnusableAnswer):
            return made
        reason = made.reason
    for text in _texts(content):
        found = _object(text)
        made = found if isinstance(found, UnusableAnswer) else read(found)
        if not isinstance(made, UnusableAnswer):
            return made
        reason = reason or made.reason
    return UnusableAnswer(reason or "no tool call and no JSON")


def _calls(tool_calls: object) -> Iterator[tuple[object, object]]:
    if not isinstance(tool_calls, list | tuple):
        return
    for call in tool_calls[:32]:
        inner = _field(call, "function")
        source = call if inner is None else inner
        yield _field(source, "name"), _field(source, "arguments")


def _field(source: object, name: str) -> object:
    if isinstance(source, dict):
        return source.get(name)
    try:
        return getattr(source, name, None)
    except Exception:  # noqa: BLE001 - the provider's boundary: its objects may compute their attributes
        return None


def _texts(content: object) -> Iterator[str]:
    """Yield parts of a text that may be JSON: all of it, fenced code, and from each brace on."""
    if not isinstance(content, str) or len(content) > MOST_CHARACTERS or "{" not in content:
        return
    yield content
    for n, fenced in enumerate(_FENCE.finditer(content)):
        if n < _MOST_TRIES:
            yield fenced.group(1)
    decoder = json.JSONDecoder(strict=False)
    position = -1
    for _ in range(_MOST_TRIES):
        position = content.find("{", position + 1)
        if position < 0:
            return
        try:
            _, end = decoder.raw_decode(content, position)
        except (ValueError, RecursionError):
            continue
        yield content[position:end]
        position = end - 1


def _object(value: Any, depth: int = 0) -> Mapping[str, Any] | UnusableAnswer:
    if depth > _MOST_NESTED:
        return UnusableAnswer("arguments in arguments")
    if isinstance(value, str):
        if len(value) > MOST_CHARACTERS:
            return UnusableAnswer("too long")
        try:
            return _object(json.loads(value, strict=False), depth + 1)
        except (ValueError, RecursionError):
            return UnusableAnswer("no JSON")
    if isinstance(value, list | tuple):
        return _object(value[0], depth + 1) if len(value) == 1 else UnusableAnswer("a list of several")
    return value if isinstance(value, dict) else UnusableAnswer("no object")


def clean(text: str) -> str:
    """Return *text* with Unix line ends, without control characters and lone surrogates."""
    plain = text.replace("\r\n", "\n").replace("\r", "\n").translate(_CONTROLS)
    return plain.encode("utf-8", "replace").decode("utf-8").strip()
