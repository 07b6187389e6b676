"""What is kept of a deleted message to find what came of it: where it stood, and prints of its words.

The message itself is gone from the disk by then, and nobody reads it out of a print. Pure.
"""

from __future__ import annotations

import hashlib
import re
import unicodedata
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

_WORD = re.compile(r"\w{4,}")
_JOINED = re.compile(r"[\u3040-\u30ff\u3400-\u9fff\uac00-\ud7af]{2,}")  # scripts without blanks: pairs of signs
_STEM = 6  # letters of a word that count: "zeppelins" is "zeppelin"
_EXCERPT = 200  # characters of a message that a note quotes


@dataclass(frozen=True, slots=True, kw_only=True)
class DeletionTrace:
    """One line of a transcript that said it. `i` is -1 for a command, which has no index."""

    transcript: str
    turn: str
    i: int
    words: tuple[str, ...] = ()  # prints of its words; () where nothing of it could be read any more
    quote: str = ""  # the print of the line by which a note quotes it

    @classmethod
    def of(cls, transcript: str, line: Mapping[str, Any], said: str) -> DeletionTrace:
        """Return the trace of a transcript's *line* that says *said*."""
        flat = " ".join(said.split())
        short = flat if len(flat) <= _EXCERPT else f"{flat[:_EXCERPT]}…"
        index = line.get("i")
        return cls(
            transcript=transcript,
            turn=str(line.get("turn", "")),
            i=index if isinstance(index, int) else -1,
            words=tuple(sorted(word_fingerprints(said))),
            quote=_print(f"user: {short}") if flat else "",
        )

    @classmethod
    def read(cls, record: object) -> DeletionTrace | None:
        """Return the trace of a job's payload."""
        if not isinstance(record, Mapping):
            return None
        try:
            return cls(**{**record, "words": tuple(record.get("words", ()))})
        except TypeError:
            return None

    def record(self) -> dict[str, Any]:
        """Return it as a job's payload has it."""
        return asdict(self)

    def is_quoted(self, line: str) -> bool:
        """Say whether *line* of a note is the message."""
        return bool(self.quote) and _print(line.strip()) == self.quote


def word_fingerprints(text: str) -> frozenset[str]:
    """Return prints of the words of *text* that mean something."""
    folded = unicodedata.normalize("NFKC", text).casefold()
    return frozenset(_print(stem) for stem in _stems(folded))


def related(lines: Sequence[str], words: Iterable[str]) -> list[str]:
    """Return the lines that share a word with a message, whose prints *words* are.

    A word that stands in many of the lines says nothing about one of them.
    """
    wanted = frozenset(words)
    shared = [word_fingerprints(line) & wanted for line in lines]
    often = Counter(word for each in shared for word in each)
    limit = max(2, len(lines) // 4)
    return [line for line, each in zip(lines, shared, strict=True) if any(often[word] <= limit for word in each)]


def quoting_lines(lines: Iterable[str], words: Iterable[str]) -> list[str]:
    """Return the lines that hold half of a message's words or more, whose prints *words* are."""
    wanted = frozenset(words)
    return [line for line in lines if wanted and 2 * len(word_fingerprints(line) & wanted) >= len(wanted)]


def _stems(folded: str) -> Iterator[str]:
    for found in _WORD.finditer(_JOINED.sub(" ", folded)):
        yield found[0][:_STEM]
    for found in _JOINED.finditer(folded):
        yield from (found[0][n : n + 2] for n in range(len(found[0]) - 1))


def _print(text: str) -> str:
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:16]
