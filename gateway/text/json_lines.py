"""Lines of JSON as bytes, as the store and files have them: of turns, deleted messages and history entries."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Any

from gateway.ports.memory import HistoryEntry


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


_LARGEST = 2**53


def encode_entry(entry: HistoryEntry) -> bytes:
    """Return an entry's line of history.jsonl."""
    line: dict[str, Any] = {"cursor": entry.cursor, "timestamp": entry.timestamp, "content": entry.content}
    line |= {"session": entry.session, "from": entry.start, "to": entry.end}
    line |= {"origin": entry.origin, "entry": entry.entry}
    line |= {"sources": dict(entry.sources)} if entry.sources else {}
    line |= {"keys": dict(entry.keys)} if entry.keys else {}
    return encode_line(line | ({"raw": entry.raw} if entry.raw else {}))


def read_entry(raw: bytes) -> HistoryEntry | None:
    """Return the entry of a line, or None; lines of older systems have only cursor, timestamp and content."""
    line = decode_line(raw)
    if line is None or not _is_index(line.get("cursor")):
        return None
    start, end, sources, keys = (line.get(name) for name in ("from", "to", "sources", "keys"))
    texts = {name: str(line.get(name) or "") for name in ("timestamp", "content", "session", "origin", "entry", "raw")}
    return HistoryEntry(
        cursor=line["cursor"],
        start=start if isinstance(start, int) and _is_index(start) else 0,
        end=end if isinstance(end, int) and _is_index(end) else 0,
        sources={name: n for name, n in sources.items() if _is_index(n)} if isinstance(sources, dict) else {},
        keys={name: text for name, text in keys.items() if isinstance(text, str)} if isinstance(keys, dict) else {},
        **texts,
    )


def encode_raw(entry: HistoryEntry, messages: Sequence[Any]) -> list[bytes]:
    """Return the lines of raw.jsonl that hold the *messages* of an entry."""
    return [
        encode_line({"entry": entry.entry, "session": entry.session, "i": entry.start + n, "message": message})
        for n, message in enumerate(messages)
    ]


def _is_index(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value < _LARGEST


FORGOTTEN = "[forgotten]"  # replaces a deleted content, so that indices do not change
_TEXT_FIELD = {"message": "content", "command": "content", "notice": "asked"}
_REMOVED_FIELDS = ("files", "quoted", "recall")  # quoted and recalled words stand beside the message's own
DIGEST = re.compile(r"[0-9a-f]{64}")


def deleted_ids(lines: Iterable[Mapping[str, Any]]) -> frozenset[str]:
    """Return the platform ids of the messages that `forgotten` lines name."""
    return frozenset(str(line.get("mid", "")) for line in lines if line.get("kind") == "forgotten") - {""}


def find_message(raw: bytes, mids: Collection[str]) -> tuple[Mapping[str, Any], str] | None:
    """Return the line and its text if it is one of the messages *mids*."""
    line = decode_line(raw) if b'"mid"' in raw else None
    if line is None or line.get("mid") not in mids or (field := _text_field(line)) is None:
        return None
    text = line.get(field)
    return line, text if isinstance(text, str) and text != FORGOTTEN else ""


def blank_message(raw: bytes, mids: Collection[str], deletion_turn: str) -> tuple[bytes, frozenset[str]]:
    """Return a line without words and files, and the digests of its files, if it is one of the messages *mids*.

    Any other line is returned as it is, and so is one of *deletion_turn*, which records the deletion.
    """
    found = find_message(raw, mids)
    if found is None or found[0].get("turn") == deletion_turn:
        return raw, frozenset()
    line, _ = found
    blank = {name: value for name, value in line.items() if name not in _REMOVED_FIELDS}
    blank[str(_text_field(line))] = FORGOTTEN
    if blank == line:
        return raw, frozenset()
    return encode_line(blank), frozenset(_digests(line.get("files")))


def _text_field(line: Mapping[str, Any]) -> str | None:
    kind = line.get("kind", "message" if isinstance(line.get("role"), str) and isinstance(line.get("i"), int) else "")
    return _TEXT_FIELD.get(kind) if isinstance(kind, str) else None


def _digests(files: object) -> Iterable[str]:
    """Yield the digests of the bytes that facts of files name, whatever else is in them."""
    for each in files if isinstance(files, list) else ():
        if isinstance(each, dict):
            for fact in (each, each.get("seen")):
                blob = fact.get("blob") if isinstance(fact, dict) else None
                if isinstance(blob, str) and DIGEST.fullmatch(digest := blob.rpartition("/")[2]):
                    yield digest
