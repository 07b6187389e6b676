"""The time line of a turn: what is stored of each stage, and what this process saw."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Any

from gateway.events import SessionKey
from gateway.operations.turns import stage_spans
from gateway.store.inspection import TurnTrace
from tests.fakes.clock import EPOCH


def at(seconds: float) -> datetime:
    """Return a moment."""
    return EPOCH + timedelta(seconds=seconds)


def trace(**fields: Any) -> TurnTrace:
    """Return a turn that was sent at 0, accepted at 1, committed at 9 and delivered at 10."""
    given: dict[str, Any] = {
        "turn": "t1",
        "key": SessionKey("telegram", "42"),
        "inbox": ({"sent_at": at(0), "accepted_at": at(1), "ended_at": at(9)},),
        "steps": (),
        "record": {"at": at(8)},
        "parts": ({"state": "sent", "at": at(10)},),
        "usage": (),
        "dead": (),
    }
    return TurnTrace(**(given | fields))


def spans(found: TurnTrace, began: dict[str, datetime]) -> list[tuple[str, float | None]]:
    """Return the names and durations."""
    return [(" ".join(each["stages"]), each["seconds"]) for each in stage_spans(found, began)]


def test_all_nine_stages_of_a_turn_that_this_process_ran() -> None:
    """Each stage ends where the next one begins; the wait in the queue is apart."""
    began = {"claim": at(3), "assemble": at(4), "think": at(5), "commit": at(8)}
    assert spans(trace(), began) == [
        ("receive parse admit accept", 1),
        ("queue", 2),
        ("claim", 1),
        ("assemble", 1),
        ("think", 3),
        ("commit", 1),
        ("deliver", 1),
    ]


def test_what_is_not_known_apart_is_one_span() -> None:
    """After a restart, of a command, of a turn that runs, and of one that a job started."""
    assert spans(trace(), {}) == [
        ("receive parse admit accept", 1),
        ("queue claim assemble think commit", 8),
        ("deliver", 1),
    ]
    assert spans(trace(), {"claim": at(3)})[1:3] == [("queue", 2), ("claim assemble think commit", 6)]
    running = trace(inbox=({"sent_at": at(0), "accepted_at": at(1), "ended_at": None},), record=None, parts=())
    assert spans(running, {"claim": at(3)}) == [
        ("receive parse admit accept", 1),
        ("queue", 2),
        ("claim assemble think commit", None),
    ]
    assert spans(trace(inbox=(), parts=()), {}) == [("deliver", None)]


def test_a_platform_s_clock_that_is_ahead_makes_no_negative_time() -> None:
    """The message was accepted before it was sent, by the platform's clock."""
    ahead = trace(inbox=({"sent_at": at(5), "accepted_at": at(1), "ended_at": at(9)},))
    assert spans(ahead, {})[0] == ("receive parse admit accept", 0)
