"""Match the words of an erasure request in texts and records, and remove them. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

from agent.base.file_facts import ASIDE
from agent.base.transcript_lines import FORGOTTEN, decode, encode, kind_of, without_arguments
from agent.memory.editing.memory_entries import EntryKind, MemoryEntry, parse, render
from agent.memory.erasure.phrase_matcher import SHORTEST as SHORTEST
from agent.memory.erasure.phrase_matcher import PhraseMatcher, contains_text, extract_texts, packed_parts
from agent.memory.history.history_files import drop_sentences, sentences
from agent.memory.search.tokenizer import PLAIN
from gateway.ports.journal import Line

LONGEST = 500  # characters of a request
_EXCERPT = 160  # characters
_TEXT_FIELDS = {
    "message": ("content",),
    "command": ("content", "reply"),
    "notice": ("asked", "content"),
    "delta": ("text",),
}
_REMOVED_FIELDS = (
    *ASIDE, "files", "links", "footnotes", "thinking", "added", "removed", "remember",
    "send", "edit", "edited", "forget",
)  # fmt: skip
# Identifiers in lines and other records: they contain no user text, and other records refer to them.
_ID_FIELDS = frozenset(
    {"kind", "role", "turn", "mid", "key", "transcript", "session", "entry", "id", "type", "tool_call_id", "blob"}
    | {"timestamp", "created", "at", "outcome", "inbox", "reply_to", "scope", "rev", "epoch", "origin", "model"}
)


@dataclass(frozen=True, slots=True)
class ErasurePattern:
    """Words to erase: a request as typed, and the language of its chat. An empty request matches every text.

    With *is_deep*, texts match also by what is in them with escapes or in base64.
    """

    request: str
    language: str = PLAIN
    is_deep: bool = False

    @classmethod
    def of(cls, request: str, language: str = PLAIN) -> ErasurePattern | None:
        """Parse the words of a request; None if they are too short."""
        text = " ".join(request.split())
        return None if len(text) > LONGEST or _matcher(text, language).is_too_short else cls(text, str(language))

    @property
    def matcher(self) -> PhraseMatcher:
        """The prepared words."""
        return _matcher(self.request, self.language)

    def in_text(self, text: object) -> bool:
        """Return True if *text* contains the words."""
        if not isinstance(text, str):
            return False
        return self._is_in(text) or (self.is_deep and any(map(self.in_bytes, packed_parts(text))))

    def in_bytes(self, data: bytes) -> bool:
        """Return True if *data* contains the words, also escaped, compressed, archived or in base64."""
        return any(
            contains_text(each, self.matcher.spelling, self._is_in) if isinstance(each, bytes) else self._is_in(each)
            for each in extract_texts(data)
        )

    def may_be_in_lines(self, raw: bytes) -> bool:
        """Return False if no text of transcript lines, as stored, contains the words. A quick look: True may be wrong.

        Texts of programs are always searched, because they may have the words escaped or in base64.
        """
        return not self.request or self.is_deep or b'"tool' in raw or self.matcher.may_be_in_lines(raw)

    def select_lines(self, raw: bytes) -> Iterator[tuple[bytes, bool]]:
        """Yield each of some transcript lines, and the result of `may_be_in_lines` for it. It takes less time."""
        if not self.request or self.is_deep or b'"tool' in raw:
            lines = (line + b"\n" for line in raw.split(b"\n")[:-1])
            return ((line, self.may_be_in_lines(line)) for line in lines)
        return self.matcher.select_lines(raw)

    def _is_in(self, text: str) -> bool:
        return not self.request or self.matcher.is_in(text)

    @property
    def deep(self) -> ErasurePattern:
        """The same words, in packed texts too."""
        return replace(self, is_deep=True)

    def in_any(self, value: object) -> bool:
        """Return True if any text within the JSON *value* contains the words."""
        if isinstance(value, Mapping):
            return any(self.in_any(each) for each in value.values())
        if isinstance(value, list | tuple):
            return any(self.in_any(each) for each in value)
        return self.in_text(value)


ALL = ErasurePattern("")  # matches every text


@lru_cache(maxsize=64)
def _matcher(request: str, language: str) -> PhraseMatcher:
    return PhraseMatcher(request, language)


def without_entries(
    text: str, pattern: ErasurePattern, is_allowed: Callable[[str], bool] = lambda _: True
) -> tuple[str, int]:
    """Return a document without the entries that contain the words, and the number of removed entries.

    An entry is removed only if *is_allowed* returns True for each of its lines. A heading is kept without its text.
    """
    kept = []
    count = 0
    for entry in parse(text):
        if not _is_entry_erasable(entry, pattern, is_allowed):
            kept.append(entry)
            continue
        count += 1
        if entry.kind is EntryKind.HEADING:
            kept.append(replace(entry, raw=f"{'#' * max(entry.level, 1)} {FORGOTTEN}"))
    return (render(kept), count) if count else (text, 0)


def matching_entries(
    text: str, pattern: ErasurePattern, is_allowed: Callable[[str], bool] = lambda _: True
) -> list[str]:
    """Return the entries that `without_entries` removes."""
    return [entry.raw for entry in parse(text) if _is_entry_erasable(entry, pattern, is_allowed)]


def _is_entry_erasable(entry: MemoryEntry, pattern: ErasurePattern, is_allowed: Callable[[str], bool]) -> bool:
    return pattern.in_text(entry.raw) and all(is_allowed(line) for line in entry.raw.splitlines() if line.strip())


def matching_excerpt(value: object, pattern: ErasurePattern) -> str:
    """Return the first sentence in the JSON *value* that contains the words, cut around them; "" without a match."""
    if isinstance(value, Mapping):
        value = [each for name, each in value.items() if name not in _ID_FIELDS]
    if isinstance(value, list | tuple):
        return next((found for each in value if (found := matching_excerpt(each, pattern))), "")
    if not isinstance(value, str) or not pattern.in_text(value):
        return ""
    flat = " ".join(next((each for each in sentences(value) if pattern.in_text(each)), value).split())
    at = max(flat.lower().find(each) for each in pattern.matcher.words or [""])
    start = max(0, at - _EXCERPT // 3) if at > _EXCERPT // 2 else 0
    end = start + _EXCERPT
    return f"{'…' if start else ''}{flat[start:end]}{'…' if end < len(flat) else ''}"


def without_sentences(text: str, pattern: ErasurePattern) -> str:
    """Return *text* without the sentences and lines that contain the words; FORGOTTEN if nothing is left."""
    if not pattern.in_text(text):
        return text
    left = drop_sentences(text, pattern.in_text)
    return FORGOTTEN if pattern.in_text(left) else left  # the words may span two sentences


def without_words(
    raw: bytes, pattern: ErasurePattern, is_allowed: Callable[[Line], bool], *, whole: bool = False
) -> bytes:
    """Return a transcript line without the words, if *is_allowed* returns True for it.

    With *whole*, the files, quotes and thinking of a matching line are removed too. An unreadable line that contains
    the words becomes blank.
    """
    is_searched = pattern.may_be_in_lines(raw)
    if not is_searched and b'"by"' not in raw:
        return raw
    line = decode(raw)
    if not is_searched:
        is_allowed(line or {})  # answers are judged by the messages that were seen before
        return raw
    if line is None:
        is_match = pattern.in_text(raw.decode("utf-8", "replace")) and is_allowed({})
        return b" " * (len(raw) - 1) + b"\n" if is_match and raw.endswith(b"\n") else raw
    cleared = clear_line(line, pattern, is_allowed, whole=whole)
    return raw if cleared is line else encode(cleared)


def clear_line(line: Line, pattern: ErasurePattern, is_allowed: Callable[[Line], bool], *, whole: bool = False) -> Line:
    """Return a decoded transcript line as `without_words` does; the same line if it has none of the words."""
    pattern = _line_pattern(line, pattern)
    # Allowed first: the answers to a member's message may contain the words when the message does not.
    if not is_allowed(line) or not pattern.in_any({n: value for n, value in line.items() if n not in _ID_FIELDS}):
        return line
    return _blank_line(line, pattern, whole=whole)


def is_erasable(raw: bytes, pattern: ErasurePattern, is_allowed: Callable[[Line], bool]) -> bool:
    """Return True if `without_words` changes a transcript line."""
    line = decode(raw)
    if line is None:
        return without_words(raw, pattern, is_allowed) != raw
    if not is_allowed(line):
        return False
    texts = [line.get(name) for name in _TEXT_FIELDS.get(kind_of(line), ())]
    found = _line_pattern(line, pattern)
    if any(text != FORGOTTEN and found.in_any(text) for text in texts):
        return True
    return without_words(raw, pattern, lambda _: True) != raw  # another field has the words, or none


def _line_pattern(line: Line, pattern: ErasurePattern) -> ErasurePattern:
    """Return the pattern for a line: programs write and read packed texts."""
    return pattern.deep if line.get("role") == "tool" or "tool_calls" in line else pattern


def _blank_line(line: Line, pattern: ErasurePattern, *, whole: bool) -> dict[str, Any]:
    """Return *line* without the words."""
    blank = {
        name: value
        for name, value in line.items()
        if name not in _REMOVED_FIELDS or not (whole or pattern.in_any(value))
    }
    replaced = [name for name in _TEXT_FIELDS.get(kind_of(line), ()) if pattern.in_any(blank.get(name))]
    blank |= dict.fromkeys(replaced, FORGOTTEN)
    if pattern.in_any(blank.get("tool_calls")):
        blank["tool_calls"] = [without_arguments(call) for call in blank["tool_calls"]]
    done = _ID_FIELDS.union(replaced)
    return {name: value if name in done else clear_value(value, pattern, "") for name, value in blank.items()}


def clear_value(value: Any, pattern: ErasurePattern, instead: str = FORGOTTEN) -> Any:
    """Return a JSON value with *instead* in place of texts that contain the words; identifiers stay."""
    if isinstance(value, str):
        return instead if pattern.in_text(value) else value
    if isinstance(value, list | tuple):
        return [clear_value(each, pattern, instead) for each in value]
    if isinstance(value, Mapping):
        return {
            name: each if name in _ID_FIELDS else clear_value(each, pattern, instead) for name, each in value.items()
        }
    return value


def blank_value(value: Any) -> Any:
    """Return a JSON value with empty texts and without attachments."""
    if isinstance(value, str):
        return ""
    if isinstance(value, list | tuple):
        return [blank_value(each) for each in value]
    if isinstance(value, Mapping):
        return {name: [] if name == "attachments" else blank_value(each) for name, each in value.items()}
    return value
