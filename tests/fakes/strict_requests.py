"""What strict model servers refuse in a request; a profile is the set of rules that one server has."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from enum import StrEnum
from typing import Any

_NAME = re.compile(r"[A-Za-z0-9_-]{1,64}")
_NINE = re.compile(r"[A-Za-z0-9]{9}")
_LONGEST_ID = 40

Body = Mapping[str, Any]


class RequestRule(StrEnum):
    """One thing that a server refuses."""

    ARGUMENTS = "arguments"  # arguments of a call that are not a JSON object as text (llama.cpp, Ollama, Anthropic)
    NAMES = "names"  # a name of a call or a tool outside of [A-Za-z0-9_-]{1,64} (OpenAI, Anthropic)
    IDS = "ids"  # an id of a call above 40 characters, empty, or in two messages (OpenAI, Anthropic)
    NINE = "nine"  # an id of a call that is not nine letters and digits (Mistral)
    PAIRS = "pairs"  # a call without a result behind its message, a result without a call (all of them)
    ROLES = "roles"  # user after user, user after tool, assistant first or last (Mistral, Gemma, Llama templates)
    CONTENT = "content"  # an empty message (Anthropic, Mistral, Moonshot)
    PICTURES = "pictures"  # any picture, now and in the history
    TOOLS = "tools"  # tools, tool_choice, a call or a result
    UNDECLARED = "undeclared"  # a history with calls beside no tools (Anthropic, Bedrock)
    STREAM_OPTIONS = "stream_options"  # that field
    STREAM = "stream"  # a stream
    SYSTEM = "system"  # the system role (Gemma's template)
    NO_REASONING = "no_reasoning"  # reasoning in the history (Groq)
    REASONING = "reasoning"  # a message with calls without reasoning_content (DeepSeek)
    DETAILS = "details"  # a message with calls without reasoning_details (OpenRouter)
    SIGNATURE = "signature"  # a message whose first call has no thought_signature (Gemini at its OpenAI address)


R = RequestRule
# What no server may ever find in a history, whatever it takes.
STRICTEST = frozenset({R.ARGUMENTS, R.NAMES, R.IDS, R.NINE, R.PAIRS, R.ROLES, R.CONTENT, R.UNDECLARED})


def violations(body: Body, profile: Collection[RequestRule]) -> list[str]:
    """Return what a server with the rules of *profile* refuses in *body*, each as "rule: where and what"."""
    return [f"{rule}: {each}" for rule in RequestRule if rule in profile for each in _CHECKS[rule](body)]


def _messages(body: Body) -> Sequence[Mapping[str, Any]]:
    return body.get("messages") or []


def _calls(message: Mapping[str, Any]) -> Sequence[Mapping[str, Any]]:
    return message.get("tool_calls") or []


def _all_calls(body: Body) -> Iterator[tuple[int, Mapping[str, Any]]]:
    return ((n, call) for n, message in enumerate(_messages(body)) for call in _calls(message))


def _bad_arguments(body: Body) -> Iterator[str]:
    for n, call in _all_calls(body):
        arguments = call["function"].get("arguments")
        try:
            is_object = isinstance(arguments, str) and isinstance(json.loads(arguments, parse_constant=_refuse), dict)
        except (ValueError, RecursionError):
            is_object = False
        if not is_object:
            yield f"message {n}: {str(arguments)[:60]!r}"


def _refuse(constant: str) -> None:
    raise ValueError(f"{constant} is not JSON")


def _bad_names(body: Body) -> Iterator[str]:
    names = [(f"message {n}", call["function"].get("name")) for n, call in _all_calls(body)]
    names += [(f"message {n}", each["name"]) for n, each in enumerate(_messages(body)) if "name" in each]
    names += [("tools", each["function"].get("name")) for each in body.get("tools") or []]
    return (f"{where}: {str(name)[:80]!r}" for where, name in names if not _NAME.fullmatch(str(name)))


def _bad_ids(body: Body) -> Iterator[str]:
    seen: set[object] = set()
    for n, call in _all_calls(body):
        call_id = call.get("id")
        if not isinstance(call_id, str) or not 0 < len(call_id) <= _LONGEST_ID:
            yield f"message {n}: id {str(call_id)[:60]!r}"
        elif call_id in seen:
            yield f"message {n}: id {call_id!r} once more"
        seen.add(call_id)


def _long_ids(body: Body) -> Iterator[str]:
    ids = [(n, call.get("id")) for n, call in _all_calls(body)]
    ids += [(n, each.get("tool_call_id")) for n, each in enumerate(_messages(body)) if each["role"] == "tool"]
    return (f"message {n}: id {str(each)[:60]!r}" for n, each in ids if not _NINE.fullmatch(str(each)))


def _unpaired(body: Body) -> Iterator[str]:
    """Find calls without exactly one result behind their message, before anything else is said."""
    wanted: list[object] = []
    for n, message in enumerate(_messages(body)):
        if message["role"] == "tool":
            if message.get("tool_call_id") in wanted:
                wanted.remove(message.get("tool_call_id"))
            else:
                yield f"message {n}: a result without its call"
            continue
        if wanted:
            yield f"message {n}: {len(wanted)} calls before it have no result"
        wanted = [call.get("id") for call in _calls(message)]
        if wanted and message["role"] != "assistant":
            yield f"message {n}: calls of {message['role']}"
    if wanted:
        yield f"{len(wanted)} calls at the end have no result"


# What may follow each role; "" is the beginning, after the system message.
_FOLLOWS = {
    "": {"user"},
    "user": {"assistant"},
    "assistant": {"user"},
    "calls": {"tool"},
    "tool": {"tool", "assistant"},
}


def _bad_roles(body: Body) -> Iterator[str]:
    before = ""
    for n, message in enumerate(_messages(body)):
        role = message["role"]
        if role == "system":
            if n:
                yield f"message {n}: system is not the first"
            continue
        if role not in _FOLLOWS[before]:
            yield f"message {n}: {role} after {before or 'the system message'}"
        before = "calls" if role == "assistant" and _calls(message) else role
        if before not in _FOLLOWS:
            yield f"message {n}: unknown role {role}"
            return
    if before not in ("user", "tool"):
        yield f"the last message is {before or 'missing'}"


def _empty(body: Body) -> Iterator[str]:
    for n, message in enumerate(_messages(body)):
        content = message.get("content")
        texts = content if isinstance(content, list) else [{"type": "text", "text": content}]
        is_blank = [each.get("type") == "text" and not str(each.get("text") or "").strip() for each in texts]
        if not _calls(message) and (not texts or any(is_blank)):
            yield f"message {n}: {message['role']} without content"


def _pictures(body: Body) -> Iterator[str]:
    for n, message in enumerate(_messages(body)):
        content = message.get("content")
        if isinstance(content, list) and any(each.get("type") != "text" for each in content):
            yield f"message {n}: a picture"


def _tools(body: Body) -> Iterator[str]:
    yield from (name for name in ("tools", "tool_choice") if body.get(name))
    yield from (f"message {n}: a call" for n, _ in _all_calls(body))
    yield from (f"message {n}: a result" for n, each in enumerate(_messages(body)) if each["role"] == "tool")


def _undeclared(body: Body) -> Iterator[str]:
    if not body.get("tools"):
        yield from (f"message {n}: a call beside no tools" for n, _ in _all_calls(body))


def _field(name: str) -> Callable[[Body], Iterator[str]]:
    return lambda body: iter([name] if body.get(name) else [])


def _system(body: Body) -> Iterator[str]:
    return (f"message {n}" for n, each in enumerate(_messages(body)) if each["role"] in ("system", "developer"))


def _reasoning(body: Body) -> Iterator[str]:
    names = ("reasoning", "reasoning_content", "reasoning_details", "thinking_blocks", "thinking")
    return (f"message {n}: {name}" for n, each in enumerate(_messages(body)) for name in names if name in each)


def _lacks(name: str) -> Callable[[Body], Iterator[str]]:
    """Return a check that each message with calls has *name*; it may be empty text."""

    def check(body: Body) -> Iterator[str]:
        return (f"message {n}" for n, each in enumerate(_messages(body)) if _calls(each) and each.get(name) is None)

    return check


def _lacks_signature(body: Body) -> Iterator[str]:
    for n, message in enumerate(_messages(body)):
        for call in _calls(message)[:1]:
            google = (call.get("extra_content") or {}).get("google") or {}
            if not google.get("thought_signature"):
                yield f"message {n}: the first call"


_CHECKS: Mapping[RequestRule, Callable[[Body], Iterator[str]]] = {
    R.ARGUMENTS: _bad_arguments,
    R.NAMES: _bad_names,
    R.IDS: _bad_ids,
    R.NINE: _long_ids,
    R.PAIRS: _unpaired,
    R.ROLES: _bad_roles,
    R.CONTENT: _empty,
    R.PICTURES: _pictures,
    R.TOOLS: _tools,
    R.UNDECLARED: _undeclared,
    R.STREAM_OPTIONS: _field("stream_options"),
    R.STREAM: _field("stream"),
    R.SYSTEM: _system,
    R.NO_REASONING: _reasoning,
    R.REASONING: _lacks("reasoning_content"),
    R.DETAILS: _lacks("reasoning_details"),
    R.SIGNATURE: _lacks_signature,
}
