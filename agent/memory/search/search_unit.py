"""What is indexed: one message, one bullet, one paragraph; and what names the place it stands in."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Protocol

import regex

MEMORY = "_memory"  # the project of everything that is no document of a project
PIECE_TOKENS = 256  # a unit is no longer; tokens are characters / 4 everywhere in search
# Paragraph, line, sentence, word: the later in this list, the better a place to cut.
_BREAKS = tuple(map(regex.compile, (r"\s+", r"(?<=[.!?…])\s+|(?<=[。！？])", r"\n", r"\n\s*\n")))


@dataclass(frozen=True, slots=True, kw_only=True)
class UnitSource:
    """A file as search names it: `sessions/telegram.jsonl` of project `_memory`."""

    name: str
    project: str = MEMORY


@dataclass(frozen=True, slots=True, kw_only=True)
class SearchUnit:
    """A piece of a source that can be an answer."""

    text: str
    line: int  # from 1; in transcripts the message's index + 1
    end: int = 0  # its last line; 0 = `line`
    at: datetime | None = None  # when it was said or written, aware
    who: str = ""  # the speaker's name
    role: str = ""  # user, assistant; "" for what was written
    origin: str = ""  # "untrusted": words of others; "tainted": said by the bot with such words in its prompt
    about: str = ""  # the headings above it: searched, not shown
    group: str = ""  # context stays inside a group: a sitting of a conversation, a chapter

    @property
    def embedding_text(self) -> str:
        """What a model embeds."""
        return ": ".join(part for part in (self.who, self.about, self.text) if part)

    @property
    def content(self) -> bytes:
        """The hash that a vector is kept under."""
        return hashlib.sha256(self.embedding_text.encode()).digest()[:16]

    @property
    def digest(self) -> bytes:
        """The hash of everything; a unit of the same digest at the same place is left alone."""
        parts = (self.embedding_text, str(self.line), str(self.end), str(self.at), self.role, self.group, self.origin)
        return hashlib.sha256("\0".join(parts).encode()).digest()[:16]


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceReading:
    """What was read of a source: all of it, or (*is_more*) what follows the mark that was given."""

    units: Sequence[SearchUnit]
    mark: str
    is_more: bool = False


class UnitSources(Protocol):
    """What there is to find in one scope. Called from threads, never two calls at once."""

    def marks(self) -> Mapping[UnitSource, str]:
        """Return every source with a mark that changes when it changes (size and time of a file)."""
        ...

    def read(self, source: UnitSource, since: str) -> SourceReading:
        """Return what *source* holds; of one that only grew since the mark *since*, its new end will do.

        Raises FileNotFoundError when it is gone.
        """
        ...


def tokens(text: str) -> int:
    """Return about how many tokens *text* costs."""
    return -(-len(text) // 4)


def split_text(text: str, *, limit: int = PIECE_TOKENS) -> Iterator[str]:
    """Cut *text* into pieces of at most *limit* tokens, at a paragraph, a line, a sentence or a word, in this order."""
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
