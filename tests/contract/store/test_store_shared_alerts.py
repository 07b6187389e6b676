"""Alerts over one store and several, and erasures beside other gateways' deliveries."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import timedelta

import pytest

from gateway.access.pairing_service import OwnerAddress
from gateway.alerts.alert_state import Observation, WebhookOrigin
from gateway.alerts.monitor import AlertMonitor, AlertRecipients, OwnerDirectory
from gateway.events import MessagePart, OutboundKind, OutboundMessage, SessionKey
from gateway.ports.journal import OutboxPart, PartState
from gateway.ports.memory import ErasureFilter
from gateway.store.alerts import Alert, NotificationState
from gateway.store.database import SharedDatabase
from gateway.store.outbox import freeze
from gateway.store.row_codec import write_part
from gateway.store.sql_store import SqlStore
from tests.contract.store.conftest import StoreBackend
from tests.fakes.memory_channel import FakeChannel, MemoryPlatform
from tests.fakes.meter import FakeMeter
from tests.fakes.shared_workers import Workers, until
from tests.fakes.turns import ANN, START, accept, answer, answered, claim, next_delivery, parts_of, said

OWNER = SessionKey("telegram", "1")


class SharedWatch:
    """The monitor of one gateway, and what it sees."""

    def __init__(self, store: SqlStore) -> None:
        self.store = store
        self.stage: int | None = None  # of the model's outage
        self.events: list[str] = []  # marks of what happened and all see
        self.now = START
        channel = FakeChannel(MemoryPlatform(), name="telegram")
        ways = OwnerDirectory(
            people=self._people,
            channels={"telegram": channel},
            connection_states=lambda: {"telegram": True},
            unreachable=lambda: store.alerts.unreached_chats(self.now),
            pages=(),
        )
        recipients = AlertRecipients(
            ways=ways,
            locale_of=lambda _: ("en", "UTC"),
            posts=True,
            origin=WebhookOrigin(host="house", version="1"),
            posted=asyncio.Event(),
        )
        sources = {"model": self._look, "given up": self._count}
        self.monitor = AlertMonitor(store.alerts, sources, recipients, meter=FakeMeter(), now=lambda: self.now)

    async def _people(self) -> list[list[OwnerAddress]]:
        return [[OwnerAddress(OWNER, OWNER.chat)]]

    async def _look(self, _: Mapping[str, Alert]) -> Sequence[Observation]:
        line = "alerts.model_failing"
        return [Observation(cause="model", since=self.now, stage=self.stage, line=line, level="critical")]

    async def _count(self, causes: Mapping[str, Alert]) -> Sequence[Observation]:
        known = causes.get("killed")
        fresh = [mark for mark in self.events if known is None or mark > known.mark]
        return (
            [Observation(cause="killed", since=self.now, happened=len(fresh), line="alerts.killed", mark=fresh[-1])]
            if fresh
            else []
        )


async def check(*watches: SharedWatch, minutes: float = 0.25) -> None:
    """Let every gateway look, at the same time."""
    await asyncio.gather(*(each.monitor.check_once() for each in watches))
    for each in watches:
        each.now += timedelta(minutes=minutes)


async def open_watches(team: Workers) -> tuple[SharedWatch, SharedWatch]:
    """Return the monitors of two gateways."""
    return SharedWatch(await team.open()), SharedWatch(await team.open())


async def test_an_outage_that_two_gateways_see_is_reported_once(team: Workers) -> None:
    """To the owner and to the webhook; its end too, when the last of them does not see it any more."""
    first, second = await open_watches(team)
    first.stage = second.stage = 1
    for _ in range(3):
        await check(first, second)
    assert team.server.query("SELECT count(*) FROM outbox") == [(1,)]
    assert team.server.query("SELECT count(*) FROM alert_post") == [(1,)]
    first.stage = 0
    for _ in range(3):
        await check(first, second)
    assert team.server.query("SELECT count(*) FROM outbox") == [(1,)]
    assert first.monitor.active_alerts() == second.monitor.active_alerts() == ("model",)
    second.stage = 0
    for _ in range(3):
        await check(first, second)
    assert team.server.query("SELECT count(*) FROM outbox") == [(2,)]
    assert team.server.query("SELECT count(*) FROM alert_post") == [(2,)]
    assert first.monitor.active_alerts() == second.monitor.active_alerts() == ()


async def test_an_outage_ends_though_a_gateway_that_saw_it_was_killed(team: Workers) -> None:
    """One that has no opinion leaves it as it is; one that sees no trouble ends it."""
    first, second = await open_watches(team)
    first.stage = 1
    await check(first, second)
    await first.store.close()
    await check(second)
    assert second.monitor.active_alerts() == ("model",)
    second.stage = 0
    await check(second)
    assert second.monitor.active_alerts() == ()
    assert team.server.query("SELECT count(*) FROM outbox") == [(2,)]


async def test_what_happened_is_counted_by_one_of_them(team: Workers) -> None:
    """Both read the same events: the first takes them."""
    first, second = await open_watches(team)
    first.events = second.events = ["1", "2"]
    for _ in range(3):
        await check(first, second, minutes=61)
    assert team.server.query("SELECT count(*) FROM outbox") == [(1,)]
    (alert,) = await first.store.alerts.all()
    assert (alert.owners.waiting, alert.mark) == (0, "2")


async def test_a_cause_that_another_gateway_has_changed_is_not_stored(team: Workers) -> None:
    """The state before is compared; a post is with one gateway at a time."""
    first, second = await team.open(), await team.open()
    alert = Alert(cause="disk", since=START, seen_by={"a": 1})
    assert await first.alerts.save(alert, posts=["1"], at=START)
    assert not await second.alerts.save(replace(alert, stage=1), posts=["2"], at=START)
    assert await second.alerts.save(replace(alert, stage=1), before=alert, at=START)
    assert await first.alerts.all() == (replace(alert, stage=1),)
    assert [post.body for post in await first.alerts.posts(due=START, limit=10)] == ["1"]
    assert await second.alerts.posts(due=START, limit=10) == ()
    assert [post.body for post in await second.alerts.posts(due=START + timedelta(minutes=1), limit=10)] == ["1"]


def notice(id_: str = "aaaaaaaaaaaaaaaaa.1") -> OutboundMessage:
    """Return what an owner is told."""
    return OutboundMessage(id=id_, key=OWNER, text="The disk is full", kind=OutboundKind.NOTICE, visible_to="1")


async def test_a_cause_its_notice_and_its_post_are_one_write(backend: StoreBackend) -> None:
    """After a kill all three are there; noted again, the notice stands once."""
    store = await backend.open()
    at = backend.wall.now()
    alert = Alert(
        cause="disk",
        stage=2,
        since=at,
        line="alerts.disk_full",
        fields={"free": 7},
        level="critical",
        mark="m",
        owners=NotificationState(
            stage=2, at=at, worst=2, waiting=3, told=2, is_owed=True, notices=("a1", "a2"), counted=2, lost=1
        ),
    )
    await store.alerts.save(alert, notices=[notice()], posts=["{}"], at=at)
    await store.alerts.save(alert, notices=[notice()], at=at)
    store = await backend.reopen()
    assert await store.alerts.all() == (alert,)
    (delivery,) = await store.outbox.undelivered(OWNER)
    assert delivery.message == notice()
    (post,) = await store.alerts.posts(due=at, limit=10)
    assert (post.body, post.attempts, post.at) == ("{}", 0, at)


async def test_a_post_waits_until_it_is_due_and_goes_when_it_arrived(backend: StoreBackend) -> None:
    """What is put off comes back later with its attempts counted; what stands behind it keeps its place."""
    store = await backend.open()
    at = backend.wall.now()
    await store.alerts.save(Alert(cause="disk", since=at), posts=["1", "2"], at=at)
    first, second = await store.alerts.posts(due=at, limit=10)
    await store.alerts.postpone(first, at + timedelta(minutes=1))
    assert await store.alerts.posts(due=at, limit=10) == ()
    later = at + timedelta(minutes=1)
    assert await store.alerts.posts(due=later, limit=10) == (replace(first, attempts=1), second)
    await store.alerts.mark_posted(first)
    assert await store.alerts.posts(due=at, limit=10) == (second,)


async def test_what_was_given_up_is_told_once_and_our_own_notices_never(backend: StoreBackend) -> None:
    """From a mark on: a line per turn, none of what stood there before, none of what we said to owners ourselves."""
    store = await backend.open()
    _, mark = await store.alerts.given_up("")
    await answer(store, said(), "one")
    key = said().key
    delivery = await store.outbox.next(key)
    assert delivery is not None
    parts = parts_of(delivery.message, 2)
    await store.outbox.freeze(delivery.message, parts)
    await store.outbox.dead_letter(parts[0], "403 blocked")
    await store.alerts.save(Alert(cause="disk", since=backend.wall.now()), notices=[notice()], at=backend.wall.now())
    ours = parts_of(notice(), 1)
    assert [row.state for row in await store.outbox.freeze(notice(), ours)] == [PartState.SENDING]
    await store.outbox.dead_letter(ours[0], "403 blocked")
    assert await store.alerts.dead(["a", notice().turn]) == {notice().turn}
    assert await store.alerts.unreached_chats(backend.wall.now()) == {OWNER}
    assert await store.alerts.unreached_chats(backend.wall.now() + timedelta(seconds=1)) == frozenset()
    (letter,), after = await store.alerts.given_up(mark)
    assert (letter.turn, letter.chat, letter.reason) == (delivery.message.turn, str(key), "403 blocked")
    assert await store.alerts.given_up(after) == ((), after)
    assert (await store.alerts.given_up(""))[0] == ()
    backend.wall.advance(seconds=1)
    await accept(store, said(key=OWNER, id="2"))
    assert await store.alerts.unreached_chats(backend.wall.now() - timedelta(hours=1)) == frozenset()


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
