"""Units of the search index (a message, a bullet, a paragraph), their sources, and how texts are split into them.

Markdown is split by bullet and paragraph, conversations by message; with the seed profile, all into chunks of one size.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from typing import Protocol

import regex

MEMORY = "_memory"  # the project of everything except documents of projects
REACH = 2  # neighbours on each side in a unit's context
BLOCK = 20  # slots of units in an index: neighbours have adjacent ones
SOURCE_SLOTS = BLOCK << 20
PIECE_TOKENS = 256  # maximum length of a unit; search estimates tokens as characters / 4
# Word, sentence, line, paragraph: later patterns are better places to split.
_BREAKS = tuple(map(regex.compile, (r"\s+", r"(?<=[.!?…])\s+|(?<=[。！？])", r"\n", r"\n\s*\n")))
SITTING = timedelta(hours=6)  # a longer silence separates groups: earlier messages are not context of later ones
_HEADING = regex.compile(r"(#{1,6})\s++(.*)")
_BULLET = regex.compile(r"\s*(?:[-*+]|\d+[.)])\s+\S")
_FENCE = regex.compile(r"\s*(?:```|~~~)")


@dataclass(slots=True)
class RankedCandidate:
    """A unit with the parts of its score."""

    id: int
    at: float | None  # seconds since 1970
    traits: int
    who: str
    role: str
    block: int
    message: tuple[int, int]  # source and line, shared by the pieces of a long message
    unit: float = 0.0  # share of the query's best possible score
    context: float = 0.0
    block_score: float = 0.0
    own: float = 0.0
    smooth: float = 0.0
    is_then: bool = False  # from a time that the query names
    score: float = 0.0


@dataclass(slots=True)
class UnitChanges:
    """Ids of deleted and added units; a unit that was replaced at its place is both."""

    gone: list[int] = field(default_factory=list)
    came: list[int] = field(default_factory=list)

    def __len__(self) -> int:
        """Return the number of added and deleted units."""
        return len(self.gone) + len(self.came)


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


# Has no units. Its mark changes when something of the scope is erased: terms of that may be in free pages.
ERASURES = UnitSource(name="erasures", project="")


class UnitSources(Protocol):
    """Sources of one scope, asked by one call at a time."""

    async def marks(self) -> Mapping[UnitSource, str]:
        """Return every source with a mark, such as size and time of a file, that changes with its content."""
        ...

    async def read(self, source: UnitSource, since: str) -> SourceReading:
        """Return the units of *source*, or only the new ones if it only grew since the mark *since*.

        The mark of the reading may end with `#` and a position, which `marks` leaves out. Raises FileNotFoundError if
        the source does not exist.
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


# -- splitting ---------------------------------------------------------------------------------------


def chunk_markdown(text: str, at: datetime | None = None) -> list[SearchUnit]:
    """Return one unit per bullet and paragraph, several for long ones; each has the headings above it."""
    return [unit for start, lines, above in _passages(text) for unit in _units(start, lines, above, at)]


def _passages(text: str) -> Iterator[tuple[int, list[str], str]]:
    """Yield the first line's number, the lines, and the headings above them."""
    above: list[tuple[int, str]] = []
    start, lines, is_fenced = 0, [""] * 0, False
    for n, line in enumerate(text.splitlines(), start=1):
        heading = None if is_fenced else _HEADING.match(line)
        is_end = not is_fenced and (not line.strip() or heading or (_BULLET.match(line) and lines))
        if is_end and lines:
            yield start, lines, " / ".join(title for _, title in above)
            lines = []
        if heading:
            depth = len(heading.group(1))
            title = heading.group(2).rstrip().rstrip("#").rstrip()
            above = [each for each in above if each[0] < depth] + [(depth, title)]
        elif line.strip() or is_fenced:
            start = start if lines else n
            lines.append(line)
        if _FENCE.match(line):
            is_fenced = not is_fenced
    if lines:
        yield start, lines, " / ".join(title for _, title in above)


def _units(start: int, lines: list[str], above: str, at: datetime | None) -> Iterator[SearchUnit]:
    text = "\n".join(lines).strip()
    for piece in split_text(text):
        yield SearchUnit(text=piece, line=start, end=start + len(lines) - 1, at=at, about=above)


def chunk_message(
    text: str, *, line: int, at: datetime | None, who: str, role: str, origin: str = ""
) -> list[SearchUnit]:
    """Return a message as one unit, a long one as several."""
    pieces = split_text(text)
    return [SearchUnit(text=piece, line=line, at=at, who=who, role=role, origin=origin) for piece in pieces]


