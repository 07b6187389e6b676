"""The process is killed, or its disk fails, at the calls of a turn that decide what a restart finds.

After each fault, every message has one answer that its chat shows and the transcript holds. Nothing is shown twice
unless it is marked, every file can be read, no tool ran twice, and the model was not asked again for a stored step.

One turn is killed here at every third decisive call (`matrix.decisive`: sends, connects, fsyncs, new files and the
edges of commits). Of calls that fail every fourth one is played, and fifty turns are killed at a spread of calls.
`make faults` plays every call of all.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from tests.faults.matrix import cases, count, decisive, kinds, play_all, play_until, spread, summary, verdict
from tests.faults.process_pool import ForkServer
from tests.faults.scenario import FaultCase
from tests.faults.shim import ShimMode

ONE = FaultCase()
FIFTY = FaultCase(chats=50)
FIFTY_POINTS = 3
LEAST = 60  # points that one turn with a tool, a preview and two parts makes at the very least

Record = Callable[[str, object], None]


async def play(zygote: ForkServer, base: FaultCase, mode: ShimMode, chosen: list[int], record_property: Record) -> None:
    """Play *mode* at the chosen points and fail with everything that was broken."""
    outcomes = await play_all(zygote, cases(base, mode, chosen))
    record_property("figure", f"{mode.name.lower()}, {base.chats} chat(s): {summary(outcomes)}")
    assert not verdict(outcomes), verdict(outcomes)


async def test_killed_at_decisive_calls_of_one_turn(zygote: ForkServer, record_property: Record) -> None:
    """Killed at any of them: nothing lost, nothing done twice. They are enough to mean something."""
    points = await count(zygote, ONE)
    record_property("figure", f"one turn makes {len(points)} points: {kinds(points)}")
    assert len(points) >= LEAST
    await play(zygote, ONE, ShimMode.KILL_BEFORE, decisive(points, ShimMode.KILL_BEFORE)[1::3], record_property)


@pytest.mark.parametrize(
    ("mode", "first", "step"), [(ShimMode.IO_ERROR, 0, 4), (ShimMode.NO_SPACE_ONCE, 1, 8), (ShimMode.NO_SPACE, 3, 8)]
)
async def test_decisive_calls_of_one_turn_fail(
    zygote: ForkServer, mode: ShimMode, first: int, step: int, record_property: Record
) -> None:
    """The disk or the network fails, or the disk is full for one call or for a while: nothing lost or done twice."""
    points = decisive(await count(zygote, ONE), mode)
    await play(zygote, ONE, mode, points[first::step], record_property)


async def test_killed_with_fifty_turns_in_flight(zygote: ForkServer, record_property: Record) -> None:
    """The same with fifty chats at work at once, at points spread over their whole time."""
    total = len(await count(zygote, FIFTY))
    await play(zygote, FIFTY, ShimMode.KILL_BEFORE, spread(total, FIFTY_POINTS), record_property)


# Who breaks which promise, the call at which it shows, which of its kind (from the last, where negative), and a word of
# what is then said. Calls are named, not numbered: how often a preview is edited differs between two runs.
SABOTEURS = [
    ("acks_early", ShimMode.KILL_BEFORE, "write journal.db-wal", tuple(range(1, 13)), "never came to rest"),
    ("forgets_steps", ShimMode.KILL_AFTER, "fsync traces.jsonl", (1,), "the tool ran 2 times"),
    ("repeats_tools", ShimMode.KILL_AFTER, "fsync traces.jsonl", (1,), "the tool ran 2 times"),
    ("marks_nothing", ShimMode.KILL_AFTER, "send", (3, 4, 5, -2, -1, 0), "messages, 0 of them marked"),
]


@pytest.mark.parametrize(("sabotage", "mode", "of", "which", "said"), SABOTEURS, ids=[name for name, *_ in SABOTEURS])
async def test_a_gateway_that_breaks_a_promise_is_found_out(
    zygote: ForkServer, sabotage: str, mode: ShimMode, of: str, which: tuple[int, ...], said: str
) -> None:
    """The examination is worth something: each of these gateways fails it, and for the right reason."""
    base = FaultCase(send_key=False, sabotage=sabotage, patience=5.0, lives=2)
    total = 0 if min(which) > 0 else sum(point.startswith(of) for point in await count(zygote, base))
    at = [n if n > 0 else total + n for n in which]
    outcomes = await play_until(zygote, [replace(base, mode=mode, of=of, at=n) for n in at], said)
    assert said in verdict(outcomes), summary(outcomes)
