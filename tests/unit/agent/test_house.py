"""What /stop does to an answer that is on its way."""

from __future__ import annotations

from agent.command_services import AgentCommandServices
from agent.locks import WorkerSlots
from agent.worker_pool import WorkerPool
from gateway.events import DeliveryReceipt, MessagePart
from gateway.ports import InboxRow, MessageOutcome, TurnLease
from tests.fakes.clock import Clock
from tests.fakes.meter import FakeMeter
from tests.fakes.store import open_inline_store
from tests.fakes.turns import ANN, accept, answered, claim, said


class NoWork:
    """A pool's work that nobody asks for."""

    async def handle_turn(self, running: object) -> MessageOutcome:
        """Never called."""
        raise AssertionError

    async def handle_stop(self, running: object) -> None:
        """Never called."""
        raise AssertionError

    async def dead_letter(self, lease: TurnLease) -> None:
        """Never called."""
        raise AssertionError

    async def control(self, row: InboxRow) -> None:
        """Never called."""
        raise AssertionError

    async def dead_letter_control(self, row: InboxRow) -> None:
        """Never called."""
        raise AssertionError


async def test_stop_keeps_what_is_not_on_its_way_yet(clock: Clock) -> None:
    """Of an answer in three parts, one is shown: the others are cancelled, and a `cut` line says which was seen."""
    store = await open_inline_store(clock=clock.now)
    meter = FakeMeter()
    pool = WorkerPool(store.journal, NoWork(), slots=WorkerSlots(1), meter=meter, clock=lambda: clock.seconds)
    house = AgentCommandServices(
        journal=store.journal,
        outbox=store.outbox,
        records=store.records,
        now=clock.now,
        sessions=None,  # type: ignore[arg-type]  # /stop asks for no history
        people=store.people,
        sums=store.usage,
        recall=None,  # type: ignore[arg-type]  # nor for search
        memory=None,  # type: ignore[arg-type]  # nor for memory
        staging=None,  # type: ignore[arg-type]  # nor for what waits
        rights=None,  # type: ignore[arg-type]  # nor for rights
        dreams=None,  # type: ignore[arg-type]  # nor for dreams
        pairing=None,  # type: ignore[arg-type]  # nor for strangers
        forgetter=None,  # type: ignore[arg-type]  # nor for forgetting
        linking=None,  # type: ignore[arg-type]  # nor for accounts
        access=None,  # type: ignore[arg-type]  # nor for who may write
        profiles=None,  # type: ignore[arg-type]  # nor for a model
        settings=None,  # type: ignore[arg-type]  # nor for settings
        locales=None,  # type: ignore[arg-type]  # nor for the clock
        facts=dict,
        pool=pool,
    )
    await accept(store, said("a long question"))
    lease = await claim(store)
    await store.journal.commit(lease, answered(lease, "one two three"))
    delivery = await store.outbox.next(ANN)
    assert delivery is not None
    answer = delivery.message
    parts = [
        MessagePart(id=f"{answer.id}.{n}", key=ANN, payload=word, plain=word)
        for n, word in enumerate(("1", "2", "3"), 1)
    ]
    await store.outbox.freeze(answer, parts)
    await store.outbox.mark_sent(DeliveryReceipt(part=parts[0].id, message_id="m1", at=clock.now()))

    assert await house.stop(ANN, sender="somebody") == (False, 0)  # a member stops their own only
    assert await house.stop(ANN, sender="") == (True, 0)
    assert await house.stop(ANN, sender="") == (False, 0)

    assert await store.outbox.next(ANN) is None
    written = [line for stored in await store.records.unprojected(1, 10) for line in stored.record.lines]
    assert [(line["kind"], line["turn"], line["shown"]) for line in written] == [("cut", lease.turn, [1])]
    await store.close()
