"""What the Bot API accepts as a text: its length, its entities, its reactions (core.telegram.org/bots/api)."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import combinations
from typing import Any

LIMIT = 4096  # UTF-16 units after entities parsing
ENTITIES = 100
CAPTION = 1024
reactions = frozenset(["👀", "👍", "👌", "🤔", "✍", "🫡", "⚡", "❤", "🔥", "🤝", "🙏", "🤓", "👨\u200d💻"])
_KNOWN = frozenset(
    (
        "bold",
        "italic",
        "underline",
        "strikethrough",
        "spoiler",
        "blockquote",
        "code",
        "pre",
        "text_link",
        "text_mention",
    )
)
_STYLES = frozenset(("bold", "italic", "underline", "strikethrough", "spoiler"))
_SOLID = frozenset(("code", "pre"))


class ApiError(Exception):
    """What the server answers instead of a result."""

    def __init__(self, status: int, text: str, *, retry_after: int = 0, migrate_to: int = 0) -> None:
        super().__init__(text)
        self.status = status
        self.text = text
        self.retry_after = retry_after
        self.migrate_to = migrate_to


def checked_text(fields: Mapping[str, Any]) -> tuple[str, list[dict[str, Any]]]:
    """Return the text and entities of a call, or refuse them as the server would."""
    text, entities = str(fields.get("text", "")), list(fields.get("entities") or [])
    if not text.strip():
        raise ApiError(400, "Bad Request: message text is empty")
    try:
        units = text.encode("utf-16-le")
    except UnicodeEncodeError:
        raise ApiError(400, "Bad Request: strings must be encoded in UTF-8") from None
    if len(units) // 2 > LIMIT:
        raise ApiError(400, "Bad Request: message is too long")
    if "\0" in text:
        raise ApiError(400, "Bad Request: strings must be encoded in UTF-8")
    if len(entities) > ENTITIES:
        # The real server drops what is beyond; whoever relies on it loses formatting, so here it is an error.
        raise ApiError(400, "Bad Request: can't parse entities: too many of them")
    for entity in entities:
        _check(entity, units)
    for one, other in combinations(entities, 2):
        _check_pair(one, other)
    return text, entities


def checked_caption(fields: Mapping[str, Any]) -> tuple[str, list[dict[str, Any]]]:
    """Return the caption of a call, or refuse it."""
    text = str(fields.get("caption", ""))
    if len(text.encode("utf-16-le")) // 2 > CAPTION:
        raise ApiError(400, "Bad Request: message caption is too long")
    return text, []


def _check(entity: Mapping[str, Any], units: bytes) -> None:
    start, length = int(entity["offset"]), int(entity["length"])
    if entity["type"] not in _KNOWN:
        raise ApiError(400, f"Bad Request: can't parse entities: unsupported type {entity['type']}")
    if start < 0 or length <= 0 or start + length > len(units) // 2:
        raise ApiError(400, "Bad Request: can't parse entities: ENTITY_BOUNDS_INVALID")
    try:
        word = units[2 * start : 2 * (start + length)].decode("utf-16-le")
    except UnicodeDecodeError:
        raise ApiError(400, "Bad Request: can't parse entities: it cuts a character in two") from None
    if entity["type"] not in _SOLID and word != word.strip():
        raise ApiError(400, "Bad Request: can't parse entities: white space at its edge")
    if entity["type"] == "text_link" and not str(entity.get("url", "")).startswith(("http://", "https://")):
        raise ApiError(400, "Bad Request: can't parse entities: wrong HTTP URL")


def _check_pair(one: Mapping[str, Any], other: Mapping[str, Any]) -> None:
    """Entities are nested or apart; code and pre are alone but for a quote, and nothing stands in its like."""
    first, second = sorted((one, other), key=lambda each: (each["offset"], -each["length"]))
    if second["offset"] >= first["offset"] + first["length"]:
        return
    if second["offset"] + second["length"] > first["offset"] + first["length"]:
        raise ApiError(400, "Bad Request: can't parse entities: they cross")
    types = {first["type"], second["type"]}
    if len(types) == 1:
        raise ApiError(400, "Bad Request: can't parse entities: one within its like")
    if types & _SOLID and types & (_STYLES | {"text_link"}):
        raise ApiError(400, "Bad Request: can't parse entities: code holds no other and stands in none")
    if second["type"] == "blockquote" and first["length"] > second["length"]:
        raise ApiError(400, "Bad Request: can't parse entities: a quote stands in nothing")
