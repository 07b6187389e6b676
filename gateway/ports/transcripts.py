"""Turns as they are stored, for as long as they are kept."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Protocol

from gateway.events import SessionKey

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
class TranscriptExtent:
    """The stored part of a transcript up to a turn."""

    size: int = 0  # bytes of all bodies
    first_at: datetime | None = None  # time of the first turn; None without any
    last: bytes = b""  # body of the last turn
    last_turn: str = ""
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


class TranscriptStore(Protocol):
    """The turns of every scope. Methods return when a write is durable, and raise StoreUnavailable otherwise."""

    async def window(self, scope: str, key: SessionKey, transcript: str) -> StoredWindow:
        """Return the turns from the last replay start of *transcript* on."""

    async def newest(
        self, scope: str, key: SessionKey, limit: int, *, before: int | None = None, transcript: str = ""
    ) -> Sequence[StoredTurn]:
        """Return at most *limit* turns of *key*, the oldest first: the newest ones, or those with a lower seq.

        With *transcript*, only turns of it. At least one is returned if there is one, and otherwise at most a few
        megabytes.
        """

    async def messages(self, scope: str, key: SessionKey, transcript: str, low: int, high: int) -> Sequence[StoredTurn]:
        """Return the turns of *transcript* that have messages with ``low <= i < high``.

        Turns after them that replace or delete messages come too.
        """

    async def since(self, scope: str, key: SessionKey, transcript: str, after: int) -> Sequence[StoredTurn]:
        """Return some turns of *transcript* with a seq higher than *after*, in order; none at the end."""

    async def find(self, scope: str, key: SessionKey, turn: str) -> StoredTurn | None:
        """Return one turn of *key*; None if it is not stored."""

    async def transcripts(self, scope: str, key: SessionKey) -> Sequence[str]:
        """Return the transcripts of *key*, in the order they began."""

    async def scan(
        self, scope: str, *, keys: Collection[SessionKey] | None = None, after: tuple[str, int] | None = None
    ) -> Sequence[StoredTurn]:
        """Return some turns of *scope* by session and seq, those behind *after*; none at the end."""

    async def sessions(self, scope: str) -> Mapping[SessionKey, int]:
        """Return the sessions that have turns in *scope*, or had until recently, with the number of the first."""

    async def heads(self, scope: str, after: Mapping[SessionKey, int]) -> Sequence[TranscriptHead]:
        """Return the last turn of each transcript of *scope* with turns behind those that *after* has of its session.

        Turns of a session are committed in the order of their seqs, so that no lower one appears later.
        """

    async def count(self, scope: str) -> tuple[int, datetime | None]:
        """Return the number of transcripts of *scope*, and the time of its oldest turn; None without any."""

    async def changes(self, scope: str) -> Mapping[tuple[SessionKey, str], int]:
        """Return the number of changes and removals of stored turns in each transcript that had any."""

    async def rewrite(
        self,
        scope: str,
        change: Callable[[bytes], bytes],
        *,
        keys: Collection[SessionKey] | None = None,
        may_change: Callable[[bytes], bool] = lambda _: True,
    ) -> int:
        """Apply *change* to every line of *scope*, of each session in order; return the number of changed lines.

        Their transcripts are stale then. *change* runs in a thread, and again for a turn that was changed at the same
        time. A line that it returns empty is removed. Turns for whose lines *may_change* returns False are passed over.
        """

    async def visit(self, scope: str, see: Callable[[bytes], bool]) -> None:
        """Call *see* with the lines of each turn of *scope*, by session and seq, until it returns False.

        It runs in a thread.
        """

    async def remove(self, scope: str, *, keys: Collection[SessionKey] | None = None) -> int:
        """Remove the turns of *scope*, or of some of its sessions; return their number."""

    async def move(self, source: str, target: str, *, keys: Collection[SessionKey] | None = None) -> None:
        """Give the turns of *source*, or of some of its sessions, to *target*, some at a time. Idempotent."""

    async def lapse(self, scope: str, before: datetime, blank: Callable[[bytes], bytes]) -> int:
        """Remove the turns of *scope* that ended before a time; return their number.

        In a current transcript, those stay that hold its snapshots and replay starts, with their lines as *blank*
        returns them.
        """

    async def extent(
        self, scope: str, key: SessionKey, transcript: str, *, before: int | None = None
    ) -> TranscriptExtent:
        """Return the extent of *transcript*, or of its turns with a seq lower than *before*."""

    async def stale_files(self, scope: str | None = None) -> Sequence[StaleFile]:
        """Return the stale transcripts of *scope*; without it, those of the chats of this gateway."""

    async def drop_stale(self, file: StaleFile) -> None:
        """Note that *file* was written again, unless its transcript was changed since."""

    async def mirror(self) -> str:
        """Return the name of the home's mirror that the stale files are about; "" before the first."""

    async def begin_mirror(self, name: str, *, is_whole: bool) -> None:
        """Have the stale files be about the mirror *name*: all of them, or with *is_whole* none."""

    async def adopt(self, scope: str, key: SessionKey, turns: Sequence[StoredTurn], *, in_files: bool = False) -> int:
        """Store the turns of *key* that are not stored, or not with their lines; return their number.

        Their files are stale then, unless the turns come from there (*in_files*): then a chat without a session
        continues the last transcript, and turns that are stored get the lines of their files. Files are never older
        than a store that adopts, but for stale ones.

        *turns* are in order; their seqs have no meaning. Turns before the first known one come before all others. Those
        of a stale transcript are adopted behind its last known one only: the others were removed from the store.
        """

    async def is_adopted(self) -> bool:
        """Return True if the turns of an earlier release's files were adopted."""

    async def mark_adopted(self) -> None:
        """Note that all turns of an earlier release's files are stored."""


def anchor_index(line: Mapping[str, Any] | None) -> int:
    """Return the index that replay starts at according to a pointer or mark, 0 without one."""
    for name in ("replay_from", "last_consolidated"):
        value = line.get(name) if line else None
        if isinstance(value, int) and value > 0:
            return value
    return 0
