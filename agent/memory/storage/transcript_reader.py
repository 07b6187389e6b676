"""Read transcripts: the window since the last replay start, the tail, or a range of messages.

The cost depends on the length of the window, not on the age of the transcript. A turn without its `end` line is
ignored. An unreadable line costs that line alone: in the place of an `end`, it ends the turn before it.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import structlog

from agent.memory.storage.disk import Disk
from agent.memory.storage.segments import LONGEST_LINE, SegmentChain, archive_of
from agent.memory.storage.transcript_lines import FORGOTTEN, decode, deleted_ids, is_replaced, kind_of
from gateway.ports import Line, TurnRecord

log = structlog.get_logger(__name__)

TAIL_BYTES = 4 * 1024  # the first look at a file's end; each further look is half as wide again
_ANCHOR = re.compile(rb'"kind"\s*:\s*"(?:pointer|mark)"')
_END = re.compile(rb'"kind"\s*:\s*"end"')
_KEPT_OF_REPLACED = ("i", "turn", "role", "timestamp", "by")


@dataclass(frozen=True, slots=True)
class TranscriptBlock:
    """One turn's lines in the file, its `end` line last."""

    turn: str
    lines: tuple[Line, ...]
    offset: int  # of its first line
    from_index: int
    to_index: int  # exclusive; equal to from_index when no message is in it
    snapshot: int = -1  # offset of its last snapshot line


@dataclass(slots=True)
class ParsedBlocks:
    """The content of a part of a transcript."""

    blocks: list[TranscriptBlock] = field(default_factory=list)
    bad: list[bytes] = field(default_factory=list)  # lines that cannot be decoded
    complete: int = 0  # offset behind the last complete turn
    head: Line | None = None


@dataclass(slots=True)
class TranscriptWindow:
    """A transcript from its replay start on, with the offsets that the writer needs to append."""

    blocks: list[TranscriptBlock]
    replay_from: int = 0
    anchor_at: int = 0  # the next index when the last pointer or mark was written
    consolidated: int = 0  # messages before it are in a summary
    anchor_offset: int = 0
    snapshot: Line | None = None  # the last one taken
    snapshot_offset: int = -1
    complete: int = 0
    bad: list[bytes] = field(default_factory=list)


def read_window(chain: SegmentChain) -> TranscriptWindow:
    """Read backwards to the last pointer or mark of a complete turn, then forwards from its offset."""
    anchor, data, low = _find_anchor(chain)
    start = anchor["offset"] if anchor else 0
    window = _window(chain, anchor, data, low, start)
    if window is not None:
        return window
    # The file was edited by hand: its offsets are wrong, its lines are still usable.
    log.warning("transcript.offsets_wrong", transcript=chain.transcript)
    return _window(chain, anchor, b"", chain.end, 0) or TranscriptWindow([])


def read_since(chain: SegmentChain, index: int) -> Sequence[TranscriptBlock]:
    """Return the turns from the one with the message *index* on."""
    anchor, data, low = _find_anchor(chain, index)
    window = _window(chain, anchor, data, low, anchor["offset"] if anchor else 0)
    return window.blocks if window is not None else read_all(chain).blocks


def _find_anchor(chain: SegmentChain, index: int | None = None) -> tuple[Line | None, bytes, int]:
    """Return the last pointer or mark, the bytes read to find it, and their offset.

    With *index*, the last one whose replay start is not after it.
    """
    data, low, width = b"", chain.end, TAIL_BYTES
    while low > 0:
        start = max(low - width, 0)
        data = chain.read(start, low) + data
        low, width = start, width * 3 // 2
        anchor = _last_anchor(data, index, is_whole=low == 0)
        if anchor is not None:
            return anchor, data, low
    return None, data, low


def _last_anchor(data: bytes, index: int | None, *, is_whole: bool) -> Line | None:
    ends = [found.start() for found in _END.finditer(data)]
    for found in reversed(list(_ANCHOR.finditer(data, 0, ends[-1] if ends else 0))):
        begin = data.rfind(b"\n", 0, found.start()) + 1
        if begin == 0 and not is_whole:
            return None
        line = decode(data[begin : data.find(b"\n", found.start())])
        if line is None or kind_of(line) not in ("pointer", "mark") or not _is_offset(line.get("offset")):
            continue
        if index is None or anchor_index(line) <= index:
            return line
    return None


def _is_offset(value: object) -> bool:
    return isinstance(value, int) and value >= 0


