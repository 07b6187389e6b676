"""Wherever a file breaks off or is damaged, every whole record is still there."""

from __future__ import annotations

import tempfile
from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

from agent.memory.storage import transcript_lines as build
from agent.memory.storage.disk import Disk
from agent.memory.storage.segments import SegmentChain
from agent.memory.storage.transcript_reader import read_all
from agent.memory.storage.transcript_writer import TranscriptWriter
from gateway.ports import TurnRecord
from tests.fakes.memory import ANN, TRANSCRIPT, entry_of, exchange, talk

RECORDS = [*talk(6), exchange(6, 12, tools=1, before=[build.mark(6)]), exchange(7, 16, said="ü€😀")]


def _file(path: Path) -> TranscriptWriter:
    return TranscriptWriter(Disk(), path, TRANSCRIPT, str(ANN))


def _write(path: Path, records: list[TurnRecord]) -> list[int]:
    file = _file(path)
    sizes = []
    for record in records:
        file.append(entry_of(record))
        sizes.append(file.size)
    file.close()
    return sizes


def _turns(path: Path) -> list[str]:
    return [block.turn for block in read_all(SegmentChain(Disk(), path)).blocks]


@given(st.integers(0, 6_000))
def test_any_crash_point_keeps_every_complete_record(point: int) -> None:
    """Cut the file anywhere: what was complete is read, and appending the rest completes it."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "t.jsonl"
        sizes = _write(path, RECORDS)
        whole = path.read_bytes()
        cut = min(point, len(whole))
        path.write_bytes(whole[:cut])
        complete = sum(size <= cut for size in sizes)
        assert _turns(path) == [record.turn for record in RECORDS[:complete]]
        _write(path, RECORDS[complete:])
        assert path.read_bytes() == whole


@given(st.integers(0, 10_000), st.binary(min_size=1, max_size=8))
def test_any_damage_costs_at_most_the_lines_it_touches(at: int, damage: bytes) -> None:
    """Turns whose lines were not touched are all there, in their order, and reading never raises."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "t.jsonl"
        sizes = _write(path, RECORDS)
        whole = path.read_bytes()
        at %= len(whole)
        broken = whole[:at] + damage + whole[at + len(damage) :]
        path.write_bytes(broken)
        starts = [0, *sizes[:-1]]
        # The turn after a damaged record may have lost the newline before its first line.
        untouched = [
            record.turn
            for record, start, end in zip(RECORDS, starts, sizes, strict=True)
            if end <= at or start > at + len(damage)
        ]
        found = _turns(path)
        assert [turn for turn in found if turn in untouched] == untouched
