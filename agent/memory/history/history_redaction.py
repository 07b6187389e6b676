"""Remove text from the history and notes of a scope: lines that a person named, words, messages past their time."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Mapping
from typing import TYPE_CHECKING

from agent.memory.history.history_files import NOTE_NAME
from agent.memory.history.line_keys import line_fingerprint, remembered_lines
from agent.memory.storage.transcript_lines import FORGOTTEN, decode, encode
from gateway.ports.journal import Line
from gateway.ports.memory import HISTORY_JSONL, RAW_JSONL, MarkKind

if TYPE_CHECKING:
    from gateway.store.history import SqlHistory


_KEPT = ("role", "timestamp", "turn", "i")  # fields of a message whose words are erased
_SENTENCE = re.compile(r"(?<=[.!?。！？])\s+|\n")


def is_plain_file(name: str) -> bool:
    """Return True if *name* is the history, a note, a flushed day or an archive of MEMORY.md."""
    return name == HISTORY_JSONL or NOTE_NAME.match(name) is not None


def sentences(text: str) -> list[str]:
    """Return the sentences and lines of a text."""
    return [piece.strip() for piece in _SENTENCE.split(text) if piece.strip()]


async def remove_lines(history: SqlHistory, scope: str, name: str, removed: Collection[str]) -> None:
    """Remove lines from the note *name*, or sentences from the history. Idempotent."""
    if not is_plain_file(name):
        raise ValueError(f"nothing that was written down: {name!r}")
    targets = {each.strip() for each in removed}

    def change(place: str, body: bytes) -> bytes:
        if place != name:
            return body
        if name == HISTORY_JSONL:
            line = dict(decode(body) or {})
            content = str(line.get("content", ""))
            left = _remove_sentences(content, targets)
            return body if left == content else encode({**line, "content": left})
        lines = body.decode("utf-8", "replace").splitlines(keepends=True)
        kept = "".join(line for line in lines if line.strip() not in targets)
        return body if len(kept) == sum(map(len, lines)) else kept.encode()

    await history.rewrite(scope, change)


def _remove_sentences(text: str, removed: Collection[str]) -> str:
    """Return *text* without the sentences *removed*; unchanged when it has none of them."""
    pieces, gaps = _SENTENCE.split(text), [*_SENTENCE.findall(text), ""]
    if not any(piece.strip() in removed for piece in pieces):
        return text
    left = "".join(piece + gap for piece, gap in zip(pieces, gaps, strict=True) if piece.strip() not in removed).strip()
    return left or FORGOTTEN


async def redact_history(
    history: SqlHistory,
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
    history: SqlHistory, scope: str, is_match: Callable[[Line, Line], bool], *, keeps: tuple[str, ...] = _KEPT
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
