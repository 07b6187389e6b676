"""Edits of MEMORY.md by hand beside changes by the model: each line of both is there at last, or it fails."""

from __future__ import annotations

import tempfile
import time
from pathlib import Path

from tests.benchmarks.harness import row
from tests.fakes.hand_edits import saves_beside_changes
from tests.fakes.memory import FakeRecords

_COUNT = 1_000


async def measure() -> None:
    """Save in place, by rename and in two steps, a hundred times a second."""
    with tempfile.TemporaryDirectory() as home:
        started = time.perf_counter()
        await saves_beside_changes(Path(home), FakeRecords(), saves=_COUNT, changes=_COUNT, every=0.01)
        row("edits by hand beside changes", edits=_COUNT, changes=_COUNT, lost=0, seconds=time.perf_counter() - started)
