"""Locks by key and worker slots."""

from __future__ import annotations

import asyncio
from datetime import timedelta

from agent.locks import KeyLocks, WorkerSlots


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


async def test_a_lone_holder_has_every_slot_to_itself() -> None:
    """While one works alone nobody else does, and two who want to be alone do not block each other."""
    slots = WorkerSlots(4)
    inside: set[str] = set()
    seen: list[frozenset[str]] = []

    async def usual(name: str) -> None:
        async with slots.acquire():
            inside.add(name)
            seen.append(frozenset(inside))
            await asyncio.sleep(0)
            inside.discard(name)

    async def alone(name: str) -> None:
        async with slots.exclusive(timedelta(seconds=30)) as is_alone:
            assert is_alone
            inside.add(name)
            seen.append(frozenset(inside))
            await asyncio.sleep(0)
            assert inside == {name}
            inside.discard(name)

    async with asyncio.TaskGroup() as tasks:
        for n in range(6):
            tasks.create_task(usual(f"u{n}"))
        tasks.create_task(alone("x"))
        tasks.create_task(alone("y"))
        for n in range(6, 10):
            tasks.create_task(usual(f"u{n}"))
    assert frozenset({"x"}) in seen
    assert frozenset({"y"}) in seen
    assert len(seen) == 12
