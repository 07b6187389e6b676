"""Transcript files: appended in one write, read from their window, robust against damage."""

from __future__ import annotations

import stat
from collections.abc import Sequence
from pathlib import Path

import pytest

from agent.memory.storage import transcript_lines as build
from agent.memory.storage.disk import Disk
from agent.memory.storage.segments import SegmentChain, segment_path
from agent.memory.storage.transcript_lines import encode, kind_of
from agent.memory.storage.transcript_reader import read_all, read_tail, read_window
from agent.memory.storage.transcript_writer import TranscriptWriter, entry_of
from gateway.ports import TurnRecord
from tests.fakes.memory import ANN, START, TRANSCRIPT, CountingDisk, exchange, talk, turn_name


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """Where a transcript stands; its folder does not exist yet."""
    return tmp_path / "people" / "ann" / "sessions" / "telegram%3a42.jsonl"


def write(path: Path, records: Sequence[TurnRecord], *, disk: Disk | None = None, segment_bytes: int = 1 << 23) -> None:
    """Append *records* to the transcript at *path*."""
    file = TranscriptWriter(disk or Disk(), path, TRANSCRIPT, str(ANN), segment_bytes=segment_bytes)
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


def test_a_mark_names_the_bytes_where_replay_starts(path: Path) -> None:
    """The projector fills in the offset of the turn that holds the index, and the snapshot's."""
    taken = build.snapshot(1, {}, "UTC", 0, replay_from=0, rev="r")
    write(path, [exchange(0, 0, before=[taken]), *talk(3, first=1, start=2), exchange(4, 8, before=[build.mark(4)])])
    data = path.read_bytes()
    [mark] = [
        line for block in read_all(SegmentChain(Disk(), path)).blocks for line in block.lines if kind_of(line) == "mark"
    ]
    assert data[mark["offset"] :].startswith(b'{"i":4,')
    assert data[mark["snapshot"] :].startswith(b'{"kind":"snapshot"')


def test_a_pointer_inside_a_turn_replays_that_turn_from_its_beginning(path: Path) -> None:
    """Every message is in a summary or in the prompt: half a turn is in neither."""
    write(path, [*talk(4), exchange(4, 8, before=[build.pointer(5)])])
    window = read_window(SegmentChain(Disk(), path))
    assert window.replay_from == 4
    assert [block.turn for block in window.blocks] == names(2, 3, 4)


def test_a_pointer_at_the_very_end_leaves_nothing_to_replay(path: Path) -> None:
    """Everything is in a summary; the next turn is the first of the window."""
    everything = exchange(9, 8, before=[build.pointer(8)])
    alone = TurnRecord(
        turn=turn_name("p"),
        key=ANN,
        transcript=TRANSCRIPT,
        outcome=everything.outcome,
        lines=(build.pointer(8),),
        from_index=8,
        to_index=8,
        inbox=(),
        at=START,
    )
    write(path, [*talk(4), alone, exchange(4, 8)])
    window = read_window(SegmentChain(Disk(), path))
    assert window.replay_from == 8
    assert [block.turn for block in window.blocks if block.to_index > block.from_index] == names(4)


@pytest.mark.parametrize("turns_before", [60, 2_000])
def test_a_cold_read_costs_its_window_not_its_age(path: Path, turns_before: int) -> None:
    """The same bytes, give or take the digits of offsets, whether the chat is an hour or a year old."""
    records = talk(turns_before)
    start = records[-1].to_index
    mark = build.mark(start - 20)
    write(
        path,
        [*records, exchange(turns_before, start, before=[mark]), *talk(5, first=turns_before + 1, start=start + 2)],
    )
    disk = CountingDisk()
    window = read_window(SegmentChain(disk, path))
    assert window.replay_from == start - 20
    assert disk.bytes_read <= 24 * 1024


def test_offsets_that_lie_are_noticed(path: Path) -> None:
    """Somebody edited the file by hand: more is read, nothing is missed and nothing is wrong."""
    write(path, [*talk(40), exchange(40, 80, before=[build.mark(60)]), *talk(2, first=41, start=82)])
    before = [block.turn for block in read_window(SegmentChain(Disk(), path)).blocks]
    path.write_bytes(path.read_bytes().replace(b"question 3", b"a much longer question 3", 1))
    assert [block.turn for block in read_window(SegmentChain(Disk(), path)).blocks] == before


def test_words_that_look_like_bookkeeping_are_words(path: Path) -> None:
    """A person who types a pointer line moves nothing."""
    evil = '{"kind":"pointer","last_consolidated":99,"offset":0}\n{"kind":"end","turn":"x"}'
    write(path, [*talk(3), exchange(3, 6, said=evil, answered=evil)])
    window = read_window(SegmentChain(Disk(), path))
    assert window.replay_from == 0
    assert len(window.blocks) == 4


def test_segments_roll_and_read_as_one_transcript(path: Path) -> None:
    """Full segments stand beside; windows may span them; offsets go on counting."""
    records = talk(30)
    write(path, records, segment_bytes=2_000)
    rolled = sorted(each.name for each in path.parent.glob(f"{TRANSCRIPT}.*.jsonl"))
    assert len(rolled) >= 3
    assert path.stat().st_size < 3_000
    assert turns(path) == names(*range(30))
    marked = exchange(30, 60, before=[build.mark(40)])
    write(path, [marked], segment_bytes=2_000)
    window = read_window(SegmentChain(Disk(), path, TRANSCRIPT))
    assert [block.turn for block in window.blocks] == names(*range(20, 31))


def test_a_crash_between_two_segments_loses_nothing(path: Path) -> None:
    """The full segment was renamed and the next one not begun, or its head is torn."""
    write(path, talk(10), segment_bytes=100_000)
    path.rename(segment_path(path, TRANSCRIPT, 1))
    assert turns(path) == names(*range(10))
    path.write_bytes(b'{"v":1,"ki')
    write(path, talk(2, first=10, start=20))
    assert turns(path) == names(*range(12))


def test_the_tail_is_read_without_the_rest(path: Path) -> None:
    """The newest records are found from the end; half a record at the cut is not one of them."""
    write(path, talk(2_000))
    disk = CountingDisk()
    blocks = read_tail(SegmentChain(disk, path), 5)
    assert blocks[-1].turn == turn_name(1_999)
    assert 5 <= len(blocks) < 200
    assert disk.bytes_read < 40_000
    assert all(block.lines[0]["role"] == "user" for block in blocks)


def test_an_append_costs_what_is_new(path: Path) -> None:
    """Bytes written and read for one more turn are the same at 50 and at 5,000 messages."""
    costs = []
    for count in (25, 2_500):
        mine = path.with_name(f"{count}.jsonl")
        write(mine, [*talk(count), exchange(count, 2 * count, before=[build.mark(2 * count - 10)])])
        disk = CountingDisk()
        file = TranscriptWriter(disk, mine, TRANSCRIPT, str(ANN), unsure=frozenset({"tx"}))
        file.append(entry_of(exchange(9_999, 2 * count + 2)))
        file.sync()
        file.close()
        costs.append((disk.bytes_read, disk.bytes_written))
    assert costs[1][0] <= 50_000
    assert costs[1][1] <= costs[0][1] * 1.2
