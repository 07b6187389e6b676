"""Lines of JSON as bytes: what the store keeps of a turn, and what files of conversations have."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from typing import Any


def _plain(value: object) -> object:
    if isinstance(value, Mapping):
        return dict(value)
    raise TypeError(f"{type(value).__name__} cannot be stored as JSON")


# json.dumps with options builds an encoder at every call; these two are built once.
encode_json: Callable[[Any], str] = json.JSONEncoder(ensure_ascii=False, separators=(",", ":"), default=_plain).encode
encode_ascii: Callable[[Any], str] = json.JSONEncoder(separators=(",", ":"), default=_plain).encode


def encode_line(line: Mapping[str, Any]) -> bytes:
    """Encode a line, newline included."""
    try:
        return encode_json(line).encode() + b"\n"
    except UnicodeEncodeError:  # half a surrogate pair, which only an escape can carry
        return encode_ascii(line).encode() + b"\n"


def encode_lines(lines: Iterable[Mapping[str, Any]]) -> bytes:
    """Encode the lines of a turn."""
    return b"".join(map(encode_line, lines))


def decode_line(data: bytes | str) -> Mapping[str, Any] | None:
    """Decode a line; return None if *data* is not a JSON object."""
    try:
        line = json.loads(data)
    except (ValueError, RecursionError):
        return None
    return line if isinstance(line, dict) else None


def decode_lines(body: bytes) -> list[Mapping[str, Any]]:
    """Return the lines of a turn that are JSON objects."""
    return [line for raw in bytes(body).split(b"\n") if raw.strip() and (line := decode_line(raw)) is not None]
