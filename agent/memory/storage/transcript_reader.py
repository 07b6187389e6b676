"""Reading a transcript: a cold one costs its window, not its age (FORMATS.md, Transcript)."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field

import structlog

from agent.memory.storage.segments import LONGEST_LINE, SegmentChain
from agent.memory.storage.transcript_blocks import ParsedBlocks, TranscriptBlock, parse
from agent.memory.storage.transcript_lines import decode, kind_of
from gateway.ports import Line

log = structlog.get_logger(__name__)

TAIL_BYTES = 4 * 1024  # the first look at a file's end; each further look is half as wide again
_ANCHOR = re.compile(rb'"kind"\s*:\s*"(?:pointer|mark)"')
_END = re.compile(rb'"kind"\s*:\s*"end"')


@dataclass(slots=True)
class TranscriptWindow:
    """A transcript from its replay start on, and what the projector has to know to go on."""

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
    """Read backwards to the last pointer or mark of a finished turn, then from the offset it names."""
    anchor, data, low = _find_anchor(chain)
    start = anchor["offset"] if anchor else 0
    window = _window(chain, anchor, data, low, start)
    if window is not None:
        return window
    # Somebody edited the file by hand: its offsets lie, its lines do not.
    log.warning("transcript.offsets_wrong", transcript=chain.transcript)
    return _window(chain, anchor, b"", chain.end, 0) or TranscriptWindow([])


def read_since(chain: SegmentChain, index: int) -> Sequence[TranscriptBlock]:
    """Return the records from the one that holds *index* on: reads back to a pointer or mark from before it."""
    anchor, data, low = _find_anchor(chain, index)
    window = _window(chain, anchor, data, low, anchor["offset"] if anchor else 0)
    return window.blocks if window is not None else read_all(chain).blocks


def _find_anchor(chain: SegmentChain, index: int | None = None) -> tuple[Line | None, bytes, int]:
    """Return the last pointer or mark, and the bytes read meanwhile with the offset they begin at.

    With *index*, the last one whose replay started no later.
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
    """Return the index that replay starts at, as far as a pointer or mark says; 0 where there is none.

    The projector adds `replay_from` to pointers: the beginning of the turn that holds them.
    """
    for name in ("replay_from", "last_consolidated"):
        value = anchor.get(name) if anchor else None
        if isinstance(value, int) and value > 0:
            return value
    return 0


def consolidated_index(anchor: Line | None) -> int:
    """Return before which message everything is in a summary, as far as a pointer or mark says."""
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
    return parse(chain.read(0, chain.end), 0)


def read_tail(chain: SegmentChain, enough: int, *, at_most: int = 4 * 1024 * 1024) -> list[TranscriptBlock]:
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


def turns_in_tail(chain: SegmentChain, unsure: frozenset[str]) -> dict[str, int]:
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
