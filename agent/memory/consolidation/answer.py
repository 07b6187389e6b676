"""Reading a model's answer to a consolidation: two texts, or the reason why there are none. Never raises."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

from agent.memory.consolidation.consolidation_prompt import SAVE_MEMORY

MOST_CHARACTERS = 400_000  # of both texts; a memory is a fraction of it
Read = TypeVar("Read")
_MOST_NESTED = 3  # a list of a string of an object
_MOST_TRIES = 8  # objects looked for in a text
_FENCE = re.compile(r"```[a-zA-Z]*[ \t]*\n(.*?)```", re.DOTALL)
_CONTROLS = {code: None for code in (*range(32), 127) if chr(code) not in "\n\t"}


@dataclass(frozen=True, slots=True)
class ConsolidationAnswer:
    """What a consolidation says: neither text is empty."""

    history_entry: str
    memory_update: str


@dataclass(frozen=True, slots=True)
class UnusableAnswer:
    """Why an answer cannot be used: for the log, without a word of it."""

    reason: str


def parse_answer(content: object, tool_calls: object) -> ConsolidationAnswer | UnusableAnswer:
    """Return what the model said by calling the tool, or as JSON in its text; else why it cannot be used.

    *tool_calls* as providers give them: objects with `name` and `arguments`, or OpenAI's mappings. The arguments
    may be an object, a JSON string, or a list of one of these.
    """
    return read_call(content, tool_calls, SAVE_MEMORY, _answer)


def read_call(
    content: object, tool_calls: object, tool: str, read: Callable[[Mapping[str, Any]], Read | UnusableAnswer]
) -> Read | UnusableAnswer:
    """Return what *read* makes of the first object it can use: the arguments of a call of *tool*, or JSON in the text.

    The arguments may be an object, a JSON string, or a list of one of these; *read* never raises.
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
    """Yield the stretches of a text that may be the JSON: all of it, what is fenced, what begins with a brace."""
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


def clean(text: str) -> str:
    """Return *text* as a file takes it: line ends of Unix, no controls, no half characters."""
    plain = text.replace("\r\n", "\n").replace("\r", "\n").translate(_CONTROLS)
    return plain.encode("utf-8", "replace").decode("utf-8").strip()
