"""Append turns to a transcript: one write per turn, with byte offsets; a torn tail is saved and cut off first."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from pathlib import Path

from agent.memory.storage import transcript_lines as build
from agent.memory.storage.disk import Disk, save_corrupt
from agent.memory.storage.segments import SegmentChain, archive_path, segment_path
from agent.memory.storage.transcript_lines import encode, kind_of
from agent.memory.storage.transcript_reader import anchor_index, read_window, turns_in_tail
from gateway.ports import Line, TurnRecord

SEGMENT_BYTES = 8 * 1024 * 1024
_KNOWN_STARTS = 4_096  # turns since the replay start whose offsets are kept; marks are more frequent


@dataclass(frozen=True, slots=True, kw_only=True)
class TranscriptEntry:
    """The lines of one turn, its `end` last, which are appended in one write."""

    turn: str
    lines: Sequence[Line]
    from_index: int
    to_index: int
    at: datetime


def entry_of(record: TurnRecord) -> TranscriptEntry:
    """Return the record's lines; adds an `end` if it is missing, because readers ignore a turn without one."""
    last = record.lines[-1] if record.lines else {}
    lines = record.lines
    if kind_of(last) != "end" or last.get("turn") != record.turn:
        end = build.end_line(
            record.turn,
            from_index=record.from_index,
            to_index=record.to_index,
            inbox=[str(seq) for seq in record.inbox],
            outcome=str(record.outcome),
            at=record.at,
        )
        lines = (*lines, end)
    return TranscriptEntry(
        turn=record.turn, lines=lines, from_index=record.from_index, to_index=record.to_index, at=record.at
    )


@dataclass(slots=True)
class _WriterPosition:
    """Offsets that change with each turn, once it is written."""

    end: int  # offset of the next record
    snapshot: int = -1  # offset of the last snapshot line
    anchor: int = 0  # offset of the replay start
    replay_from: int = 0  # and its index
    starts: list[tuple[int, int, int]] = field(default_factory=list)  # (from, to, offset) since the replay start


