"""Lanes: order, merging, one owner at a time, and what a crash counts."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Any

import pytest

from gateway.errors import LeaseLost
from gateway.events import InboundKind, MessagePart, OutboundKind, SessionKey, turn_id
from gateway.ports.journal import STOP_WANTED, AcceptOutcome, MessageOutcome, TurnStep
from gateway.store.engine import StoreLimits, utc_now
from gateway.store.sql_store import SqlStore
from tests.contract.store.conftest import StoreBackend
from tests.fakes.clock import VirtualClock
from tests.fakes.store import open_inline_store
from tests.fakes.turns import ANN, BOB, accept, answer, answered, begin_turn, claim, said

LONG = "x" * 4_000


async def accept_texts(store: SqlStore, *texts: str, **fields: str) -> None:
    """Accept messages with these texts, ids 1 and up, at one platform time."""
    for n, text in enumerate(texts, 1):
        await accept(store, said(text, id=str(n), **fields))


async def texts_of_turns(store: SqlStore) -> list[list[str]]:
    """Claim and commit until the lane is empty; return each turn's texts."""
    turns = []
    while (lease := await store.journal.claim(ANN)) is not None:
        turns.append([row.message.text for row in lease.rows])
        await store.journal.commit(lease, answered(lease))
    return turns


async def test_a_lane_is_in_platform_order(store: SqlStore) -> None:
    """(platform time, message id) decides, not arrival; ids count as numbers where they are."""
    for id_, second in (("10", 5), ("9", 5), ("3", 7), ("4", 1)):
        await accept(store, said(id_, id=id_, second=second))
    assert await texts_of_turns(store) == [["4"], ["9"], ["10"], ["3"]]


async def test_a_lane_has_one_owner(store: SqlStore) -> None:
    """A second claim gets nothing until the first is done; other lanes do not wait."""
    await accept_texts(store, "a", "b")
    lease = await begin_turn(store, said(key=BOB))
    assert lease.more == 1
    assert await store.journal.claim(ANN) is None
    assert (await claim(store, BOB)).key == BOB
    await store.journal.commit(lease, answered(lease))
    assert (await claim(store)).epoch > lease.epoch


async def test_lanes_yields_the_backlog_then_what_comes(backend: StoreBackend) -> None:
    """Each key once, the longest waiting first; and again when a commit leaves more."""
    store = await backend.open()
    await accept(store, said(key=BOB))
    await accept_texts(store, "a", "b")
    store = await backend.reopen()
    lanes = store.journal.ready_sessions()
    assert [await anext(lanes), await anext(lanes)] == [BOB, ANN]
    lease = await claim(store)
    await store.journal.commit(lease, answered(lease))
    assert await anext(lanes) == ANN


async def test_lanes_is_quiet_while_a_lane_is_worked_on(store: SqlStore) -> None:
    """What comes meanwhile wakes nobody before the turn is done."""
    await accept(store, said(id="1"))
    lanes = store.journal.ready_sessions()
    assert await anext(lanes) == ANN
    lease = await claim(store)
    await accept(store, said(id="2"))
    await accept(store, said(key=BOB))
    assert await anext(lanes) == BOB
    await store.journal.release(lease)
    assert await anext(lanes) == ANN


