"""Hits of a search in memory, and its options."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime

MEMORY = "_memory"  # the project of transcripts and memory; others are document folders


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
