"""What people do to their memory, killed at every point that a restart can tell from the one before, on both engines.

Which points these are decides `shim_count_states` in shim.c. A kill takes away what the process has in memory, and
nothing else, so that two points are one if nothing lies between them that outlives the process:

- A file is as it was written, whether or not an fsync came: that matters to a power cut (test_power_cut.py) alone.
- SQLite ignores a log's tail without its commit. Of the writes of a transaction, the last one alone counts: the kill
  comes before the fsync behind it.
- PostgreSQL rolls an open transaction back when its connection is gone. A statement in it is the same point as its
  BEGIN, and reads change nothing. The kill comes where the answer to a COMMIT that wrote something has arrived. Files
  are written by the same code on both engines, so that these points are played on SQLite alone.
- Every write, rename, unlink, new file and folder, and every request to the platform is a point of its own.

A point in the middle of each act is played here, and one commit of those whose statements differ most. `CROSSINGS=full`
plays all of them, as does `python -m tests.faults --engine sqlite --stage NAME …` (and `--engine postgresql`). With
`--images` the process is not killed but stopped at each point, where its files are copied, and the copies are gone on
from: that takes half the time.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.fakes.postgres_server import PostgresServer
from tests.faults.matrix import IS_FULL
from tests.faults.memory_plots import MEMORY_PLOTS
from tests.faults.plot_runner import format_outcomes, kill_once, play_plot, points_of
from tests.faults.process_pool import ForkServer

# The point in the middle of each act, and of those that are played on PostgreSQL (docs/tests.md has how many there
# are); where an act has become shorter than that, half of it is played, and so on.
SQLITE = {
    "remember": 41, "correct": 20, "undo": 17, "new": 22, "erase": 63, "link": 79, "unlink": 111, "hand": 32,
    "drop": 18, "consolidate": 34, "flush": 42, "dream": 29, "restore": 17, "retention": 8, "import": 83,
    "upgrade11": 89, "upgrade15": 84,
}  # fmt: skip
POSTGRESQL = {"remember": 8, "new": 10, "dream": 11, "erase": 45, "link": 18, "import": 14}

CASES = [("sqlite", name) for name in MEMORY_PLOTS] + [
    ("postgresql", name) for name, plot in MEMORY_PLOTS.items() if plot.has_database and (IS_FULL or name in POSTGRESQL)
]


@pytest.mark.parametrize(("engine", "name"), CASES)
async def test_killed_anywhere_it_is_done_once(
    request: pytest.FixtureRequest,
    zygote: ForkServer,
    name: str,
    engine: str,
    record_property: Callable[[str, object], None],
) -> None:
    """Killed at any point, it is done in the end: nothing is lost, doubled or back."""
    server: PostgresServer | None = request.getfixturevalue("postgres") if engine == "postgresql" else None
    if IS_FULL:
        points = await points_of(zygote, MEMORY_PLOTS[name], server)
        numbers = range(1, len(points) + 1)
        outcomes = await play_plot(zygote, MEMORY_PLOTS[name], numbers, [server] if server is not None else [None] * 3)
        where = f"of {len(points)} points"
    else:
        outcomes = await kill_once(zygote, MEMORY_PLOTS[name], (SQLITE if server is None else POSTGRESQL)[name], server)
        where = f"at point {outcomes[-1].at}"
    record_property("figure", f"{name} on {engine}, kill_before, {where}: {format_outcomes(outcomes)}")
    assert not any(outcome.wrong for outcome in outcomes), format_outcomes(outcomes)
    assert any(outcome.struck for outcome in outcomes)
