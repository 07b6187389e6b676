"""Imported conversations as transcripts of ours: archives beside the living ones, found by search and by /forget."""

from __future__ import annotations

import hashlib
from base64 import b32encode
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from agent.memory.importers.import_data import Message
from agent.memory.messages.message_range import UNTRUSTED
from agent.memory.storage import transcript_lines as build
from agent.memory.storage.transcript_lines import encode, kind_of, parse_time
from gateway.ports import Line, MessageOutcome

_FULL = 200  # messages of a summarised part that stand in one record
_FIELDS = ("tool_calls", "tool_call_id", "name", "tools_used", "by")


@dataclass(frozen=True, slots=True, kw_only=True)
class ImportedTurn:
    """What is stored at once: messages from one of a person's on, and the fingerprints they are known by."""

    messages: Sequence[Message]
    digests: Sequence[str]

    @property
    def turn(self) -> str:
        """Its turn's id: the same for the same messages."""
        return f"t{name_of(*self.digests)}"


def split_into_turns(messages: Sequence[Message], digests: Sequence[str], consolidated: int) -> Iterator[ImportedTurn]:
    """Cut where a person began to speak; what is summarised is cut more roughly, and never together with more."""
    start = 0
    for n in range(1, len(messages) + 1):
        is_cut = n == len(messages) or n == consolidated
        if not is_cut and messages[n]["role"] == "user":
            is_cut = n > consolidated or n - start >= _FULL
        if is_cut:
            yield ImportedTurn(messages=messages[start:n], digests=digests[start:n])
            start = n


def name_of(*digests: str) -> str:
    """Return 16 base32 characters that stand for these things."""
    return b32encode(hashlib.sha256(" ".join(digests).encode()).digest()).decode("ascii").lower()[:16]


def as_lines(
    piece: ImportedTurn, start: int, at: datetime, *, system: str, consolidated: int | None = None
) -> tuple[Line, ...]:
    """Return the piece's lines from index *start* on; with *consolidated*, a pointer before the end."""
    lines: list[Line] = []
    for n, message in enumerate(piece.messages):
        moment = parse_time(message.get("timestamp")) or at
        fields: dict[str, Any] = {name: message[name] for name in _FIELDS if message.get(name)}
        # What tools of another program returned may be anybody's words.
        fields["origin"] = {"user": "user", "tool": UNTRUSTED}.get(message["role"])
        lines.append(build.message(start + n, piece.turn, message["role"], message["content"], moment, **fields))
    stop = start + len(piece.messages)
    if consolidated is not None:
        lines.append(build.pointer(consolidated))
    end = build.end_line(
        piece.turn,
        from_index=start,
        to_index=stop,
        inbox=[],
        outcome=MessageOutcome.ANSWERED,
        at=_last(piece.messages) or at,
        imported=system,
    )
    return (*lines, end)


def as_archive(
    transcript: str, key: str, found: Sequence[ImportedTurn], consolidated: int, at: datetime, *, system: str
) -> bytes:
    """Return a whole transcript that has ended."""
    created = next((moment for each in found if (moment := _first(each.messages))), at)
    data = bytearray(encode(build.head_line(transcript, key, created)))
    index = 0
    for each in found:
        own, stop = len(data), index + len(each.messages)
        pointer = consolidated if stop == consolidated else None
        for line in as_lines(each, index, at, system=system, consolidated=pointer):
            is_pointer = kind_of(line) == "pointer"
            data += encode({**line, "replay_from": stop, "offset": own} if is_pointer else line)
        index = stop
    return bytes(data)


def _first(messages: Sequence[Message]) -> datetime | None:
    return next((at for each in messages if (at := parse_time(each.get("timestamp")))), None)


def _last(messages: Sequence[Message]) -> datetime | None:
    return _first(list(reversed(messages)))
