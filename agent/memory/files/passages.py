"""Reading a stretch of a transcript by its indices: from its file, from its archive, and from the journal."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from agent.memory.files.blocks import Block
from agent.memory.files.chain import Chain, archive_of
from agent.memory.files.disk import Disk
from agent.memory.files.forget import taken_back
from agent.memory.files.lines import FORGOTTEN, kind_of
from agent.memory.files.transcript import read_all, read_window
from gateway.ports import Line, TurnRecord


def read_passage(
    disk: Disk, path: Path, transcript: str, low: int, high: int, *, pending: Sequence[TurnRecord] = ()
) -> list[Line]:
    """Return the message lines of *transcript* with ``low <= i < high``, in order. Blocks.

    *path* is where the key's current transcript stands, *pending* what the journal has not projected yet (read
    before the file, so that nothing is missed). Costs the window when *low* is not before it, else the whole file.
    What was taken back reads as FORGOTTEN.
    """
    found: dict[int, Line] = {}
    gone: set[str] = set()
    projected = [block.lines for block in _blocks(disk, path, transcript, low)]
    for lines in (*projected, *(record.lines for record in pending if record.transcript == transcript)):
        gone |= taken_back(lines)
        for line in lines:
            if kind_of(line) == "message" and low <= line["i"] < high:
                found[line["i"]] = line
    return [_without(found[i], gone) for i in sorted(found)]


def _blocks(disk: Disk, path: Path, transcript: str, low: int) -> Sequence[Block]:
    chain = Chain(disk, path, transcript)
    if chain.transcript != transcript:
        archive = archive_of(path, transcript)
        if archive is None:
            return ()
        chain = Chain(disk, archive)
    window = read_window(chain)
    return window.blocks if low >= window.replay_from else read_all(chain).blocks


def _without(line: Line, gone: set[str]) -> Line:
    return {**line, "content": FORGOTTEN} if line.get("mid") in gone else line
