"""From bytes to records: which turns a stretch of a transcript holds, whatever happened to it.

A turn without its `end` line is not there. A line that cannot be read costs that line alone: where it
stood in the place of an `end`, the turn before it counts.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from agent.memory.storage.transcript_lines import decode, kind_of
from gateway.ports import Line


@dataclass(frozen=True, slots=True)
class TranscriptBlock:
    """One record as it stands in the file, its `end` line last."""

    turn: str
    lines: tuple[Line, ...]
    offset: int  # of its first line
    from_index: int
    to_index: int  # exclusive; equal to from_index when no message is in it
    snapshot: int = -1  # offset of its last snapshot line


@dataclass(slots=True)
class ParsedBlocks:
    """What a stretch of a transcript holds."""

    blocks: list[TranscriptBlock] = field(default_factory=list)
    bad: list[bytes] = field(default_factory=list)  # whole lines that are none
    complete: int = 0  # offset behind the last record that is there
    head: Line | None = None


def parse(data: bytes, base: int) -> ParsedBlocks:
    """Read the bytes that begin at offset *base*, which must be the beginning of a record or of the file."""
    parser = _BlockParser(base)
    position = base
    *whole, _torn = data.split(b"\n")
    for raw in whole:
        parser.feed(raw, position)
        position += len(raw) + 1
    parser.finish(position)
    return parser.parsed


class _BlockParser:
    """Gathers lines into blocks."""

    def __init__(self, base: int) -> None:
        self.parsed = ParsedBlocks(complete=base)
        self._begin(base)

    def feed(self, raw: bytes, offset: int) -> None:
        """Take one line without its newline."""
        after = offset + len(raw) + 1
        line = decode(raw) if raw.strip() else {"kind": "blank"}
        if line is None:
            self.parsed.bad.append(raw)
            self._hole = offset if self._lines else -1
        elif kind_of(line) == "end" and isinstance(line.get("turn"), str):
            self._close_at_hole(line["turn"])
            self._lines.append(line)
            self._close(line["turn"], after)
            return
        elif kind_of(line) not in ("head", "blank"):
            self._take(line, offset)
        elif self.parsed.head is None and kind_of(line) == "head":
            self.parsed.head = line
        if not self._lines:
            self._begin(after)
            self.parsed.complete = after

    def finish(self, position: int) -> None:
        """Say that nothing follows."""
        if self._hole >= 0 and self._turn:
            self._close(self._turn, position)

    def _take(self, line: Line, offset: int) -> None:
        turn = line.get("turn")
        if isinstance(turn, str):
            self._close_at_hole(turn)
            self._turn = turn
        self._hole = -1
        if not self._lines:
            self._start = offset
        if kind_of(line) == "snapshot":
            self._snapshot = offset
        self._lines.append(line)

    def _close_at_hole(self, turn: str) -> None:
        """An unreadable line between two turns was the first one's `end`."""
        if self._hole >= 0 and self._turn and turn != self._turn:
            self._close(self._turn, self._hole)

    def _begin(self, offset: int) -> None:
        self._lines: list[Line] = []
        self._start = offset
        self._snapshot = self._hole = -1
        self._turn = ""

    def _close(self, turn: str, after: int) -> None:
        lines = tuple(line for line in self._lines if line.get("turn", turn) == turn)
        low, high = _reach(lines)
        self.parsed.blocks.append(TranscriptBlock(turn, lines, self._start, low, high, self._snapshot))
        self.parsed.complete = after
        self._begin(after)


def _reach(lines: Sequence[Line]) -> tuple[int, int]:
    """Return the first index of a block and the one behind its last."""
    end = lines[-1] if lines else {}
    low, high = end.get("from"), end.get("to")
    if isinstance(low, int) and isinstance(high, int):
        return low, high
    indices = [line["i"] for line in lines if kind_of(line) == "message"]
    return (min(indices), max(indices) + 1) if indices else (0, 0)
