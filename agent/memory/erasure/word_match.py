"""Which texts say what somebody wants forgotten, and what is left of them. Pure."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from agent.attachments.file_facts import ASIDE
from agent.memory.editing.memory_entries import EntryKind, parse, render
from agent.memory.erasure.embedded_text import contains_text, extract_texts, unescaped
from agent.memory.storage.transcript_lines import FORGOTTEN, decode, encode, kind_of
from gateway.ports import Line

SHORTEST = 3  # characters: two would take half of a memory with them
_AT_ONCE = 1 << 16  # characters that are folded in one call
_SENTENCE = re.compile(r"(?<=[.!?。！？])\s+|\n")
_SPARE = ("by", "origin", "tokens")  # what makes room where a content was shorter than `[forgotten]`
_WORDS = {
    "message": ("content",),
    "command": ("content", "reply"),
    "notice": ("asked", "content"),
    "delta": ("text",),
}
_GOES_TOO = ("files", *ASIDE, "thinking", "added", "removed", "remember", "send")
# What names things, in lines as in other records of ours: it says nothing, and much hangs on it.
_NAMES = frozenset(
    {"kind", "role", "turn", "mid", "key", "transcript", "session", "entry", "id", "type", "tool_call_id", "blob"}
    | {"timestamp", "created", "at", "outcome", "inbox", "reply_to", "scope", "rev", "epoch", "origin", "model"}
)


@dataclass(frozen=True, slots=True)
class ErasurePattern:
    """What somebody named: the words as they stand in a text, whatever their case and the blanks between them."""

    folded: str

    @classmethod
    def of(cls, text: str) -> ErasurePattern | None:
        """Read what was typed; None when it is too short to mean something."""
        folded = _fold(text)
        return cls(folded) if len(folded) >= SHORTEST else None

    def in_text(self, text: object) -> bool:
        """Say whether *text* holds the words."""
        if not isinstance(text, str):
            return False
        if len(text) <= _AT_ONCE:
            return self.folded in _fold(text)
        # Folding is one call that nobody else runs beside, so a long text goes through it in pieces.
        lap = max(1_024, 8 * len(self.folded))
        return any(self.folded in _fold(text[n : n + _AT_ONCE + lap]) for n in range(0, len(text), _AT_ONCE))

    def in_bytes(self, data: bytes) -> bool:
        """Say whether *data* holds the words, also escaped, compressed, archived or in base64."""
        return any(
            contains_text(found, self.folded) if isinstance(found, bytes) else self.in_text(found)
            for found in extract_texts(data)
        )

    def in_any(self, value: object) -> bool:
        """Say whether any text within *value* (lists and mappings, as JSON has them) holds the words."""
        if isinstance(value, Mapping):
            return any(self.in_any(each) for each in value.values())
        if isinstance(value, list | tuple):
            return any(self.in_any(each) for each in value)
        return self.in_text(value)


def _fold(text: str) -> str:
    return " ".join(unicodedata.normalize("NFKC", text).casefold().split())


def without_entries(text: str, wanted: ErasurePattern, may: Callable[[str], bool] = lambda _: True) -> tuple[str, int]:
    """Return a document without the entries that hold the words, and how many those were.

    *may* is asked for each line that would go (who may forget what). A heading keeps its place, without its words.
    """
    kept = []
    gone = 0
    for entry in parse(text):
        if not wanted.in_text(entry.raw) or not all(may(line) for line in entry.raw.splitlines() if line.strip()):
            kept.append(entry)
            continue
        gone += 1
        if entry.kind is EntryKind.HEADING:
            kept.append(replace(entry, raw=f"{'#' * max(entry.level, 1)} {FORGOTTEN}"))
    return (render(kept), gone) if gone else (text, 0)


def without_sentences(text: str, wanted: ErasurePattern) -> str:
    """Return *text* without the sentences and lines that hold the words; FORGOTTEN when none is left."""
    if not wanted.in_text(text):
        return text
    pieces = _SENTENCE.split(text)
    gaps = _SENTENCE.findall(text)
    kept: list[str] = []
    for n, piece in enumerate(pieces):
        if not wanted.in_text(piece):
            kept.append(piece + (gaps[n] if n < len(gaps) else ""))
    left = "".join(kept).strip()
    # Words that run over the end of a sentence are in no single one.
    return left if left and not wanted.in_text(left) else FORGOTTEN


def without_words(raw: bytes, wanted: ErasurePattern, may: Callable[[Line], bool], *, whole: bool = False) -> bytes:
    """Return a transcript's line, of the same length, without the words, when it holds them and *may* go.

    With *whole*, what came with the words (files, thoughts, what was quoted) goes too. A line that cannot be read and
    holds them becomes blank.
    """
    line = decode(raw)
    if line is None:
        is_gone = wanted.in_text(unescaped(raw.decode("utf-8", "replace"))) and may({})
        return b" " * (len(raw) - 1) + b"\n" if is_gone and raw.endswith(b"\n") else raw
    if not wanted.in_any(_said(line)) or not may(line):
        return raw
    return pad_line(
        blank_line(line, wanted, FORGOTTEN, whole=whole), blank_line(line, wanted, "", whole=whole), len(raw)
    )


def blank_line(line: Line, wanted: ErasurePattern, instead: str, *, whole: bool) -> dict[str, Any]:
    """Return *line* without the words, *instead* in place of a text that held them."""
    empty = {
        name: value for name, value in line.items() if name not in _GOES_TOO or not (whole or wanted.in_any(value))
    }
    said = [name for name in _WORDS.get(kind_of(line), ()) if wanted.in_any(empty.get(name))]
    empty |= dict.fromkeys(said, instead)
    if wanted.in_any(empty.get("tool_calls")):
        empty["tool_calls"] = [_without_arguments(call) for call in empty["tool_calls"]]
    done = _NAMES.union(said)
    return {name: value if name in done else clear_value(value, wanted, "") for name, value in empty.items()}


def clear_value(value: Any, wanted: ErasurePattern, instead: str = FORGOTTEN) -> Any:
    """Return a JSON value whose texts that hold the words are *instead*; what names things stays."""
    if isinstance(value, str):
        return instead if wanted.in_text(value) or wanted.in_text(unescaped(value)) else value
    if isinstance(value, list | tuple):
        return [clear_value(each, wanted, instead) for each in value]
    if isinstance(value, Mapping):
        return {name: each if name in _NAMES else clear_value(each, wanted, instead) for name, each in value.items()}
    return value


def pad_line(line: Mapping[str, Any], shorter: Mapping[str, Any], length: int) -> bytes:
    """Return the bytes of *line*, or of *shorter* where there is no room, blanks behind them up to *length*."""
    fields = dict(line)
    for spare in _SPARE:
        if len(encode(fields)) > length:
            fields.pop(spare, None)
    if len(encode(fields)) > length:
        fields = {name: value for name, value in shorter.items() if name in fields}
    data = encode(fields)[:-1]
    return data + b" " * max(length - 1 - len(data), 0) + b"\n"


def _said(line: Line) -> dict[str, Any]:
    return {name: value for name, value in line.items() if name not in _NAMES}


def _without_arguments(call: Any) -> Any:
    function = call.get("function") if isinstance(call, Mapping) else None
    return {**call, "function": {**function, "arguments": "{}"}} if isinstance(function, Mapping) else call
