"""Read transcript files, whole or the tail, of a folder without a gateway and of earlier releases.

A turn without its `end` line is ignored. An unreadable line costs that line alone: in the place of an `end`, it ends
the turn before it.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field

from agent.memory.storage.segments import SegmentChain
from agent.memory.storage.transcript_lines import decode, kind_of
from gateway.ports import Line

TAIL_BYTES = 4 * 1024  # the first look at a file's end; each further look is half as wide again
_END = re.compile(rb'"kind"\s*:\s*"end"')


@dataclass(frozen=True, slots=True)
class TranscriptBlock:
    """One turn's lines in the file, its `end` line last."""

    turn: str
    lines: tuple[Line, ...]
    from_index: int
    to_index: int  # exclusive; equal to from_index when no message is in it


@dataclass(slots=True)
class ParsedBlocks:
    """The content of a part of a transcript."""

    blocks: list[TranscriptBlock] = field(default_factory=list)
    bad: list[bytes] = field(default_factory=list)  # lines that cannot be decoded
    complete: int = 0  # offset behind the last complete turn
    head: Line | None = None


def consolidated_index(anchor: Line | None) -> int:
    """Return the number of summarised messages according to a pointer or mark, 0 without one."""
    value = anchor.get("last_consolidated") if anchor else None
    return value if isinstance(value, int) and value > 0 else 0


def read_all(chain: SegmentChain) -> ParsedBlocks:
    """Read the whole transcript, however long."""
    return parse_blocks(chain.read(0, chain.end), 0)


def read_tail(chain: SegmentChain, enough: int, *, at_most: int = 4 * 1024 * 1024) -> list[TranscriptBlock]:
    """Return the newest turns: at least *enough* of them, unless there are fewer or *at_most* bytes are read."""
    data, low, width = b"", chain.end, TAIL_BYTES
    while low > 0 and len(data) < at_most:
        start = max(low - width, 0)
        data = chain.read(start, low) + data
        low, width = start, width * 3 // 2
        if len(_END.findall(data)) > enough:
            break
    begin = chain.end - len(data)  # the first segments may have been deleted by age
    if low == 0:
        return parse_blocks(data, begin).blocks
    # The lines before the first `end` may be the second half of a turn.
    first = _END.search(data)
    skipped = data.find(b"\n", first.start()) + 1 if first else len(data)
    return parse_blocks(data[skipped:], begin + skipped).blocks


# -- parsing ---------------------------------------------------------------------------------------


def parse_blocks(data: bytes, base: int) -> ParsedBlocks:
    """Parse bytes from offset *base*, which must be the beginning of a turn or of the file."""
    parser = _BlockParser(base)
    position = base
    *lines, _torn = data.split(b"\n")
    for raw in lines:
        parser.feed(raw, position)
        position += len(raw) + 1
    parser.finish(position)
    return parser.parsed


class _BlockParser:
    """Groups lines into blocks."""

    def __init__(self, base: int) -> None:
        self.parsed = ParsedBlocks(complete=base)
        self._begin()

    def feed(self, raw: bytes, offset: int) -> None:
        """Parse one line, without its newline."""
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
            self._take(line)
        elif self.parsed.head is None and kind_of(line) == "head":
            self.parsed.head = line
        if not self._lines:
            self._begin()
            self.parsed.complete = after

    def finish(self, position: int) -> None:
        """Complete the last block; nothing follows."""
        if self._hole >= 0 and self._turn:
            self._close(self._turn, position)

    def _take(self, line: Line) -> None:
        turn = line.get("turn")
        if isinstance(turn, str):
            self._close_at_hole(turn)
            self._turn = turn
        self._hole = -1
        self._lines.append(line)

    def _close_at_hole(self, turn: str) -> None:
        """Treat an unreadable line between two turns as the `end` of the first."""
        if self._hole >= 0 and self._turn and turn != self._turn:
            self._close(self._turn, self._hole)

    def _begin(self) -> None:
        self._lines: list[Line] = []
        self._hole = -1
        self._turn = ""

    def _close(self, turn: str, after: int) -> None:
        lines = tuple(line for line in self._lines if line.get("turn", turn) == turn)
        low, high = _index_range(lines)
        self.parsed.blocks.append(TranscriptBlock(turn, lines, low, high))
        self.parsed.complete = after
        self._begin()


def _index_range(lines: Sequence[Line]) -> tuple[int, int]:
    """Return the first index of a block and the one after its last."""
    end = lines[-1] if lines else {}
    low, high = end.get("from"), end.get("to")
    if isinstance(low, int) and isinstance(high, int):
        return low, high
    indices = [line["i"] for line in lines if kind_of(line) == "message"]
    return (min(indices), max(indices) + 1) if indices else (0, 0)
