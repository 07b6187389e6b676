"""A stretch of a transcript is found wherever it stands: in the file, in its archive, or still in the journal."""

from __future__ import annotations

from pathlib import Path

import pytest

from agent.memory.storage import transcript_lines as build
from agent.memory.storage.disk import Disk
from agent.memory.storage.transcript_lines import FORGOTTEN
from agent.memory.storage.transcript_reader import read_messages
from agent.memory.storage.transcript_writer import TranscriptWriter, entry_of
from gateway.ports import Line, MessageOutcome, TurnRecord
from tests.fakes.memory import ANN, SCOPE, START, TRANSCRIPT, CountingDisk, turn_name


def record(n: int, *extra: Line, said: bool = True) -> TurnRecord:
    """Return turn *n*: a question and an answer at 2n and 2n + 1, or only what *extra* brings."""
    turn = turn_name(n)
    asked = build.message(2 * n, turn, "user", f"question {n}", START, mid=f"m{n}")
    answered = build.message(2 * n + 1, turn, "assistant", f"answer {n}", START)
    low, high = (2 * n, 2 * n + 2) if said else (2 * n, 2 * n)
    return TurnRecord(
        turn=turn if said else f"p{n}",
        key=ANN,
        transcript=TRANSCRIPT,
        scope=SCOPE,
        outcome=MessageOutcome.ANSWERED,
        lines=(*((asked, answered) if said else ()), *extra),
        from_index=low,
        to_index=high,
        inbox=(),
        at=START,
    )


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """Twenty turns in a file, a pointer after the tenth."""
    file = TranscriptWriter(Disk(), tmp_path / "telegram.jsonl", TRANSCRIPT, str(ANN))
    for n in range(10):
        file.append(entry_of(record(n)))
    file.append(entry_of(record(10, build.pointer(11, "e1"), said=False)))
    for n in range(10, 20):
        file.append(entry_of(record(n)))
    file.sync()
    file.close()
    return file.path


def texts(lines: list[Line]) -> list[str]:
    """Return what was said."""
    return [str(line["content"]) for line in lines]


@pytest.mark.parametrize(("low", "high"), [(0, 40), (0, 4), (11, 13), (12, 30), (39, 40), (5, 5), (40, 99)])
def test_any_stretch_can_be_read(path: Path, low: int, high: int) -> None:
    """Before the pointer or behind it, in order, and nothing else."""
    every = [text for n in range(20) for text in (f"question {n}", f"answer {n}")]
    assert texts(read_messages(Disk(), path, TRANSCRIPT, low, high)) == every[low:high]


def test_what_the_journal_still_holds_is_found_once(path: Path) -> None:
    """A record that is in both places is one; one that was taken back says nothing."""
    pending = [record(19), record(20), record(21, build.forgotten_line("m20"), said=False)]
    read = texts(read_messages(Disk(), path, TRANSCRIPT, 38, 42, pending=pending))
    assert read == ["question 19", "answer 19", FORGOTTEN, "answer 20"]


def test_an_archive_is_read_under_its_own_name(path: Path) -> None:
    """After /new the old transcript is still there; the new one's messages are not taken for its."""
    file = TranscriptWriter(Disk(), path, TRANSCRIPT, str(ANN))
    file.archive(turn_name(99))
    fresh = TranscriptWriter(Disk(), path, "zzzzzzzz234567zz", str(ANN))
    fresh.append(entry_of(record(0)))
    fresh.sync()
    assert texts(read_messages(Disk(), path, TRANSCRIPT, 36, 40))[-1] == "answer 19"
    assert texts(read_messages(Disk(), path, "zzzzzzzz234567zz", 0, 99)) == ["question 0", "answer 0"]
    assert read_messages(Disk(), path, "nobodys", 0, 99) == []


def test_what_left_the_window_is_read_without_what_was_before(tmp_path: Path) -> None:
    """A summary that comes late costs what stands since its beginning, however old the transcript is."""
    costs = []
    for before in (200, 2_000):
        file = TranscriptWriter(Disk(), tmp_path / f"{before}.jsonl", TRANSCRIPT, str(ANN))
        for n in range(before):
            file.append(entry_of(record(n)))
        file.append(entry_of(record(before, build.pointer(2 * before - 10), said=False)))
        for n in range(before, before + 100):
            marks = [build.mark(2 * n, 2 * before - 10)] if n % 20 == 19 else []
            file.append(entry_of(record(n, *marks)))
        file.sync()
        disk = CountingDisk()
        low = 2 * before - 10
        read = texts(read_messages(disk, file.path, TRANSCRIPT, low, low + 40))
        assert read == [text for n in range(before - 5, before + 15) for text in (f"question {n}", f"answer {n}")]
        costs.append(disk.bytes_read)
    assert costs[1] <= costs[0] * 1.2