SPLIT = StoreLimits(merge="split")
BURST = StoreLimits(merge="burst", burst=3)
MERGES: dict[str, tuple[StoreLimits, list[tuple[str, dict[str, Any]]], list[list[str]]]] = {
    "off": (StoreLimits(merge="off"), [("a", {}), ("b", {})], [["a"], ["b"]]),
    "two short messages": (SPLIT, [("a", {}), ("b", {})], [["a"], ["b"]]),
    "a split paste": (SPLIT, [(LONG, {}), (LONG, {"second": 1}), ("end", {"second": 3})], [[LONG, LONG, "end"]]),
    "too late for the paste": (SPLIT, [(LONG, {}), ("end", {"second": 3})], [[LONG], ["end"]]),
    "another's words": (SPLIT, [(LONG, {}), ("b", {"by": "bob"}), ("c", {})], [[LONG], ["b"], ["c"]]),
    "an album": (SPLIT, [("a", {"album": "1"}), ("b", {"album": "1"}), ("c", {})], [["a", "b"], ["c"]]),
    "two albums": (SPLIT, [("a", {"album": "1"}), ("b", {"album": "2"})], [["a"], ["b"]]),
    "two people's album": (SPLIT, [("a", {"album": "1"}), ("b", {"album": "1", "by": "bob"})], [["a"], ["b"]]),
    "a burst": (BURST, [(text, {}) for text in "abcd"], [["a", "b", "c"], ["d"]]),
    "two people's burst": (BURST, [("a", {}), ("b", {"by": "bob"}), ("c", {})], [["a"], ["b"], ["c"]]),
    "a job in a burst": (BURST, [("a", {}), ("b", {"kind": InboundKind.JOB}), ("c", {})], [["a"], ["b"], ["c"]]),
    "a command in a burst": (BURST, [("a", {}), ("/x", {"kind": InboundKind.COMMAND})], [["a"], ["/x"]]),
    "emoji count as the platform counts": (SPLIT, [("👋" * 2_000, {}), ("end", {})], [["👋" * 2_000, "end"]]),
}


@pytest.mark.parametrize("name", MERGES)
async def test_one_senders_parts_merge(backend: StoreBackend, name: str) -> None:
    """A turn is one sender's; its id is its first row's."""
    limits, messages, expected = MERGES[name]
    store = await backend.open(limits)
    for n, (text, fields) in enumerate(messages, 1):
        await accept(store, said(text, id=str(n), **fields))
    backend.wall.advance(seconds=10)
    assert await texts_of_turns(store) == expected


ABSENCES: dict[str, tuple[float, list[list[str]]]] = {
    "five minutes": (5, [["a1"], ["b1"], ["a2"], ["/x"], ["a3"], ["a4"]]),
    "an hour": (60, [["a1", "a2"], ["b1"], ["/x"], ["a3", "a4"]]),
    "two days": (2_880, [["a1", "a2"], ["b1"], ["/x"], ["a3", "a4"]]),
}


@pytest.mark.parametrize("name", ABSENCES)
async def test_a_backlog_is_one_turn_per_sender(backend: StoreBackend, name: str) -> None:
    """What waited beyond ten minutes is one turn per sender up to a command of theirs; before that all is as usual."""
    minutes, expected = ABSENCES[name]
    store = await backend.open(SPLIT)
    for n, (text, by) in enumerate([("a1", "ann"), ("b1", "bob"), ("a2", "ann")]):
        await accept(store, said(text, id=str(n), by=by, second=n))
    await accept(store, said("/x", id="3", kind=InboundKind.COMMAND, second=3))
    for n, text in enumerate(["a3", "a4"], 4):
        await accept(store, said(text, id=str(n), second=n))
    backend.wall.advance(seconds=minutes * 60)
    assert await texts_of_turns(store) == expected


async def test_rows_of_a_merged_turn_end_as_answered_and_merged(store: SqlStore) -> None:
    """The first row is answered, the rest are merged into it; the record names them all."""
    await accept_texts(store, LONG, "end")
    lease = await claim(store)
    assert lease.turn == turn_id(lease.rows[0].message)
    record = await store.journal.commit(lease, answered(lease))
    story = await store.journal.trace(lease.turn)
    assert story is not None
    assert [row["state"] for row in story.inbox] == ["answered", "merged"]
    assert record.inbox == tuple(row.seq for row in lease.rows)


@pytest.mark.parametrize("fields", [{"album": "7"}, {"text": LONG}], ids=["album", "paste"])
async def test_a_part_waits_for_the_rest(backend: StoreBackend, fields: dict[str, str]) -> None:
    """Claim holds back what may not be whole, and the lane is offered again when the window is over."""
    store = await backend.open(StoreLimits(split_seconds=0.02), clock=utc_now)
    await accept(store, said(id="1", **fields))
    lanes = store.journal.ready_sessions()
    assert await anext(lanes) == ANN
    lease = await store.journal.claim(ANN)
    while lease is None:  # a slow machine may have used the window up before the first claim
        assert await asyncio.wait_for(anext(lanes), 60) == ANN
        lease = await store.journal.claim(ANN)
    assert len(lease.rows) == 1


