"""Tool calls that a model wrote as text, because its server does not know the form that it was trained on."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from typing import Any

from agent.llm.answer_text import BARE_CALL
from agent.llm.chat_model import ToolCall, WrittenCalls

_MOST = 8  # calls of one answer
_MOST_CHARS = 20_000  # of an answer with calls in it; a longer one is not read
# Marks in and around calls: special tokens, and tags with nothing in them but a name.
_MARKS = re.compile(
    r"</?(?:[a-z]{1,10}:)?(?:tool_?calls?|function_?calls?|tool_use|function|invoke|parameter|tools)>|\[/?TOOL_CALLS\]"
    r"|\[ARGS\]"
    r"|<[|｜][^<>|｜]{1,40}[|｜]>|```(?:json)?",
    re.IGNORECASE,
)
_NAME = r"[\"']?([\w.-]{1,64})[\"']?"
_NAMED = re.compile(
    rf"(?:<function=|<(?:[a-z]{{1,10}}:)?invoke name=|\[TOOL_CALLS\]){_NAME}(?:>|\[ARGS\]|(?=\{{))", re.IGNORECASE
)
_PARAMETER = re.compile(
    r"<parameter(?:=| name=)[\"']?([\w.-]{1,64})[\"']?[^<>]{0,40}>\n?(.*?)\n?</parameter>", re.DOTALL
)
# What follows a mark of a call, if it is not a word about the mark: an object, a tag, or the name of a tool alone.
_STARTS = re.compile(r"\s*(?:[\[{<]|\Z|\w[\w-]{0,63}(?:[<({]|[ \t]*(?:\n|\Z)))")
# Calls as code: Llama 4, OLMo, Gemma.
_CODE = re.compile(r"(?:```\w{0,10}+\s*+)?(?:print\()?\[?\s*+(\w{1,64})\([^\n]*\)\]?\s*+(?:```)?\s*+", re.ASCII)
_DECODER = json.JSONDecoder()


def find_written_calls(
    text: str, call_at: int | None, is_tool: Callable[[str], bool], *, is_expected: bool
) -> WrittenCalls | None:
    """Return the tool calls in *text*, which begin at *call_at*, or None if these are words.

    Without a mark it is a call only if all of the text is an object with a name of which *is_tool* is True.
    *is_expected*: the model wrote its calls so when it was tried.
    """
    if call_at is None:
        if (code := _CODE.fullmatch(text.strip()[:_MOST_CHARS])) is not None and is_tool(code[1]):
            return WrittenCalls((), is_whole=False, is_expected=is_expected)
        if BARE_CALL.match(text.lstrip()) is None or len(text) > _MOST_CHARS:
            return None
        calls, rest = _read(text)
        if not calls or rest.strip() or not all(is_tool(call.name) for call in calls):
            return None
        return WrittenCalls(calls, is_whole=True, is_expected=is_expected)
    tail = text[call_at:]
    mark = _MARKS.match(tail)
    if mark is not None and mark[0].startswith("<") and not _STARTS.match(tail, mark.end()) and "|" not in mark[0]:
        return None  # words about the mark
    calls, rest = _read(tail) if len(tail) <= _MOST_CHARS else ((), tail)
    is_whole = bool(calls) and not text[:call_at].strip() and not rest.strip()
    return WrittenCalls(calls, is_whole=is_whole, is_expected=is_expected)


def _read(text: str) -> tuple[tuple[ToolCall, ...], str]:
    """Return the calls in *text*, and what is left of it without them and their marks."""
    calls: list[ToolCall] = []
    rest: list[str] = []
    at = 0
    while at < len(text) and len(calls) <= _MOST:
        if (named := _NAMED.match(text, at)) is not None:
            found, end = _arguments(text, named.end())
            if found is not None:
                calls.append(ToolCall("", named[1], found))
                at = end
                continue
        mark = _MARKS.match(text, at)
        if mark is None and text[at] in "{[":
            if (read := _objects(text, at)) is None:
                return tuple(calls), text[at:]  # no second try inside of it: each costs as much as it is long
            calls += read[0]
            at = read[1]
            continue
        if mark is None:
            rest.append(text[at])
        at = mark.end() if mark is not None else at + 1
    return tuple(calls[:_MOST]), "".join(rest)


def _arguments(text: str, at: int) -> tuple[str | None, int]:
    """Return the arguments behind a name, as JSON, and where they end."""
    start = at + len(text[at:]) - len(text[at:].lstrip())
    if text[start : start + 1] == "{":
        try:
            found, end = _DECODER.raw_decode(text, start)
        except (ValueError, RecursionError):
            return None, at
        return json.dumps(found, ensure_ascii=False), end
    values: dict[str, str] = {}
    while (parameter := _PARAMETER.match(text, start)) is not None:
        values[parameter[1]] = parameter[2]
        start = parameter.end()
        start += len(text[start:]) - len(text[start:].lstrip())
    return (json.dumps(values, ensure_ascii=False), start) if values else (None, at)


def _objects(text: str, at: int) -> tuple[list[ToolCall], int] | None:
    try:
        found, end = _DECODER.raw_decode(text, at)
    except (ValueError, RecursionError):
        return None
    if isinstance(found, Mapping) and isinstance(found.get("tool_calls"), list):
        found = found["tool_calls"]
    calls = [_call_of(each) for each in (found if isinstance(found, list) else [found])]
    known = [each for each in calls if each is not None]
    return (known, end) if known and len(known) == len(calls) else None


def _call_of(value: Any) -> ToolCall | None:
    if not isinstance(value, Mapping):
        return None
    inner = value.get("function")
    source = inner if isinstance(inner, Mapping) else value
    name = next(
        (found for key in ("name", "tool_name", "tool", "function") if isinstance(found := source.get(key), str)), ""
    )
    arguments: Any = next((source[key] for key in ("arguments", "parameters", "args", "input") if key in source), {})
    if isinstance(arguments, str):
        return ToolCall("", name, arguments) if name else None
    return ToolCall("", name, json.dumps(arguments, ensure_ascii=False)) if name else None
