"""Read the ends of a home's transcripts, which a store that has lost its newest turns does not know. Blocks."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from agent.memory.scopes import list_scopes, scope_folder, transcript_path
from agent.memory.storage.disk import Disk
from agent.memory.storage.segments import SegmentChain, archive_of
from agent.memory.storage.transcript_lines import decode, kind_of, parse_time
from agent.memory.storage.transcript_reader import TranscriptBlock, read_tail
from gateway.ports import SessionRow

_RECORDS = 8  # read from the end of a transcript: enough to include the last one with messages
_EPOCH, _MICROSECOND = datetime(1970, 1, 1, tzinfo=UTC), timedelta(microseconds=1)
NEWEST_SESSIONS = 50  # checked at start: a journal loses the turns of recently used sessions


@dataclass(frozen=True, slots=True)
class TranscriptTurn:
    """A turn that answered messages, in the transcript of a session."""

    key: str
    turn: str
    at: int  # microseconds since 1970


@dataclass(frozen=True, slots=True)
class TranscriptEnd:
    """The end of a session's transcript."""

    session: SessionRow
    next_index: int  # 0 if the transcript is not the one that the store names
    newest: TranscriptTurn | None

    @property
    def is_ahead(self) -> bool:
        """Return True if the store would give indices of stored messages again.

        A turn is durable in the store before it is in a file, so a crash alone cannot cause this.
        """
        return self.next_index > self.session.next_index


def read_ends(home: Path, sessions: Iterable[SessionRow]) -> Iterator[TranscriptEnd]:
    """Yield the end of the transcript of each session."""
    disk = Disk()
    for row in sessions:
        chain = SegmentChain(disk, transcript_path(home, row.scope, str(row.key)), row.transcript)
        blocks = read_tail(chain, _RECORDS)
        is_named = chain.transcript == row.transcript
        yield TranscriptEnd(row, _next_index(blocks) if is_named else 0, _newest(str(row.key), blocks))


def read_turns(home: Path) -> Iterator[TranscriptTurn]:
    """Yield every turn that answered messages, of all transcripts of *home*. Reads all of their bytes."""
    for scope in ("", *list_scopes(home)):
        for path in sorted((scope_folder(home, scope) / "sessions").glob("*.jsonl")):
            key = ""
            for raw in path.read_bytes().split(b"\n"):
                line = decode(raw) if b'"kind"' in raw else None
                if line is None:
                    continue
                if kind_of(line) == "head":
                    key = str(line.get("key", ""))
                elif (turn := _answering_turn(key, line)) is not None:
                    yield turn


def fit_session(home: Path, row: SessionRow, new_transcript: Callable[[], str]) -> SessionRow:
    """Return *row* corrected from its files, so that the next turn gets indices that no stored turn has."""
    path = transcript_path(home, row.scope, str(row.key))
    chain = SegmentChain(Disk(), path, row.transcript)
    if chain.transcript == row.transcript:
        return replace(row, next_index=max(row.next_index, _next_index(read_tail(chain, _RECORDS))))
    if archive_of(path, row.transcript) is None:
        return row
    # The journal lost the /new that archived the transcript.
    if chain.transcript:
        return replace(row, transcript=chain.transcript, next_index=_next_index(read_tail(chain, _RECORDS)))
    return replace(row, transcript=new_transcript(), next_index=0)


def _next_index(blocks: Sequence[TranscriptBlock]) -> int:
    return max((block.to_index for block in blocks), default=0)


def _newest(key: str, blocks: Sequence[TranscriptBlock]) -> TranscriptTurn | None:
    turns = (_answering_turn(key, block.lines[-1]) for block in reversed(blocks))
    return next((turn for turn in turns if turn is not None), None)


def _answering_turn(key: str, line: Mapping[str, Any]) -> TranscriptTurn | None:
    """Return the turn that *line* ends; None for another line, and for a turn without messages of the inbox.

    Imported turns are such: the store has no record of them.
    """
    at = parse_time(line.get("at"))
    if kind_of(line) != "end" or not line.get("inbox") or at is None:
        return None
    return TranscriptTurn(key, str(line.get("turn", "")), (at - _EPOCH) // _MICROSECOND)