def _window(chain: SegmentChain, anchor: Line | None, data: bytes, low: int, start: int) -> TranscriptWindow | None:
    """Parse from *start*; None if no turn begins there, or the replay start is before it."""
    if start > chain.end:
        return None
    before = max(start - 1, 0)
    data = chain.read(before, low) + data if before < low else data[before - low :]
    if start:
        if data[:1] != b"\n":
            return None
        data = data[1:]
    parsed = parse_blocks(data, start)
    replay_from = anchor_index(anchor)
    with_messages = [block for block in parsed.blocks if block.to_index > block.from_index]
    if start and with_messages and with_messages[0].from_index > replay_from:
        return None
    blocks = [block for block in parsed.blocks if block.to_index > replay_from or block.to_index == block.from_index]
    inside = next((block.from_index for block in blocks if block.from_index <= replay_from < block.to_index), None)
    window = TranscriptWindow(
        blocks,
        replay_from=replay_from if inside is None else inside,
        anchor_at=_anchored_at(parsed.blocks, replay_from),
        consolidated=consolidated_index(anchor),
        anchor_offset=start,
        complete=parsed.complete,
        bad=parsed.bad,
    )
    _find_snapshot(chain, window, anchor)
    return window


def anchor_index(anchor: Line | None) -> int:
    """Return the index that replay starts at according to a pointer or mark, 0 without one.

    The writer adds `replay_from` to pointers: the first index of the turn that they are in.
    """
    for name in ("replay_from", "last_consolidated"):
        value = anchor.get(name) if anchor else None
        if isinstance(value, int) and value > 0:
            return value
    return 0


def consolidated_index(anchor: Line | None) -> int:
    """Return the number of summarised messages according to a pointer or mark, 0 without one."""
    value = anchor.get("last_consolidated") if anchor else None
    return value if isinstance(value, int) and value > 0 else 0


def _anchored_at(blocks: Sequence[TranscriptBlock], default: int) -> int:
    """Return the next index at the time of the last pointer or mark."""
    for n in range(len(blocks) - 1, -1, -1):
        if any(kind_of(line) in ("pointer", "mark") for line in blocks[n].lines):
            return next((block.to_index for block in reversed(blocks[: n + 1]) if block.to_index), default)
    return default


def _find_snapshot(chain: SegmentChain, window: TranscriptWindow, anchor: Line | None) -> None:
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


def read_all(chain: SegmentChain) -> ParsedBlocks:
    """Read the whole transcript, however long."""
    return parse_blocks(chain.read(0, chain.end), 0)


def read_tail(chain: SegmentChain, enough: int, *, at_most: int = 4 * 1024 * 1024) -> list[TranscriptBlock]:
    """Return the newest turns: at least *enough* of them, unless there are fewer or *at_most* bytes are read."""
    return _read_back(chain, chain.end, enough, at_most)[0]


def read_before(chain: SegmentChain, end: int, most: int) -> tuple[list[TranscriptBlock], int]:
    """Return the newest turns before the offset *end*, at most *most*, and the offset where they begin.

    The offset is 0 if none are before them. There is at least one unless none is left.
    """
    at_most = 4 * 1024 * 1024
    while True:
        blocks, is_whole = _read_back(chain, end, most, at_most)
        if len(blocks) > most:
            blocks, is_whole = blocks[-most:], False
        if blocks or is_whole:
            return blocks, 0 if is_whole else blocks[0].offset
        at_most *= 4


def _read_back(chain: SegmentChain, end: int, enough: int, at_most: int) -> tuple[list[TranscriptBlock], bool]:
    """Return turns as `read_tail`, but before *end*, and True if they begin the transcript."""
    end = min(end, chain.end)
    data, low, width = b"", end, TAIL_BYTES
    while low > 0 and len(data) < at_most:
        start = max(low - width, 0)
        data = chain.read(start, low) + data
        low, width = start, width * 3 // 2
        if len(_END.findall(data)) > enough:
            break
    begin = end - len(data)  # the first segments may have been deleted by age
    if low == 0:
        return parse_blocks(data, begin).blocks, True
    # The lines before the first `end` may be the second half of a turn.
    first = _END.search(data)
    skipped = data.find(b"\n", first.start()) + 1 if first else len(data)
    return (parse_blocks(data[skipped:], begin + skipped).blocks if skipped else []), False


