"""How far a run of many points has come, printed while it is played."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

INTERVAL = 20.0  # seconds between two lines


class FaultProgress:
    """Counts the points that were played, on the running loop's clock."""

    def __init__(self, name: str, numbers: Sequence[int]) -> None:
        self._name = name
        self._total = len(numbers)
        self._open = sorted(numbers)
        self._wrong = 0
        self._started_at = asyncio.get_running_loop().time()

    @property
    def is_complete(self) -> bool:
        """Whether every point was played."""
        return not self._open

    def record(self, number: int, wrong: str) -> None:
        """Record that point *number* was played; print *wrong*, the broken promises, if it is not empty."""
        self._open.remove(number)
        if wrong:
            self._wrong += 1
            print(wrong, flush=True)

    def __str__(self) -> str:
        played = self._total - len(self._open)
        line = f"{self._name}: {played} of {self._total} points, {self._wrong} wrong"
        if self.is_complete:
            return line
        seconds = asyncio.get_running_loop().time() - self._started_at
        left = f", about {seconds / played * len(self._open) / 60:.0f} min left" if played else ""
        return f"{line}{left}; resume with --from {self._open[0]}"


@asynccontextmanager
async def show_progress(name: str, numbers: Sequence[int]) -> AsyncIterator[FaultProgress]:
    """Print a line at each interval of the block, and where to resume when it is left before the last point."""
    progress = FaultProgress(name, numbers)

    async def repeat() -> None:
        while True:
            await asyncio.sleep(INTERVAL)
            print(progress, flush=True)

    printing = asyncio.create_task(repeat(), name="progress")
    try:
        yield progress
    finally:
        printing.cancel()
        if not progress.is_complete:
            print(progress, flush=True)
