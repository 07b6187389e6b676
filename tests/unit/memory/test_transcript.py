"""Reading transcript files: damage costs the damaged lines, and the end is found without the rest."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest

from agent.base import transcript_lines as build
from agent.base.disk import Disk
from agent.base.transcript_lines import encode
from agent.memory.storage.transcript_files import read_ends, read_transcript
from gateway.ports.journal import SessionRow, TurnRecord
from gateway.store.row_codec import with_end
from tests.fakes.memory import ANN, START, TRANSCRIPT, exchange, print_transcript, talk, turn_name


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """Where a transcript stands; its folder does not exist yet."""
    return tmp_path / "people" / "ann" / "sessions" / "telegram%3a42.jsonl"


def write(path: Path, records: Sequence[TurnRecord]) -> None:
    """Append *records* to the transcript at *path*."""
    path.parent.mkdir(parents=True, exist_ok=True)
    head, *turns = print_transcript(records)
    with path.open("ab") as file:
        file.writelines(turns if file.tell() else [head, *turns])


def turns(path: Path) -> list[str]:
    """Return the turns that a transcript holds."""
    return [block.turn for block in read_transcript(Disk(), path).blocks]


def names(*numbers: int) -> list[str]:
    """Return turn ids."""
    return [turn_name(n) for n in numbers]


def test_a_turn_without_its_end_is_not_there(path: Path) -> None:
    """Neither to a reader, nor after others were appended behind it."""
    write(path, talk(2))
    with path.open("ab") as file:
        file.writelines(map(encode, exchange(2, 4).lines[:-1]))
    assert turns(path) == names(0, 1)
    write(path, [exchange(3, 4)])
    assert turns(path) == names(0, 1, 3)


@pytest.mark.parametrize("damage", [b"\xff\xfe\x00garbage", b'{"i":2,"turn', b"[]"])
def test_a_damaged_line_costs_that_line(path: Path, damage: bytes) -> None:
    """A message in the middle of a turn: the turn and all others stay."""
    write(path, talk(3))
    lines = path.read_bytes().split(b"\n")
    lines[5] = damage  # head, three lines of turn 0, then turn 1: its answer
    path.write_bytes(b"\n".join(lines))
    blocks = read_transcript(Disk(), path).blocks
    assert [block.turn for block in blocks] == names(0, 1, 2)
    assert [line["role"] for line in blocks[1].lines[:-1]] == ["user"]


@pytest.mark.parametrize("victim", [0, 1, 2])
def test_a_damaged_end_does_not_cost_its_turn(path: Path, victim: int) -> None:
    """An unreadable line in the place of an `end` ends the turn, at the end of the file too."""
    write(path, talk(3))
    lines = path.read_bytes().split(b"\n")
    lines[3 + 3 * victim] = b"\x00\x00"
    path.write_bytes(b"\n".join(lines))
    assert turns(path) == names(0, 1, 2)


def test_a_damaged_head_does_not_cost_the_file(path: Path) -> None:
    """Without its head a file is taken for what its name says."""
    write(path, talk(2))
    path.write_bytes(b"?" + path.read_bytes()[1:])
    write(path, [exchange(2, 4)])
    assert turns(path) == names(0, 1, 2)


def test_unknown_kinds_are_kept_and_skipped(path: Path) -> None:
    """What a later version wrote is there for it when it comes back."""
    strange = {"kind": "from-the-future", "turn": turn_name(0), "x": 1}
    write(path, [exchange(0, 0, before=[strange])])
    [block] = read_transcript(Disk(), path).blocks
    assert block.lines[0] == strange


def row_of(next_index: int) -> SessionRow:
    """Return a session as a store has it."""
    return SessionRow(key=ANN, scope="people/ann", transcript=TRANSCRIPT, next_index=next_index, created_at=START)


def test_the_end_of_a_long_transcript_is_found(path: Path, tmp_path: Path) -> None:
    """Its last answering turn and its next index, with a pointer of other turns behind it, and half a line."""
    last = exchange(2_000, 4_000, tools=1, said="x" * 100_000)
    write(path, [*talk(2_000), last])
    with path.open("ab") as file:
        for n in range(3):
            file.writelines(map(encode, with_end(f"tp{n}", [build.pointer(n)], (4_004, 4_004), (), "answered", START)))
        file.write(b'{"kind":"end","to":9000')
    [end] = read_ends(tmp_path, [row_of(4_004)])
    assert (end.next_index, end.newest.turn if end.newest else "") == (4_004, last.turn)
    assert not end.is_ahead
    [end] = read_ends(tmp_path, [row_of(4_002)])
    assert end.is_ahead
