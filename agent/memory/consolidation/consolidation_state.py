"""State of `MemoryStore`'s consolidations: one file per session in the scope's memory folder.

A model's answer is stored before it is applied, so that a crash does not make it be paid for twice.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from hashlib import sha256
from pathlib import Path
from typing import Any

from agent.memory.consolidation.consolidator import StoredAnswer
from agent.memory.messages.message_range import Message, TranscriptRange
from agent.memory.model_calls import outage_delay
from agent.memory.scopes import PENDING, quote
from agent.memory.storage.disk import Disk
from agent.memory.storage.transcript_lines import decode, format_time, parse_time

_WAITS = (timedelta(0), timedelta(minutes=5))  # after the first failure, after the second


@dataclass(frozen=True, slots=True, kw_only=True)
class ConsolidationState:
    """Progress of the consolidation of one session."""

    failures: int = 0  # bad answers in a row
    outages: int = 0  # calls in a row that the model did not answer
    length: int = 0  # messages there were at the last failure
    retry_at: datetime | None = None
    answer: StoredAnswer | None = None
    done: TranscriptRange | None = None  # in the history or the raw archive; the session's pointer follows

    def failed(self, at: datetime, length: int) -> ConsolidationState:
        """Return the state after one more failure."""
        wait = _WAITS[min(self.failures, len(_WAITS) - 1)]
        return dataclasses.replace(self, failures=self.failures + 1, outages=0, length=length, retry_at=at + wait)

    def unanswered(self, at: datetime, length: int) -> ConsolidationState:
        """Return the state after one more call that the model did not answer, which is not a failure of its answers."""
        retry_at = at + outage_delay(self.outages + 1)
        return dataclasses.replace(self, outages=self.outages + 1, length=length, retry_at=retry_at)

    def waits(self, at: datetime, length: int) -> bool:
        """Return True if the next attempt is not due yet; a call about the same messages is a deliberate retry."""
        return self.retry_at is not None and at < self.retry_at and length != self.length


class ConsolidationStateStore:
    """The states of a scope's sessions, on the disk. Blocks."""

    def __init__(self, folder: Path, disk: Disk) -> None:
        self._folder = folder
        self._disk = disk

    def load(self, session: str) -> ConsolidationState:
        """Return the session's state; a file that cannot be read is an empty one, which costs one call."""
        data = self._disk.load(self._path(session))
        record = decode(data) if data is not None else None
        if record is None or record.get("session") != session:
            return ConsolidationState()
        try:
            answer, done = record.get("answer"), record.get("done")
            return ConsolidationState(
                failures=int(record.get("failures", 0)),
                outages=int(record.get("outages", 0)),
                length=int(record.get("length", 0)),
                retry_at=parse_time(record.get("retry_at")),
                answer=StoredAnswer(**answer) if answer else None,
                done=TranscriptRange(**done) if done else None,
            )
        except (TypeError, ValueError):
            return ConsolidationState()

    def save(self, session: str, state: ConsolidationState) -> None:
        """Store the state, durably and whole. Raises OSError."""
        line: dict[str, Any] = {"v": 1, "session": session, **dataclasses.asdict(state)}
        line["retry_at"] = format_time(state.retry_at) if state.retry_at else None
        self._disk.replace(self._path(session), json.dumps(line, separators=(",", ":")).encode() + b"\n")

    def _path(self, session: str) -> Path:
        return self._folder / PENDING / f"{quote(session)}.json"


def name_of(session: str, messages: Sequence[Message]) -> str:
    """Return a name for exactly these messages of a session, where no transcript has given it one."""
    said = json.dumps([session, [dict(message) for message in messages]], sort_keys=True, default=str)
    return "m" + sha256(said.encode("utf-8", "surrogatepass")).hexdigest()[:32]
