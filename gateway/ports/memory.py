"""What the gateway and the channels may ask of memory; the agent implements it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Protocol

from gateway.events import Attachment, SessionKey


@dataclass(frozen=True, slots=True, kw_only=True)
class DisplayedMessage:
    """One message as people saw it."""

    id: str  # "<turn>/<n>": stable over reloads
    turn: str
    role: str  # user, assistant, command, notice
    text: str
    at: datetime
    name: str = ""  # who spoke, for user lines
    message_id: str = ""  # the platform's (or the page's own) id of a user line
    state: str = "done"  # waiting = accepted, not answered yet
    typed: str = ""  # of `text`, what a person wrote, without the lines that name files
    attachments: tuple[Attachment, ...] = ()  # the stored files that came with it, or went out with it
    is_others: bool = False  # of `text`: somebody else's words, passed on


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
        ...

    async def all(self) -> tuple[SessionInfo, ...]:
        """Return every session, the most recently used first."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class ScopeDocument:
    """A text that belongs to a scope. `rev` is sha256 of the bytes, "" when there is none."""

    name: str
    text: str
    rev: str


class DocumentStore(Protocol):
    """A scope's texts (MEMORY.md, USER.md, SOUL.md), compare-and-set."""

    async def read(self, scope: str, name: str) -> ScopeDocument:
        """Return the text as it stands now."""
        ...

    async def write(
        self, scope: str, name: str, text: str, *, was: str, why: str, by: str = ""
    ) -> ScopeDocument | None:
        """Replace the text if its rev is still *was*; None when somebody else was quicker.

        *why* names the cause (a job, an entry, a command), *by* the person who wanted it, if one did.
        """
        ...


MEMORY = "_memory"  # the project of what was said and remembered; others are folders of documents [002]


@dataclass(frozen=True, slots=True, kw_only=True)
class SearchHit:
    """Something found. Sources are named as in the scope; lines count from 1 (in conversations: messages)."""

    source: str
    line: int
    text: str
    score: float = 0.0
    at: datetime | None = None  # when it was said or written
    end: int = 0  # its last line; 0 = `line`
    who: str = ""  # who said it, where somebody did; "" for our own answers
    role: str = ""  # user or assistant for what was said, "" for what was written
    origin: str = ""  # untrusted or tainted if any text in it is not taken on trust (docs/adr/0015)
    before: str = ""  # what was said right before, with its speaker; "" for most
    after: str = ""


class SearchHits(list[SearchHit]):
    """What a search found, best first, and what it had to do without."""

    def __init__(
        self, hits: Iterable[SearchHit] = (), *, by_words_alone: bool = False, is_building: bool = False
    ) -> None:
        """*by_words_alone*: what texts mean could not be asked. *is_building*: there may be more in a minute."""
        super().__init__(hits)
        self.by_words_alone = by_words_alone
        self.is_building = is_building


class SearchIndex(Protocol):
    """Recall inside one scope; the scope comes from the turn's principal, never from a model."""

    async def search(
        self, scope: str, query: str, *, project: str = MEMORY, limit: int = 10, patience: float | None = None
    ) -> SearchHits:
        """Return the best hits of *scope* (and of `shared`), best first, within the budget of tokens.

        What texts mean is not waited for longer than *patience* seconds.
        """
        ...

    async def read(self, scope: str, source: str, line: int, *, project: str = MEMORY) -> Sequence[SearchHit]:
        """Return what stands around a place that a search named, in order; nothing for a place there is not."""
        ...

    def note(self, scope: str) -> None:
        """Say that something was written in *scope*: it is taken in when nobody waits; a search takes it in at once."""
        ...

    async def projects(self, scope: str) -> Sequence[str]:
        """Return the names of the projects with documents, sorted."""
        ...
