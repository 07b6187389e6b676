"""Transcript files of the library: appended in one write, robust against damage."""

from __future__ import annotations

import stat
from collections.abc import Sequence
from pathlib import Path

import pytest

from agent.memory.storage import transcript_lines as build
from agent.memory.storage.disk import Disk
from agent.memory.storage.segments import SegmentChain
from agent.memory.storage.transcript_lines import encode
from agent.memory.storage.transcript_reader import read_all, read_tail
from agent.memory.storage.transcript_writer import TranscriptWriter
from gateway.ports import TurnRecord
from tests.fakes.memory import ANN, START, TRANSCRIPT, CountingDisk, entry_of, exchange, talk, turn_name


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """Where a transcript stands; its folder does not exist yet."""
    return tmp_path / "people" / "ann" / "sessions" / "telegram%3a42.jsonl"


def write(path: Path, records: Sequence[TurnRecord]) -> None:
    """Append *records* to the transcript at *path*."""
    file = TranscriptWriter(Disk(), path, TRANSCRIPT, str(ANN))
    for record in records:
        file.append(entry_of(record))
    file.sync()
    file.close()


def turns(path: Path) -> list[str]:
    """Return the turns that a transcript holds."""
    return [block.turn for block in read_all(SegmentChain(Disk(), path, TRANSCRIPT)).blocks]


def names(*numbers: int) -> list[str]:
    """Return turn ids."""
    return [turn_name(n) for n in numbers]


def test_a_record_is_one_write_that_ends_in_a_newline(path: Path) -> None:
    """The head comes with the first record; every record is one system call."""
    disk = CountingDisk()
    file = TranscriptWriter(disk, path, TRANSCRIPT, str(ANN))
    for n, record in enumerate(talk(3), start=1):
        file.append(entry_of(record))
        assert disk.calls["write"] == n
        assert path.read_bytes().endswith(b"\n")
    file.close()
    assert path.read_bytes().startswith(encode(build.head_line(TRANSCRIPT, "telegram:42", START)))


def test_files_and_folders_are_private_from_the_first_write(path: Path) -> None:
    """0600 and 0700, whatever the umask says."""
    write(path, talk(1))
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    for folder in (path.parent, path.parent.parent, path.parent.parent.parent):
        assert stat.S_IMODE(folder.stat().st_mode) == 0o700


def test_a_turn_without_its_end_is_not_there(path: Path) -> None:
    """Neither to a reader, nor after others were appended behind it."""
    write(path, talk(2))
    with path.open("ab") as file:
        file.writelines(map(encode, exchange(2, 4).lines[:-1]))
    assert turns(path) == names(0, 1)
    write(path, [exchange(3, 4)])
    assert turns(path) == names(0, 1, 3)


def test_a_torn_tail_is_set_aside_before_the_next_append(path: Path) -> None:
    """Nothing is thrown away, nothing is appended to half a line."""
    write(path, talk(2))
    whole = path.read_bytes()
    torn = encode(exchange(2, 4).lines[0])[:-9]
    path.write_bytes(whole + torn)
    write(path, [exchange(3, 4)])
    beside = path.with_name(path.name + ".corrupt")
    assert beside.read_bytes() == torn + b"\n"
    assert stat.S_IMODE(beside.stat().st_mode) == 0o600
    assert path.read_bytes().startswith(whole)
    assert turns(path) == names(0, 1, 3)


def test_a_torn_head_begins_the_file_again(path: Path) -> None:
    """A crash in the very first write leaves a file like any other."""
    path.parent.mkdir(parents=True)
    path.write_bytes(b'{"v":1,"kind":"he')
    write(path, talk(1))
    assert path.read_bytes().startswith(b'{"v":1,"kind":"head"')
    assert turns(path) == names(0)


@pytest.mark.parametrize("damage", [b"\xff\xfe\x00garbage", b'{"i":2,"turn', b"[]"])
def test_a_damaged_line_costs_that_line(path: Path, damage: bytes) -> None:
    """A message in the middle of a turn: the turn and all others stay."""
    write(path, talk(3))
    lines = path.read_bytes().split(b"\n")
    lines[5] = damage  # head, three lines of turn 0, then turn 1: its answer
    path.write_bytes(b"\n".join(lines))
    blocks = read_all(SegmentChain(Disk(), path)).blocks
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


def test_damage_is_said_once(path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The same bytes are copied aside once, however often the file is opened."""
    write(path, talk(3))
    lines = path.read_bytes().split(b"\n")
    lines[5] = b"garbage"
    path.write_bytes(b"\n".join(lines))
    for n in range(3):
        write(path, [exchange(3 + n, 6 + 2 * n)])
    assert path.with_name(path.name + ".corrupt").read_bytes() == b"garbage\n"
    assert capsys.readouterr().out.count("transcript.set_aside") == 1


def test_unknown_kinds_are_kept_and_skipped(path: Path) -> None:
    """What a later version wrote is there for it when it comes back."""
    strange = {"kind": "from-the-future", "turn": turn_name(0), "x": 1}
    write(path, [exchange(0, 0, before=[strange])])
    [block] = read_all(SegmentChain(Disk(), path)).blocks
    assert block.lines[0] == strange


def test_the_tail_is_read_without_the_rest(path: Path) -> None:
    """The newest records are found from the end; half a record at the cut is not one of them."""
    write(path, talk(2_000))
    disk = CountingDisk()
    blocks = read_tail(SegmentChain(disk, path), 5)
    assert blocks[-1].turn == turn_name(1_999)
    assert 5 <= len(blocks) < 200
    assert disk.bytes_read < 40_000
    assert all(block.lines[0]["role"] == "user" for block in blocks)
