"""Find text derived from a deleted message by its position and the fingerprints of its words.

The message itself is already removed from the disk, and cannot be reconstructed from its fingerprints. Pure.
"""

from __future__ import annotations

import hashlib
import re
import unicodedata
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from agent.memory.notes.session_note_writer import QUOTED
from agent.one_line import one_line

_WORD = re.compile(r"\w{4,}")
_UNSPACED = re.compile(r"[\u3040-\u30ff\u3400-\u9fff\uac00-\ud7af]{2,}")  # scripts without spaces: use bigrams
_STEM = 6  # letters of a word that are compared: "zeppelins" equals "zeppelin"


@dataclass(frozen=True, slots=True, kw_only=True)
class DeletionTrace:
    """A transcript line of a deleted message. `i` is -1 for a command, which has no index."""

    transcript: str
    turn: str
    i: int
    words: tuple[str, ...] = ()  # fingerprints of its words; () if its text could not be read any more
    quote: str = ""  # fingerprint of the line by which a note quotes it

    @classmethod
    def of(cls, transcript: str, line: Mapping[str, Any], text: str) -> DeletionTrace:
        """Return the trace of *line* with the content *text*."""
        quoted = one_line(text, QUOTED)
        index = line.get("i")
        return cls(
            transcript=transcript,
            turn=str(line.get("turn", "")),
            i=index if isinstance(index, int) else -1,
            words=tuple(sorted(word_fingerprints(text))),
            quote=_fingerprint(f"user: {quoted}") if quoted else "",
        )

    @classmethod
    def read(cls, record: object) -> DeletionTrace | None:
        """Parse a trace in a job's payload; None if it is invalid."""
        if not isinstance(record, Mapping):
            return None
        try:
            return cls(**{**record, "words": tuple(record.get("words", ()))})
        except TypeError:
            return None

    def record(self) -> dict[str, Any]:
        """Return the trace for a job's payload."""
        return asdict(self)

    def is_quoted(self, line: str) -> bool:
        """Return True if *line* of a note quotes the message."""
        return bool(self.quote) and _fingerprint(line.strip()) == self.quote


def word_fingerprints(text: str) -> frozenset[str]:
    """Return the fingerprints of the words of *text* that have four letters or more."""
    folded = unicodedata.normalize("NFKC", text).casefold()
    return frozenset(_fingerprint(stem) for stem in _stems(folded))


def related_lines(lines: Sequence[str], words: Iterable[str]) -> list[str]:
    """Return the lines that share a word with a message; *words* are the fingerprints of the message.

    Words that are in many of the lines do not count.
    """
    words = frozenset(words)
    shared = [word_fingerprints(line) & words for line in lines]
    counts = Counter(word for each in shared for word in each)
    limit = max(2, len(lines) // 4)
    return [line for line, each in zip(lines, shared, strict=True) if any(counts[word] <= limit for word in each)]


def quoting_lines(lines: Iterable[str], words: Iterable[str]) -> list[str]:
    """Return the lines that have at least half of a message's *words* (fingerprints)."""
    words = frozenset(words)
    return [line for line in lines if words and 2 * len(word_fingerprints(line) & words) >= len(words)]


def _stems(folded: str) -> Iterator[str]:
    for word in _WORD.findall(_UNSPACED.sub(" ", folded)):
        yield word[:_STEM]
    for text in _UNSPACED.findall(folded):
        yield from (text[n : n + 2] for n in range(len(text) - 1))


def _fingerprint(text: str) -> str:
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:16]
