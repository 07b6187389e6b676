"""What the gateway and the channels may ask of memory; the agent implements it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Protocol

from gateway.events import Attachment, SessionKey


@dataclass(frozen=True, slots=True, kw_only=True)
class ShownLine:
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


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionInfo:
    """A line of `parlour sessions list`."""

    key: SessionKey
    transcript: str
    messages: int
    updated_at: datetime


class Sessions(Protocol):
    """Read access to conversations."""

    async def shown(self, key: SessionKey, *, limit: int) -> tuple[ShownLine, ...]:
        """Return the newest *limit* lines people saw, oldest first; pending and waiting ones included."""
        ...

    async def all(self) -> tuple[SessionInfo, ...]:
        """Return every session, the most recently used first."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Document:
    """A text that belongs to a scope. `rev` is sha256 of the bytes, "" when there is none."""

    name: str
    text: str
    rev: str


class Documents(Protocol):
    """A scope's texts (MEMORY.md, USER.md, SOUL.md), compare-and-set."""

    async def read(self, scope: str, name: str) -> Document:
        """Return the text as it stands now."""
        ...

    async def write(self, scope: str, name: str, text: str, *, was: str, why: str, by: str = "") -> Document | None:
        """Replace the text if its rev is still *was*; None when somebody else was quicker.

        *why* names the cause (a job, an entry, a command), *by* the person who wanted it, if one did.
        """
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Hit:
    """Something found. Sources are files of the scope; `line` counts from 1."""

    source: str
    line: int
    text: str
    score: float
    at: datetime | None = None


class SearchIndex(Protocol):
    """Recall inside one scope; the scope comes from the turn's principal, never from a model."""

    async def search(self, scope: str, query: str, *, limit: int = 6) -> Sequence[Hit]:
        """Return the best hits of *scope* (and of `shared`), best first."""
        ...
