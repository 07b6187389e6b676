"""The documents of memory scopes (MEMORY.md, USER.md, SOUL.md), every line of them, and every change."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping, Sequence
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


class DocumentChangeStore(DocumentStore, Protocol):
    """The documents of every scope with all their changes.

    Methods return when a write is durable, and raise StoreUnavailable otherwise. The files of the documents are a
    mirror: each write leaves a debt for them in its own transaction.
    """

    async def change(
        self,
        scope: str,
        texts: Mapping[str, TextChange],
        *,
        why: str,
        by: str = "",
        undoes: str = "",
        after: int | None = None,
        at: datetime | None = None,
    ) -> DocumentChange | None:
        """Replace several documents by one change; return None, with nothing changed, if one has another rev.

        With *after*, the same happens unless that is the number of the newest change: versions that the texts were made
        from are then as they were read.

        If no text differs, nothing is stored, and the change that is returned has no id. A line that moves, or that
        comes back by a change that *undoes* another, stays the same line for `source`.
        """

    @property
    def change_count(self) -> int:
        """Number of changes and epochs that this process has stored; it rises before their callers go on."""

    async def heads(self, scopes: Sequence[str]) -> Mapping[str, ScopeHead]:
        """Return the head of each of *scopes*, in one operation."""

    async def texts(self, scope: str, number: int | None = None) -> Mapping[str, str]:
        """Return the documents after the change *number*, by default the newest one, without empty ones."""

    async def log(self, scope: str, *, limit: int, since: int = 0) -> Sequence[DocumentChange]:
        """Return the newest changes with a higher number than *since*, the newest first."""

    async def find(self, scope: str, id_: str) -> DocumentChange | None:
        """Return the change whose id begins with *id_*; None when none or several do."""

    async def changed_texts(self, scope: str, change: DocumentChange) -> Mapping[str, tuple[str, str]]:
        """Return the texts of each document that *change* changed, before and after it; {} if it is not stored."""

    async def source(self, scope: str, name: str, line: str) -> DocumentChange | None:
        """Return the change that added *line* to *name*; None if the document does not have the line now."""

    async def states(self, scope: str, *, since: int = 0, limit: int | None = None) -> Sequence[DocumentState]:
        """Return the documents after every change with a higher number than *since*, the oldest first.

        With *limit*, after the first of these changes alone. A state's texts are put together when it is asked for,
        so that a caller who iterates has one state in memory.
        """

    async def replace(
        self, states: Mapping[str, Iterable[DocumentState]], *, was: Mapping[str, int], epoch: str = ""
    ) -> bool:
        """Replace all that is stored of each scope by its states, the oldest first, in one transaction.

        Returns False, with nothing changed, if the newest change of a scope has not the number in *was* (0 = none). The
        states keep the ids of their changes, and get the numbers behind that one. A scope without states is removed,
        the others get *epoch*, unless it is empty.
        """

    async def set_epoch(self, scope: str, epoch: str) -> None:
        """Note that something of *scope* is erased: every conversation of it takes a new snapshot."""

    async def scopes(self) -> Sequence[str]:
        """Return the scopes that have documents, changes or an epoch, sorted."""

    async def stale_paths(self, scope: str | None = None) -> Sequence[StalePath]:
        """Return the files beside transcripts that are to be written again, of *scope* or of all scopes."""

    async def drop_stale_path(self, file: StalePath) -> None:
        """Note that *file* was written again, unless it is stale once more since."""

    async def owe_files(self, scope: str) -> None:
        """Have every file of the scope's documents, and their repository, written again."""

    async def is_adopted(self) -> bool:
        """Return True if the files of an earlier release were stored."""

    async def mark_adopted(self) -> None:
        """Note that the files of an earlier release are stored."""


def document_file(name: str) -> str:
    """Return the path of a document's file inside its scope's folder."""
    return name if name in _AT_THE_TOP else f"memory/{name}"


def is_mirrored(path: str) -> bool:
    """Return True if *path*, inside a scope's folder, is of the mirror of documents, or was of their earlier files."""
    return path.startswith(_MIRRORED) or any(path == each or path.startswith(f"{each}.unreadable-") for each in _EDITED)


def rev_of(text: str) -> str:
    """Return the rev of a document with *text*."""
    return hashlib.sha256(text.encode()).hexdigest() if text else ""
