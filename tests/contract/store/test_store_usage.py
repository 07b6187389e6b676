"""Usage rows: what a call leaves however it ends, sums by whatever is asked, and days that stay right when rows go."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from datetime import timedelta
from typing import Any

from gateway.events import SessionKey
from gateway.ports.access import TOOL_CALLS
from gateway.ports.journal import CapNotice, TurnStep
from gateway.store.engine import StoreLimits
from gateway.store.journal import CALL_NOTED_AFTER
from gateway.store.sql_store import SqlStore
from tests.contract.store.conftest import StoreBackend
from tests.fakes.turns import ANN, START, answered, begin_turn, claim, said, spent

BERLIN = StoreLimits(zone="Europe/Berlin")


async def by(store: SqlStore, group: str, *, days: int = 400) -> list[tuple[Any, ...]]:
    """Return who or what took how many calls and tokens, and the cost."""
    found = await store.usage.by(group, since=START - timedelta(days=days), until=START, zone="Europe/Berlin")
    return [
        (each[group], each["calls"], each["tokens_in"] + each["tokens_out"], each["cost"], each["unpriced_calls"])
        for each in found
    ]


async def test_sums_by_person_chat_purpose_and_day(store: SqlStore) -> None:
    """The most tokens come first, days in their order; a price that is not known makes no sum of dollars."""
    store.journal.spend(spent("t1", person="ann", cost=0.5))
    store.journal.spend(spent("t1", person="ann", cost=0.25, purpose="transcription", tokens_in=1_000))
    store.journal.spend(spent("t2", person="bob", chat="telegram:43", at=START - timedelta(days=1)))
    assert await by(store, "person") == [("ann", 2, 1_014, 0.75, 0), ("bob", 1, 12, None, 1)]
    assert await by(store, "chat") == [(str(ANN), 2, 1_014, 0.75, 0), ("telegram:43", 1, 12, None, 1)]
    assert await by(store, "purpose") == [("transcription", 1, 1_002, 0.25, 0), ("answer", 2, 24, None, 1)]
    assert await by(store, "day") == [("2026-11-20", 1, 12, None, 1), ("2026-11-21", 2, 1_014, 0.75, 0)]
    assert await by(store, "person", days=0) == [("ann", 2, 1_014, 0.75, 0)]


async def test_tool_calls_are_counted_apart(backend: StoreBackend) -> None:
    """By person and kind since a moment, over a kill; no sum of model calls contains them."""
    store = await backend.open()
    lease = await begin_turn(store)
    store.journal.spend(spent(lease.turn, person="ann"))
    for kind, at in (("web", START), ("web", START), ("act", START), ("web", START - timedelta(days=1))):
        store.journal.spend(spent(lease.turn, person="ann", purpose=f"{TOOL_CALLS}{kind}", at=at))
    await store.journal.commit(lease, answered(lease, "one"))
    store = await backend.reopen()
    assert await store.usage.tool_calls(since=START) == {("ann", "web"): 2, ("ann", "act"): 1}
    for group in ("person", "chat", "purpose", "day"):
        assert [each[1] for each in await by(store, group)] == [1]
    assert [each["calls"] for each in await store.usage.totals(since=START)] == [1]
    trace = await store.journal.trace(lease.turn)
    assert trace is not None
    assert len(trace.usage) == 1


async def test_days_are_those_of_the_zone_and_stay_right_when_their_rows_are_folded(backend: StoreBackend) -> None:
    """After thirty days a day is its sums: per person, chat, purpose and model, unknown prices apart.

    22:30 in UTC is 23:30 in Berlin in winter, and in summer it is tomorrow.
    """
    store = await backend.open(BERLIN)
    for day in range(0, 300, 3):
        at = START - timedelta(days=day) + timedelta(hours=1, minutes=30)
        for n in range(4):
            row = spent(f"t{day}.{n}", person=("ann", "bob")[n % 2], cost=None if n == 3 else 0.125, at=at)
            store.journal.spend(row)
    before = {group: await by(store, group) for group in ("person", "chat", "purpose", "day")}
    total = await store.usage.totals(since=START - timedelta(days=400), person="bob")
    gone = 0
    for _ in range(10):  # some days at a time
        gone += await store.prune()
    assert gone == 4 * len([day for day in range(0, 300, 3) if day > 30])
    assert {group: await by(store, group) for group in before} == before
    assert await store.usage.totals(since=START - timedelta(days=400), person="bob") == total
    assert await store.prune() == 0
    days = [name for name, *_ in before["day"]]
    assert "2026-11-21" in days  # 22:30 UTC on the 21st, in winter
    assert "2026-08-24" in days  # 22:30 UTC on the 23rd, in summer


async def test_a_call_that_is_cut_off_stands_in_the_rows(backend: StoreBackend) -> None:
    """Begun and never ended, it is there after a kill with its estimate; ended, with what it took, once."""
    store = await backend.open()
    lease = await begin_turn(store)
    store.journal.calling(spent(lease.turn, call="a.1", tokens_in=500, tokens_out=0))
    await asyncio.sleep(2 * CALL_NOTED_AFTER.total_seconds())
    await store.check()
    assert [(row.tokens_in, row.call) for row in await usage(store, lease.turn)] == [(500, "a.1")]
    store.journal.spend(spent(lease.turn, call="a.1", tokens_in=480))
    store.journal.calling(spent(lease.turn, call="a.2", tokens_in=600, tokens_out=0))
    await asyncio.sleep(2 * CALL_NOTED_AFTER.total_seconds())
    await store.check()
    store = await backend.reopen()
    assert [(row.tokens_in, row.call) for row in await usage(store, lease.turn)] == [(480, ""), (600, "a.2")]


async def test_a_quick_call_costs_no_transaction_more(store: SqlStore) -> None:
    """Its estimate is never written: the row goes with the commit of its turn."""
    lease = await begin_turn(store)
    before = (await store.journal.depth())["commits"]
    store.journal.calling(spent(lease.turn, call="a.1"))
    store.journal.spend(spent(lease.turn, call="a.1"))
    await store.journal.commit(lease, answered(lease, "one"))
    await asyncio.sleep(2 * CALL_NOTED_AFTER.total_seconds())
    after = (await store.journal.depth())["commits"]
    assert after - before <= 2  # one where a writer gathers, two where each operation stands alone
    assert [row.call for row in await usage(store, lease.turn)] == [""]


async def test_a_counted_tool_call_is_known_until_its_turn_ends(backend: StoreBackend) -> None:
    """By its key, so that a call which runs again after a kill is counted once; folded it is a number like the rest."""
    store = await backend.open()
    lease = await begin_turn(store)
    for n in (1, 2):
        store.journal.spend(spent(lease.turn, purpose="tool-web", call=f"{lease.turn}.{n}", person="ann"))
    store.journal.spend(spent("t9", purpose="tool-web", call="t9.1", person="ann"))
    await store.journal.step(lease, TurnStep(n=0, kind="opening", lines=(), call="[]"))
    store = await backend.reopen()
    assert sorted(await store.usage.interrupted_tool_calls()) == [f"{lease.turn}.1", f"{lease.turn}.2"]
    assert await store.usage.tool_calls(since=START) == {("ann", "web"): 3}
    lease = await claim(store)
    await store.journal.commit(lease, answered(lease, "one"))
    assert await store.usage.interrupted_tool_calls() == ()
    assert await store.usage.tool_calls(since=START) == {("ann", "web"): 3}


async def test_what_caps_count_is_there_after_a_kill(backend: StoreBackend) -> None:
    """Turns since a moment, tokens of a day, and who was told: told with the commit that tells them, or not at all."""
    store = await backend.open()
    lease = await begin_turn(store)
    store.journal.spend(spent(lease.turn, at=START - timedelta(minutes=9), cost=0.1))
    store.journal.spend(spent(lease.turn, is_own=True, cost=None))
    store.journal.spend(spent("t9", at=START - timedelta(minutes=11), purpose="transcription", cost=0.2000004))
    store.journal.spend(spent("job", purpose="dream"))
    told = CapNotice(name="person-turns/ann", chat=str(ANN), until=START + timedelta(minutes=1), limit=20)
    commit = answered(lease, "one")
    await store.journal.commit(lease, type(commit)(record=commit.record, outbound=commit.outbound, cap_notices=(told,)))
    store = await backend.reopen()
    window, day = START - timedelta(minutes=10), START - timedelta(hours=1)
    counted = await store.caps.load_usage(window=window, day=day, purposes={"answer", "transcription"})
    assert [(each.turn, each.at) for each in counted.turns] == [(lease.turn, START - timedelta(minutes=9))]
    spent_today = sorted((each.is_own, each.tokens, each.cost) for each in counted.tokens)
    assert spent_today == [(False, 24, 300_000), (True, 12, 0)]  # micro-dollars; an unknown cost counts nothing
    assert counted.notices == (told,)
    there = replace(told, chat="telegram:7")
    later = replace(told, until=told.until + timedelta(seconds=1))
    for number, (each, left) in enumerate(((there, {told, there}), (later, {later})), start=2):
        lease = await begin_turn(store, said(id=str(number)))
        await store.journal.commit(lease, replace(answered(lease, "one"), cap_notices=(each,)))
        assert set((await store.caps.load_usage(window=window, day=day, purposes=())).notices) == left
    backend.wall.advance(minutes=2)
    await store.prune()
    assert not (await store.caps.load_usage(window=window, day=day, purposes={"answer"})).notices


async def test_who_is_forgotten_leaves_the_sums(store: SqlStore) -> None:
    """The gateway's days stay right; nobody's name is in them, nor in what was told."""
    lease = await begin_turn(store)
    ends = START + timedelta(minutes=1)
    told = [
        CapNotice(name=name, chat=chat, until=ends, limit=1)
        for name, chat in (("p/ann", "x:1"), (f"c/{ANN}", "x:1"), ("p/bob", "x:1"), ("p/bob", str(ANN)))
    ]
    commit = answered(lease, "one")
    await store.journal.commit(lease, type(commit)(record=commit.record, cap_notices=tuple(told)))
    store.journal.spend(spent("t1", person="ann", at=START - timedelta(days=40)))
    await store.prune()
    await store.erasing.unlink(person="ann", keys=[SessionKey("telegram", "42")])
    left = (await store.caps.load_usage(window=START, day=START, purposes=())).notices
    assert [(each.name, each.chat) for each in left] == [("p/bob", "x:1")]
    assert await by(store, "person") == [("", 1, 12, None, 1)]
    assert await by(store, "day") == [("2026-10-12", 1, 12, None, 1)]


async def usage(store: SqlStore, turn: str) -> tuple[Any, ...]:
    """Return the rows of a turn."""
    story = await store.journal.trace(turn)
    assert story is not None
    return story.usage
