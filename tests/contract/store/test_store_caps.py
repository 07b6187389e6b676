"""Counts of caps over several gateways: exact, exclusive, and free again when a gateway is gone."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from dataclasses import replace
from datetime import datetime, timedelta

import pytest

from agent.memory.jobs.token_budget import TokenBudget
from gateway.access.refusal_log import RefusalLog
from gateway.access.usage_caps import FIRST_TURNS, CapLimits, UsageCapTracker
from gateway.errors import StoreUnavailable
from gateway.events import ChatKind, InboundMessage, PlatformAccount, SessionKey
from gateway.ports.access import (
    CapChange,
    CappedSender,
    CapQuery,
    CapReached,
    CountedEntry,
    ExceededCap,
    Release,
    SharedCapCounts,
    TokenCount,
)
from gateway.ports.journal import CapNotice, UsageRow
from gateway.store.postgres import sessions
from gateway.store.postgres.sessions import CapConnection
from gateway.store.sql_store import SqlStore
from gateway.store.usage import SqlSharedCaps, digest
from tests.contract.store.conftest import StoreBackend
from tests.fakes.meter import FakeMeter
from tests.fakes.shared_workers import Workers, paused
from tests.fakes.turns import START, WallClock, said

DAY = datetime(2026, 11, 23, tzinfo=START.tzinfo)  # end of START's
NO_LIMITS = CapLimits()
EVE = PlatformAccount(kind="telegram", id="7")


def counts_of(store: SqlStore, worker: str = "") -> SqlSharedCaps:
    """Return the counts of a store whose one writer is exclusive, as *worker* or as the listed one has them."""
    assert isinstance(store, SqlStore)
    return SqlSharedCaps(store._engine.writer, worker or store._engine.owner)


async def read(caps: SqlSharedCaps, *names: str, notices: tuple[str, ...] = ()) -> SharedCapCounts:
    """Return what is counted under *names*."""
    query = CapQuery(names=names, day=DAY, since=START - timedelta(minutes=10), notices=notices)
    return await caps.judge(query, lambda found: (None, found))


async def spent_elsewhere(caps: SqlSharedCaps, *names: str) -> dict[str, tuple[int, int]]:
    """Return what the other gateways have spent and reserved."""
    found = await read(caps, *names)
    return {name: (count.spent, count.held) for name, count in found.elsewhere.items()}


async def test_each_gateway_has_its_own_counts_and_sees_those_of_the_others(backend: StoreBackend) -> None:
    """A count replaces the gateway's earlier one; the day before is another count; after a kill all of it is there."""
    store = await backend.open()
    ours, theirs = counts_of(store), counts_of(store, "another")
    for spent in (5, 8):
        ours.post(CapChange(day=DAY, tokens=(TokenCount("person/ann\0", spent, 0), TokenCount("house", spent, 0))))
    ours.post(CapChange(day=DAY - timedelta(days=1), tokens=(TokenCount("chat/x", 3, 0),)))
    found = await spent_elsewhere(theirs, "person/ann\0", "chat/x", "house")
    assert found == {"person/ann\0": (8, 0), "house": (8, 0)}
    assert await spent_elsewhere(ours, "house") == {}
    store = await backend.reopen()
    assert await spent_elsewhere(counts_of(store), "house") == {"house": (8, 0)}


async def test_the_latest_count_stays_whatever_a_decision_stores(store: SqlStore) -> None:
    """Counts are collected for one transaction, but not across a decision, which has older ones than what follows."""
    ours, theirs = counts_of(store), counts_of(store, "another")

    def counted(spent: int, held: int = 0) -> CapChange:
        return CapChange(day=DAY, tokens=(TokenCount("house", spent, held),))

    query = CapQuery(names=("house",), day=DAY, since=START)
    ours.post(counted(1))
    decision = asyncio.create_task(ours.judge(query, lambda _: (counted(2, held=9), None)))
    await asyncio.sleep(0)  # it is queued
    ours.post(counted(3))
    await decision
    assert await spent_elsewhere(ours, "house") == {}  # what was posted is stored
    assert await spent_elsewhere(theirs, "house") == {"house": (3, 0)}