async def test_the_window_lasts_two_seconds(clock: VirtualClock) -> None:
    """Exactly as long as the setting says, and the second part opens it again."""
    store = await open_inline_store(clock=clock.now)
    lanes = store.journal.ready_sessions()
    await accept(store, said(LONG, id="1"))
    await anext(lanes)
    assert await store.journal.claim(ANN) is None
    assert await anext(lanes) == ANN
    assert clock.seconds == 2
    await accept(store, said(LONG, id="2", second=2))
    assert await store.journal.claim(ANN) is None
    await anext(lanes)
    while await store.journal.claim(ANN) is None:
        await anext(lanes)
    assert clock.seconds == 4
    await store.close()


async def test_a_clock_that_went_back_holds_nobody_up(backend: StoreBackend) -> None:
    """A part from the future is claimed at once."""
    store = await backend.open()
    await accept(store, said(LONG))
    backend.wall.advance(hours=-1)
    assert await store.journal.claim(ANN) is not None


async def test_steer_takes_only_the_senders_own_words(store: SqlStore) -> None:
    """It stops at another's row; what was taken ends with the turn."""
    lease = await begin_turn(store, said("a", id="1"))
    for n, by in (("2", "ann"), ("3", "ann"), ("4", "bob"), ("5", "ann")):
        await accept(store, said(n, id=n, by=by))
    steered = await store.journal.steer(lease)
    assert [row.message.text for row in steered] == ["2", "3"]
    assert {row.turn for row in steered} == {lease.turn}
    assert await store.journal.steer(lease) == ()
    inbox = (lease.rows[0].seq, *(row.seq for row in steered))
    commit = answered(lease)
    object.__setattr__(commit.record, "inbox", inbox)
    await store.journal.commit(lease, commit)
    assert [row.message.text for row in await store.journal.waiting_rows(ANN)] == ["4", "5"]


async def test_what_was_steered_beside_a_note_waits_again_too(store: SqlStore) -> None:
    """The edit that a turn was told of is not counted as a message that it has answered."""
    await answer(store, said("one", id="0"))
    await accept(store, said("ONE", id="0", revision="r2"))
    lease = await begin_turn(store, said("1", id="1", second=1))
    await accept(store, said("2", id="2", second=2))
    assert len(await store.journal.steer(lease)) == 1
    (note,) = lease.notes
    commit = answered(lease)
    record = replace(commit.record, inbox=(*commit.record.inbox, note.seq))
    await store.journal.commit(lease, replace(commit, record=record))
    assert [row.message.text for row in (await claim(store)).rows] == ["2"]


async def test_what_was_steered_but_not_answered_waits_again(store: SqlStore) -> None:
    """A row that the record does not name goes back to the lane."""
    lease = await begin_turn(store, said("a", id="1"))
    await accept(store, said("b", id="2"))
    await store.journal.steer(lease)
    await store.journal.commit(lease, answered(lease))
    lanes = store.journal.ready_sessions()
    assert await anext(lanes) == ANN
    assert [row.message.text for row in (await claim(store)).rows] == ["b"]


async def test_a_given_back_turn_is_claimed_again_exactly(store: SqlStore) -> None:
    """Same turn, same rows, its steps; nothing newer joins, even before it in time."""
    await accept_texts(store, LONG, "end")
    lease = await claim(store)
    step = TurnStep(n=0, kind="opening", lines=({"role": "user"},), blobs={"sha": "text"})
    await store.journal.step(lease, step)
    later = TurnStep(n=1, kind="model", lines=({"role": "assistant"},))
    await store.journal.step(lease, TurnStep(n=0, kind="opening", lines=({"role": "other"},)), later)
    await accept(store, said("earlier", id="0", second=-5))
    await store.journal.release(lease)
    again = await claim(store)
    assert (again.turn, [row.seq for row in again.rows]) == (lease.turn, [row.seq for row in lease.rows])
    assert again.steps == (step, later)
    assert again.more == 1
    await store.journal.commit(again, answered(again))
    assert (await claim(store)).steps == ()


