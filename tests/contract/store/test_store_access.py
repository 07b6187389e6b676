"""The Access port: decisions about people are durable before they count, and none is without its line."""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime, timedelta

import pytest

from gateway.errors import LeaseLost
from gateway.events import OutboundMessage, SessionKey
from gateway.ports.access import AccessChange, AccessEntry, AccessStatus
from gateway.ports.journal import AuditEntry
from tests.contract.store.conftest import StoreBackend
from tests.fakes.turns import answered, begin_turn, said


def _member(who: str, standing: AccessStatus, at: datetime) -> AccessEntry:
    return AccessEntry(channel="slack", who=who, standing=standing, by="slack:U0OWNER", at=at, name="Ada \U0001f642")


def _line(ident: str, at: datetime, **other: str) -> AuditEntry:
    said = {"by": "slack:U0OWNER", "where": "slack:D1", "what": "allow", "whom": "slack:U1"} | other
    return AuditEntry(id=ident, at=at, **said)


async def test_a_decision_survives_a_kill_with_its_line(backend: StoreBackend) -> None:
    """What was decided is in force after a kill, and the audit says who decided it."""
    store = await backend.open()
    now = backend.wall.now()
    ada, place = _member("U1", AccessStatus.ALLOWED, now), _member("chat:C1", AccessStatus.ALLOWED, now)
    assert await store.access.change(AccessChange(put=(ada, place), line=_line("t1", now)))
    assert store.access.members() == {("slack", "U1"): ada, ("slack", "chat:C1"): place}
    again = await backend.reopen()
    assert again.access.members() == {("slack", "U1"): ada, ("slack", "chat:C1"): place}
    assert await again.access.audit(limit=10) == [_line("t1", now)]


async def test_a_later_decision_takes_the_place_of_an_earlier_one(backend: StoreBackend) -> None:
    """Somebody has one standing in a channel; who is removed has none; the edition tells that something changed."""
    store = await backend.open()
    now = backend.wall.now()
    before = store.access.edition()
    await store.access.change(AccessChange(put=(_member("U1", AccessStatus.ALLOWED, now),)))
    await store.access.change(AccessChange(put=(_member("U1", AccessStatus.BLOCKED, now),)))
    assert store.access.members()["slack", "U1"].standing is AccessStatus.BLOCKED
    assert store.access.edition() > before
    await store.access.change(AccessChange(remove=(("slack", "U1"),)))
    assert not store.access.members()
    await backend.kill()
    assert not (await backend.open()).access.members()


async def test_what_is_spent_once_changes_nothing_twice(backend: StoreBackend) -> None:
    """Of two changes that spend one note the first is written whole, the second not at all."""
    store = await backend.open()
    now = backend.wall.now()
    assert await store.access.change(AccessChange(notes={"claim": "hash"}))
    first = AccessChange(put=(_member("U1", AccessStatus.OWNER, now),), spends=("claim", "hash"), line=_line("a", now))
    second = AccessChange(put=(_member("U2", AccessStatus.OWNER, now),), spends=("claim", "hash"), line=_line("b", now))
    assert await store.access.change(first)
    assert not await store.access.change(second)
    assert set(store.access.members()) == {("slack", "U1")}
    assert not store.access.notes()
    assert [each.id for each in await store.access.audit(limit=9)] == ["a"]
    again = await backend.reopen()
    assert set(again.access.members()) == {("slack", "U1")}
    assert not again.access.notes()


async def test_a_note_that_changed_is_not_spent(backend: StoreBackend) -> None:
    """What was replaced meanwhile is not what somebody wants to spend."""
    store = await backend.open()
    await store.access.change(AccessChange(notes={"claim": "newer"}))
    assert not await store.access.change(AccessChange(spends=("claim", "older")))
    assert store.access.notes() == {"claim": "newer"}


async def test_a_line_of_one_id_is_written_once(backend: StoreBackend) -> None:
    """A turn that is run again after a crash leaves the line that it left before."""
    store = await backend.open()
    now = backend.wall.now()
    await store.access.change(AccessChange(line=_line("t1", now)))
    await store.access.change(AccessChange(line=_line("t1", now, outcome="failed")))
    assert [each.outcome for each in await store.access.audit(limit=9)] == ["done"]


async def test_the_audit_lists_the_newest_first_and_of_one_person(backend: StoreBackend) -> None:
    """Lines come newest first, as many as asked for; of one person both what they did and what was done to them."""
    store = await backend.open()
    now = backend.wall.now()
    await store.access.change(AccessChange(line=_line("a", now)))
    await store.access.change(AccessChange(line=_line("b", now, by="slack:U1", what="new", whom="")))
    await store.access.change(AccessChange(line=_line("c", now, whom="slack:U2")))
    assert [each.id for each in await store.access.audit(limit=2)] == ["c", "b"]
    assert [each.id for each in await store.access.audit(limit=9, about="slack:U1")] == ["b", "a"]


async def test_lines_leave_after_a_year(backend: StoreBackend) -> None:
    """The audit holds a year: an older line is pruned, a younger one stays."""
    store = await backend.open()
    now = backend.wall.now()
    await store.access.change(AccessChange(line=_line("old", now - timedelta(days=366))))
    await store.access.change(AccessChange(line=_line("young", now - timedelta(days=364))))
    await store.prune()
    assert [each.id for each in await store.access.audit(limit=9)] == ["young"]


async def test_what_a_chat_is_told_with_a_change_is_delivered(backend: StoreBackend) -> None:
    """What is told goes out with the change, and survives a kill as it does."""
    store = await backend.open()
    told = OutboundMessage(id="dabcdefghijklmnop.1", key=SessionKey("slack", "D1"), text="Welcome.")
    await store.access.change(AccessChange(notes={"n": "1"}, notices=(told,)))
    again = await backend.reopen()
    delivery = await again.outbox.next(told.key)
    assert delivery is not None
    assert delivery.message.text == "Welcome."


async def test_a_turns_line_is_written_with_its_commit_once(backend: StoreBackend) -> None:
    """A turn that decided leaves its line with its record; committed again, or killed right after, there is one."""
    store = await backend.open()
    lease = await begin_turn(store, said("/new"))
    line = _line(lease.turn, backend.wall.now(), by="telegram:ann", what="new", whom="")
    await store.journal.commit(lease, replace(answered(lease, "New session."), audit=line))
    await store.journal.commit(lease, replace(answered(lease, "New session."), audit=line))
    again = await backend.reopen()
    assert await again.access.audit(limit=9) == [line]


async def test_a_commit_that_does_not_count_leaves_no_line(backend: StoreBackend) -> None:
    """Who lost the lane wrote nothing: neither a record nor a line of the audit."""
    store = await backend.open()
    lease = await begin_turn(store, said("/new"))
    await store.journal.release(lease)
    line = _line(lease.turn, backend.wall.now())
    with pytest.raises(LeaseLost):
        await store.journal.commit(lease, replace(answered(lease, "New session."), audit=line))
    assert await store.access.audit(limit=9) == []
