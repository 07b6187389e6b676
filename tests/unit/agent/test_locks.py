"""Locks by key and worker slots."""

from __future__ import annotations

import asyncio
from contextlib import AbstractAsyncContextManager
from datetime import timedelta

from agent.base.locks import KeyLocks, TurnPhases, WorkerSlots
from tests.fakes.clock import VirtualClock


async def test_one_key_is_held_by_one_and_the_table_frees_itself() -> None:
    """Holders of a key follow each other in order, other keys go on, and nothing stays in the table."""
    locks = KeyLocks()
    order: list[str] = []
    both, go = asyncio.Event(), asyncio.Event()

    async def work(key: str, name: str) -> None:
        async with locks.hold(key):
            order.append(name)
            if len(order) == 2:
                both.set()
            await go.wait()

    async with asyncio.TaskGroup() as tasks:
        for key, name in [("a", "a1"), ("a", "a2"), ("b", "b1"), ("a", "a3")]:
            tasks.create_task(work(key, name))
        await both.wait()
        assert order == ["a1", "b1"]
        assert len(locks) == 2
        go.set()
    assert order == ["a1", "b1", "a2", "a3"]
    assert len(locks) == 0


async def test_a_cancelled_waiter_leaves_no_entry() -> None:
    """Cancelling somebody who waits for a key neither blocks the others nor leaks the lock."""
    locks = KeyLocks()
    async with locks.hold("k"):
        waiter = asyncio.create_task(_hold_forever(locks))
        await asyncio.sleep(0)
        waiter.cancel()
        await asyncio.wait([waiter])
        assert waiter.cancelled()
    assert len(locks) == 0


async def _hold_forever(locks: KeyLocks) -> None:
    async with locks.hold("k"):
        await asyncio.Event().wait()


WAIT = timedelta(seconds=3)


async def test_nothing_runs_beside_a_lone_phase(clock: VirtualClock) -> None:
    """Usual phases end before it and start behind it; two who want one do not block each other."""
    slots = WorkerSlots(4)
    inside: set[str] = set()
    seen: list[frozenset[str]] = []

    async def work(name: str, phase: AbstractAsyncContextManager[object]) -> None:
        async with phase as has_no_company:
            inside.add(name)
            seen.append(frozenset(inside))
            await asyncio.sleep(0.1)
            assert has_no_company is not True or inside == {name}
            inside.discard(name)

    async with asyncio.TaskGroup() as tasks:
        for n in range(12):
            is_lone = n % 5 == 4
            tasks.create_task(work(f"{n}", slots.lone_phase(WAIT) if is_lone else TurnPhases(slots, WAIT)))
    assert {frozenset({"4"}), frozenset({"9"})} <= set(seen)
    assert len(seen) == 12
    assert clock.seconds < 1


async def test_a_phase_waits_for_others_three_seconds_at_most(clock: VirtualClock) -> None:
    """A usual phase then starts beside the lone one, and a lone one says that it has company."""
    slots = WorkerSlots(4)
    async with slots.lone_phase(WAIT) as has_no_company:
        assert has_no_company
        async with TurnPhases(slots, WAIT):
            assert clock.seconds == 3
    async with TurnPhases(slots, WAIT), slots.lone_phase(WAIT) as has_no_company:
        assert (has_no_company, clock.seconds) == (False, 6)
    with slots.job():
        async with slots.lone_phase(WAIT) as has_no_company:
            assert (has_no_company, clock.seconds) == (False, 9)
