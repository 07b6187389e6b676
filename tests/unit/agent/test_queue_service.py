"""What /stop does to an answer that is on its way."""

from __future__ import annotations

from agent.commands.command import QueueService
from agent.turns.turn import RunningTurns
from gateway.events import DeliveryReceipt, MessagePart
from gateway.text.json_lines import decode_lines
from tests.fakes.clock import VirtualClock
from tests.fakes.store import open_inline_store
from tests.fakes.turns import ANN, answered, begin_turn, next_delivery, said


async def test_stop_keeps_what_is_not_on_its_way_yet(clock: VirtualClock) -> None:
    """Of an answer in three parts, one is shown: the others are cancelled, and a `cut` line says which was seen."""
    store = await open_inline_store(clock=clock.now)
    queue = QueueService(
        journal=store.journal,
        outbox=store.outbox,
        records=store.records,
        turns=RunningTurns(store.journal),
        now=clock.now,
    )
    lease = await begin_turn(store, said("a long question"))
    await store.journal.commit(lease, answered(lease, "one two three"))
    delivery = await next_delivery(store)
    answer = delivery.message
    parts = [
        MessagePart(id=f"{answer.id}.{n}", key=ANN, payload=word, plain=word)
        for n, word in enumerate(("1", "2", "3"), 1)
    ]
    await store.outbox.freeze(answer, parts)
    await store.outbox.mark_sent(DeliveryReceipt(part=parts[0].id, message_id="m1", at=clock.now()))

    assert await queue.stop(ANN, sender="somebody", before=99) == (False, 0)  # a member stops their own only
    first = lease.rows[0].seq
    assert await queue.stop(ANN, sender="", before=first) == (False, 0)  # it was said before the question came
    assert await queue.stop(ANN, sender="", before=first + 1) == (True, 0)
    assert await queue.stop(ANN, sender="", before=99) == (False, 0)

    assert await store.outbox.next(ANN) is None
    written = [line for stored in await store.records.unwritten(1, 10) for line in decode_lines(stored.body)]
    assert [(line["kind"], line["turn"], line["shown"]) for line in written[:-1]] == [("cut", lease.turn, [1])]
    assert written[-1]["kind"] == "end"
    await store.close()