async def test_a_lost_lease_writes_nothing(backend: StoreBackend) -> None:
    """After another claim of the lane, everything under the old lease raises LeaseLost."""
    store = await backend.open()
    old = await begin_turn(store)
    await store.journal.release(old)
    new = await claim(store)
    with pytest.raises(LeaseLost):
        await store.journal.commit(old, answered(old, "stale"))
    with pytest.raises(LeaseLost):
        await store.journal.step(old, TurnStep(n=0, kind="opening", lines=()))
    with pytest.raises(LeaseLost):
        await store.journal.release(old)
    with pytest.raises(LeaseLost):
        await store.journal.steer(old)
    assert await store.outbox.undelivered(ANN) == ()
    await store.journal.commit(new, answered(new, "fresh"))


async def test_the_lease_of_a_process_that_died_is_lost(backend: StoreBackend) -> None:
    """A restart takes the lanes; the old epoch is worth nothing."""
    store = await backend.open()
    old = await begin_turn(store)
    store = await backend.reopen()
    with pytest.raises(LeaseLost):
        await store.journal.commit(old, answered(old))
    assert (await claim(store)).turn == old.turn


async def run_and_die(backend: StoreBackend, limits: StoreLimits | None = None) -> tuple[bool, int, str]:
    """Start, claim Ann's turn, die in it; return how it was claimed."""
    store = await backend.open(limits)
    lease = await claim(store)
    await backend.kill()
    row = lease.rows[0]
    return row.is_lone, row.attempts, lease.turn


async def test_two_unclean_stops_make_a_row_lone_and_only_then_attempts_count(backend: StoreBackend) -> None:
    """Usual, usual, then on trial: each crash there is an attempt that the next claim knows of."""
    store = await backend.open()
    await accept(store, said())
    await backend.kill()
    runs = [await run_and_die(backend) for _ in range(5)]
    assert [run[:2] for run in runs] == [(False, 0), (False, 0), (True, 0), (True, 1), (True, 2)]
    assert len({run[2] for run in runs}) == 1


async def test_a_row_that_was_not_in_flight_is_innocent(backend: StoreBackend) -> None:
    """Waiting through crashes counts nothing."""
    store = await backend.open()
    await accept(store, said())
    await accept(store, said(key=BOB))
    await backend.kill()
    for _ in range(3):
        await run_and_die(backend)
    store = await backend.open()
    row = (await claim(store, BOB)).rows[0]
    assert (row.is_lone, row.attempts) == (False, 0)
    assert (await store.journal.depth())["unclean_stops"] == 4


async def test_a_release_is_no_attempt(backend: StoreBackend) -> None:
    """A turn on trial that was released by choice has the attempts it had before."""
    store = await backend.open()
    await accept(store, said())
    await backend.kill()
    for _ in range(2):
        await run_and_die(backend)
    store = await backend.open()
    await store.journal.release(await claim(store))
    assert (await claim(store)).rows[0].attempts == 0


async def test_a_clean_close_counts_nothing_and_forgives(backend: StoreBackend) -> None:
    """A row in flight at a clean close runs as usual, and the unclean stops in a row begin at none."""
    store = await backend.open()
    await accept(store, said())
    await backend.kill()
    await run_and_die(backend)
    store = await backend.open()
    await claim(store)
    await store.close()
    store = await backend.open()
    assert (await store.journal.depth())["unclean_stops"] == 0
    assert (await claim(store)).rows[0].is_lone is False


async def test_waiting_shows_running_rows_first(store: SqlStore) -> None:
    """All that has not ended, in order, of one sender if asked."""
    await accept(store, said("a", id="1"))
    await claim(store)
    await accept(store, said("c", id="3", by="bob"))
    await accept(store, said("b", id="2"))
    await accept(store, said("/stop", id="4"), is_control=True)
    assert [row.message.text for row in await store.journal.waiting_rows(ANN)] == ["a", "b", "c"]
    assert [row.message.text for row in await store.journal.waiting_rows(ANN, sender="bob")] == ["c"]


async def test_drop_ends_what_nobody_has_claimed(store: SqlStore) -> None:
    """The running turn stays; what was given back goes with its steps."""
    lease = await begin_turn(store, said("a", id="1"))
    await accept(store, said("b", id="2", by="bob"))
    last = await accept(store, said("c", id="3"))
    assert await store.journal.drop(ANN, sender="bob") == 1
    assert await store.journal.drop(ANN, before=last.seq) == 0
    assert await store.journal.drop(ANN) == 1
    await store.journal.step(lease, TurnStep(n=0, kind="opening", lines=()))
    await store.journal.release(lease)
    assert await store.journal.drop(ANN) == 1
    assert await store.journal.claim(ANN) is None
    assert (await accept(store, said("a", id="1"))).outcome is AcceptOutcome.DUPLICATE


