"""Reading a stretch of a transcript by its indices: from its file, from its archive, and from the journal."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from agent.memory.storage.disk import Disk
from agent.memory.storage.message_deletion import deleted_ids
from agent.memory.storage.segments import SegmentChain, archive_of
from agent.memory.storage.transcript_blocks import TranscriptBlock
from agent.memory.storage.transcript_lines import FORGOTTEN, kind_of
from agent.memory.storage.transcript_reader import consolidated_index, read_since, read_window
from gateway.ports import Line, TurnRecord


def read_messages(
    disk: Disk, path: Path, transcript: str, low: int, high: int, *, pending: Sequence[TurnRecord] = ()
) -> list[Line]:
    """Return the message lines of *transcript* with ``low <= i < high``, in order. Blocks.

    *path* is where the key's current transcript stands, *pending* what the journal has not projected yet (read
    before the file, so that nothing is missed). Costs what stands since *low*, and the window at least.
    What was taken back reads as FORGOTTEN.
    """
    found: dict[int, Line] = {}
    gone: set[str] = set()
    projected = [block.lines for block in _blocks(disk, path, transcript, low)]
    for lines in (*projected, *(record.lines for record in pending if record.transcript == transcript)):
        gone |= deleted_ids(lines)
        for line in lines:
            if kind_of(line) == "message" and low <= line["i"] < high:
                found[line["i"]] = line
    return [_without(found[i], gone) for i in sorted(found)]


def transcript_extent(
    disk: Disk, path: Path, transcript: str, *, pending: Sequence[TurnRecord] = ()
) -> tuple[int, int]:
    """Return up to where *transcript* is in a summary, and how many messages it has. As `read_passage`. Blocks."""
    chain = _chain(disk, path, transcript)
    window = read_window(chain) if chain is not None and chain.end else None
    low = window.consolidated if window else 0
    high = max([0, *(block.to_index for block in (window.blocks if window else ()))])
    for record in pending:
        if record.transcript == transcript:
            high = max(high, record.to_index)
            low = max([low, *(consolidated_index(line) for line in record.lines if kind_of(line) == "pointer")])
    return low, high


def _chain(disk: Disk, path: Path, transcript: str) -> SegmentChain | None:
    chain = SegmentChain(disk, path, transcript)
    if chain.transcript == transcript:
        return chain
    archive = archive_of(path, transcript)
    return SegmentChain(disk, archive) if archive is not None else None


def _blocks(disk: Disk, path: Path, transcript: str, low: int) -> Sequence[TranscriptBlock]:
    chain = _chain(disk, path, transcript)
    if chain is None:
        return ()
    window = read_window(chain)
    return window.blocks if low >= window.replay_from else read_since(chain, low)


def _without(line: Line, gone: set[str]) -> Line:
    return {**line, "content": FORGOTTEN} if line.get("mid") in gone else line
