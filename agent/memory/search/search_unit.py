"""Units of the search index (a message, a bullet, a paragraph) and the sources that they are read from."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Protocol

import regex

MEMORY = "_memory"  # the project of everything except documents of projects
PIECE_TOKENS = 256  # maximum length of a unit; search estimates tokens as characters / 4
# Word, sentence, line, paragraph: later patterns are better places to split.
_BREAKS = tuple(map(regex.compile, (r"\s+", r"(?<=[.!?…])\s+|(?<=[。！？])", r"\n", r"\n\s*\n")))


@dataclass(frozen=True, slots=True, kw_only=True)
class UnitSource:
    """A searchable file, such as `sessions/telegram.jsonl` of project `_memory`."""

    name: str
    project: str = MEMORY


@dataclass(frozen=True, slots=True, kw_only=True)
class SearchUnit:
    """A part of a source that can be a search result."""

    text: str
    line: int  # from 1; in transcripts the message's index + 1
    end: int = 0  # its last line; 0 = `line`
    at: datetime | None = None  # time of the message or document, aware
    who: str = ""  # the speaker's name
    role: str = ""  # user, assistant; "" for documents
    origin: str = ""  # "untrusted": third-party content; "tainted": an answer to a prompt with such content
    about: str = ""  # the headings above it, which are searched but not shown
    group: str = ""  # neighbours are context only within a group, such as a chapter

    @property
    def embedding_text(self) -> str:
        """The text that a model embeds."""
        return ": ".join(part for part in (self.who, self.about, self.text) if part)

    @property
    def content(self) -> bytes:
        """Hash of the embedded text, the key of its vector."""
        return content_hash(self.embedding_text)

    @property
    def digest(self) -> bytes:
        """Hash of all fields; a unit with the same digest at the same place is not written again."""
        parts = (self.embedding_text, str(self.line), str(self.end), str(self.at), self.role, self.group, self.origin)
        return hashlib.sha256("\0".join(parts).encode()).digest()[:16]


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceReading:
    """Units read from a source: all of it, or with *is_more* the units after the given mark."""

    units: Sequence[SearchUnit]
    mark: str
    is_more: bool = False


class UnitSources(Protocol):
    """Sources of one scope. Called from threads, one call at a time."""

    def marks(self) -> Mapping[UnitSource, str]:
        """Return every source with a mark, such as size and time of a file, that changes with its content."""
        ...

    def read(self, source: UnitSource, since: str) -> SourceReading:
        """Return the units of *source*, or only the new ones if it only grew since the mark *since*.

        Raises FileNotFoundError if the source does not exist.
        """
        ...


def content_hash(text: str) -> bytes:
    """Return the key of the vector of an embedded text."""
    return hashlib.sha256(text.encode()).digest()[:16]


def tokens(text: str) -> int:
    """Return the estimated number of tokens of *text*."""
    return -(-len(text) // 4)


def split_text(text: str, *, limit: int = PIECE_TOKENS) -> Iterator[str]:
    """Split *text* into pieces of at most *limit* tokens, preferably at paragraphs, then lines, sentences, words."""
    most = limit * 4
    while len(text) > most:
        cut = _cut(text, most)
        if piece := text[:cut].strip():
            yield piece
        text = text[cut:].lstrip()
    if text.strip():
        yield text.strip()


def _cut(text: str, most: int) -> int:
    for pattern in reversed(_BREAKS):
        ends = [match.end() for match in pattern.finditer(text, most // 3, most)]
        if ends:
            return int(ends[-1])
    return most


def name_speaker(who: str, role: str) -> str:
    """Return the speaker of a message as a model reads it; a person who is called "you" is not taken for the bot."""
    if role == "assistant":
        return "you"
    name = " ".join(who.split()) or "somebody"
    return f'"{name}"' if name.casefold() == "you" else name
