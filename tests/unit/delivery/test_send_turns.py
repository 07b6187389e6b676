"""Waiting for a turn at a platform that limits the messages of all chats together: nothing is in doubt meanwhile."""

from __future__ import annotations

import asyncio
from datetime import timedelta

import pytest

from tests.fakes.clock import VirtualClock
from tests.fakes.turns import ANN, BOB
from tests.unit.delivery.conftest import OpensGateway


async def test_a_kill_while_an_answer_waits_marks_nothing(clock: VirtualClock, opens: OpensGateway) -> None:
    """It was neither sent nor noted as being sent: the next run sends it like a new one."""
    gateway = await opens()
    gateway.platform.finds = False  # what is in doubt is marked
    gateway.platform.gives_turns.clear()
    await gateway.answer("Hello.")
    await asyncio.sleep(90)  # longer than a call may take
    gateway.platform.gives_turns.set()
    await gateway.restart()
    await gateway.settled()
    (posted,) = gateway.platform.chats[ANN.chat]
    assert (posted.text, posted.is_marked) == ("Hello.", False)


async def test_a_stop_before_the_call_leaves_no_doubt(opens: OpensGateway) -> None:
    """What a commit marked as sending, and no worker took before the stop, is sent like a new answer."""
    gateway = await opens()
    gateway.platform.finds = False  # what is in doubt is marked
    lease = await gateway.turn()
    committing = asyncio.create_task(gateway.commit(lease, "Hello."))
    await asyncio.sleep(0)
    gateway.deliverer._context.stopping.set()
    await asyncio.wait({committing, gateway.running})
    await gateway.store.close()
    await gateway.start()
    await gateway.settled()
    (posted,) = gateway.platform.chats[ANN.chat]
    assert (posted.text, posted.is_marked) == ("Hello.", False)


async def test_a_stop_does_not_wait_for_turns(clock: VirtualClock, opens: OpensGateway) -> None:
    """After the grace the workers end at once, and nothing was sent."""
    gateway = await opens()
    gateway.platform.gives_turns.clear()
    await gateway.answer("Hello.")
    await asyncio.sleep(1)
    begun = clock.seconds
    await gateway.deliverer.drain(timedelta(seconds=5))
    await asyncio.wait({gateway.running})
    assert clock.seconds - begun <= 6
    assert gateway.platform.calls == []


async def test_what_was_stopped_while_it_waited_is_not_sent(clock: VirtualClock, opens: OpensGateway) -> None:
    """The answer is read again when its turn has come."""
    gateway = await opens()
    gateway.platform.gives_turns.clear()
    lease = await gateway.answer("Too late.")
    await asyncio.sleep(1)
    assert await gateway.store.outbox.cancel(lease.turn) == ()
    await gateway.answer("In time.", key=BOB)
    gateway.platform.gives_turns.set()
    await gateway.settled()
    assert gateway.platform.texts(ANN) == []
    assert gateway.platform.texts(BOB) == ["In time."]


async def test_each_part_waits_for_its_turn(clock: VirtualClock, opens: OpensGateway) -> None:
    """A long answer gives way between two parts."""
    gateway = await opens()
    await gateway.answer("one " * 20 + "\n\n" + "two " * 20)
    await gateway.platform.until(lambda: len(gateway.platform.calls) == 1)
    gateway.platform.gives_turns.clear()
    await asyncio.sleep(5)
    assert len(gateway.platform.texts(ANN)) == 1
    gateway.platform.gives_turns.set()
    await gateway.settled()
    assert [posted.is_marked for posted in gateway.platform.chats[ANN.chat]] == [False, False]


@pytest.mark.parametrize("waits_for", ["a turn", "a preview's pause"])
async def test_a_kill_while_a_later_part_waits_marks_nothing(
    clock: VirtualClock, opens: OpensGateway, waits_for: str
) -> None:
    """It is noted as being sent once its turn has come, and when the platform no longer asks its chat to wait."""
    gateway = await opens()
    gateway.platform.finds = False
    gateway.platform.latency = 1.0
    await gateway.answer("one " * 20 + "\n\n" + "two " * 20)
    await asyncio.sleep(0.5)
    if waits_for == "a turn":
        gateway.platform.gives_turns.clear()
    else:
        gateway.deliverer._context.pauses.add(ANN, 60.0, "asked to wait")
    await asyncio.sleep(30)
    assert len(gateway.platform.texts(ANN)) == 1
    gateway.platform.gives_turns.set()
    await gateway.restart()
    await gateway.settled()
    assert [posted.is_marked for posted in gateway.platform.chats[ANN.chat]] == [False, False]
