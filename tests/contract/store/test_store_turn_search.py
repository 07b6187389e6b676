"""The search for turns: by chat, account and time, the newest first, with what each took."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta

from gateway.events import SessionKey
from gateway.store.inspection import TurnQuery
from gateway.store.session_queue import HAS_SESSION
from gateway.store.sql_store import SqlStore
from tests.fakes.store import open_inline_store
from tests.fakes.turns import START, accept, answered, claim, said, spent

ROOM, OTHER = SessionKey("slack", "C1"), SessionKey("slack", "C10")
OPEN, PRIVATE = SessionKey("slack", "C1/1"), SessionKey("slack", "C1/2")
SCOPE = "chats/slack%3aC1"


async def found(store: SqlStore, query: TurnQuery) -> list[tuple[str, str]]:
    """Return the chats and outcomes that *query* finds."""
    return [(each.key.chat, each.outcome) for each in await store.journal.find_turns(query)]


async def test_turns_are_found_by_what_is_known_of_them(store: SqlStore) -> None:
    """A chat has its threads, but no chat whose name begins alike, and no private thread; running turns are first."""
    scopes = {ROOM: SCOPE, OPEN: SCOPE, PRIVATE: f"{SCOPE}%2f2", OTHER: "chats/slack%3aC10"}
    turns = []
    for n, (key, scope) in enumerate(scopes.items()):
        await accept(store, said(key=key, id=str(n)))
        lease = await claim(store, key)
        turns.append(lease.turn)
        commit = answered(lease, "one", scope=scope)
        await store.journal.commit(lease, replace(commit, record=replace(commit.record, at=START + timedelta(hours=n))))
    store.journal.spend(spent(turns[0], person="slack%3aT1%3aU1", cost=0.5))
    store.journal.spend(spent(turns[0], person="slack%3aT1%3aU1", purpose="tool-web"))
    store.journal.spend(spent(turns[3], person="slack%3aT1%3aU2"))
    await accept(store, said(key=ROOM, id="running"))
    await claim(store, ROOM)

    assert await found(store, TurnQuery()) == [
        ("C1", "running"),
        ("C10", "answered"),
        ("C1/2", "answered"),
        ("C1/1", "answered"),
        ("C1", "answered"),
    ]
    of_room = [("C1", "running"), ("C1/1", "answered"), ("C1", "answered")]
    assert await found(store, TurnQuery(chat=ROOM, scope=SCOPE)) == of_room
    assert ("C1/2", "answered") in await found(store, TurnQuery(chat=ROOM))
    assert await found(store, TurnQuery(accounts=("slack%3aT1%3aU2", "nobody"))) == [("C10", "answered")]
    assert await found(store, TurnQuery(chat=ROOM, accounts=("slack%3aT1%3aU2",))) == []
    hours = TurnQuery(since=START + timedelta(hours=1), until=START + timedelta(hours=3))
    assert [each for each in await found(store, hours) if each[1] == "answered"] == [
        ("C1/2", "answered"),
        ("C1/1", "answered"),
    ]
    assert await found(store, TurnQuery(limit=2)) == [("C1", "running"), ("C10", "answered")]
    (first,) = await store.journal.find_turns(TurnQuery(accounts=("slack%3aT1%3aU1",)))
    assert (first.turn, first.calls, first.tokens, first.known_cost, first.unpriced_calls) == (turns[0], 1, 12, 0.5, 0)


async def test_hours_have_their_messages_waits_and_cost(store: SqlStore) -> None:
    """An hour without messages is there as well; a message that waits is counted, and has no wait yet."""
    await accept(store, said(id="1"))
    lease = await claim(store)
    await store.journal.commit(lease, answered(lease, "one"))
    await accept(store, said(id="2"))
    store.journal.spend(spent(lease.turn, cost=0.5))
    store.journal.spend(spent(lease.turn, purpose="tool-web"))
    now = store.journal.now()
    hours = await store.journal.summarise_hours(now - timedelta(hours=2), now)
    assert [each.messages for each in hours] == [0, 0, 2]
    assert [each.answers for each in hours] == [0, 0, 1]
    assert [(each.known_cost, each.unpriced_calls) for each in hours] == [(0, 0), (0, 0), (0.5, 0)]
    assert 0 <= hours[-1].mean_wait == hours[-1].longest_wait
    assert hours[-1].at <= now < hours[-1].at + timedelta(hours=1)


async def test_failed_turns_are_found_by_the_time_of_their_end(store: SqlStore) -> None:
    """A turn that was answered is none of them, nor one that failed before."""
    for n, failure in enumerate(("timeout", "", "busy")):
        await accept(store, said(id=str(n)))
        lease = await claim(store)
        commit = answered(lease, "one")
        record = replace(commit.record, at=START + timedelta(hours=n), failure=failure)
        await store.journal.commit(lease, replace(commit, record=record))
    failed = store.journal.failed_turns
    assert [each.failure for each in await failed(START, limit=5)] == ["busy", "timeout"]
    assert [each.failure for each in await failed(START, limit=1)] == ["busy"]
    assert [each.failure for each in await failed(START + timedelta(hours=1), limit=5)] == ["busy"]


async def test_a_chat_has_sessions_of_its_own_scope(store: SqlStore) -> None:
    """Its threads count, private ones have another scope, and a chat whose name begins alike is another."""
    for n, (key, scope) in enumerate({OPEN: SCOPE, PRIVATE: f"{SCOPE}%2f2", OTHER: "chats/slack%3aC10"}.items()):
        await accept(store, said(key=key, id=str(n)))
        lease = await claim(store, key)
        await store.journal.commit(lease, answered(lease, "one", scope=scope))
    has_session = store.records.has_session
    assert await has_session(ROOM, SCOPE)
    assert await has_session(OTHER, "chats/slack%3aC10")
    assert not await has_session(SessionKey("slack", "C"), SCOPE)
    assert not await has_session(ROOM, "chats/slack%3aC10")


async def test_the_look_for_a_chat_passes_over_no_other() -> None:
    """Both halves of the statement search the key of the table: no row of another chat is read."""
    store = await open_inline_store()
    assert isinstance(store, SqlStore)
    plan = await store._engine.writer.submit(
        lambda database: database.execute(f"EXPLAIN QUERY PLAN {HAS_SESSION}", ("",) * 5).fetchall()
    )
    steps = [str(step[-1]) for step in plan if "session" in str(step[-1])]
    assert [step.partition(" (")[0] for step in steps] == ["SEARCH session USING PRIMARY KEY"] * 2
    await store.close()
