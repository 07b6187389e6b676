"""What people do to their memory, killed at any statement and any write of the mirror, on both engines.

A spread of the points is played here; `CROSSINGS=full` plays all of them, as does
`python -m tests.faults --stage remember correct undo new erase link unlink hand`.
"""

from __future__ import annotations

import os
from collections.abc import Callable

import pytest

from tests.fakes.postgres_server import PostgresServer
from tests.faults.matrix import spread
from tests.faults.memory_plots import MEMORY_PLOTS
from tests.faults.plot_runner import format_outcomes, play_plot, points_of
from tests.faults.process_pool import ForkServer

KILLS = 2
_LEAST = 20  # calls of the shortest plot

Record = Callable[[str, object], None]


@pytest.mark.parametrize("engine", ["sqlite", "postgresql"])
@pytest.mark.parametrize("name", list(MEMORY_PLOTS))
async def test_killed_anywhere_it_is_done_once(
    request: pytest.FixtureRequest, zygote: ForkServer, name: str, engine: str, record_property: Record
) -> None:
    """Killed before any call to the store or to a file, it is done in the end: nothing is lost, doubled or back."""
    server: PostgresServer | None = request.getfixturevalue("postgres") if engine == "postgresql" else None
    points = await points_of(zygote, MEMORY_PLOTS[name], server)
    assert len(points) >= _LEAST
    kills = len(points) if os.environ.get("CROSSINGS") == "full" else KILLS
    numbers = [min(at + len(points) // (2 * kills), len(points)) for at in spread(len(points), kills)]
    outcomes = await play_plot(zygote, MEMORY_PLOTS[name], numbers, at_once=3, server=server)
    record_property("figure", f"{name} on {engine}, kill_before, of {len(points)} points: {format_outcomes(outcomes)}")
    assert not any(outcome.wrong for outcome in outcomes), format_outcomes(outcomes)
    assert any(outcome.struck for outcome in outcomes)
