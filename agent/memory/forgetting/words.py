"""Which texts say what somebody wants forgotten, and what is left of them. Pure."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from agent.memory.consolidation.entries import Kind, parse, render
from agent.memory.files.lines import FORGOTTEN, decode, encode, kind_of
from gateway.ports import Line

SHORTEST = 3  # characters: two would take half of a memory with them
_SENTENCE = re.compile(r"(?<=[.!?。！？])\s+|\n")
_SPARE = ("by", "origin", "tokens")  # what makes room where a content was shorter than `[forgotten]`
_WORDS = {"message": ("content",), "command": ("content", "reply"), "notice": ("asked", "content")}
_GOES_TOO = ("files", "quoted", "thinking")


@dataclass(frozen=True, slots=True)
class Wanted:
    """What somebody named: the words as they stand in a text, whatever their case and the blanks between them."""

    folded: str

    @classmethod
    def of(cls, text: str) -> Wanted | None:
        """Read what was typed; None when it is too short to mean something."""
        folded = _fold(text)
        return cls(folded) if len(folded) >= SHORTEST else None

    def in_text(self, text: object) -> bool:
        """Say whether *text* holds the words."""
        return isinstance(text, str) and self.folded in _fold(text)

    def in_any(self, value: object) -> bool:
        """Say whether any text within *value* (lists and mappings, as JSON has them) holds the words."""
        if isinstance(value, Mapping):
            return any(self.in_any(each) for each in value.values())
        if isinstance(value, list | tuple):
            return any(self.in_any(each) for each in value)
        return self.in_text(value)


def _fold(text: str) -> str:
    return " ".join(unicodedata.normalize("NFKC", text).casefold().split())


def without_entries(text: str, wanted: Wanted, may: Callable[[str], bool] = lambda _: True) -> tuple[str, int]:
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
        if entry.kind is Kind.HEADING:
            kept.append(replace(entry, raw=f"{'#' * max(entry.level, 1)} {FORGOTTEN}"))
    return (render(kept), gone) if gone else (text, 0)


def without_sentences(text: str, wanted: Wanted) -> str:
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


def without_words(raw: bytes, wanted: Wanted, may: Callable[[Line], bool]) -> bytes:
    """Return a transcript's line, of the same length, without the words, when it holds them and *may* go."""
    line = decode(raw)
    if line is None or kind_of(line) not in _WORDS or not wanted.in_any(line) or not may(line):
        return raw
    empty = {name: value for name, value in line.items() if name not in _GOES_TOO or not wanted.in_any(value)}
    said = [name for name in _WORDS[kind_of(line)] if wanted.in_any(empty.get(name))]
    empty |= dict.fromkeys(said, FORGOTTEN)
    if wanted.in_any(empty.get("tool_calls")):
        empty["tool_calls"] = [_without_arguments(call) for call in empty["tool_calls"]]
    for spare in _SPARE:
        if len(encode(empty)) > len(raw):
            empty.pop(spare, None)
    if len(encode(empty)) > len(raw):
        empty |= dict.fromkeys(said, "")
    data = encode(empty)[:-1]
    return data + b" " * max(len(raw) - 1 - len(data), 0) + b"\n"


def _without_arguments(call: Any) -> Any:
    function = call.get("function") if isinstance(call, Mapping) else None
    return {**call, "function": {**function, "arguments": "{}"}} if isinstance(function, Mapping) else call
