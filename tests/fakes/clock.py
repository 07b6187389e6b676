"""Virtual time: an event loop whose clock jumps to the next timer when nothing is runnable.

How to use it: ask for the `clock` fixture (tests/conftest.py), and the whole test, its async fixtures
included, runs on a `VirtualLoop`::

    async def test_waits_as_long_as_it_was_told(clock: Clock) -> None:
        await asyncio.sleep(3600)             # returns at once
        assert clock.seconds == 3600          # seconds since the test began
        now = clock.now                       # a callable that gives an aware UTC datetime

`asyncio.sleep`, `call_later`, `asyncio.timeout` and `wait(timeout=...)` all follow the virtual clock.
Sockets are polled before every jump; while something runs in a thread of `asyncio.to_thread` the clock
stands still, so that no timeout fires because a thread was slow. Threads started in another way are not
seen: use inline stores. A test that waits for what can never happen fails with `VirtualDeadlock` instead of hanging.

Without pytest: ``with asyncio.Runner(loop_factory=VirtualLoop) as runner: runner.run(main())``.
"""

from __future__ import annotations

import asyncio
import selectors
from collections.abc import Callable, Coroutine
from concurrent.futures import Executor
from datetime import UTC, datetime, timedelta
from typing import Any, TypeVar, TypeVarTuple, cast

T = TypeVar("T")
_Arguments = TypeVarTuple("_Arguments")

EPOCH = datetime(2026, 11, 21, 21, 0, tzinfo=UTC)
STUCK_AFTER = 10.0  # real seconds of waiting with no timer, no thread and no event


class VirtualDeadlock(RuntimeError):
    """Every task waits and nothing is left that could wake one of them."""


class _JumpingSelector(selectors.DefaultSelector):
    """Polls for real, then moves the clock instead of waiting."""

    now = 0.0
    threads = 0  # calls that run in an executor

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        ready = super().select(0)
        if ready or timeout == 0:
            return ready
        if self.threads:
            return super().select(STUCK_AFTER)
        if timeout is not None:
            self.now += max(timeout, 0.0)
            return []
        ready = super().select(STUCK_AFTER)
        if not ready:
            raise VirtualDeadlock(f"nothing can happen any more at {self.now:.3f} s of virtual time")
        return ready


class VirtualLoop(asyncio.SelectorEventLoop):
    """An event loop for tests; see the module's docstring."""

    def __init__(self) -> None:
        self._jumps = _JumpingSelector()
        super().__init__(self._jumps)
        # A timer's own rounding must not ask for a jump of nothing.
        self._clock_resolution = 1e-6

    def time(self) -> float:
        """Return virtual seconds since the loop was made."""
        return self._jumps.now

    def run_in_executor(
        self,
        executor: Executor | None,
        func: Callable[[*_Arguments], Any],
        *args: *_Arguments,
    ) -> asyncio.Future[Any]:
        """Run *func* in a thread; the clock stands still until it is done."""
        future: asyncio.Future[Any] = super().run_in_executor(executor, func, *args)
        self._jumps.threads += 1
        future.add_done_callback(self._thread_done)
        return future

    def _thread_done(self, _future: asyncio.Future[Any]) -> None:
        self._jumps.threads -= 1


class VirtualClock:
    """What a test reads of the virtual loop it runs on."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._skew = timedelta()

    @property
    def seconds(self) -> float:
        """Virtual seconds since the loop was made, rounded to the microsecond."""
        return round(self._loop.time(), 6)

    def now(self) -> datetime:
        """Return the wall clock: EPOCH plus virtual seconds plus what `set_wall` moved."""
        return EPOCH + timedelta(seconds=self.seconds) + self._skew

    def set_wall(self, by: timedelta) -> None:
        """Move the wall clock alone (NTP, DST); timers do not notice."""
        self._skew += by


def at_once(waitable: Coroutine[object, object, T]) -> T:
    """Return the result of a coroutine that waits for nothing; one that waits fails."""
    try:
        waitable.send(None)
    except StopIteration as end:
        return cast("T", end.value)
    waitable.close()
    raise AssertionError("it waited")
