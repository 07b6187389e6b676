"""Which scenarios there are, and playing many of them at once."""

from __future__ import annotations

import asyncio
import os
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from itertools import groupby

from tests.faults.process_pool import ForkServer
from tests.faults.scenario import FaultCase, FaultScenario, ScenarioOutcome
from tests.faults.shim import ShimMode

_LOGGED = "write journal.db-wal"
_NETWORK = frozenset({"connect", "send"})
IS_FULL = os.environ.get("CROSSINGS") == "full"  # tests play every point, which `make faults` asks for
AT_ONCE = 3  # scenarios side by side: a gateway spends much of its life waiting for disks and peers


async def count(zygote: ForkServer, case: FaultCase) -> list[str]:
    """Play *case* without a fault; return the calls it makes. Raises AssertionError when even that goes wrong."""
    outcome = await FaultScenario(zygote, replace(case, mode=ShimMode.COUNT, at=0)).play()
    assert not outcome.wrong, str(outcome)
    assert len(outcome.lives) == 1, str(outcome)
    return outcome.points


def places(platform: str, *, is_strict: bool = False) -> list[FaultCase]:
    """Return the cases that a real platform's matrix begins with."""
    direct = FaultCase(platform=platform, is_strict=is_strict)
    thread = replace(direct, is_thread=True)
    return [direct, thread, replace(thread, is_long=True)]


async def count_sends(zygote: ForkServer, case: FaultCase) -> int:
    """Play *case* without a fault; return how many posts and edits it makes."""
    outcome = await FaultScenario(zygote, replace(case, mode=ShimMode.COUNT, at=0)).play()
    assert not outcome.wrong, str(outcome)
    return outcome.sends


def spread(total: int, wanted: int) -> list[int]:
    """Return *wanted* of the numbers 1 to *total*, evenly spread."""
    wanted = min(wanted, total)
    return [1 + n * total // wanted for n in range(wanted)]


def distinct(points: Sequence[str], mode: ShimMode) -> list[int]:
    """Return the numbers of the points at which *mode* is a case of its own: a kill at each, what fails at some.

    SQLite answers a write to its log that fails as it answers any other of the same commit, by giving the commit up:
    of those in a row the first, the middle one and the last count. At the network ENOSPC once is EIO's reset or
    refused connection, and a full disk is the next write's case: there only EIO counts.
    """
    every = list(range(1, len(points) + 1))
    if mode.kills:
        return every
    kept: list[int] = []
    for is_logged, run in groupby(every, key=lambda n: points[n - 1] == _LOGGED):
        row = list(run)
        kept += sorted({row[0], row[len(row) // 2], row[-1]}) if is_logged else row
    return [n for n in kept if mode is ShimMode.IO_ERROR or points[n - 1].split()[0] not in _NETWORK]


def decisive(points: Sequence[str], mode: ShimMode) -> list[int]:
    """Return the numbers of the points that `make test` plays: those of `distinct` that change what a restart finds.

    A commit changes nothing before it is whole, so that of its writes to SQLite's log one counts: the first for a kill
    (what went before is done, the commit is not), the middle one for a write that fails.
    """
    kept: list[int] = []
    for is_logged, run in groupby(distinct(points, mode), key=lambda n: points[n - 1] == _LOGGED):
        row = list(run)
        kept += row if not is_logged else [row[0]] if mode.kills else [row[len(row) // 2]]
    return kept


def cases(base: FaultCase, mode: ShimMode, points: Iterable[int]) -> list[FaultCase]:
    """Return one case per point; relays with and without keys and with and without a memory take turns."""
    return [replace(base, mode=mode, at=at, send_key=n % 2 == 0, forgets_acks=n % 4 < 2) for n, at in enumerate(points)]


def losses(base: FaultCase, sends: Iterable[int]) -> list[FaultCase]:
    """Return one case per send whose reply is lost."""
    return [replace(base, lose=number) for number in sends]


async def play_all(
    zygote: ForkServer,
    every: Sequence[FaultCase],
    *,
    at_once: int = AT_ONCE,
    record: Callable[[int, str], None] = lambda _number, _wrong: None,
) -> list[ScenarioOutcome]:
    """Play *every* case, some side by side; the outcomes are in the same order.

    *record* is called with the number of each case's point and what is wrong there.
    """
    slots = asyncio.Semaphore(at_once)

    async def play(case: FaultCase) -> ScenarioOutcome:
        async with slots:
            outcome = await FaultScenario(zygote, case).play()
        record(case.at or case.lose, str(outcome) if outcome.wrong else "")
        return outcome

    async with asyncio.TaskGroup() as group:
        tasks = [group.create_task(play(case), name=str(case)) for case in every]
    return [task.result() for task in tasks]


async def play_until(zygote: ForkServer, every: Sequence[FaultCase], said: str) -> list[ScenarioOutcome]:
    """Play cases, some side by side, until *said* is among what is wrong; return their outcomes."""
    outcomes: list[ScenarioOutcome] = []
    for first in range(0, len(every), AT_ONCE):
        outcomes += await play_all(zygote, every[first : first + AT_ONCE])
        if said in verdict(outcomes):
            break
    return outcomes


def summary(outcomes: Sequence[ScenarioOutcome]) -> str:
    """Return one line: how many were played, struck, restarted; how many answers came marked, tools unknown."""
    struck = [outcome for outcome in outcomes if outcome.struck]
    restarts = sum(len(outcome.lives) - 1 for outcome in outcomes)
    return (
        f"{len(outcomes)} points, {len(struck)} struck, {restarts} restarts,"
        f" {sum(outcome.marked for outcome in outcomes)} marked as possible repeats,"
        f" {sum(outcome.orphans for outcome in outcomes)} placeholders left,"
        f" {sum(outcome.unknown for outcome in outcomes)} tool outcomes unknown,"
        f" {sum(bool(outcome.wrong) for outcome in outcomes)} wrong"
    )


def kinds(points: Iterable[str]) -> str:
    """Return how many calls of each kind, the most frequent first."""
    counted = Counter(point.split()[0] for point in points)
    return ", ".join(f"{number} {kind}" for kind, number in counted.most_common())


def verdict(outcomes: Sequence[ScenarioOutcome]) -> str:
    """Return every broken promise, or an empty string."""
    return "\n".join(str(outcome) for outcome in outcomes if outcome.wrong)
