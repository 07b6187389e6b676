"""Reading a transcript: a cold one costs its window, not its age (FORMATS.md, Transcript).

A transcript may stand in several segments; offsets count its bytes as if they were one file. A turn
without its `end` line is not there. A line that cannot be read costs that line alone: where it stood
in the place of an `end`, the turn before it counts.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import structlog

from agent.memory.files.disk import Disk
from agent.memory.files.lines import decode, kind_of
from gateway.ports import Line

log = structlog.get_logger(__name__)

TAIL_BYTES = 4 * 1024  # the first look at a file's end; each further look is half as wide again
LINE_BYTES = 512  # usually enough for a head or a snapshot line
LONGEST_LINE = 8 * 1024
_ANCHOR = re.compile(rb'"kind"\s*:\s*"(?:pointer|mark)"')
_END = re.compile(rb'"kind"\s*:\s*"end"')
_ARCHIVE = re.compile(r"[a-z2-7]{16}\.[a-z0-9]+\.jsonl\Z")


@dataclass(frozen=True, slots=True)
class Block:
    """One record as it stands in the file, its `end` line last."""

    turn: str
    lines: tuple[Line, ...]
    offset: int  # of its first line
    from_index: int
    to_index: int  # exclusive; equal to from_index when no message is in it
    snapshot: int = -1  # offset of its last snapshot line


@dataclass(slots=True)
class Parsed:
    """What a stretch of a transcript holds."""

    blocks: list[Block] = field(default_factory=list)
    bad: list[bytes] = field(default_factory=list)  # whole lines that are none
    complete: int = 0  # offset behind the last record that is there
    head: Line | None = None


def parse(data: bytes, base: int) -> Parsed:
    """Read the bytes that begin at offset *base*, which must be the beginning of a record or of the file."""
    parser = _Parser(base)
    position = base
    *whole, _torn = data.split(b"\n")
    for raw in whole:
        parser.feed(raw, position)
        position += len(raw) + 1
    parser.finish(position)
    return parser.parsed


class _Parser:
    """Gathers lines into blocks."""

    def __init__(self, base: int) -> None:
        self.parsed = Parsed(complete=base)
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
        self.parsed.blocks.append(Block(turn, lines, self._start, low, high, self._snapshot))
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


class Chain:
    """The bytes of one transcript over its segments; missing files are an empty one."""

    def __init__(self, disk: Disk, path: Path, transcript: str = "") -> None:
        self._disk = disk
        self._path = path
        self._parts: list[tuple[Path, int, int]] = []  # path, base, end; the newest first
        self.head: Line | None = None
        self.is_rolled = False  # the newest segment is full and the next one not begun
        self._open(path)
        if not self._parts and transcript:
            self._open_rolled(transcript)

    @property
    def transcript(self) -> str:
        """The id in the head, or an empty string."""
        return str(self.head.get("transcript", "")) if self.head else ""

    @property
    def base(self) -> int:
        """How many bytes stand before the newest segment."""
        return self._parts[0][1] if self._parts else 0

    @property
    def end(self) -> int:
        """How many bytes there are."""
        return self._parts[0][2] if self._parts else 0

    @property
    def segment(self) -> int:
        """The number of the newest segment, from 0."""
        return _whole(self.head, "segment")

    def read(self, start: int, end: int) -> bytes:
        """Return the bytes from *start* up to *end*."""
        pieces: list[bytes] = []
        n = 0
        while end > start:
            if n == len(self._parts) and not self._open_earlier():
                break
            path, base, upto = self._parts[n]
            n += 1
            if base < end and start < upto:
                low = max(start, base)
                pieces.append(self._disk.read(path, low - base, min(end, upto) - low))
                end = low
        return b"".join(reversed(pieces))

    def _open(self, path: Path) -> bool:
        size = self._disk.size(path)
        if not size:
            return False
        first = self._disk.read(path, 0, min(LINE_BYTES, size))
        if b"\n" not in first and size > LINE_BYTES:
            first = self._disk.read(path, 0, LONGEST_LINE)
        head = _head(first)
        base = _whole(head, "base")
        if not self._parts:
            self.head = head
        self._parts.append((path, base, base + size))
        return True

    def _open_rolled(self, transcript: str) -> None:
        number = 0
        while self._disk.size(segment_path(self._path, transcript, number + 1)) is not None:
            number += 1
        if number:
            self.is_rolled = self._open(segment_path(self._path, transcript, number))

    def _open_earlier(self) -> bool:
        """Open the segment before the oldest open one; a file that was lost reads as nothing."""
        number = self.segment - len(self._parts) + 1
        if number < 1 or self._parts[-1][1] == 0:
            return False
        return self._open(segment_path(self._path, self.transcript, number))


def segment_path(path: Path, transcript: str, number: int) -> Path:
    """Return where the *number*th full segment (from 1) of a transcript stands."""
    return path.with_name(f"{transcript}.{number:04d}.jsonl")


def archive_path(path: Path, transcript: str, turn: str) -> Path:
    """Return where a transcript goes when *turn* ends it."""
    return path.with_name(f"{transcript}.{turn}.jsonl")


def is_archive(path: Path) -> bool:
    """Say whether a file is a transcript that has ended, or a full segment of one."""
    return _ARCHIVE.match(path.name) is not None


def _head(data: bytes) -> Line | None:
    first, newline, _ = data.partition(b"\n")
    line = decode(first) if newline else None
    return line if line is not None and kind_of(line) == "head" else None


def _whole(line: Line | None, name: str) -> int:
    value = line.get(name, 0) if line else 0
    return value if isinstance(value, int) and value > 0 else 0


@dataclass(slots=True)
class Window:
    """A transcript from its replay start on, and what the projector has to know to go on."""

    blocks: list[Block]
    replay_from: int = 0
    anchor_at: int = 0  # the next index when the last pointer or mark was written
    anchor_offset: int = 0
    snapshot: Line | None = None  # the last one taken
    snapshot_offset: int = -1
    complete: int = 0
    bad: list[bytes] = field(default_factory=list)


def read_window(chain: Chain) -> Window:
    """Read backwards to the last pointer or mark of a finished turn, then from the offset it names."""
    anchor, data, low = _find_anchor(chain)
    start = anchor["offset"] if anchor else 0
    window = _window(chain, anchor, data, low, start)
    if window is not None:
        return window
    # Somebody edited the file by hand: its offsets lie, its lines do not.
    log.warning("transcript.offsets_wrong", transcript=chain.transcript)
    return _window(chain, anchor, b"", chain.end, 0) or Window([])


def _find_anchor(chain: Chain) -> tuple[Line | None, bytes, int]:
    """Return the last pointer or mark, and the bytes read meanwhile with the offset they begin at."""
    data, low, width = b"", chain.end, TAIL_BYTES
    while low > 0:
        start = max(low - width, 0)
        data = chain.read(start, low) + data
        low, width = start, width * 3 // 2
        anchor = _last_anchor(data, is_whole=low == 0)
        if anchor is not None:
            return anchor, data, low
    return None, data, low


def _last_anchor(data: bytes, *, is_whole: bool) -> Line | None:
    ends = [found.start() for found in _END.finditer(data)]
    for found in reversed(list(_ANCHOR.finditer(data, 0, ends[-1] if ends else 0))):
        begin = data.rfind(b"\n", 0, found.start()) + 1
        if begin == 0 and not is_whole:
            return None
        line = decode(data[begin : data.find(b"\n", found.start())])
        if line is not None and kind_of(line) in ("pointer", "mark") and _is_offset(line.get("offset")):
            return line
    return None


def _is_offset(value: object) -> bool:
    return isinstance(value, int) and value >= 0


def _window(chain: Chain, anchor: Line | None, data: bytes, low: int, start: int) -> Window | None:
    """Parse from *start*; None when no record begins there or the replay start is not behind it."""
    if start > chain.end:
        return None
    before = max(start - 1, 0)
    data = chain.read(before, low) + data if before < low else data[before - low :]
    if start:
        if data[:1] != b"\n":
            return None
        data = data[1:]
    parsed = parse(data, start)
    replay_from = anchor_index(anchor)
    spoken = [block for block in parsed.blocks if block.to_index > block.from_index]
    if start and spoken and spoken[0].from_index > replay_from:
        return None
    blocks = [block for block in parsed.blocks if block.to_index > replay_from or block.to_index == block.from_index]
    inside = next((block.from_index for block in blocks if block.from_index <= replay_from < block.to_index), None)
    window = Window(
        blocks,
        replay_from=replay_from if inside is None else inside,
        anchor_at=_anchored_at(parsed.blocks, replay_from),
        anchor_offset=start,
        complete=parsed.complete,
        bad=parsed.bad,
    )
    _find_snapshot(chain, window, anchor)
    return window


def anchor_index(anchor: Line | None) -> int:
    """Return the index that replay starts at, as far as a pointer or mark says; 0 where there is none.

    The projector adds `replay_from` to pointers: the beginning of the turn that holds them.
    """
    for name in ("replay_from", "last_consolidated"):
        value = anchor.get(name) if anchor else None
        if isinstance(value, int) and value > 0:
            return value
    return 0


def _anchored_at(blocks: Sequence[Block], default: int) -> int:
    """Return the next index at the time of the last pointer or mark."""
    for n in range(len(blocks) - 1, -1, -1):
        if any(kind_of(line) in ("pointer", "mark") for line in blocks[n].lines):
            return next((block.to_index for block in reversed(blocks[: n + 1]) if block.to_index), default)
    return default


def _find_snapshot(chain: Chain, window: Window, anchor: Line | None) -> None:
    for block in reversed(window.blocks):
        if block.snapshot >= 0:
            window.snapshot = next(line for line in reversed(block.lines) if kind_of(line) == "snapshot")
            window.snapshot_offset = block.snapshot
            return
    offset = anchor.get("snapshot") if anchor else None
    if not isinstance(offset, int) or not 0 <= offset < chain.end:
        return
    line = decode(chain.read(offset, offset + LONGEST_LINE).partition(b"\n")[0])
    if line is not None and kind_of(line) == "snapshot":
        window.snapshot, window.snapshot_offset = line, offset


def read_all(chain: Chain) -> Parsed:
    """Read the whole transcript, however long."""
    return parse(chain.read(0, chain.end), 0)


def read_tail(chain: Chain, enough: int, *, at_most: int = 4 * 1024 * 1024) -> list[Block]:
    """Return the newest records: at least *enough* of them if there are and *at_most* bytes hold them."""
    data, low, width = b"", chain.end, TAIL_BYTES
    while low > 0 and len(data) < at_most:
        start = max(low - width, 0)
        data = chain.read(start, low) + data
        low, width = start, width * 3 // 2
        if len(_END.findall(data)) > enough:
            break
    if low == 0:
        return parse(data, 0).blocks
    # What stands before the first `end` may be half a record.
    first = _END.search(data)
    begin = data.find(b"\n", first.start()) + 1 if first else len(data)
    return parse(data[begin:], low + begin).blocks if begin else []


def turns_in_tail(chain: Chain, unsure: frozenset[str]) -> dict[str, int]:
    """Return which turns of *unsure* stand in the file, and where; looks back to the first that is none of them.

    Records reach a file in commit order, so before that one there is nothing left in doubt.
    """
    enough = 8
    while True:
        blocks = read_tail(chain, enough)
        found = {block.turn: block.offset for block in blocks}
        if found.keys() - unsure or len(blocks) < enough or enough > 2 * len(unsure):
            return {turn: offset for turn, offset in found.items() if turn in unsure}
        enough *= 4


def set_aside(disk: Disk, path: Path, pieces: Sequence[bytes]) -> None:
    """Copy unreadable bytes into ``*.corrupt`` beside the transcript; said once, however often they are met."""
    beside = path.with_name(path.name + ".corrupt")
    known = disk.load(beside) or b""
    fresh = [piece for piece in dict.fromkeys(pieces) if piece.strip() and piece not in known]
    if not fresh:
        return
    fd = disk.open_append(beside)
    try:
        disk.write(fd, b"".join(piece.rstrip(b"\n") + b"\n" for piece in fresh))
        disk.sync(fd)
    finally:
        disk.close(fd)
    log.warning("transcript.set_aside", file=beside.name, pieces=len(fresh), bytes=sum(map(len, fresh)))
