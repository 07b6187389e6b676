"""The history of a scope: summaries of its conversations, messages that have none yet, and dated notes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Protocol

HISTORY_JSONL, RAW_JSONL = "history.jsonl", "raw.jsonl"
HISTORY_MD = "HISTORY.md"  # stale when entries were changed; where they were added alone, only history.jsonl is


@dataclass(frozen=True, slots=True, kw_only=True)
class HistoryEntry:
    """One entry of the history: a summary, and the messages of the session that it summarises."""

    timestamp: str  # "YYYY-MM-DD HH:MM", in the scope's zone
    content: str
    cursor: int = 0  # assigned by the store
    session: str = ""
    start: int = 0  # `from` in the file
    end: int = 0  # `to`, exclusive
    origin: str = ""  # user, assistant, owner, untrusted
    entry: str = ""  # its id; the same id is never stored twice
    raw: str = ""  # the file that holds the messages, if no model could summarise them
    sources: Mapping[str, int] = field(default_factory=dict)  # fingerprint of a remembered line -> message
    keys: Mapping[str, str] = field(default_factory=dict)  # the same -> words that the line is found by


class MarkKind(StrEnum):
    """Kinds of short texts that are stored by name."""

    KEYS = "keys"  # fingerprint of a line that no summary added -> words that it is found by
    USED = "used"  # fingerprint of a line of MEMORY.md -> when it was used last
    FLUSHED = "flushed"  # session -> the compaction cycle that was flushed last
    DREAM = "dream"  # one name -> an unfinished Dream
    IMPORTED = "imported"  # fingerprints of what was imported


PRINTED_MARKS = (MarkKind.KEYS, MarkKind.USED, MarkKind.FLUSHED, MarkKind.IMPORTED)  # each kind is a file


def mark_file(kind: str) -> str:
    """Return the name of the file that marks of a kind are printed to."""
    return f".{kind}.json"


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredNote:
    """A dated note, or an archive of MEMORY.md."""

    body: bytes
    owner: str = ""  # account of a note that names no session


@dataclass(frozen=True, slots=True, kw_only=True)
class NoteChange:
    """A note's new text, and the text that it replaces; None for a note that does not exist."""

    was: bytes | None
    body: bytes | None


Marks = Mapping[str, str | None]  # by name; None removes one


@dataclass(frozen=True, slots=True, kw_only=True)
class ScopeHistory:
    """All that is stored of a scope. Entries and raw messages are lines of their files, in order."""

    entries: Sequence[bytes] = ()
    raws: Sequence[bytes] = ()
    notes: Mapping[str, StoredNote] = field(default_factory=dict)  # by file name
    marks: Mapping[MarkKind, Mapping[str, str]] = field(default_factory=dict)
    cursor: int = 0  # the last that was assigned
    dream_cursor: int = 0  # of the last entry that Dream has processed


@dataclass(frozen=True, slots=True, kw_only=True)
class HistoryRevs:
    """Texts that change with what is stored of a scope; "" where nothing was stored."""

    entries: str = ""
    keys: str = ""  # of the marks
    notes: Mapping[str, str] = field(default_factory=dict)  # by file name


class HistoryStore(Protocol):
    """The history of a scope: entries and raw messages, notes, and marks; rows of a gateway, files of the library.

    Methods return when a write is durable, and raise StoreUnavailable or OSError otherwise.
    """

    async def append(self, scope: str, *entries: HistoryEntry) -> Sequence[HistoryEntry]:
        """Store the entries, each id once, and return them as stored.

        Cursors rise within a scope and are never reused. The summary of messages that were kept raw replaces the text
        of their entry, whose cursor and time stay.
        """

    async def keep_raw(self, scope: str, entry: HistoryEntry, messages: Sequence[Any]) -> HistoryEntry:
        """Store messages that no model could summarise, and *entry*, which names their range. Idempotent by its id."""

    async def find(self, scope: str, entry: str) -> HistoryEntry | None:
        """Return the entry with this id, or None."""

    async def after(self, scope: str, cursor: int = 0, limit: int | None = None) -> Sequence[HistoryEntry]:
        """Return at most *limit* entries after *cursor*, the oldest first."""

    async def revs(self, scope: str) -> HistoryRevs:
        """Return the revs of entries, keys and notes."""

    async def note_names(self, scope: str) -> Sequence[str]:
        """Return the file names of the notes, in order."""

    async def note(self, scope: str, name: str) -> bytes | None:
        """Return a note's text, or None."""

    async def marks(self, scope: str, kind: MarkKind) -> Mapping[str, str]:
        """Return the marks of a kind."""

    async def write(
        self,
        scope: str,
        *,
        notes: Mapping[str, NoteChange] | None = None,
        marks: Mapping[MarkKind, Marks] | None = None,
    ) -> bool:
        """Change notes and marks together; return False, without effect, if a note is not what it was."""
