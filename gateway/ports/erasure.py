"""Erasure in the journal: contents of rows, the people they refer to, and the bytes of deleted pages."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Protocol, TypeAlias

from gateway.events import SessionKey
from gateway.ports.files import FileKind
from gateway.ports.history import HistoryEntry
from gateway.ports.journal import Job, TurnCommit
from gateway.ports.proposals import MemoryProposal

FORGET, PURGE = "forget", "purge"  # kinds of the jobs whose payload has the words that are erased from their scope
FORGOTTEN = "forgotten"  # that of a FORGET when no running turn or job has read the words: what is stored stays

Redaction: TypeAlias = Callable[[Any], Any]  # maps a JSON value to its redacted form, or to itself


@dataclass(frozen=True, slots=True, kw_only=True)
class ErasureFilter:
    """Which rows may be touched."""

    keys: frozenset[SessionKey]
    scope: str | None = None  # jobs of this scope; None = no jobs
    sender: str = ""  # user id: only this user's messages and their turns; "" = all users'
    upto: int = 0  # newest inbox row to include; 0 = all
    spared_kinds: frozenset[str] = frozenset()  # of jobs to leave unchanged
    is_over: bool = False  # only ended rows with written transcripts; waiting and running ones stay


class ErasedWords(Protocol):
    """Takes the words of erasures that are not done out of what is about to be stored in their scope.

    *erasures* are their jobs. Each method is a pure function and runs in a thread. Values without the words are
    returned as they are.
    """

    def clear_commit(self, erasures: Sequence[Job], commit: TurnCommit) -> TurnCommit:
        """Return a commit without the words in its lines, messages and jobs."""

    def clear_job(self, erasures: Sequence[Job], job: Job) -> Job | None:
        """Return a job without the words; None if it is not to be queued."""

    def clear_texts(
        self, erasures: Sequence[Job], texts: Mapping[str, str], before: Mapping[str, str], by: str
    ) -> Mapping[str, str]:
        """Return new texts of documents without the words; *before* are the stored ones, *by* is who changes them."""

    def clear_entry(self, erasures: Sequence[Job], entry: HistoryEntry) -> HistoryEntry:
        """Return a history entry without the words."""

    def clear_messages(self, erasures: Sequence[Job], messages: Sequence[Any]) -> Sequence[Any]:
        """Return messages that no model could summarise without the words."""

    def clear_file(self, erasures: Sequence[Job], kind: FileKind, name: str, data: bytes) -> bytes | None:
        """Return the bytes of a workspace's file or of a result without the words; None if it is not to be kept."""

    def clear_proposal(self, erasures: Sequence[Job], proposal: MemoryProposal) -> MemoryProposal | None:
        """Return a proposal without the words; None if it is not to be stored."""


class ErasureStore(Protocol):
    """Takes texts and people out of the journal, beside running turns. Doing it twice is doing it once."""

    def use(self, words: ErasedWords) -> None:
        """Have every commit pass *words* from here on, while erasures of its scope are not done."""

    async def begin(self, job: Job) -> None:
        """Queue the job of an erasure, and return when no transaction runs that began before it.

        From here on, until the job is finished, no transaction stores a record, job, document, history entry,
        note, proposal, result or workspace file of its scope that did not pass its words, whichever gateway it is of.
        """

    async def at_work(self, reach: ErasureFilter) -> frozenset[str]:
        """Return the ids of running turns and jobs within *reach*: they may still write erased data."""

    async def is_in_use_elsewhere(self, scope: str) -> bool:
        """Return True if another gateway runs a turn or a job of *scope*, which may store what it has read before."""

    async def redact(self, reach: ErasureFilter, change: Redaction) -> int:
        """Pass all texts of users, bot and models through *change*: inbox, steps, records, outbox, jobs, dead letters.

        *change* is called with texts, lists and mappings; a message's text and files are in one mapping. Ids, keys and
        states stay, so that no message is answered or sent twice. Return the number of changed rows.
        """

    async def drop_jobs(self, scope: str, *, spare: Collection[str] = ()) -> int:
        """Remove the jobs of *scope* except those of the ids *spare*; return their number."""

    async def unlink(self, *, person: str, keys: Collection[SessionKey]) -> None:
        """Remove a person and their chats from the usage rows; the installation's totals stay right."""

    async def anonymise(self, *, sender: str, keys: Collection[SessionKey]) -> None:
        """Take the id and name of *sender* out of ended inbox rows of *keys*."""

    async def drop_sessions(
        self, keys: Collection[SessionKey], *, unused_since: datetime | None = None
    ) -> frozenset[SessionKey]:
        """Remove sessions that nothing is going on in, so that the next message begins a fresh one; return their keys.

        With *unused_since*, only those whose last turn is older.
        """

    async def scrub(self) -> bool:
        """Overwrite deleted rows in pages and log. Return False if a reader prevents it; call again later.

        Other writes come between two pieces: half a megabyte of a file, a table of a server.
        """


Meant: TypeAlias = Callable[[str, bytes], bool]  # (channel, stored bytes)


class UnscopedData(Protocol):
    """Data that channels keep outside scopes: quarantined events and uploaded files."""

    async def forget(self, is_meant: Meant, *, tokens: Collection[str] = ()) -> int:
        """Blank matching events and remove matching files, those named in *tokens* included; return their number."""
