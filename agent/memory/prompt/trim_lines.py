"""The effect of `trim` lines: prompts show the beginning and end of earlier messages, the transcript keeps all of it.

Pure functions of lines, so that a restart gives the same bytes. Tool calls keep their results, shortened.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from agent.base.transcript_lines import FORGOTTEN, facts_for_replay, facts_in, kind_of
from gateway.ports.journal import Line

_TAIL = 4  # a quarter of what is shown is the text's end
_NOTE = 120  # characters: a text that is not longer than its limit by this much is left alone
_SMALL = 4_000  # characters: data of calls that is never cut; signatures are of no use in part
_WHOLE = "whole"  # length of a text before its first cut; not stored


def is_trim(line: Line) -> bool:
    """Return True if *line* shortens other lines."""
    return kind_of(line) == "trim"


def apply_trims(lines: Sequence[Line]) -> list[Line]:
    """Return the lines after applying the `trim` lines among them; each applies to the lines above it."""
    shown: list[Line] = []
    for line in lines:
        shown.append(line)
        if is_trim(line):
            shown = [apply_trim(line, each) for each in shown]
    return shown


def apply_trim(trim: Line, line: Line) -> Line:
    """Return *line* as *trim* leaves it: the same object where it does nothing."""
    if kind_of(line) != "message" or not _number(trim, "start", 0) <= line["i"] < _number(trim, "before", 0):
        return line
    if line["role"] == "tool":
        limit = _number(trim, "tools", None)
        return line if limit is None else _cut_content(facts_for_replay(line), limit)
    limit = _number(trim, "chars", None)
    return line if limit is None else _cut_message(facts_for_replay(line), limit)


def _cut_message(line: Line, limit: int) -> Line:
    changes: dict[str, Any] = {}
    files = facts_in(line)
    if any(len(str(fact.get("text", ""))) > limit + _NOTE for fact in files):
        changes["files"] = [_cut_fact(fact, limit) for fact in files]
    calls = [_cut_call(call, limit) for call in line.get("tool_calls") or ()]
    if calls and calls != list(line["tool_calls"]):
        changes["tool_calls"] = calls
    if line.get("thinking") and len(json.dumps(line["thinking"], default=str)) > limit:
        changes["thinking"] = _cut_thinking(line["thinking"], limit)
    cut = _cut_content(line, limit)
    return {**cut, **changes} if changes else cut


def _cut_content(line: Line, limit: int) -> Line:
    content = line.get("content")
    if isinstance(content, list):
        content = "\n".join(str(part.get("text", "")) for part in content if isinstance(part, Mapping))
    if not isinstance(content, str) or len(content) <= limit + _NOTE or content == FORGOTTEN:
        return line
    whole = _number(line, _WHOLE, len(content))
    return {
        **line,
        "content": _cut(content, limit, f"[{whole} characters, not all of them shown here any more]"),
        _WHOLE: whole,
    }


def _cut_fact(fact: Mapping[str, Any], limit: int) -> Mapping[str, Any]:
    text = fact.get("text")
    return {**fact, "text": text[:limit], "is_cut": True} if isinstance(text, str) and len(text) > limit else fact


def _cut_call(call: Any, limit: int) -> Any:
    """Return a call with arguments of that size: an object with their length, because cut JSON is invalid."""
    function = call.get("function") if isinstance(call, Mapping) else None
    arguments = function.get("arguments") if isinstance(function, Mapping) else None
    if not isinstance(arguments, str) or len(arguments) <= limit + _NOTE:
        return call
    left = json.dumps({"not_shown": f"{len(arguments)} characters"})
    return {**call, "function": {**call["function"], "arguments": left}}


def _cut_thinking(data: Any, limit: int) -> Any:
    """Return the provider data of a message without its text, and without calls' data above *limit*; None = nothing.

    Providers miss a key more than its words: DeepSeek refuses a call without `reasoning_content`.
    """
    if not isinstance(data, Mapping):
        return None
    message, calls = data.get("message"), data.get("calls")
    kept: dict[str, Any] = {"model": data.get("model")}
    if isinstance(message, Mapping) and (
        texts := {name: "" for name, each in message.items() if isinstance(each, str)}
    ):
        kept["message"] = texts
    if calls and len(json.dumps(calls, default=str)) <= max(limit, _SMALL):
        kept["calls"] = calls
    return kept if len(kept) > 1 else None


def _cut(text: str, limit: int, note: str) -> str:
    """Return beginning and end of *text* with *note* in between; the note alone where nothing is to be shown."""
    if limit <= 0:
        return note
    tail = limit // _TAIL
    return f"{text[: limit - tail]}\n{note}\n{text[-tail:] if tail else ''}"


def _number(line: Mapping[str, Any], name: str, default: Any) -> Any:
    value = line.get(name)
    return value if isinstance(value, int) and not isinstance(value, bool) and value >= 0 else default
