"""Erasure in the journal: contents of rows, the people they refer to, and the bytes of deleted pages."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
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


Meant: TypeAlias = Callable[[str, bytes], bool]  # (channel, stored bytes)


class UnscopedData(Protocol):
    """Data that channels keep outside scopes: quarantined events and uploaded files."""

    async def forget(self, is_meant: Meant, *, tokens: Collection[str] = ()) -> int:
        """Blank matching events and remove matching files, those named in *tokens* included; return their number."""
