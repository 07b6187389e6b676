"""What is due and how it ended: by scope, chat and sender, over both engines."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta

from gateway.events import InboundKind, SessionKey
from gateway.store.inspection import Promise
from gateway.store.sql_store import SqlStore
from tests.fakes.turns import accept, answered, claim, said, spent

ANN, PAGE, ROOM = SessionKey("telegram", "1"), SessionKey("web", "a"), SessionKey("slack", "C1")
SCOPE, ROOM_SCOPE = "people/telegram%3a1", "chats/slack%3aC1"


def brief(promises: tuple[Promise, ...]) -> list[tuple[str, str, str]]:
    """Return chat, kind and state of each."""
    return [(each.key.chat, each.kind, each.state) for each in promises]


async def test_what_is_due_ends(store: SqlStore) -> None:
    """Chats of a scope are together once they have a session; others of a group are apart; commands are none."""
    for key, scope in ((ANN, SCOPE), (PAGE, SCOPE), (ROOM, ROOM_SCOPE)):
        await accept(store, said(key=key, id="first"))
        lease = await claim(store, key)
        await store.journal.commit(lease, answered(lease, "one", scope=scope))
    await accept(store, said(key=PAGE, id="second"))
    await claim(store, PAGE)
    await accept(store, replace(said(key=ANN, id="job:allowed/q1"), kind=InboundKind.JOB))
    await accept(store, said(key=ROOM, id="second"))
    await accept(store, replace(said(key=ANN, id="third"), kind=InboundKind.COMMAND))
    due = store.journal.due_promises
    assert sorted(brief(await due(ANN, SCOPE, sender="", limit=10))) == [
        ("1", "answer", "waiting"),
        ("1", "call", "waiting"),
        ("a", "answer", "running"),
    ]
    sender = said().sender.id
    assert brief(await due(ROOM, ROOM_SCOPE, sender=sender, limit=10)) == [("C1", "answer", "waiting")]
    assert await due(ROOM, ROOM_SCOPE, sender="somebody", limit=10) == ()
    assert len(await due(ANN, SCOPE, sender="", limit=2)) == 2
    assert len(await store.journal.all_due_promises(10)) == 4
    ended = store.journal.ended_promises
    assert brief(await ended(ANN, SCOPE, sender="", limit=10)) == [("1", "answer", "answered")]
    assert await ended(ANN, SCOPE, sender="somebody", limit=10) == ()
    assert await ended(ANN, ROOM_SCOPE, sender="", limit=10) == ()
    now = store.journal.now()
    early, late = (
        await store.journal.late_promises(now - timedelta(days=365)),
        await store.journal.late_promises(now + timedelta(days=365)),
    )
    assert (early.messages, early.reminders, early.since, early.key) == (0, 0, None, None)
    assert (late.messages, late.reminders) == (4, 0)
    assert late.key is not None
    lease = await claim(store, ROOM)
    commit = answered(lease, "sorry", scope=ROOM_SCOPE)
    await store.journal.commit(lease, replace(commit, record=replace(commit.record, failure="model")))
    assert brief(await ended(ROOM, ROOM_SCOPE, sender=sender, limit=10))[0] == ("C1", "answer", "failed")


async def test_the_runs_of_what_is_scheduled(store: SqlStore) -> None:
    """By the beginning of their ids, the newest first, with what each has used; others of the chat are none."""
    for slot in ("2026-11-23T08:00", "2026-11-24T08:00", "2026-11-25T08:00"):
        await accept(store, replace(said(key=ANN, id=f"job:remind/ra/{slot}"), kind=InboundKind.JOB))
        if slot.endswith("25T08:00"):
            break
        lease = await claim(store, ANN)
        store.journal.spend(spent(lease.turn, at=store.journal.now()))
        commit = answered(lease, "one", scope=SCOPE)
        outbound = commit.outbound if slot.endswith("23T08:00") else ()
        await store.journal.commit(lease, replace(commit, outbound=outbound, parts=()))
    await accept(store, replace(said(key=ANN, id="job:remind/rab/2026-11-23T08:00"), kind=InboundKind.JOB))
    await accept(store, said(key=ANN, id="other"))
    runs = await store.journal.scheduled_runs({ANN, PAGE}, "job:remind/ra/", limit=10)
    assert [(each.key, each.state, each.tokens) for each in runs] == [
        (ANN, "waiting", 0),
        (ANN, "silent", 12),
        (ANN, "answered", 12),
    ]
    assert len(await store.journal.scheduled_runs({ANN}, "job:remind/ra/", limit=1)) == 1
    assert await store.journal.scheduled_runs({PAGE}, "job:remind/ra/", limit=10) == ()
