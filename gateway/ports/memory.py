"""Memory access for the gateway and the channels, implemented by the agent."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Protocol

from gateway.events import AnswerSource, Attachment, MessageButton, SessionKey


@dataclass(frozen=True, slots=True, kw_only=True)
class DisplayedMessage:
    """One message as people saw it."""

    id: str  # "<turn>/<n>": stable over reloads
    turn: str
    role: str  # user, assistant, command, notice; divider = /new ended a transcript here
    text: str
    at: datetime
    name: str = ""  # display name, for user lines
    message_id: str = ""  # the platform's (or the page's own) id of a user line
    state: str = "done"  # waiting = accepted, not answered yet
    typed: str = ""  # the user's part of `text`, without the lines that name files
    attachments: tuple[Attachment, ...] = ()  # stored files received or sent with it
    quoted_files: tuple[Attachment, ...] = ()  # of the message that it quoted
    replaces: str = ""  # id of the user line that this one, a user line, is another version of
    is_others: bool = False  # `text` was forwarded from another author
    is_press: bool = False  # `text` is the command of a button; nobody wrote it
    is_partial: bool = False  # an answer that was stopped, or whose stream broke
    links: tuple[str, ...] | None = None  # as in OutboundMessage
    sources: tuple[AnswerSource, ...] = ()  # of the turn's answer, which `text` lists
    part: str = ""  # the message part that has `choices`
    choices: tuple[MessageButton, ...] = ()  # buttons that can still be pressed


@dataclass(frozen=True, slots=True)
class DisplayedPage:
    """Consecutive messages of a conversation, oldest first."""

    lines: tuple[DisplayedMessage, ...]
    before: str = ""  # the position where they begin; "" if no messages are before them


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionInfo:
    """A line of `parlour sessions list`."""

    key: SessionKey
    transcript: str
    messages: int
    updated_at: datetime


class SessionReader(Protocol):
    """Read access to conversations."""

    async def displayed_messages(self, key: SessionKey, *, limit: int) -> tuple[DisplayedMessage, ...]:
        """Return the newest *limit* lines people saw, oldest first; pending and waiting ones included."""

    async def displayed_page(self, key: SessionKey, before: str = "", *, turns: int) -> DisplayedPage | None:
        """Return the messages of *turns* turns before the position *before*, by default the newest ones.

        Pages go back through the transcripts that /new ended. The newest one has pending and waiting messages besides.
        None for a position that is not one of this conversation.
        """

    async def all(self) -> tuple[SessionInfo, ...]:
        """Return every session, the most recently used first."""


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


class SearchIndex(Protocol):
    """Recall inside one scope; the scope comes from the turn's principal, never from a model."""

    async def search(self, scope: str, query: str, options: SearchOptions = SEARCH_DEFAULTS) -> SearchHits:
        """Return the best hits of *scope* and of `shared`, best first, within the token budget of a page."""

    async def read(self, scope: str, source: str, line: int, *, project: str = MEMORY) -> Sequence[SearchHit]:
        """Return the lines around a location from a search, in order; nothing for an unknown location."""

    def note(self, scope: str) -> None:
        """Note a write in *scope*. It is indexed when the process is idle; a search indexes it at once."""

    async def projects(self, scope: str) -> Sequence[str]:
        """Return the names of the projects with documents, sorted."""
