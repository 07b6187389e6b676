"""What owners were told is durable: the same causes and the same queue after a kill, and a notice stands once."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta

from gateway.events import OutboundKind, OutboundMessage, SessionKey
from gateway.ports.journal import PartState
from gateway.store.alerts import Alert, NotificationState
from tests.contract.store.conftest import StoreBackend
from tests.fakes.turns import accept, answer, parts_of, said

OWNER = SessionKey("telegram", "1")


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
