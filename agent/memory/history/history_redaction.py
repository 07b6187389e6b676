"""Erasing from the history of a scope: words, a message that was deleted, and messages past their retention."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from agent.memory.history.line_keys import line_fingerprint, remembered_lines
from agent.memory.storage.transcript_lines import FORGOTTEN, decode, encode
from gateway.ports import HISTORY_JSONL, RAW_JSONL, HistoryRowStore, Line, MarkKind

_KEPT = ("role", "timestamp", "turn", "i")  # fields of a message whose words are erased


async def redact_history(
    history: HistoryRowStore,
    scope: str,
    *,
    memory: str,
    change: Callable[[str], str],
    clear_note: Callable[[str], tuple[str, int]],
) -> int:
    """Apply *change* to the text of every entry, and *clear_note* to every note; return the number of changed ones.

    *clear_note* returns a note's text and the number of lines that it has lost, which are counted. Keys are kept only
    of lines that *memory*, the text of MEMORY.md, and its archives have and that *change* does not alter. Entries keep
    their cursors and ranges. Raw messages that *change* would alter are blanked. Idempotent.
    """
    lines = await remembered_lines(history, scope, memory)
    keyed = frozenset(line_fingerprint(line) for line in lines if change(line) == line)
    counts: dict[bytes, int] = {}

    def redact(place: str, body: bytes) -> bytes:
        if place == RAW_JSONL:
            return _redact_raw(body, lambda message: change(str(message)) != str(message))
        if place == HISTORY_JSONL:
            redacted = _redact_entry(body, change, keyed)
            counts[body] = int(redacted != body)
            return redacted
        text, counts[body] = clear_note(body.decode("utf-8", "replace"))
        return text.encode("utf-8", "replace") if counts[body] else body

    await history.rewrite(scope, redact)
    marks = await history.marks(scope, MarkKind.KEYS)
    gone = {name: None for name, words in marks.items() if name not in keyed or change(words) != words}
    if gone:
        await history.write(scope, marks={MarkKind.KEYS: gone})
    return sum(counts.values())


async def blank_raw(
    history: HistoryRowStore, scope: str, is_match: Callable[[Line, Line], bool], *, keeps: tuple[str, ...] = _KEPT
) -> int:
    """Blank the raw messages for which *is_match*, called with the archive's line and the message, returns True.

    Return their number; the fields *keeps* of a message stay. Idempotent.
    """

    def change(place: str, body: bytes) -> bytes:
        line = decode(body) if place == RAW_JSONL else None
        if line is None:
            return body
        return _redact_raw(body, lambda message: is_match(line, message), keeps)

    return await history.rewrite(scope, change)


def _redact_entry(body: bytes, change: Callable[[str], str], keyed: frozenset[str]) -> bytes:
    line = decode(body) or {}
    content, keys = line.get("content"), line.get("keys")
    redacted = dict(line)
    if isinstance(keys, dict):
        redacted["keys"] = {name: text for name, text in keys.items() if name in keyed and change(str(text)) == text}
    if isinstance(content, str):
        redacted["content"] = change(content)
    return body if redacted == line else encode(redacted)


def _redact_raw(body: bytes, is_match: Callable[[Line], bool], keeps: tuple[str, ...] = _KEPT) -> bytes:
    line = decode(body) or {}
    message = line.get("message")
    if not isinstance(message, Mapping) or not is_match(message):
        return body
    kept = {name: message[name] for name in keeps if name in message}
    blank = {**line, "message": {**kept, "content": FORGOTTEN}}
    return body if blank == line else encode(blank)
