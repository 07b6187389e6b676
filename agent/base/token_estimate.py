"""Token estimates without a tokenizer, in time linear in the text.

Four bytes of UTF-8 count as one token. The difference to a provider's own counts is corrected by a factor that is
learned from them (agent/llm/model_abilities.py).
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import Any

BYTES_PER_TOKEN = 4
PICTURE_TOKENS = 1_000  # however many bytes it has
_FRAME = 4  # tokens around every message: its role and its ends


def estimate_text(text: str) -> int:
    """Return the estimated tokens of a text."""
    return -(-(len(text) if text.isascii() else len(text.encode("utf-8", "replace"))) // BYTES_PER_TOKEN)


def estimate_message(message: Mapping[str, Any]) -> int:
    """Return the estimated tokens of a message as sent: text, images, tool calls, thinking."""
    content = message.get("content")
    weight = _FRAME + sum(map(_weigh_part, content)) if isinstance(content, list) else _FRAME + _weigh_other(content)
    for name in ("tool_calls", "thinking"):
        if message.get(name):
            weight += _weigh_other(message[name])
    return weight


def estimate_messages(messages: Iterable[Mapping[str, Any]]) -> int:
    """Return the estimated tokens of messages or tool schemas."""
    return sum(estimate_message(each) if "role" in each else _weigh_other(each) for each in messages)


def _weigh_part(part: Any) -> int:
    if isinstance(part, Mapping) and part.get("type") == "image_url":
        return PICTURE_TOKENS
    if isinstance(part, Mapping) and isinstance(part.get("text"), str):
        return _FRAME + estimate_text(part["text"])
    return _weigh_other(part)


def _weigh_other(value: Any) -> int:
    if value is None:
        return 0
    return estimate_text(value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, default=str))