async def test_what_is_reserved_is_free_when_its_gateway_is_gone(store: SqlStore) -> None:
    """What was spent is not."""
    ours, theirs = counts_of(store), counts_of(store, "never listed")
    for caps in (ours, theirs):
        caps.post(CapChange(day=DAY, tokens=(TokenCount("house", 10, 5),)))
    assert await spent_elsewhere(theirs, "house") == {"house": (10, 5)}
    assert await spent_elsewhere(ours, "house") == {"house": (10, 0)}


async def test_entries_are_counted_once_and_notices_have_a_turn(store: SqlStore) -> None:
    """A later window's notice takes the place of the earlier one; what is refused stores nothing."""
    caps = counts_of(store)
    told = CapNotice(name="person-turns/ann", chat="x:1", until=START + timedelta(minutes=5), limit=20)
    for seconds in (0, 30):
        entry = CountedEntry("person/ann", "t1", START + timedelta(seconds=seconds))
        caps.post(CapChange(day=DAY, entries=(entry,), notices=((told, "t9"),)))
    old = CountedEntry("person/ann", "t0", START - timedelta(minutes=10))
    caps.post(CapChange(day=DAY, entries=(old,)))
    found = await read(caps, "person/ann", notices=(told.name,))
    assert found.entries == (CountedEntry("person/ann", "t1", START),)
    assert found.notices == ((told, "t9"),)
    later = replace(told, chat="x:2", until=told.until + timedelta(minutes=10))
    caps.post(CapChange(day=DAY, notices=((later, "t10"),)))
    assert (await read(caps, "person/ann", notices=(told.name,))).notices == ((later, "t10"),)


async def test_old_counts_go_and_no_name_is_stored(backend: StoreBackend) -> None:
    """Counts have the digest of a name, so that there is nothing to forget, and leave with their day."""
    store = await backend.open()
    assert isinstance(store, SqlStore)
    caps = counts_of(store)
    entry = CountedEntry("person/ann", "t1", START)
    caps.post(CapChange(day=DAY, tokens=(TokenCount("person/ann", 8, 0),), entries=(entry,)))
    rows = "SELECT name FROM cap_count UNION ALL SELECT name FROM cap_entry"
    found = await store._engine.writer.submit(lambda database: database.execute(rows).fetchall())
    assert found == [(digest("person/ann"),)] * 2
    backend.wall.advance(hours=27)
    await store.prune()
    assert await store._engine.writer.submit(lambda database: database.execute(rows).fetchall()) == []


async def test_a_start_counts_the_rows_of_usage_unless_another_gateway_counts(store: SqlStore) -> None:
    """The first of several begins with them; one that joins finds them, and counts none twice."""
    caps = counts_of(store)
    base = CapChange(day=DAY, tokens=(TokenCount("house", 100, 0),), entries=(CountedEntry("person/ann", "t1", START),))
    for _ in range(2):  # alone, again: what the run before has counted is in the rows
        caps.post(CapChange(day=DAY, tokens=(TokenCount("house", 7, 0),)))
        await caps.start((base, CapChange(day=DAY)))
        assert await spent_elsewhere(caps, "house") == {"house": (100, 0)}
        assert len((await read(caps, "person/ann")).entries) == 1
    joins = counts_of(store, "joins")
    await joins.start((base,))
    assert await spent_elsewhere(joins, "house") == {"house": (100, 0)}


