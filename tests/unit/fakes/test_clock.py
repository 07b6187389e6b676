"""The virtual clock keeps asyncio's promises without waiting."""

from __future__ import annotations

import asyncio
import threading
from datetime import timedelta

import pytest

from tests.fakes.clock import EPOCH, VirtualClock, VirtualDeadlock, VirtualLoop


async def test_sleeping_moves_the_clock_and_nothing_else(clock: VirtualClock) -> None:
    """A sleep of a day is over at once, and both clocks say a day has passed."""
    before = clock.seconds
    await asyncio.sleep(86_400)
    assert clock.seconds == before + 86_400
    assert clock.now() == EPOCH + timedelta(seconds=clock.seconds)


async def test_timers_fire_in_their_order(clock: VirtualClock) -> None:
    """Tasks wake in the order of their times, whatever the order they went to sleep in."""
    woken: list[int] = []

    async def nap(seconds: int) -> None:
        await asyncio.sleep(seconds)
        woken.append(seconds)

    await asyncio.gather(*(nap(seconds) for seconds in (30, 10, 20)))
    assert woken == [10, 20, 30]


async def test_a_timeout_fires_on_virtual_time(clock: VirtualClock) -> None:
    """asyncio.timeout follows the virtual clock."""
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(5):
            await asyncio.Event().wait()
    assert clock.seconds == 5


async def test_the_clock_stands_still_while_a_thread_works(clock: VirtualClock) -> None:
    """A timeout around a thread's work never fires because the machine was slow."""
    go = threading.Event()
    asyncio.get_running_loop().call_soon(lambda: threading.Timer(0.05, go.set).start())
    async with asyncio.timeout(0.001):
        assert await asyncio.to_thread(go.wait, 10)
    assert clock.seconds == 0


async def test_the_wall_clock_can_be_moved_alone(clock: VirtualClock) -> None:
    """A jump of the wall clock fires no timer."""
    clock.set_wall(timedelta(days=-1))
    assert clock.now() == EPOCH - timedelta(days=1)
    assert clock.seconds == 0


def test_waiting_for_ever_is_a_failure_and_no_hang(monkeypatch: pytest.MonkeyPatch) -> None:
    """When nothing can wake anybody, the loop says so."""
    monkeypatch.setattr("tests.fakes.clock.STUCK_AFTER", 0.01)

    async def wait_for_ever() -> None:
        await asyncio.Event().wait()

    with pytest.raises(VirtualDeadlock), asyncio.Runner(loop_factory=VirtualLoop) as runner:
        runner.run(wait_for_ever())
