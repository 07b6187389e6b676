"""Words that are erased while another worker, or this one, cuts the message that has them into parts."""

from __future__ import annotations

import asyncio
import json
import threading
from dataclasses import replace

import pytest

from gateway.events import MessagePart
from gateway.ports.journal import OutboxPart
from gateway.ports.memory import ErasureFilter
from gateway.store.database import SharedDatabase
from gateway.store.outbox import freeze
from gateway.store.row_codec import write_part
from gateway.store.sql_store import SqlStore
from tests.fakes.shared_workers import Workers, until
from tests.fakes.turns import ANN, accept, answer, answered, claim, next_delivery, parts_of, said

WORD = "zeppelin"
_WAITS_FOR_LOCK = "SELECT 1 FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND query LIKE 'UPDATE outbox%'"


async def erase(store: SqlStore) -> None:
    """Take the word out of all rows of Ann's chat."""
    reach = ErasureFilter(keys=frozenset({ANN}))
    await store.erasing.redact(reach, lambda value: json.loads(json.dumps(value).replace(WORD, "")))


def worded(part: MessagePart) -> MessagePart:
    """Return *part* with the word in it."""
    return replace(part, payload=f"{part.payload} {WORD}", plain=f"{part.plain} {WORD}")


async def test_a_message_erased_after_it_was_read_is_not_frozen_as_it_was(store: SqlStore) -> None:
    """No part is stored, and the message comes again without the words."""
    await answer(store, said(), f"my {WORD} leaks")
    message = (await next_delivery(store)).message
    await erase(store)
    assert await store.outbox.freeze(message, parts_of(message, 1)) == ()
    delivery = await next_delivery(store)
    assert (delivery.message.text, delivery.parts) == ("my  leaks", ())
    assert len(await store.outbox.freeze(delivery.message, parts_of(delivery.message, 2))) == 2


async def test_a_part_is_sent_as_it_is_stored_when_it_is_marked(store: SqlStore) -> None:
    """Who marks a part as sending gets it without the words erased since it was read, and None of a stopped one."""
    await answer(store, said(), f"my {WORD} leaks")
    message = (await next_delivery(store)).message
    first, second = map(worded, parts_of(message, 2))
    await store.outbox.freeze(message, [first, second])
    await erase(store)
    stored = await store.outbox.sending(second)
    assert stored is not None
    assert (stored.id, stored.plain, stored.payload) == (second.id, second.plain.replace(WORD, ""), "")
    await store.outbox.mark_unsent(second, "later")
    await store.outbox.cancel(message.turn)
    assert await store.outbox.sending(second) is None


@pytest.mark.parametrize("is_cut_first", [True, False], ids=["cut-first", "erased-first"])
async def test_another_workers_erasure_beside_the_cut_leaves_no_words(team: Workers, is_cut_first: bool) -> None:
    """Two open transactions, of which neither sees the other: the parts are without the words, or there are none."""
    first = await team.open()
    await accept(first, said())
    await until(lambda: ANN in team.holders())
    second = await team.open()
    lease = await claim(first)
    await first.journal.commit(lease, answered(lease, f"my {WORD} leaks"))
    message = (await next_delivery(first)).message
    cut = [(part, write_part(part)) for part in map(worded, parts_of(message, 2))]
    is_open, may_end = threading.Event(), threading.Event()

    def cut_slowly(database: SharedDatabase) -> tuple[OutboxPart, ...]:
        database.execute("SELECT 1").fetchone()  # the transaction sees what is now
        if not is_cut_first:
            is_open.set()
            may_end.wait(30)
        rows = freeze(database, message, cut, 0, first._engine.adopted)
        is_open.set()
        may_end.wait(30)
        return rows

    freezing = asyncio.ensure_future(first._engine.writer.submit(cut_slowly))
    await asyncio.to_thread(is_open.wait, 30)
    erasing = asyncio.create_task(erase(second))
    try:
        if is_cut_first:
            await until(lambda: bool(team.server.query(_WAITS_FOR_LOCK)))
        else:
            await erasing
    finally:
        may_end.set()
    rows = await freezing
    await erasing
    assert bool(rows) == is_cut_first
    delivery = await next_delivery(first)
    assert WORD not in str(delivery)
    assert len(delivery.parts) == len(rows)