class CapTeamMember:
    """One gateway's trackers over the counts that all share."""

    def __init__(self, store: SqlStore, limits: CapLimits) -> None:
        shared = store.shared_caps
        assert shared is not None
        self.clock = WallClock()
        self.rows: list[UsageRow] = []
        self.caps = UsageCapTracker(
            limits=lambda _: limits, zone="UTC", now=self.clock.now, meter=FakeMeter(), refusals=RefusalLog(),
            tool_limits={"web": 5}, store_row=self.rows.append, shared_caps=shared,
        )  # fmt: skip
        self.budget = TokenBudget(store.usage, limit=100_000, zone="UTC", now=lambda: START, shared_caps=shared)

    async def admit(self, turn: str, account: PlatformAccount = EVE) -> ExceededCap | None:
        """Ask for a turn in a chat of its own."""
        return await self.caps.admit_turn(message_of(turn), turn, sender_of(account))

    async def reserve(self, turn: str, tokens: int, cost: int = 0) -> Release | None:
        """Ask for a call; None if a cap forbids it."""
        try:
            return await self.caps.reserve(turn, tokens, cost)
        except CapReached:
            return None

    async def call_tool(self, call: str) -> bool:
        """Ask for a call of a tool."""
        counted = self.caps.count_tool_call("web", turn="t", call=call, accounts=(EVE,), account=EVE, chat="telegram:1")
        return await counted is None


def message_of(turn: str) -> InboundMessage:
    """Return a message of a group of its own."""
    return replace(said(), key=SessionKey("telegram", turn), chat_kind=ChatKind.GROUP)


def sender_of(account: PlatformAccount) -> CappedSender:
    """Return a sender who was admitted with a chat."""
    return CappedSender(account=account, accounts=(account,), is_named=False)


async def open_team(team: Workers, limits: CapLimits = NO_LIMITS) -> tuple[CapTeamMember, CapTeamMember]:
    """Return the trackers of two gateways."""
    return CapTeamMember(await team.open(), limits), CapTeamMember(await team.open(), limits)


async def test_two_gateways_admit_no_turn_more_than_one_would(team: Workers) -> None:
    """60 messages of one person at once: 20 turns, one notice. The turn that tells it may be run by the other."""
    members = await open_team(team)
    found = await asyncio.gather(*(members[n % 2].admit(f"t{n}") for n in range(60)))
    refused = [(n, each) for n, each in enumerate(found) if each is not None]
    assert len(refused) == 60 - FIRST_TURNS
    notices = [(n, each) for n, each in refused if each.notice is not None]
    assert 1 <= len(notices) <= 5  # each in another chat, as with one gateway
    n, told = notices[0]
    again = await members[(n + 1) % 2].admit(f"t{n}")
    assert again is not None
    assert again.notice == told.notice
    admitted = next(n for n, each in enumerate(found) if each is None)
    assert await members[(admitted + 1) % 2].admit(f"t{admitted}") is None


@pytest.mark.parametrize("seconds", [-1.0, 0.0, 1.0])
async def test_a_cap_holds_whichever_clock_is_ahead(team: Workers, seconds: float) -> None:
    """Turns that another gateway has let in count, also where its clock, or the moment that it took, is later."""
    first, second = await open_team(team, CapLimits(person_turns=3))
    second.clock.advance(seconds=seconds)
    found = [await member.admit(f"t{n}") for n, member in enumerate((first, first, second, second, first))]
    assert [each is None for each in found] == [True, True, True, False, False]
    assert [await member.admit(f"t{n}") for n, member in enumerate((second, first, first))] == [None] * 3


async def test_one_notice_for_a_chat_over_all_gateways(team: Workers) -> None:
    """Twenty refusals in one chat, at two gateways at once: one of them says so."""
    members = await open_team(team, CapLimits(person_turns=1))
    message, sender = message_of("c"), sender_of(EVE)
    found = await asyncio.gather(*(members[n % 2].caps.admit_turn(message, f"t{n}", sender) for n in range(20)))
    assert sum(each is None for each in found) == 1
    assert sum(each is not None and each.notice is not None for each in found) == 1


