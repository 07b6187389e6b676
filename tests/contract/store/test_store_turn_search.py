"""The search for turns: by chat, account and time, the newest first, with what each took."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta

from gateway.events import SessionKey
from gateway.ports import TurnQuery
from gateway.ports.store import Store
from tests.fakes.turns import START, accept, answered, claim, said, spent

ROOM, OTHER = SessionKey("slack", "C1"), SessionKey("slack", "C10")
OPEN, PRIVATE = SessionKey("slack", "C1/1"), SessionKey("slack", "C1/2")
SCOPE = "chats/slack%3aC1"


async def found(store: Store, query: TurnQuery) -> list[tuple[str, str]]:
    """Return the chats and outcomes that *query* finds."""
    return [(each.key.chat, each.outcome) for each in await store.journal.find_turns(query)]


async def test_turns_are_found_by_what_is_known_of_them(store: Store) -> None:
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