def group_by_silence(units: Iterable[SearchUnit], *, last: SearchUnit | None = None) -> list[SearchUnit]:
    """Group messages by silence; a group is named after its first line. *last* is the message before them."""
    found: list[SearchUnit] = []
    for unit in units:
        previous = found[-1] if found else last
        is_same = previous is not None and (unit.at is None or previous.at is None or unit.at - previous.at <= SITTING)
        found.append(replace(unit, group=previous.group if previous is not None and is_same else str(unit.line)))
    return found


def chunks(
    lines: Sequence[str], *, tokens: int = 512, overlap: int = 64, at: datetime | None = None
) -> list[SearchUnit]:
    """Return *lines* in chunks of at most *tokens*, each beginning with the last *overlap* tokens of the one before.

    These are the units of the seed profile. Only complete lines overlap; a line longer than a chunk is split.
    """
    most, shared = tokens * 4, overlap * 4
    found: list[SearchUnit] = []
    pending: list[tuple[int, str]] = []
    size = 0
    for n, text in _short_lines(lines, most):
        if pending and size + len(text) + 1 > most:
            found.append(_chunk(pending, at))
            pending = _tail(pending, shared)
            size = sum(len(each) + 1 for _, each in pending)
        pending.append((n, text))
        size += len(text) + 1
    return [*found, _chunk(pending, at)] if pending else found


def _short_lines(lines: Sequence[str], most: int) -> Iterator[tuple[int, str]]:
    for n, line in enumerate(lines, start=1):
        for start in range(0, max(1, len(line)), most):
            yield n, line[start : start + most]


def _tail(lines: Sequence[tuple[int, str]], overlap: int) -> list[tuple[int, str]]:
    kept: list[tuple[int, str]] = []
    for each in reversed(lines):
        overlap -= len(each[1]) + 1
        if overlap < 0:
            break
        kept.insert(0, each)
    return kept


def _chunk(lines: Sequence[tuple[int, str]], at: datetime | None) -> SearchUnit:
    return SearchUnit(text="\n".join(text for _, text in lines), line=lines[0][0], end=lines[-1][0], at=at)


@dataclass(frozen=True, slots=True, kw_only=True)
class SearchHit:
    """Something found. Sources are named as in the scope; lines count from 1 (in conversations: messages)."""

    source: str
    line: int
    text: str
    score: float = 0.0
    at: datetime | None = None  # time of the message or entry, in the scope's zone
    end: int = 0  # its last line; 0 = `line`
    who: str = ""  # speaker's name; "" for the bot's answers
    role: str = ""  # user or assistant for messages, "" for documents
    origin: str = ""  # untrusted or tainted, if any text in it is (docs/adr/0015)
    before: str = ""  # the message right before, with its speaker; often ""
    after: str = ""
    coverage: float = 0.0  # share of the query's words, by their weight, that it contains; about 0 to 1
    similarity: float = 0.0  # cosine of its and the query's vectors minus the mean of the index; 0 without vectors


@dataclass(frozen=True, slots=True, kw_only=True)
class MissingTime:
    """A time, or a conversation, that a query names and from which nothing is stored; times in the scope's zone."""

    start: datetime | None = None
    end: datetime | None = None
    is_to_come: bool = False
    nearest: tuple[datetime, ...] = ()  # of what is stored, the last before and the first after
    conversations: int | None = None  # how many there were, if the query names one that there was not


class SearchHits(list[SearchHit]):
    """Search hits, best first, and the limits of the search."""

    def __init__(
        self,
        hits: Iterable[SearchHit] = (),
        *,
        is_words_only: bool = False,
        is_building: bool = False,
        has_more: bool = False,
        is_seed: bool = False,
        missing: Sequence[MissingTime] = (),
    ) -> None:
        """*is_words_only*: the embedder was unavailable. *is_building*: the index may have more in a minute.

        *has_more*: the next page is not empty. *is_seed*: they are from the seed profile. *missing*: times that the
        query names and from which nothing is stored, so that the hits are from others.
        """
        super().__init__(hits)
        self.is_words_only = is_words_only
        self.is_building = is_building
        self.has_more = has_more
        self.is_seed = is_seed
        self.missing = tuple(missing)


@dataclass(frozen=True, slots=True, kw_only=True)
class SearchOptions:
    """Options of a search. Times exclude other hits of memory; a naive time is in the scope's zone."""

    project: str = MEMORY
    limit: int = 10  # hits of a page
    page: int = 1  # from 1
    since: datetime | None = None
    until: datetime | None = None  # exclusive
    embed_timeout: float | None = None  # seconds until the search uses words alone


SEARCH_DEFAULTS = SearchOptions()