@pytest.mark.parametrize(
    "limits", [CapLimits(person_tokens=1_000), CapLimits(installation_tokens=1_000)], ids=["person", "all"]
)
async def test_two_gateways_reserve_no_token_more_than_one_would(team: Workers, limits: CapLimits) -> None:
    """Of calls that want 300 of 1,000 tokens, at both gateways at once, three begin; each sees what both have spent."""
    members = await open_team(team, limits)
    for n in range(12):
        assert await members[n % 2].admit(f"t{n}") is None
    releases = await asyncio.gather(*(members[n % 2].reserve(f"t{n}", 300) for n in range(12)))
    assert sum(each is not None for each in releases) == 3
    for n, release in enumerate(releases):
        if release is not None:
            chat = str(message_of(f"t{n}").key)
            members[n % 2].caps.spend(turn=f"t{n}", person=EVE.name, chat=chat, purpose="answer", tokens=250)
            release()
    for member in members:
        await settled(member)
    for member in members:
        allowances = await member.caps.allowances(message_of("x"), sender_of(EVE))
        # A person's cap counts as reached after the refusal, that of all in the chats that were told.
        assert [each.used for each in allowances if each.limit == 1_000] == [1_000 if limits.person_tokens else 750]


@pytest.mark.parametrize(
    "limits", [CapLimits(person_cost=1_000), CapLimits(installation_cost=1_000)], ids=["person", "all"]
)
async def test_two_gateways_reserve_no_dollar_more_than_one_would(team: Workers, limits: CapLimits) -> None:
    """Of calls that cost 300 of 1,000 micro-dollars, three begin; what a failed one had reserved is free again."""
    members = await open_team(team, limits)
    for n in range(12):
        assert await members[n % 2].admit(f"t{n}") is None
    releases = await asyncio.gather(*(members[n % 2].reserve(f"t{n}", 1, 300) for n in range(12)))
    begun = [n for n, release in enumerate(releases) if release is not None]
    assert len(begun) == 3
    for n in begun:
        cost = 0 if n == begun[0] else 250
        chat = str(message_of(f"t{n}").key)
        members[n % 2].caps.spend(turn=f"t{n}", person=EVE.name, chat=chat, purpose="answer", tokens=1, cost=cost)
        release = releases[n]
        assert release is not None
        release()
    for member in members:
        await settled(member)
    assert [await each.reserve(f"t{n}", 1, 501) for n, each in enumerate(members)] == [None, None]
    free = await members[0].reserve("t0", 1, 500)
    assert free is not None
    assert await members[1].reserve("t1", 1, 1) is None


async def settled(member: CapTeamMember) -> None:
    """Return when what the member has posted is stored; a session that was lost is opened again with a delay."""
    async with asyncio.timeout(30):
        while True:
            with suppress(StoreUnavailable):
                await member.caps.allowances(message_of("x"), sender_of(EVE))
                return
            await asyncio.sleep(0.02)


async def test_the_reservation_of_a_killed_gateway_is_free_after_the_takeover(team: Workers) -> None:
    """Killed between reservation and settlement, it blocks nobody for longer; what it had spent stays spent."""
    limits = CapLimits(person_tokens=1_000)
    first, second = await team.open(), await team.open()
    await paused(second)
    killed, other = CapTeamMember(first, limits), CapTeamMember(second, limits)
    assert [await killed.admit("t1"), await other.admit("t2")] == [None, None]
    killed.caps.spend(turn="t1", person=EVE.name, chat="telegram:t1", purpose="answer", tokens=100)
    assert await killed.reserve("t1", 500)
    used = [each.used for each in await other.caps.allowances(message_of("x"), sender_of(EVE)) if each.cap.is_daily]
    assert used == [600]
    await team.kill(first)
    team.server.query(f"DELETE FROM worker WHERE name = '{first._engine.owner}'")  # noqa: S608 - as a takeover does
    release = await other.reserve("t2", 900)
    assert release
    with pytest.raises(StoreUnavailable):  # it was taken over from: it decides nothing any more
        await killed.reserve("t1", 1)


