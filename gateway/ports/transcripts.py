"""Turns as they are stored, for as long as they are kept."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

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