def turns_in_tail(chain: SegmentChain, unsure: frozenset[str]) -> dict[str, int]:
    """Return the offsets of the *unsure* turns that are in the file.

    Reads back to the first other turn: turns are written in commit order, so the ones before it are certain.
    """
    enough = 8
    while True:
        blocks = read_tail(chain, enough)
        offsets = {block.turn: block.offset for block in blocks}
        if offsets.keys() - unsure or len(blocks) < enough or enough > 2 * len(unsure):
            return {turn: offset for turn, offset in offsets.items() if turn in unsure}
        enough *= 4


# -- messages by index ------------------------------------------------------------------------------


def read_messages(
    disk: Disk,
    path: Path,
    transcript: str,
    low: int,
    high: int,
    *,
    pending: Sequence[TurnRecord] = (),
    without_replaced: bool = False,
) -> list[Line]:
    """Return the message lines of *transcript* with ``low <= i < high``, in order. Blocks.

    *path* is the session's current transcript; *pending* are the records that are not projected yet, which the
    caller must read before the file. Deleted messages have the content FORGOTTEN. *without_replaced* empties the
    messages that were replaced by another version, so that nothing is derived from them.
    """
    messages: dict[int, Line] = {}
    deleted: set[str] = set()
    rewinds: list[Line] = []
    chain = _open_chain(disk, path, transcript)
    blocks: Sequence[TranscriptBlock] = ()
    if chain is not None:
        window = read_window(chain)
        blocks = window.blocks if low >= window.replay_from else read_since(chain, low)
    records = [record.lines for record in pending if record.transcript == transcript]
    for lines in (*(block.lines for block in blocks), *records):
        deleted |= deleted_ids(lines)
        rewinds += [line for line in lines if without_replaced and kind_of(line) == "rewind"]
        for line in lines:
            if kind_of(line) == "message" and low <= line["i"] < high:
                messages[line["i"]] = line
    for i, line in messages.items():
        if is_replaced(line, rewinds):
            messages[i] = {name: line[name] for name in _KEPT_OF_REPLACED if name in line} | {"content": ""}
    return [
        {**line, "content": FORGOTTEN} if line.get("mid") in deleted else line for _, line in sorted(messages.items())
    ]


def transcript_extent(
    disk: Disk, path: Path, transcript: str, *, pending: Sequence[TurnRecord] = ()
) -> tuple[int, int]:
    """Return the numbers of summarised and of all messages of *transcript*. Arguments as in `read_messages`."""
    chain = _open_chain(disk, path, transcript)
    window = read_window(chain) if chain is not None and chain.end else None
    low = window.consolidated if window else 0
    high = max([0, *(block.to_index for block in (window.blocks if window else ()))])
    for record in pending:
        if record.transcript == transcript:
            high = max(high, record.to_index)
            low = max([low, *(consolidated_index(line) for line in record.lines if kind_of(line) == "pointer")])
    return low, high


def _open_chain(disk: Disk, path: Path, transcript: str) -> SegmentChain | None:
    """Open the current transcript, or the archive; None if neither is *transcript*."""
    chain = SegmentChain(disk, path, transcript)
    if chain.transcript == transcript:
        return chain
    archive = archive_of(path, transcript)
    return SegmentChain(disk, archive) if archive is not None else None


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
        self._begin(base)

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
            self._take(line, offset)
        elif self.parsed.head is None and kind_of(line) == "head":
            self.parsed.head = line
        if not self._lines:
            self._begin(after)
            self.parsed.complete = after

    def finish(self, position: int) -> None:
        """Complete the last block; nothing follows."""
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
        """Treat an unreadable line between two turns as the `end` of the first."""
        if self._hole >= 0 and self._turn and turn != self._turn:
            self._close(self._turn, self._hole)

    def _begin(self, offset: int) -> None:
        self._lines: list[Line] = []
        self._start = offset
        self._snapshot = self._hole = -1
        self._turn = ""

    def _close(self, turn: str, after: int) -> None:
        lines = tuple(line for line in self._lines if line.get("turn", turn) == turn)
        low, high = _index_range(lines)
        self.parsed.blocks.append(TranscriptBlock(turn, lines, self._start, low, high, self._snapshot))
        self.parsed.complete = after
        self._begin(after)


def _index_range(lines: Sequence[Line]) -> tuple[int, int]:
    """Return the first index of a block and the one after its last."""
    end = lines[-1] if lines else {}
    low, high = end.get("from"), end.get("to")
    if isinstance(low, int) and isinstance(high, int):
        return low, high
    indices = [line["i"] for line in lines if kind_of(line) == "message"]
    return (min(indices), max(indices) + 1) if indices else (0, 0)
