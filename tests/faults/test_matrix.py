"""TRUST.md F1, F4, F5, F6, F36: the process is killed, or its disk fails, at every call that a turn makes.

After each: every message has one answer that people see and the transcript holds, nothing is shown twice unless it says
so, every file can be read, no tool ran twice, and the model was not asked again for a step that was stored. At every
point of one turn it is killed here, and every different one fails (`matrix.distinct`); with fifty turns at once it is a
spread of points (all of them: `python -m tests.faults`).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from tests.faults.matrix import cases, count, distinct, kinds, play_all, spread, summary, verdict
from tests.faults.nursery import Zygote
from tests.faults.scenario import Case
from tests.faults.shim import Mode

ONE = Case()
FIFTY = Case(chats=50)
SHARES = 4
LEAST = 60  # points that one turn with a tool, a preview and two parts makes at the very least

Record = Callable[[str, object], None]


async def play_share(
    zygote: Zygote, base: Case, mode: Mode, share: int, shares: int, record_property: Record, *, wanted: int = 10**6
) -> None:
    """Play one share of a matrix and fail with everything that was broken."""
    points = distinct(await count(zygote, base), mode)
    chosen = [points[n - 1] for n in spread(len(points), wanted, share, shares)]
    outcomes = await play_all(zygote, cases(base, mode, chosen))
    record_property(
        "figure", f"{mode.name.lower()}, {base.chats} chat(s), share {share + 1}/{shares}: {summary(outcomes)}"
    )
    assert not verdict(outcomes), verdict(outcomes)


async def test_a_turn_makes_enough_points_to_mean_something(zygote: Zygote, record_property: Record) -> None:
    """One turn with a tool, a preview and two parts makes at least sixty calls that can fail."""
    points = await count(zygote, ONE)
    record_property("figure", f"one turn makes {len(points)} points: {kinds(points)}")
    assert len(points) >= LEAST


@pytest.mark.parametrize("share", range(SHARES))
@pytest.mark.parametrize("mode", [Mode.KILL_BEFORE, Mode.NO_SPACE_ONCE, Mode.NO_SPACE, Mode.IO_ERROR])
async def test_every_call_of_one_turn(zygote: Zygote, mode: Mode, share: int, record_property: Record) -> None:
    """Killed, out of space once or for a while, or broken at any call of a turn: nothing lost, nothing done twice."""
    await play_share(zygote, ONE, mode, share, SHARES, record_property)


@pytest.mark.parametrize("share", range(SHARES))
async def test_killed_with_fifty_turns_in_flight(zygote: Zygote, share: int, record_property: Record) -> None:
    """The same with fifty chats at work at once, at points spread over their whole time."""
    await play_share(zygote, FIFTY, Mode.KILL_BEFORE, share, SHARES, record_property, wanted=LEAST)


def _sends(points: list[str]) -> list[int]:
    return [n for n, point in enumerate(points, 1) if point.startswith("send")]


def _traces(points: list[str]) -> list[int]:
    return [n for n, point in enumerate(points, 1) if point == "fsync traces.jsonl"]


# Who breaks which promise, the calls after which it shows, and a word of what is then said.
SABOTEURS = [
    ("acks_early", lambda points: [1], "never came to rest"),
    ("forgets_steps", _traces, "the tool ran 2 times"),
    ("repeats_tools", _traces, "the tool ran 2 times"),
    ("marks_nothing", _sends, "messages, 0 of them marked"),
]


@pytest.mark.parametrize(("sabotage", "where", "said"), SABOTEURS, ids=[name for name, *_ in SABOTEURS])
async def test_a_gateway_that_breaks_a_promise_is_found_out(
    zygote: Zygote, sabotage: str, where: Callable[[list[str]], list[int]], said: str
) -> None:
    """The examination is worth something: each of these gateways fails it, and for the right reason."""
    base = Case(send_key=False, sabotage=sabotage, patience=5.0)
    points = await count(zygote, base)
    # A few calls wide: how often a preview is edited differs between two runs.
    at = sorted({min(place + after, len(points)) for place in where(points) for after in (1, 2, 3, 5, 8)})
    outcomes = await play_all(zygote, [replace(base, mode=Mode.KILL_BEFORE, at=n) for n in at])
    assert said in verdict(outcomes), summary(outcomes)