class TranscriptWriter:
    """One transcript, open for appending. Blocks; not thread-safe; one process may write a home's transcripts.

    After an OSError, discard the object and create another, which reads the file again.
    """

    def __init__(
        self,
        disk: Disk,
        path: Path,
        transcript: str,
        key: str,
        *,
        unsure: frozenset[str] = frozenset(),
        segment_bytes: int = SEGMENT_BYTES,
    ) -> None:
        """Open *path*; *unsure* are turns that may have been written before a crash."""
        self.path = path
        self._key = key
        self._disk = disk
        self._segment_bytes = segment_bytes
        self._fd: int | None = None
        self.transcript = transcript
        self._segment = 0
        self._base = 0  # bytes in earlier segments
        self._turns: set[str] = set()  # turns that may be appended a second time
        self._reached = _WriterPosition(0)
        self._synced = 0
        self._load(unsure)

    @property
    def is_open(self) -> bool:
        """True if a file descriptor is held."""
        return self._fd is not None

    @property
    def size(self) -> int:
        """The transcript's length in bytes, earlier segments included."""
        return self._reached.end

    def append(self, entry: TranscriptEntry) -> bool:
        """Write *entry*; return False if its turn is in the file already. Durable after `sync`."""
        if entry.turn in self._turns:
            return False
        if self._reached.end - self._base >= self._segment_bytes:
            self._roll()
        head = b"" if self._reached.end > self._base else self._head(entry.at)
        body, reached = self._render(entry, self._reached.end + len(head))
        try:
            self._disk.write(self._open(), head + body)
        except OSError:
            self._roll_back(self._reached.end)
            raise
        self._reached = reached
        self._turns.add(entry.turn)
        return True

    def sync(self) -> None:
        """Flush the appended turns to the disk."""
        if self._synced == self._reached.end:
            return
        try:
            self._disk.sync(self._open())
        except OSError:
            # After a failed fsync, cached data may not be on the disk: it must be written again.
            self._roll_back(self._synced)
            raise
        self._synced = self._reached.end

    def confirm(self) -> None:
        """Note that none of the turns written so far will be appended again."""
        self._turns.clear()

    def close(self) -> None:
        """Close the file descriptor; appending opens it again."""
        if self._fd is not None:
            fd, self._fd = self._fd, None
            self._disk.close(fd)

    def archive(self, turn: str) -> None:
        """Flush, then rename the file to its archive, which *turn* (a /new) names. Idempotent."""
        self.sync()
        self.close()
        if self._disk.size(self.path) is not None:
            self._disk.rename(self.path, archive_path(self.path, self.transcript, turn))

    # -- inside ------------------------------------------------------------------------------------

    def _head(self, created: datetime) -> bytes:
        return encode(build.head_line(self.transcript, self._key, created, segment=self._segment, base=self._base))

    def _render(self, entry: TranscriptEntry, offset: int) -> tuple[bytes, _WriterPosition]:
        """Return the entry's bytes for *offset*, and the position after them."""
        before = self._reached
        reached = replace(before, end=offset)
        if entry.to_index > entry.from_index:
            reached.starts = [*before.starts[-_KNOWN_STARTS:], (entry.from_index, entry.to_index, offset)]
        pieces = []
        for line in entry.lines:
            kind = kind_of(line)
            if kind == "snapshot":
                reached.snapshot = reached.end
            pieces.append(encode(self._add_offsets(line, reached, offset) if kind in ("pointer", "mark") else line))
            reached.end += len(pieces[-1])
        return b"".join(pieces), reached

    @staticmethod
    def _add_offsets(line: Line, position: _WriterPosition, turn_offset: int) -> Line:
        """Return the line with the byte offsets of the replay start and of the snapshot."""
        index = max(anchor_index(line), position.replay_from)  # the window never moves back
        if not position.starts or index >= position.starts[-1][1]:
            position.anchor = turn_offset
        for low, high, start in position.starts:
            if low <= index < high:
                index, position.anchor = low, start
        # An index before the known turns keeps the old offset: readers read more, and miss nothing.
        position.replay_from = index
        position.starts = [each for each in position.starts if each[1] > index]
        snapshot = {"snapshot": position.snapshot} if position.snapshot >= 0 else {}
        return {**line, "replay_from": index, "offset": position.anchor} | snapshot

    def _open(self) -> int:
        if self._fd is None:
            self._fd = self._disk.open_append(self.path)
        return self._fd

    def _roll(self) -> None:
        self.sync()
        self.close()
        self._segment += 1
        self._disk.rename(self.path, segment_path(self.path, self.transcript, self._segment))
        self._base = self._reached.end

    def _load(self, unsure: frozenset[str]) -> None:
        """Read the position and the unsure turns from the file; save corrupt bytes and cut off a torn tail."""
        chain = SegmentChain(self._disk, self.path, self.transcript)
        window = read_window(chain)
        torn = b"" if chain.is_rolled else chain.read(window.complete, chain.end)
        if window.bad or torn:
            save_corrupt(self._disk, self.path, [*window.bad, torn])
        if torn:
            self._disk.truncate(self._open(), window.complete - chain.base)
            self._disk.sync(self._open())
            if window.complete == chain.base:  # the head was torn too: look for earlier segments
                chain = SegmentChain(self._disk, self.path, self.transcript)
                window = read_window(chain)
        self.transcript = chain.transcript or self.transcript
        self._segment = chain.segment + (1 if chain.is_rolled else 0)
        self._base = chain.end if chain.is_rolled else chain.base
        in_doubt = turns_in_tail(chain, unsure) if unsure else {}
        self._turns = set(in_doubt)
        starts = [(each.from_index, each.to_index, each.offset) for each in window.blocks]
        self._reached = _WriterPosition(
            chain.end if chain.is_rolled else window.complete,
            window.snapshot_offset,
            window.anchor_offset,
            window.replay_from,
            [each for each in starts if each[1] > each[0]],
        )
        # The unsure turns were written, but may not be on the disk.
        self._synced = min([*in_doubt.values(), self._reached.end])

    def _roll_back(self, size: int) -> None:
        with contextlib.suppress(OSError):  # the next `_load` finds the torn tail
            if self._fd is not None:
                self._disk.truncate(self._fd, max(size - self._base, 0))
        with contextlib.suppress(OSError):
            self.close()
