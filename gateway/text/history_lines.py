"""Lines of history.jsonl and raw.jsonl, as the store keeps them and as the files have them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from gateway.ports.memory import HistoryEntry
from gateway.text.json_lines import decode_line, encode_line

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
