"""The records of what is remembered: transcripts, documents, history, files and proposals, and their erasure."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from enum import StrEnum
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias

from gateway.errors import ParlourError
from gateway.events import SessionKey

if TYPE_CHECKING:
    from gateway.ports.journal import TurnRecord

MIRROR = "mirror.id"  # file of a home that names its mirror, which the store knows
UNINDEX = "unindex"  # kind of the job that is queued when a commit deletes messages; `files` are digests of theirs


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredTurn:
    """A committed turn. `body` is its lines as bytes of JSON, each with a newline, the `end` line last."""

    seq: int  # rises within a session
    turn: str
    key: SessionKey
    transcript: str
    from_index: int
    to_index: int  # exclusive; equal to from_index for a turn without messages
    at: datetime
    outcome: str
    body: bytes
    new_transcript: str = ""  # the one that begins after this turn
    inbox: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredWindow:
    """The turns that a conversation's next prompt is made from."""

    turns: Sequence[StoredTurn]  # from the one that holds the replay start on
    replay_from: int = 0  # index of the first message that is sent
    snapshot: bytes = b""  # body of the newest earlier turn with a snapshot, where `turns` have none
    texts: Mapping[str, str] = field(default_factory=dict)  # of the last snapshot, by digest


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredEnd:
    """The end of a transcript, up to a turn."""

    last: bytes = b""  # body of the last turn; empty without any
    last_turn: str = ""
    last_at: datetime | None = None
    ended: str = ""  # turn that /new, or a link, ended the transcript with; "" for a session's current one


@dataclass(frozen=True, slots=True, kw_only=True)
class TranscriptHead:
    """The last turn of a transcript."""

    key: SessionKey
    transcript: str
    seq: int
    turn: str


@dataclass(frozen=True, slots=True, kw_only=True)
class StaleFile:
    """A transcript whose file has lines that were changed or removed since they were written."""

    scope: str
    key: SessionKey
    transcript: str
    changes: int


def anchor_index(line: Mapping[str, Any] | None) -> int:
    """Return the index that replay starts at according to a pointer or mark, 0 without one."""
    for name in ("replay_from", "last_consolidated"):
        value = line.get(name) if line else None
        if isinstance(value, int) and value > 0:
            return value
    return 0


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


@dataclass(frozen=True, slots=True, kw_only=True)
class HistoryUpdate:
    """What is stored in the transaction of a document's change: an entry, and its conversation's pointer, if any."""

    entry: HistoryEntry
    pointer: TurnRecord | None = None


class DocumentStore(Protocol):
    """A scope's texts, changed by compare-and-set."""

    async def read(self, scope: str, name: str) -> ScopeDocument:
        """Return the current text."""

    async def write(
        self, scope: str, name: str, text: str, *, was: str, why: str, by: str = "", beside: HistoryUpdate | None = None
    ) -> ScopeDocument | None:
        """Replace the text if its rev is still *was*, and store *beside*; return None after a concurrent change.

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

    async def keep_raw(
        self, scope: str, entry: HistoryEntry, messages: Sequence[Any], *, pointer: TurnRecord | None = None
    ) -> HistoryEntry:
        """Store messages that no model could summarise, *entry*, which names their range, and their *pointer*.

        Idempotent by the entry's id.
        """

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


BYTES = "bytes"  # the folder of a scope that has the bytes of its large files, where they are in the home


MEDIUM = "medium"  # a picture, a recording or a film


class FileKind(StrEnum):
    """The use of a file. Names are unique within a scope and a kind."""

    ATTACHMENT = "attachment"  # received or sent; the name is the SHA-256 of its bytes, and so with the next two
    TEXT = "text"  # of a prompt snapshot
    RESULT = "result"  # of a tool, longer than a page
    WORKSPACE = "workspace"
    DELETED = "deleted"  # replaced or deleted in the workspace; the name is the id that restores it
    CALL = "call"  # a finished call that changed the workspace, by its id; it has no bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class ScopeFile:
    """A file of a scope. The store sets *digest*, *size* and *place* from the bytes."""

    kind: FileKind
    name: str
    at: datetime  # of its last change, or of its last use for kinds that are named by their bytes
    is_untrusted: bool = False  # a call wrote it that untrusted text may have caused
    original: str = ""  # what a DELETED file was called; a CALL may name a file; MEDIUM of an ATTACHMENT without text
    digest: str = ""  # SHA-256, hexadecimal
    size: int = 0  # bytes
    place: str = ""  # of the bytes; another one whenever they are written


@dataclass(frozen=True, slots=True, kw_only=True)
class ScopeFileChange:
    """A change of one file.

    *was* is the file as it was read; None = no file has the name of *now*. *now* is the file after the change, which
    may have another kind and name; None = it is removed. *data* are its new bytes; None = those of *was*.
    """

    was: ScopeFile | None = None
    now: ScopeFile | None = None
    data: bytes | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class FileTotal:
    """Number and size of files."""

    count: int = 0
    size: int = 0  # bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class FileLimit:
    """Limit of the files of *kinds* after a change: *count* for each kind, *size* for all together."""

    kinds: Collection[FileKind]
    count: int
    size: int  # bytes


class FilesFull(ParlourError):
    """A change would exceed a limit. *totals* are those of its kinds before the change."""

    def __init__(self, totals: Mapping[FileKind, FileTotal]) -> None:
        super().__init__("the files of this scope have reached their limit")
        self.totals = totals


CACHE = "memory-cache.db"  # begins the names of the files that said how a home's copy compared with the database


@dataclass(frozen=True, slots=True, kw_only=True)
class EarlierFile:
    """A file of a scope."""

    path: str  # within the scope's folder
    size: int  # bytes
    modified: int  # nanoseconds since 1970
    object: str = ""  # the object that has the content; empty = the database has it


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryProposal:
    """A stored change. `body` is JSON, with the `session` and the `person` that are asked, where there are any."""

    name: str  # identifies it in its scope
    at: datetime
    expires_at: datetime
    body: Mapping[str, Any]


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


Meant: TypeAlias = Callable[[str, bytes], bool]  # (channel, stored bytes)


FACTS_EXPIRE = timedelta(days=30)  # what was learned is tried again then: providers change


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelFact:
    """One fact. There is one of each name for a model; nothing in it is about a person."""

    model: str  # and the digest of its server's address (agent/llm/chat_model.py, `SupportsFacts`)
    name: str  # of an ability that it lacks, "window" or "calls_as_text"
    value: str = ""
    at: datetime  # when it was learned
