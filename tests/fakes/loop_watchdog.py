"""A watchdog over the event loop: how long its longest step took."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

LONGEST_STEP = 0.05  # seconds that a tool may block the loop


class LoopWatchdog:
    """The longest step since the watch began, in seconds of the wall clock."""

    def __init__(self) -> None:
        self.longest = 0.0


@contextmanager
def watch_loop() -> Iterator[LoopWatchdog]:
    """Time every callback of the running loop, as asyncio's own debug mode does, without its cost."""
    watchdog, run = LoopWatchdog(), asyncio.Handle._run

    def timed(self: asyncio.Handle) -> Any:
        begun = time.perf_counter()
        try:
            return run(self)
        finally:
            watchdog.longest = max(watchdog.longest, time.perf_counter() - begun)

    asyncio.Handle._run = timed  # type: ignore[method-assign]
    try:
        yield watchdog
    finally:
        asyncio.Handle._run = run  # type: ignore[method-assign]
