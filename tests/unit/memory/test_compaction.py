"""What goes first when a prompt is too long: in the documented order, by recorded lines, to the same bytes."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as some

from agent.base import transcript_lines as build
from agent.base.transcript_lines import estimate_messages
from agent.memory.prompt.compaction import CompactionPlan, PromptLimit, compact, overdue
from agent.memory.prompt.prompt_window import PromptWindow, apply_trim, apply_trims, fold, render
from agent.memory.prompt.turn_messages import turn_messages
from gateway.ports.journal import Line
from tests.fakes.memory import START, exchange

SMALL = PromptLimit(tokens=2_000, taken=200)


def window(*sizes: tuple[int, int, int], tools: int = 1) -> PromptWindow:
    """Return a window of turns: (characters of the question, of each tool result, of the answer)."""
    state = PromptWindow()
    i = 0
    for n, (asked, returned, answered) in enumerate(sizes):
        record = exchange(n, i, said="q" * asked, answered="a" * answered, tools=tools if returned else 0)
        lines = [{**line, "content": "r" * returned} if line.get("role") == "tool" else line for line in record.lines]
        fold(state, record.from_index, record.to_index, lines)
        i = record.to_index
    render(state.turns)
    return state


def turn_lines(*contents: tuple[str, int], start: int) -> list[Line]:
    """Return the lines of the turn at hand: (role, characters)."""
    lines: list[Line] = []
    for n, (role, length) in enumerate(contents):
        extra: dict[str, Any] = {}
        if role == "assistant":
            call = {"id": f"c{n + 1}", "type": "function", "function": {"name": "look", "arguments": "{}"}}
            extra = {"tool_calls": [call]}
        elif role == "tool":
            extra = {"tool_call_id": f"c{n}", "name": "look"}
        lines.append(build.message(start + n, "t", role, "s" * length, START, **extra))
    return lines


def compact_turn(
    state: PromptWindow, own: Sequence[Line], room: PromptLimit
) -> tuple[CompactionPlan, PromptWindow, list[Line]]:
    """Compact, and return what is left of window and turn."""
    start = max([0, *(turn.high for turn in state.turns)])
    found = compact(state.turns, own, room, start=start, replay_from=state.replay_from, consolidated=0)
    fold(state, start, start, found.lines)
    render(state.turns)
    return found, state, [line for line in apply_trims([*own, *found.lines]) if line.get("role")]


def weight(state: PromptWindow, own: Sequence[Line], room: PromptLimit) -> int:
    """Return what the prompt weighs."""
    rendered = turn_messages(own, is_over=False)
    return room.taken + sum(turn.weight for turn in state.turns) + estimate_messages(rendered)


def test_what_fits_is_left_alone() -> None:
    """No line, no other byte; and where nobody knows the room, nothing is bounded."""
    state = window((100, 100, 100), (100, 100, 100))
    assert compact(state.turns, [], SMALL, start=8, replay_from=0, consolidated=0) == CompactionPlan(0)
    huge = window((100_000, 0, 0))
    assert compact(
        huge.turns, [], PromptLimit(tokens=0, taken=0), start=2, replay_from=0, consolidated=0
    ) == CompactionPlan(0)


def test_old_tool_bodies_go_first() -> None:
    """Results before the last turn become a line that says how long they were; every call keeps its result.

    The window stays where it is, and moves back in no case.
    """
    state = window((100, 6_000, 100), (100, 1_000, 100))
    state.replay_from = 1
    found, after, _ = compact_turn(state, turn_lines(("user", 100), start=8), SMALL)
    assert (found.replay_from, [line["kind"] for line in found.lines]) == (1, ["trim"])
    bodies = [message["content"] for message in render(after.turns) if message["role"] == "tool"]
    assert bodies == ["[6000 characters, not all of them shown here any more]", "r" * 1_000]
    assert weight(after, [], SMALL) <= SMALL.tokens


def test_then_the_window_moves_until_half_the_room_is_free() -> None:
    """At the beginning of a turn, by a mark that keeps what the last pointer said."""
    state = window(*[(800, 0, 800)] * 5)
    own = turn_lines(("user", 100), start=10)
    found, after, left = compact_turn(state, own, SMALL)
    assert [line["kind"] for line in found.lines] == ["mark"]
    assert found.replay_from == after.replay_from == after.turns[0].low
    assert weight(after, left, SMALL) <= SMALL.tokens // 2
    assert left == own


def test_then_the_turns_own_older_tool_bodies_go() -> None:
    """The newest results are what the model is about to read, and stay."""
    own = turn_lines(("user", 100), ("assistant", 0), ("tool", 5_000), ("assistant", 0), ("tool", 5_000), start=2)
    _, after, left = compact_turn(window((100, 0, 100)), own, SMALL)
    assert [len(line["content"]) > 4_000 for line in left if line["role"] == "tool"] == [False, True]
    assert weight(after, left, SMALL) <= SMALL.tokens


@pytest.mark.parametrize("role", ["user", "tool"])
def test_a_single_giant_is_cut_with_a_note(role: str) -> None:
    """Its beginning and its end are shown; the line itself stays whole."""
    giant = turn_lines(("user", 100), ("assistant", 0), ("tool", 400_000), start=0)
    own = giant if role == "tool" else turn_lines(("user", 400_000), start=0)
    _, after, left = compact_turn(window(), own, SMALL)
    assert weight(after, left, SMALL) <= SMALL.tokens
    shown = left[-1]["content"]
    assert "[400000 characters, not all of them shown here any more]" in shown
    assert shown.startswith("sss")
    assert shown.endswith("sss")
    assert len(own[-1]["content"]) == 400_000


def test_giant_arguments_stay_json() -> None:
    """A call that wrote a book keeps its name and its result; its arguments say how long they were."""
    call = {"id": "c", "type": "function", "function": {"name": "write", "arguments": json.dumps({"t": "x" * 90_000})}}
    own: list[Line] = [
        build.message(0, "t", "user", "write", START),
        build.message(1, "t", "assistant", "", START, tool_calls=[call]),
        build.message(2, "t", "tool", "done", START, tool_call_id="c", name="write"),
    ]
    _, after, left = compact_turn(window(), own, SMALL)
    assert weight(after, left, SMALL) <= SMALL.tokens
    [kept] = left[1]["tool_calls"]
    assert json.loads(kept["function"]["arguments"]) == {"not_shown": "90009 characters"}
    assert left[2]["content"] == "done"


def test_what_was_forgotten_stays_forgotten_and_short_texts_stay() -> None:
    """A trim touches nothing that is not longer than its limit."""
    line = build.message(0, "t", "user", "[forgotten]", START)
    trim = build.trim(9, tools=0, chars=0)
    assert apply_trim(trim, line)["content"] == "[forgotten]"
    short = build.message(1, "t", "tool", "ok", START, tool_call_id="c")
    assert apply_trim(trim, short) is short
    later = build.message(9, "t", "user", "x" * 999, START)
    assert apply_trim(trim, later) is later


def test_a_summary_is_due_before_the_room_is_full() -> None:
    """Until half of it is free, at the beginning of a turn; the newest turn is never in it."""
    assert overdue(window(*[(800, 0, 800)] * 3).turns, SMALL, replay_from=0, consolidated=0) is None
    due = overdue(window(*[(800, 0, 800)] * 4).turns, SMALL, replay_from=0, consolidated=0)
    assert due is not None
    assert (due.start, due.end) == (0, 6)
    one = window((9_000, 0, 9_000))
    assert overdue(one.turns, SMALL, replay_from=0, consolidated=0) is None
    # What a mark took out of the prompt is due, however much room there is by now.
    left = overdue(window((10, 0, 10)).turns, SMALL, replay_from=6, consolidated=2)
    assert left is not None
    assert (left.start, left.end) == (2, 6)


SIZES = some.one_of(some.integers(0, 300), some.integers(0, 30_000))


@given(
    some.lists(some.tuples(SIZES, SIZES, SIZES), max_size=8),
    some.lists(SIZES, max_size=6),
    SIZES,
    some.integers(700, 6_000),
)
def test_whatever_was_said_the_prompt_fits_and_falls(
    turns: list[tuple[int, int, int]], results: list[int], asked: int, tokens: int
) -> None:
    """Strictly lighter whenever it was too heavy, within the room unless hundreds of short messages fill it.

    Every call keeps its result, and nothing is said twice: compacting what fits already changes nothing.
    """
    room = PromptLimit(tokens=tokens, taken=100)
    state = window(*turns, tools=2)
    start = max([0, *(turn.high for turn in state.turns)])
    own = turn_lines(
        ("user", asked), *[pair for size in results for pair in (("assistant", 0), ("tool", size))], start=start
    )
    before = weight(state, own, room)
    found, after, left = compact_turn(state, own, room)
    now = weight(after, left, room)
    assert bool(found.lines) == (before > tokens)
    assert now < before if found.lines else now == before
    assert now <= tokens
    messages = [*render(after.turns), *turn_messages(left, is_over=False)]
    calls = [call["id"] for message in messages for call in message.get("tool_calls", ())]
    assert sorted(calls) == sorted(m["tool_call_id"] for m in messages if m["role"] == "tool")
    assert not after.turns or render(after.turns)[0]["role"] == "user"
    again = compact(after.turns, left, room, start=start, replay_from=after.replay_from, consolidated=0)
    assert again.lines == ()
