"""The documents of memory scopes (MEMORY.md, USER.md, SOUL.md), every line of them, and every change."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Protocol

REPOSITORY = "memory/.git"  # path of a stale repository, which is to be begun again
_AT_THE_TOP = frozenset({"SOUL.md", "USER.md"})
_EDITED = ("SOUL.md", "USER.md", "memory/MEMORY.md")
_MIRRORED = ("memory/.git/", "memory/.git.", "memory/.mirror/", "memory/epoch.txt", "memory/.writing")
_SHOWN = 8  # characters of a change's id


@dataclass(frozen=True, slots=True, kw_only=True)
class ScopeDocument:
    """A text of a scope. `rev` is the sha256 of its bytes, "" if the text does not exist."""

    name: str
    text: str
    rev: str


@dataclass(frozen=True, slots=True, kw_only=True)
class DocumentChange:
    """One change of a scope's documents. Its id never changes, not even by an erasure."""

    id: str  # eight hex digits; of a change from before documents were rows, the forty of its git commit
    number: int  # rises by one within a scope
    at: datetime
    why: str  # the cause: a job's or an entry's id, a command, `edited by hand`
    by: str = ""  # the person who wanted it
    names: tuple[str, ...] = ()  # the documents that changed
    undoes: str = ""  # id of the change that it reverts, or goes back behind

    @property
    def short(self) -> str:
        """The id as people are shown it."""
        return self.id[:_SHOWN]


@dataclass(frozen=True, slots=True, kw_only=True)
class DocumentState:
    """The documents after a change, by name, without empty ones."""

    change: DocumentChange
    texts: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class TextChange:
    """A document's new text, and the rev that it replaces."""

    was: str
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ScopeHead:
    """The state of a scope's documents now, without their texts."""

    number: int = 0  # of the newest change
    epoch: str = ""  # changes when something of the scope is erased
    revs: Mapping[str, str] = field(default_factory=dict)  # by document, without empty ones


@dataclass(frozen=True, slots=True, kw_only=True)
class StalePath:
    """A file of the mirror that is to be written again."""

    scope: str
    path: str  # inside the scope's folder
    changes: int


class DocumentStore(Protocol):
    """A scope's texts, changed by compare-and-set."""

    async def read(self, scope: str, name: str) -> ScopeDocument:
        """Return the current text."""

    async def write(
        self, scope: str, name: str, text: str, *, was: str, why: str, by: str = ""
    ) -> ScopeDocument | None:
        """Replace the text if its rev is still *was*; return None after a concurrent change.

        *why* names the cause (a job, an entry, a command), *by* the person who asked for it, if any.
        """

    async def epoch(self, scope: str) -> str:
        """Return a value that changes whenever something of *scope* is erased."""


def document_file(name: str) -> str:
    """Return the path of a document's file inside its scope's folder."""
    return name if name in _AT_THE_TOP else f"memory/{name}"


def is_mirrored(path: str) -> bool:
    """Return True if *path*, inside a scope's folder, is of the mirror of documents, or was of their earlier files."""
    return path.startswith(_MIRRORED) or any(path == each or path.startswith(f"{each}.unreadable-") for each in _EDITED)


def rev_of(text: str) -> str:
    """Return the rev of a document with *text*."""
    return hashlib.sha256(text.encode()).hexdigest() if text else ""