@pytest.mark.parametrize("begun", ["a step", "a preview"])
async def test_drop_leaves_a_turn_that_has_begun(backend: StoreBackend, begun: str) -> None:
    """What ran or was shown has a history: it is given back with its steps and the one that ends it, kill or not."""
    store = await backend.open()
    steps: tuple[TurnStep, ...] = ()
    lease = await begin_turn(store, said("a", id="1"))
    await accept(store, said("b", id="2"))
    if begun == "a step":
        steps = (TurnStep(n=0, kind="opening", lines=()), TurnStep(n=1, kind="intent", lines=(), call="c1"))
        for step in steps:
            await store.journal.step(lease, step)
    else:
        part = MessagePart(id=f"{lease.turn}.0.1", key=ANN, payload="Once", plain="Once", kind=OutboundKind.PREVIEW)
        await store.outbox.preview(lease, part)
    await store.journal.release(lease)
    assert await store.journal.drop(ANN, sender="bob") == 0
    store = await backend.reopen()
    assert [await store.journal.drop(ANN) for _ in range(2)] == [1, 0]
    store = await backend.reopen()
    again = await claim(store)
    assert again.turn == lease.turn
    assert again.steps[:-1] == steps
    assert again.steps[-1] == STOP_WANTED


async def test_a_turn_of_several_rows_is_dropped_with_its_first(store: SqlStore) -> None:
    """A /stop that ran late came between them, and they were merged, claimed and given back: all go, or none."""
    first = await accept(store, said(LONG, id="1"))
    last = await accept(store, said("b", id="2"))
    lease = await claim(store)
    assert [row.seq for row in lease.rows] == [first.seq, last.seq]
    await store.journal.release(lease)
    assert await store.journal.drop(ANN, before=first.seq) == 0
    assert await store.journal.drop(ANN, before=last.seq) == 2
    assert await store.journal.claim(ANN) is None


async def test_a_claim_that_nobody_waits_for_is_given_back(store: SqlStore) -> None:
    """A cancelled claim leaves no lane behind that its worker does not know of."""
    await accept(store, said())
    lanes = store.journal.ready_sessions()
    await anext(lanes)
    task = asyncio.create_task(store.journal.claim(ANN))
    await asyncio.sleep(0)  # it has asked
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert await asyncio.wait_for(anext(lanes), 60) == ANN
    assert (await claim(store)).rows[0].attempts == 0


async def test_depth_counts_what_waits(backend: StoreBackend) -> None:
    """Queue, age, undelivered, dead and unwritten are visible."""
    store = await backend.open()
    lease = await begin_turn(store, said("a", id="1"))
    await store.journal.commit(lease, answered(lease, "answer", outcome=MessageOutcome.DEAD, failure="poison"))
    await accept(store, said("b", id="2"))
    backend.wall.advance(seconds=30)
    depth = await store.journal.depth()
    assert {name: depth[name] for name in ("queued", "oldest_seconds", "undelivered", "dead", "unwritten")} == {
        "queued": 1,
        "oldest_seconds": 30,
        "undelivered": 1,
        "dead": 1,
        "unwritten": 1,
    }


async def test_depth_counts_what_was_made_durable(store: SqlStore) -> None:
    """Each change alone is a transaction of its own; reading is none."""
    before = (await store.journal.depth())["commits"]
    await accept(store, said("a", id="1"))
    await store.journal.waiting_rows(ANN)
    assert (await store.journal.depth())["commits"] == before + 1


async def test_many_chats_are_offered_in_turn(store: SqlStore) -> None:
    """A chat that floods stands in the queue once, like everybody."""
    for n in range(50):
        await accept(store, said(id=str(n)))
    others = [SessionKey("telegram", str(n)) for n in range(100, 103)]
    for key in others:
        await accept(store, said(key=key))
    lanes = store.journal.ready_sessions()
    assert [await anext(lanes) for _ in range(4)] == [ANN, *others]
