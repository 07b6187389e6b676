"""Reading a model's answer to a consolidation: two texts, or the reason why there are none. Never raises."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from agent.memory.consolidation.prompt import SAVE_MEMORY

MOST_CHARACTERS = 400_000  # of both texts; a memory is a fraction of it
_MOST_NESTED = 3  # a list of a string of an object
_MOST_TRIES = 8  # objects looked for in a text
_FENCE = re.compile(r"```[a-zA-Z]*[ \t]*\n(.*?)```", re.DOTALL)
_CONTROLS = {code: None for code in (*range(32), 127) if chr(code) not in "\n\t"}


@dataclass(frozen=True, slots=True)
class Answer:
    """What a consolidation says: neither text is empty."""

    history_entry: str
    memory_update: str


@dataclass(frozen=True, slots=True)
class Unusable:
    """Why an answer cannot be used: for the log, without a word of it."""

    reason: str


def read_answer(content: object, tool_calls: object) -> Answer | Unusable:
    """Return what the model said by calling the tool, or as JSON in its text; else why it cannot be used.

    *tool_calls* as providers give them: objects with `name` and `arguments`, or OpenAI's mappings. The arguments
    may be an object, a JSON string, or a list of one of these.
    """
    reason = ""
    for name, arguments in _calls(tool_calls):
        if name != SAVE_MEMORY:
            reason = reason or "another tool was called"
            continue
        read = _read(arguments)
        if isinstance(read, Answer):
            return read
        reason = read.reason
    for text in _texts(content):
        read = _read(text)
        if isinstance(read, Answer):
            return read
        reason = reason or read.reason
    return Unusable(reason or "no tool call and no JSON")


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


def _read(value: Any, depth: int = 0) -> Answer | Unusable:
    if depth > _MOST_NESTED:
        return Unusable("arguments in arguments")
    if isinstance(value, str):
        if len(value) > MOST_CHARACTERS:
            return Unusable("too long")
        try:
            return _read(json.loads(value, strict=False), depth + 1)
        except (ValueError, RecursionError):
            return Unusable("no JSON")
    if isinstance(value, list | tuple):
        return _read(value[0], depth + 1) if len(value) == 1 else Unusable("a list of several")
    if not isinstance(value, dict):
        return Unusable("no object")
    texts = [value.get(name) for name in ("history_entry", "memory_update")]
    missing = [name for name, text in zip(("history_entry", "memory_update"), texts, strict=True) if not _says(text)]
    if missing:
        return Unusable(f"{' and '.join(missing)} missing")
    entry, update = (_clean(str(text)) for text in texts)
    if len(entry) + len(update) > MOST_CHARACTERS:
        return Unusable("too long")
    return Answer(entry, update)


def _says(text: object) -> bool:
    return isinstance(text, str) and bool(_clean(text))


def _clean(text: str) -> str:
    """Return *text* as a file takes it: line ends of Unix, no controls, no half characters."""
    plain = text.replace("\r\n", "\n").replace("\r", "\n").translate(_CONTROLS)
    return plain.encode("utf-8", "replace").decode("utf-8").strip()
