"""Suspects: what makes one, which comes next, what is charged, and when it is over (gateway/store/suspects.py)."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import replace
from datetime import timedelta

import pytest

from gateway.errors import LeaseLost
from gateway.events import SessionKey
from gateway.ports.journal import InboxRow, Job, TurnLease
from gateway.store.sql_store import SqlStore
from tests.contract.store.conftest import StoreBackend
from tests.fakes.turns import ANN, START, accept, answered, begin_turn, claim, claim_suspect, parts_of, receipt, said

LONG = "x" * 4_000
CHATS = [SessionKey("telegram", str(n)) for n in range(3)]


async def crash_twice(backend: StoreBackend, keys: Sequence[SessionKey] = CHATS) -> SqlStore:
    """Let one message in each chat be in flight at two unclean stops; return the store of the third life."""
    store = await backend.open()
    for key in keys:
        await accept(store, said(key=key))
    for _ in range(2):
        for key in keys:
            assert await store.journal.claim(key) is not None
        store = await backend.reopen()
    return store


async def try_suspect(store: SqlStore) -> TurnLease:
    """Claim the next suspect, which must be a turn, and put it on trial."""
    lease = await claim_suspect(store)
    assert isinstance(lease, TurnLease)
    return lease


async def test_a_crash_charges_only_the_suspect_on_trial(backend: StoreBackend) -> None:
    """Each life tries another suspect, the oldest first; one comes again when all have had as many attempts."""
    store = await crash_twice(backend)
    order = []
    for _ in range(7):
        lease = await try_suspect(store)
        order.append((lease.key, lease.attempts))
        store = await backend.reopen()
    assert order == [(key, attempts) for attempts in (0, 1, 2) for key in CHATS][:7]


async def test_suspects_are_in_flight_side_by_side_until_one_is_charged(backend: StoreBackend) -> None:
    """Any number after two crashes, one after three; a charged one runs when no other does."""
    store = await crash_twice(backend)
    for beside in range(50, 50 + len(CHATS)):
        suspect = await store.journal.claim_suspect(beside=beside)
        assert suspect is not None
        assert not suspect.is_alone
    store = await backend.reopen()
    assert await store.journal.claim_suspect(beside=1) is None
    suspect = await store.journal.claim_suspect(beside=0)
    assert suspect is not None
    assert suspect.is_alone
    store = await backend.reopen()
    charged = await try_suspect(store)
    store = await backend.reopen()
    for key in CHATS:
        if key != charged.key:
            lease = await try_suspect(store)
            await store.journal.commit(lease, answered(lease))
    assert await store.journal.claim_suspect(beside=1) is None
    assert (await try_suspect(store)).key == charged.key


async def test_a_trial_that_has_ended_charges_nobody(backend: StoreBackend) -> None:
    """A crash while a suspect waits for its model adds a crash, and no attempt."""
    store = await crash_twice(backend, [ANN])
    await try_suspect(store)
    await store.journal.end_trial()
    await store.journal.end_trial()
    store = await backend.reopen()
    assert (await try_suspect(store)).attempts == 0


async def test_a_trial_waits_for_the_answers_of_those_before_it(backend: StoreBackend) -> None:
    """A crash would leave open whether the answer that is being sent was delivered."""
    store = await crash_twice(backend, CHATS[:2])
    first = await try_suspect(store)
    await store.journal.commit(first, answered(first, "one"))
    suspect = await store.journal.claim_suspect(beside=0)
    assert suspect is not None
    assert not await store.journal.begin_trial(suspect, [first.turn])
    store = await backend.reopen()
    assert (await try_suspect(store)).attempts == 0  # nothing was stored
    (delivery,) = await store.outbox.undelivered(first.key)
    part = parts_of(delivery.message, 1)[0]
    await store.outbox.freeze(delivery.message, [part])
    await store.outbox.mark_sent(receipt(part))
    assert await store.journal.begin_trial(suspect, [first.turn])


async def test_a_suspect_that_can_never_be_committed_is_charged(backend: StoreBackend) -> None:
    """Its session has moved on: it must not run for ever."""
    store = await crash_twice(backend, [ANN])
    for attempts in (0, 1):
        lease = await try_suspect(store)
        assert lease.attempts == attempts
        commit = answered(lease)
        with pytest.raises(LeaseLost):
            await store.journal.commit(lease, replace(commit, record=replace(commit.record, transcript="another")))
    assert (await try_suspect(store)).attempts == 2


async def test_a_suspect_is_no_usual_turn(backend: StoreBackend) -> None:
    """A claim of its queue finds nothing and says that there is a suspect; other queues go on; its end ends it all."""
    store = await crash_twice(backend, [ANN])
    await accept(store, said("behind it", id="2"))
    await accept(store, said(key=CHATS[0]))
    assert await store.journal.claim(CHATS[0]) is not None
    assert await store.journal.claim(ANN) is None
    await asyncio.wait_for(store.journal.wait_suspect(), 60)
    lease = await try_suspect(store)
    assert await claim_suspect(store) is None
    await store.journal.commit(lease, answered(lease))
    usual = await store.journal.claim(ANN)
    assert usual is not None
    assert (usual.is_lone, usual.attempts) == (False, 0)


async def test_an_attempt_that_had_company_after_all_is_given_back(backend: StoreBackend) -> None:
    """Whoever finds a platform event that was in hand at the crash says so at the start; saying it twice is once."""
    store = await crash_twice(backend)
    await try_suspect(store)
    store = await backend.reopen()
    await store.journal.acquit()
    await store.journal.acquit()
    lease = await try_suspect(store)
    assert (lease.key, lease.attempts) == (CHATS[0], 0)
    await store.journal.acquit()  # it speaks of the last run, not of this one
    store = await backend.reopen()
    tried = []
    for _ in CHATS:
        lease = await try_suspect(store)
        tried.append(lease.attempts)
        await store.journal.commit(lease, answered(lease))
    assert tried == [0, 0, 1]


async def test_a_merged_turn_is_one_suspect(backend: StoreBackend) -> None:
    """Its rows are charged together, and what its sender writes meanwhile is none of it."""
    store = await backend.open()
    await accept(store, said(LONG, id="1"))
    await accept(store, said("end", id="2"))
    for _ in range(2):
        await claim(store)
        store = await backend.reopen()
    await accept(store, said("are you there?", id="3"))
    await try_suspect(store)
    store = await backend.reopen()
    lease = await try_suspect(store)
    assert [(row.message.text, row.attempts) for row in lease.rows] == [(LONG, 1), ("end", 1)]
    assert await store.journal.steer(lease) == ()
    await store.journal.commit(lease, answered(lease))
    assert [row.message.text for row in (await claim(store)).rows] == ["are you there?"]


async def test_what_a_turn_gave_back_is_innocent(backend: StoreBackend) -> None:
    """A row that was steered into a suspect before it was one, and is no part of its answer, waits as if new."""
    store = await backend.open()
    lease = await begin_turn(store, said("a", id="1"))
    await accept(store, said("b", id="2"))
    await store.journal.steer(lease)
    store = await backend.reopen()
    await claim(store)
    store = await backend.reopen()
    lease = await try_suspect(store)
    commit = answered(lease)
    object.__setattr__(commit.record, "inbox", (lease.rows[0].seq,))
    await store.journal.commit(lease, commit)
    usual = await store.journal.claim(ANN)
    assert usual is not None
    assert [row.message.text for row in usual.rows] == ["b"]


async def test_a_deliberate_stop_forgives_who_was_not_charged(backend: StoreBackend) -> None:
    """What runs is not charged, what only waited is no suspect any more, what killed alone remains one."""
    store = await crash_twice(backend)
    await try_suspect(store)  # the first chat's
    store = await backend.reopen()
    running = await try_suspect(store)
    assert (running.key, running.attempts) == (CHATS[1], 0)
    await store.close()
    store = await backend.open()
    for key in CHATS[1:]:
        usual = await store.journal.claim(key)
        assert usual is not None
        assert (usual.is_lone, usual.attempts) == (False, 0)
    lease = await try_suspect(store)
    assert (lease.key, lease.attempts) == (CHATS[0], 1)


async def test_a_look_at_the_home_changes_no_suspect(backend: StoreBackend) -> None:
    """`parlour status` between two lives neither charges nor forgives."""
    store = await crash_twice(backend, [ANN])
    await store.close(has_served=False)
    store = await backend.open()
    assert (await try_suspect(store)).attempts == 0


async def test_a_control_row_is_a_suspect_like_a_turn(backend: StoreBackend) -> None:
    """Open at two unclean stops it is claimed once a life; a deliberate stop charges it nothing."""
    store = await backend.open()
    accepted = await accept(store, said("/status"), is_control=True)
    for _ in range(2):
        store = await backend.reopen()
    for attempts in (0, 1):
        row = await claim_suspect(store)
        assert isinstance(row, InboxRow)
        assert (row.seq, row.is_control, row.attempts) == (accepted.seq, True, attempts)
        assert await claim_suspect(store) is None
        store = await backend.reopen()
    await claim_suspect(store)
    await store.close()
    store = await backend.open()
    row = await claim_suspect(store)
    assert isinstance(row, InboxRow)
    assert row.attempts == 2


async def test_a_job_in_flight_at_two_crashes_is_put_off_apart_from_its_neighbour(backend: StoreBackend) -> None:
    """The first crash delays nothing, but each is leased by itself; the second puts them off, one behind the other."""
    store = await backend.open()
    for name in ("a", "b", "c"):
        await store.jobs.put(Job(id=name, kind="think", scope="", payload={}, due_at=START))
    assert len(await store.jobs.due(START, 2, kinds=("think",))) == 2
    store = await backend.reopen()
    for _ in range(2):
        (job,) = await store.jobs.due(START, 2, kinds=("think",))
        assert job.attempts == 1
    store = await backend.reopen()
    due = [
        [job.id for job in await store.jobs.due(START + timedelta(seconds=seconds), 3, kinds=("think",))]
        for seconds in (0, 29, 30, 59, 60)
    ]
    assert due == [["c"], [], ["a"], [], ["b"]]
