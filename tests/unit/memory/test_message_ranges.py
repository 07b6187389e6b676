"""A stretch of a transcript file is found by the indices of its messages."""

from __future__ import annotations

from pathlib import Path

import pytest

from agent.memory.storage import transcript_lines as build
from agent.memory.storage.disk import Disk
from agent.memory.storage.transcript_lines import FORGOTTEN
from agent.memory.storage.transcript_reader import read_messages
from agent.memory.storage.transcript_writer import TranscriptWriter
from gateway.ports import Line, MessageOutcome, TurnRecord
from tests.fakes.memory import ANN, SCOPE, START, TRANSCRIPT, entry_of, turn_name


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


def test_a_message_that_was_taken_back_says_nothing(path: Path) -> None:
    """Its words are gone, its index is not."""
    file = TranscriptWriter(Disk(), path, TRANSCRIPT, str(ANN))
    file.append(entry_of(record(21, build.forgotten_line("m19"), said=False)))
    file.sync()
    assert texts(read_messages(Disk(), path, TRANSCRIPT, 37, 40)) == ["answer 18", FORGOTTEN, "answer 19"]


def test_another_transcript_is_not_taken_for_it(path: Path) -> None:
    """A file is what its head says."""
    assert read_messages(Disk(), path, "zzzzzzzz234567zz", 0, 99) == []
