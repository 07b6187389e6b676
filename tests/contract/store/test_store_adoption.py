"""A journal that is older than what happened since: its open work is of unknown outcome, and its past is no crash."""

from __future__ import annotations

from pathlib import Path

import pytest

from gateway.events import SessionKey
from gateway.journal_file import OpenChoice, lost_journal, read_stamp
from gateway.ports.journal import PartState
from gateway.store.adoption import OpenWork
from gateway.store.engine import StoreLimits
from gateway.store.sql_store import SqlStore
from gateway.store.sqlite import FILE, open_file
from gateway.store.sqlite.schema import mark_adopted
from tests.fakes.store import kill
from tests.fakes.turns import ANN, BOB, START, accept, answer, answered, claim, next_delivery, parts_of, receipt, said

CARL = SessionKey("telegram", "77")


async def opened(path: Path) -> SqlStore:
    """Open the store at the time of the messages."""
    return await open_file(path, StoreLimits(), clock=lambda: START)


@pytest.fixture
async def left(tmp_path: Path) -> Path:
    """A journal that was killed: Ann's answer is half sent, Bob's is not cut, Carl's message is being answered."""
    store = await opened(tmp_path / FILE)
    await answer(store, said(id="1"), "for Ann")
    delivery = await next_delivery(store)
    parts = parts_of(delivery.message, 3)
    await store.outbox.freeze(delivery.message, parts)
    await store.outbox.mark_sent(receipt(parts[0]), then=parts[1])
    await answer(store, said(id="2", key=BOB), "for Bob")
    await accept(store, said(id="3", key=CARL))
    assert not (await claim(store, CARL)).is_uncertain
    path = kill(tmp_path / FILE, tmp_path / "left")
    await store.close()
    return path


async def test_everything_open_is_of_unknown_outcome(left: Path) -> None:
    """Parts that waited, parts not yet cut and the answer to an open message are looked up or marked; new ones not."""
    assert mark_adopted(left, OpenChoice.ANSWER) == OpenWork(messages=1, answers=2)
    store = await opened(left)
    assert (await store.journal.depth())["unclean_stops"] == 0
    ann, bob = await store.outbox.next(ANN), await store.outbox.next(BOB)
    assert ann is not None
    assert bob is not None
    assert [row.state for row in ann.parts] == [PartState.SENT, PartState.UNKNOWN, PartState.UNKNOWN]
    rows = await store.outbox.freeze(bob.message, parts_of(bob.message, 2))
    assert [row.state for row in rows] == [PartState.UNKNOWN, PartState.UNKNOWN]
    lease = await claim(store, CARL)
    assert lease.is_uncertain
    await store.journal.commit(lease, answered(lease, "for Carl"))
    carl = await store.outbox.next(CARL)
    assert carl is not None
    (row,) = await store.outbox.freeze(carl.message, parts_of(carl.message, 1))
    assert row.state is PartState.UNKNOWN
    await store.outbox.mark_sent(receipt(row.part))
    new = await answer(store, said(id="4", key=CARL), "and again")
    assert not new.is_uncertain
    delivery = await store.outbox.next(CARL)
    assert delivery is not None
    (row,) = await store.outbox.freeze(delivery.message, parts_of(delivery.message, 1))
    assert row.state is PartState.SENDING
    await store.close()


async def test_what_is_dropped_has_ended(left: Path) -> None:
    """Nothing of it is sent or asked again, its messages are known by their ids, and the chats go on."""
    mark_adopted(left, OpenChoice.DROP)
    store = await opened(left)
    depth = await store.journal.depth()
    assert (depth["queued"], depth["undelivered"]) == (0, 0)
    assert [await store.outbox.next(key) for key in (ANN, BOB, CARL)] == [None, None, None]
    await accept(store, said(id="3", key=CARL))  # delivered again: known
    assert await store.journal.claim(CARL) is None
    lease = await answer(store, said(id="4", key=CARL), "new")
    assert [row.message.message_id for row in lease.rows] == ["4"]
    await store.close()


async def test_adoption_counts_once(left: Path) -> None:
    """The start after the next one counts crashes as ever, and still knows which answers are uncertain."""
    mark_adopted(left, OpenChoice.ANSWER)
    store = await opened(left)
    again = kill(left, left.parent / "again")
    await store.close()
    store = await opened(again)
    assert (await store.journal.depth())["unclean_stops"] == 1
    assert (await claim(store, CARL)).is_uncertain
    await store.close()


async def test_the_stamp_never_runs_ahead(tmp_path: Path) -> None:
    """At every moment a copy of the journal fits the stamp that stands there; a copy of before it does not."""
    path = tmp_path / FILE
    store = await opened(path)
    await store.people.prefer("people/ann", "language", "de")
    early = kill(path, tmp_path / "early")
    for number in range(3):
        await answer(store, said(id=str(number)), "x")
        await store.stamp()
        before = read_stamp(path)
        await store.stamp()  # nothing new
        assert read_stamp(path) == before
        copy = kill(path, tmp_path / f"copy-{number}")
        (copy.parent / "journal.stamp").write_bytes((tmp_path / "journal.stamp").read_bytes())
        assert lost_journal(copy) == ""
        again = await opened(copy)
        await again.close()
        assert lost_journal(copy) == ""
    (early.parent / "journal.stamp").write_bytes((tmp_path / "journal.stamp").read_bytes())
    assert "is older than at the last start" in lost_journal(early)
    await store.close()
    assert lost_journal(path) == ""