class LossyCapConnection(CapConnection):
    """A session of caps whose next commit is stored, and whose reply is lost, when it is told to."""

    is_lossy = False

    def end_batch(self) -> bool:
        """Store the batch; then fail, once."""
        stored = super().end_batch()
        if LossyCapConnection.is_lossy:
            LossyCapConnection.is_lossy = False
            raise OSError("the reply was lost")
        return stored


async def test_a_reservation_whose_reply_was_lost_is_taken_back(team: Workers, monkeypatch: pytest.MonkeyPatch) -> None:
    """The call does not begin, and what was stored of it blocks no other; the turn is counted once."""
    monkeypatch.setattr("gateway.store.postgres.sessions.CapConnection", LossyCapConnection)
    members = await open_team(team, CapLimits(person_tokens=1_000, person_turns=2))
    assert await members[0].admit("t1") is None
    for ask in (lambda: members[0].reserve("t1", 900), lambda: members[0].admit("t1")):
        LossyCapConnection.is_lossy = True
        with pytest.raises(StoreUnavailable):
            await ask()
    await settled(members[0])
    assert await members[1].admit("t2") is None
    assert await members[1].reserve("t2", 900)
    assert (await members[1].admit("t3")) is not None


async def test_a_cancelled_reservation_is_taken_back(team: Workers) -> None:
    """/stop while the database is asked."""
    members = await open_team(team, CapLimits(person_tokens=1_000))
    assert [await each.admit(f"t{n}") for n, each in enumerate(members)] == [None, None]
    asking = asyncio.create_task(members[0].reserve("t0", 900))
    await asyncio.sleep(0)
    asking.cancel()
    await asyncio.wait({asking})
    assert asking.cancelled()
    await settled(members[0])
    assert await members[1].reserve("t1", 900)


async def test_tool_calls_are_counted_over_all_gateways(team: Workers) -> None:
    """Twelve at once, five run; one of them that another gateway runs again after a kill counts once."""
    members = await open_team(team)
    found = await asyncio.gather(*(members[n % 2].call_tool(f"t.{n}") for n in range(12)))
    assert sum(found) == 5
    assert sum(len(each.rows) for each in members) == 5
    n = found.index(True)
    assert await members[(n + 1) % 2].call_tool(f"t.{n}")
    for member in members:
        (allowance,) = await member.caps.tool_allowances((EVE,))
        assert (allowance.used, allowance.limit) == (5, 5)
        assert member.caps.exceeded_tool_cap("web", (EVE,), call="t.99")


async def test_background_jobs_share_one_budget(team: Workers) -> None:
    """Jobs begin where there is budget, at whichever gateway; one that is spent by one is spent for both."""
    first, second = (member.budget for member in await open_team(team))
    assert await first.startable_jobs(8) == 8  # of 10,000 tokens each, of 100,000
    assert await second.startable_jobs(8) == 2
    first.reserve("a")  # no other was due
    second.reserve("b", "c")
    await first.budget()  # stored
    assert await second.startable_jobs(8) == 7
    second.reserve()
    first.note("dream", "a", 70_000)
    first.settle("a")
    assert (await first.budget()).spent == 70_000
    assert (await second.budget()).spent == 70_000
    assert await second.startable_jobs(8) == 1


async def test_a_gateway_that_hangs_in_a_decision_does_not_stop_the_others(
    team: Workers, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The server ends its session, and with it the lock."""
    patient = [each.replace("'5s'", "'100ms'") for each in sessions._CAP_SESSION]
    assert patient != list(sessions._CAP_SESSION)
    monkeypatch.setattr(sessions, "_CAP_SESSION", patient)
    first, second = await team.open(), CapTeamMember(await team.open(), NO_LIMITS)
    hanging = sessions.connect_caps(team.server.url, first._engine.owner)
    try:
        hanging.begin_batch()
        async with asyncio.timeout(30):
            assert await second.admit("t1") is None
    finally:
        hanging.close()
