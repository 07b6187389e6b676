"""A stretch of a conversation is found by the indices of its messages."""

from __future__ import annotations

import pytest

from agent.base import transcript_lines as build
from agent.base.transcript_lines import FORGOTTEN
from agent.memory.storage.messages import MessageReader
from gateway.ports.journal import Line, MessageOutcome, TurnRecord
from tests.fakes.memory import ANN, SCOPE, START, TRANSCRIPT, FakeRecords, turn_name


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
def records() -> FakeRecords:
    """Twenty turns, a pointer after the tenth."""
    return FakeRecords(
        *map(record, range(10)), record(10, build.pointer(11, "e1"), said=False), *map(record, range(10, 20))
    )


async def texts(records: FakeRecords, low: int, high: int, transcript: str = TRANSCRIPT) -> list[str]:
    """Return what was said."""
    found = await MessageReader(records.transcripts).messages(SCOPE, ANN, transcript, low, high)
    return [str(line["content"]) for line in found]


@pytest.mark.parametrize(("low", "high"), [(0, 40), (0, 4), (11, 13), (12, 30), (39, 40), (5, 5), (40, 99)])
async def test_any_stretch_can_be_read(records: FakeRecords, low: int, high: int) -> None:
    """Before the pointer or behind it, in order, and nothing else."""
    every = [text for n in range(20) for text in (f"question {n}", f"answer {n}")]
    assert await texts(records, low, high) == every[low:high]


async def test_a_message_that_was_taken_back_says_nothing(records: FakeRecords) -> None:
    """Its words are gone, its index is not."""
    records.commit(record(21, build.forgotten_line("m19"), said=False))
    assert await texts(records, 37, 40) == ["answer 18", FORGOTTEN, "answer 19"]


async def test_another_transcript_is_not_taken_for_it(records: FakeRecords) -> None:
    """Nothing of it is there."""
    assert await texts(records, 0, 99, "zzzzzzzz234567zz") == []
