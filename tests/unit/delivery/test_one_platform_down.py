"""One platform is down or limits us for a minute: nobody on the other two waits a moment longer for it.

The whole way behind the door, on virtual time: journal, pool, previews, deliverer, three channels. What is
compared is when each answer stands, with the trouble and without.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from datetime import timedelta

import pytest

from agent.base.locks import WorkerSlots
from agent.turns.turn import RunningTurns, Turn
from agent.workers.turn_runner import TurnRunner
from agent.workers.worker_pool import WorkerPool
from gateway.delivery import DeliveryContext, OutboxDispatcher
from gateway.events import DeliveryReceipt, MessagePart, SessionKey
from gateway.ports.channel import ChatActivity
from gateway.ports.journal import InboxRow, MessageOutcome
from gateway.store.sql_store import SqlStore
from tests.fakes.clock import VirtualClock
from tests.fakes.memory_channel import KEYED, RINGING, ChannelFault, FakeChannel, MemoryPlatform
from tests.fakes.meter import FakeMeter
from tests.fakes.store import open_inline_store
from tests.fakes.turns import accept, answered, said

CAPABILITIES = {
    "telegram": RINGING,
    "slack": replace(RINGING, finds=True),
    "discord": replace(KEYED, send_key_for=timedelta(minutes=2)),
}
WORKERS = 12
MINUTE = 60
ENDS = ": this is the answer, which ends."
CHATS = 18  # of the platform in trouble, each asks twice; the others have a third


class TimedPlatform(MemoryPlatform):
    """A platform that notes when a whole answer stands."""

    def __init__(self) -> None:
        super().__init__()
        self.stood: dict[str, float] = {}  # question -> when its answer stood

    async def call(
        self, what: str, part: MessagePart, act: Callable[[], DeliveryReceipt | None]
    ) -> DeliveryReceipt | None:
        """Do the call, and note what it brought."""
        receipt = await super().call(what, part, act)
        if what != "find" and part.plain.endswith(ENDS):
            self.stood[part.plain.removesuffix(ENDS)] = asyncio.get_running_loop().time()
        return receipt


class OfflineChannel(FakeChannel):
    """A channel whose platform can be gone altogether: then not even typing gets through."""

    is_gone = False

    async def show(self, activity: ChatActivity) -> None:
        if self.is_gone:
            await asyncio.Event().wait()
        await super().show(activity)


class StreamingWorker(TurnRunner):
    """The pool's work: two seconds of streaming, then the commit, as a turn does it."""

    def __init__(self, store: SqlStore, deliverer: OutboxDispatcher) -> None:
        self._store = store
        self._deliverer = deliverer

    async def handle_turn(self, turn: Turn) -> MessageOutcome:
        lease = turn.lease
        question = lease.rows[0].message.text
        preview = self._deliverer.open(lease, "en")
        try:
            for n in range(4):
                preview.show(f"{question}: this is the answer, which goes on" + " and on" * n)
                await asyncio.sleep(0.5)
        finally:
            await preview.close()
        await self._store.journal.commit(lease, answered(lease, f"{question}{ENDS}"))
        return MessageOutcome.ANSWERED

    async def handle_stop(self, turn: Turn) -> MessageOutcome:
        raise NotImplementedError

    async def dead_letter(self, turn: Turn) -> None:
        raise NotImplementedError

    async def control(self, row: InboxRow) -> None:
        raise NotImplementedError

    async def dead_letter_control(self, row: InboxRow) -> None:
        raise NotImplementedError


@dataclass
class ThreePlatformGateway:
    """One gateway with three platforms."""

    clock: VirtualClock
    store: SqlStore
    asked: dict[str, float] = field(default_factory=dict)  # question -> when

    def __post_init__(self) -> None:
        self.platforms = {name: TimedPlatform() for name in CAPABILITIES}
        self.channels = {
            name: OfflineChannel(platform, name=name, capabilities=CAPABILITIES[name])
            for name, platform in self.platforms.items()
        }
        for name, channel in self.channels.items():
            channel.now = self.clock.now
            self.platforms[name].latency = 0.2

    async def crowd(self, name: str, chats: int) -> None:
        """Let the people of one platform ask over the minute, in all their chats, each twice; wait for the answers."""
        for n in range(2 * chats):
            question = f"{name} {n}"
            self.asked[question] = self.clock.seconds
            await accept(self.store, said(question, id=question, key=SessionKey(name, f"c{n % chats}")))
            await asyncio.sleep(MINUTE / (2 * chats))
        await self.platforms[name].until(lambda: len(self.platforms[name].stood) == 2 * chats)

    def waits(self) -> dict[str, float]:
        """Return how long each question waited for its answer."""
        stood = {question: at for platform in self.platforms.values() for question, at in platform.stood.items()}
        return {question: stood[question] - at for question, at in self.asked.items()}


async def spend_a_minute(clock: VirtualClock, down: str, trouble: str) -> dict[str, float]:
    """Let people ask on all three platforms while *down* has *trouble*; return how long each waited for an answer."""
    store = await open_inline_store(clock=clock.now)
    scene = ThreePlatformGateway(clock, store)
    deliverer = OutboxDispatcher(scene.channels, DeliveryContext(outbox=store.outbox, meter=FakeMeter(), now=clock.now))
    pool = WorkerPool(
        store.journal,
        StreamingWorker(store, deliverer),
        turns=RunningTurns(store.journal),
        slots=WorkerSlots(WORKERS),
        meter=FakeMeter(),
        clock=asyncio.get_running_loop().time,
    )
    async with asyncio.TaskGroup() as tasks:
        running = [tasks.create_task(deliverer.run()), tasks.create_task(pool.run())]
        async with asyncio.TaskGroup() as people:
            people.create_task(suffer(scene, down, trouble))
            for name in CAPABILITIES:
                people.create_task(scene.crowd(name, CHATS if name == down else CHATS // 3))
        for task in running:
            task.cancel()
    await store.close()
    return scene.waits()


async def suffer(scene: ThreePlatformGateway, down: str, trouble: str) -> None:
    """Do to the platform *down* what *trouble* says, for a minute."""
    platform = scene.platforms[down]
    scene.channels[down].is_gone = trouble == "gone"
    match trouble:
        case "limited":  # told once per call how long to wait, as platforms do
            platform.fail(ChannelFault.LATER, seconds=MINUTE, calls=10**9)
        case "limited for a moment, again and again":
            platform.fail(ChannelFault.LATER, seconds=1, calls=10**9)
        case "gone":  # packets vanish: nothing ever comes back
            platform.fail(ChannelFault.HANG, calls=10**9)
        case "refusing connections":
            platform.fail(ChannelFault.DROPPED, calls=10**9)
    await asyncio.sleep(MINUTE)
    platform.heal()
    scene.channels[down].is_gone = False


TROUBLES = ["limited", "limited for a moment, again and again", "gone", "refusing connections"]


@pytest.mark.parametrize("down", CAPABILITIES)
async def test_the_others_answers_are_not_delayed(clock: VirtualClock, down: str) -> None:
    """Each answer on the healthy platforms stands when it would have stood; the sick one's all arrive, later."""
    well = await spend_a_minute(clock, down, "none")
    for trouble in TROUBLES:
        sick = await spend_a_minute(clock, down, trouble)
        assert set(sick) == set(well), trouble
        late = {question: sick[question] - well[question] for question in well}
        others = [seconds for question, seconds in late.items() if not question.startswith(down)]
        assert len(others) == 4 * (CHATS // 3)
        assert max(others) < 0.05, trouble
        assert max(seconds for question, seconds in late.items() if question.startswith(down)) > 1, trouble
