"""Several workers on one PostgreSQL database: who does what, and who takes over. Rules found by fault injection."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path
from threading import Event

import psycopg
import pytest

from gateway.errors import StoreUnavailable
from gateway.events import PlatformAccount, SessionKey
from gateway.ports.access import AccessChange, AccessEntry, AccessStatus
from gateway.ports.channel import CACHED_NOTES
from gateway.ports.journal import AcceptOutcome, Job, PartState, TurnLease
from gateway.store import claims, turn_commits
from gateway.store.database import Database, SharedDatabase
from gateway.store.engine import StoreLimits
from gateway.store.postgres import open_database, open_store, schema, worker_locks
from gateway.store.postgres.schema import read_workers
from gateway.store.sql_store import SqlStore, look_again, share_work
from gateway.store.writer import Operation
from tests.fakes.postgres_server import PostgresServer
from tests.fakes.shared_workers import HOUR, LossyConnection, Workers, paused, until
from tests.fakes.store import until_open
from tests.fakes.turns import (
    ANN,
    BOB,
    START,
    accept,
    answered,
    claim,
    claim_suspect,
    next_delivery,
    parts_of,
    receipt,
    said,
)

HOLDERS = "SELECT name, worker FROM claim ORDER BY name"
_OWN_START = "SELECT backend_start FROM pg_stat_activity WHERE pid = pg_backend_pid()"
CHATS = [SessionKey("telegram", str(number)) for number in range(100, 110)]


async def ready(store: SqlStore, key: SessionKey = ANN) -> None:
    """Return when *key* is offered to this worker."""
    async with asyncio.timeout(30):
        async for each in store.journal.ready_sessions():
            if each == key:
                return


async def first_with_chat(team: Workers) -> SqlStore:
    """Open a worker that has Ann's chat, with a message: one that was open already might have taken the chat."""
    first = await team.open()
    await accept(first, said())
    await ready(first)
    return first


async def accept_all(store: SqlStore, keys: Iterable[SessionKey]) -> None:
    """Accept one message for each of *keys*."""
    await asyncio.gather(*(accept(store, said(key=key)) for key in keys))


async def write_transcripts(*stores: SqlStore) -> None:
    """Let the bodies of each worker's records go, as its transcripts do when they are written."""
    for store in stores:
        found = await store.records.unwritten(0, 2)
        while found:
            store.records.mark_written([each.seq for each in found])
            found = await store.records.unwritten(0, 2)


async def test_a_chat_has_one_worker_until_nothing_of_it_is_open(team: Workers) -> None:
    """The worker that accepts a message need not be the one that answers; the next turn may be another's."""
    first = await first_with_chat(team)
    second = await team.open()
    assert team.holders() == {ANN: first._engine.owner}
    await accept(second, said(id="2"))
    assert await second.journal.claim(ANN) is None
    lease = await claim(first)
    await first.journal.commit(lease, answered(lease, "one"))
    assert await second.journal.claim(ANN) is None
    assert await second.outbox.next(ANN) is None
    delivery = await next_delivery(first)
    parts = parts_of(delivery.message, 1)
    await first.outbox.freeze(delivery.message, parts)
    await first.outbox.mark_sent(receipt(parts[0]))
    lease = await claim(first)
    await first.journal.commit(lease, answered(lease))
    assert await first.records.unwritten(0, 10) == ()  # no gateway of several mirrors
    await until(lambda: team.holders() == {})
    await paused(first)
    await accept(second, said(id="3"))
    await ready(second)
    assert team.holders() == {ANN: second._engine.owner}


async def test_chats_are_shared_fairly_and_none_is_left(team: Workers) -> None:
    """A flood that one worker accepts is answered by both."""
    first, second = await team.open(), await team.open()
    await accept_all(first, CHATS)
    await until(lambda: len(team.holders()) == len(CHATS))
    counts = [list(team.holders().values()).count(each._engine.owner) for each in (first, second)]
    assert sum(counts) == len(CHATS)
    assert min(counts) >= 3
    for key, owner in team.holders().items():
        holder, other = (first, second) if owner == first._engine.owner else (second, first)
        assert await other.journal.claim(key) is None
        lease = await claim(holder, key)
        await holder.journal.commit(lease, answered(lease))
    await write_transcripts(first, second)
    await until(lambda: team.holders() == {})


async def test_a_chat_that_a_live_worker_leaves_is_taken_by_another(
    team: Workers, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A share is a limit for an instant, and no reason for a chat to wait."""
    monkeypatch.setattr(claims, "OVERDUE", timedelta(seconds=0.2))
    first, second = await team.open(), await team.open()
    assert second._sharing is not None
    second._sharing.cancel()  # it lives, and takes nothing
    await accept_all(first, CHATS)
    await until(lambda: list(team.holders().values()) == [first._engine.owner] * len(CHATS))


async def test_a_control_message_runs_where_the_turn_runs(team: Workers) -> None:
    """A /stop that another worker accepts reaches the worker of the chat, by a notification and not by the poll."""
    first = await first_with_chat(team)
    await claim(first)
    second = await team.open()
    await accept(second, said("/stop", id="2"), is_control=True)
    async with asyncio.timeout(30):
        row = await anext(first.journal.control_rows())
    assert row.message.text == "/stop"
    assert second._engine.controls._queue.empty()


async def test_a_dead_workers_chats_are_taken_over(team: Workers) -> None:
    """Its turn is given back with its steps, what it was sending is of unknown outcome, its jobs run again."""
    first, second = await team.open(), await team.open()
    await paused(second)
    for key in (ANN, BOB):
        await accept(first, said(key=key))
    await balanced(first)
    await balanced(first, overdue=frozenset((ANN, BOB)))
    lease = await claim(first, BOB)
    await first.journal.commit(lease, answered(lease, "one"))
    delivery = await first.outbox.next(BOB)
    assert delivery is not None
    await first.outbox.freeze(delivery.message, parts_of(delivery.message, 1))
    running = await claim(first)
    job = Job(id="j", kind="k", scope="", payload={}, due_at=START)
    await first.jobs.put(job)
    assert await first.jobs.due(START, 10, kinds=("k",)) == (job,)
    assert await second.jobs.due(START, 10, kinds=("k",)) == ()
    await team.kill(first)
    await balanced(second)
    again = await claim(second)
    assert (again.turn, again.epoch) == (running.turn, running.epoch + 1)
    unknown = await second.outbox.next(BOB)
    assert unknown is not None
    assert [part.state for part in unknown.parts] == [PartState.UNKNOWN]
    (killed,) = await second.jobs.due(START, 10, kinds=("k",))
    assert (killed.id, killed.attempts) == ("j", 1)
    # The first is alive after all: it writes nothing more, and does not come back.
    for _ in range(3):
        with pytest.raises(StoreUnavailable):
            await first.journal.commit(running, answered(running, "late"))
        await asyncio.sleep(0.06)
    await second.journal.commit(again, answered(again, "two"))
    assert [name for (name,) in team.server.query("SELECT name FROM worker")] == [second._engine.owner]


async def test_what_a_live_worker_runs_is_not_taken_over(team: Workers) -> None:
    """Neither with the death of another, nor with a start, nor with an end."""
    first = await team.open()
    await accept(first, said("/help", id="0"), is_control=True)
    row = await anext(first.journal.control_rows())
    await accept(first, said())
    await ready(first)
    lease = await claim(first)
    await accept(first, said(key=BOB))
    await until(lambda: BOB in team.holders())
    second, third = await team.open(), await team.open()  # not sooner, or one of them might have taken the chat
    preview = parts_of(answered(lease, "one").outbound[0], 1)
    before = team.server.query("SELECT state, crashes, turn FROM inbox ORDER BY seq")
    await team.kill(third)
    await until(lambda: len(team.server.query("SELECT 1 FROM worker")) == 2)
    fourth = await team.open()
    await second.close()
    await fourth.close()
    assert team.server.query("SELECT state, crashes, turn FROM inbox ORDER BY seq") == before
    assert row.message.text == "/help"
    assert preview
    assert await first.journal.steer(lease) == ()


async def test_a_stop_forgives_nothing_in_chats_of_others(team: Workers) -> None:
    """A suspect that one worker tries alone keeps its crashes and its attempt when another worker stops in order."""
    first = await first_with_chat(team)
    team.server.query("UPDATE inbox SET crashes = 2, state = 'stamped', turn = 't'")
    assert isinstance(await claim_suspect(first), TurnLease)
    await (await team.open()).close()
    assert team.server.query("SELECT crashes, attempts, state FROM inbox") == [(2, 0, "claimed")]
    assert team.server.query("SELECT count(*) FROM meta WHERE name LIKE 'trial/%'") == [(1,)]
    await first.close()
    assert team.server.query("SELECT crashes, attempts FROM inbox") == [(0, 0)]
    assert team.server.query("SELECT count(*) FROM meta WHERE name LIKE 'trial/%'") == [(0,)]


async def test_only_a_crash_of_its_own_worker_charges_a_suspect(team: Workers) -> None:
    """What one worker tries is not charged, nor acquitted, when another one is killed or starts."""
    first = await first_with_chat(team)
    team.server.query("UPDATE inbox SET crashes = 2, state = 'stamped', turn = 't'")
    assert isinstance(await claim_suspect(first), TurnLease)
    second = await team.open()
    await second.journal.acquit()
    await team.kill(second)
    await until(lambda: len(team.server.query("SELECT 1 FROM worker")) == 1)
    assert team.server.query("SELECT attempts, crashes, state FROM inbox") == [(0, 2, "claimed")]
    third = await team.open()
    await team.kill(first)
    await until(lambda: len(team.server.query("SELECT 1 FROM worker")) == 1)
    assert team.server.query("SELECT attempts, crashes, state FROM inbox") == [(1, 3, "stamped")]
    await third.journal.acquit()


async def test_a_missed_heartbeat_alone_is_no_death(team: Workers) -> None:
    """The lock is held: until more is missed the worker is only slow. Then its session is ended."""
    first = await first_with_chat(team)
    lease = await claim(first)
    second = await team.open()
    team.silence(first)
    for _ in range(3):
        await balanced(second)
    assert len(team.server.query("SELECT 1 FROM worker")) == 2
    await first.journal.steer(lease)
    await paused(first)  # it hangs: otherwise it would open another session at once, and be alive
    team.silence(first)
    await ready(second)
    with pytest.raises(StoreUnavailable):
        await first.journal.steer(lease)


async def balanced(store: SqlStore, overdue: frozenset[SessionKey] = frozenset()) -> None:
    """Have a worker look for work once."""
    engine = store._engine
    found = await engine.writer.submit(lambda database: share_work(database, engine, frozenset(), overdue))
    engine.claims.note(found.balance, 0.0)


async def test_a_free_lock_alone_is_no_death(team: Workers) -> None:
    """A worker whose session was cut opens another within a heartbeat, and goes on with what it ran."""
    first = await first_with_chat(team)
    lease = await claim(first)
    second = await team.open()
    await paused(first)
    team.cut(first)
    await balanced(second)
    with suppress(StoreUnavailable):  # unless something else has noticed the lost session before
        await first.journal.steer(lease)
    await until_open(first)
    await first.journal.commit(lease, answered(lease, "one"))
    assert await second.journal.claim(ANN) is None


async def test_a_worker_that_hangs_in_a_transaction_holds_up_nobody(
    team: Workers, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Who waits for a row of its could not take over from it: the server ends its transaction."""
    with monkeypatch.context() as patch:
        patch.setattr(schema, "_SESSION", tuple(each.replace("'5s'", "'200ms'") for each in schema._SESSION))
        first = await team.open()
    await paused(first)
    hangs, goes_on = Event(), Event()

    def claim_and_hang(database: Database) -> None:
        taken = "INSERT INTO claim (name, worker, at) VALUES (?, ?, 0) ON CONFLICT DO NOTHING"
        database.execute(taken, (claims.claim_name(ANN), first._engine.owner)).fetchall()
        hangs.set()
        goes_on.wait()

    hanging = asyncio.ensure_future(first._engine.writer.submit(claim_and_hang))
    try:
        await asyncio.to_thread(hangs.wait)
        second = await team.open()
        await accept(second, said())
        await ready(second)
        assert team.holders() == {ANN: second._engine.owner}
    finally:
        goes_on.set()
        await asyncio.wait({hanging})


async def test_after_a_failure_of_the_server_nobody_is_taken_for_dead(
    team: Workers, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All have missed heartbeats and lost their locks: who is back first waits for the others, then takes over."""
    first, second = await team.open(), await team.open()
    monkeypatch.setattr(worker_locks, "_RETURNED", HOUR)
    await team.kill(second)
    team.silence(first)
    team.cut(first)
    with suppress(StoreUnavailable):  # of the session that was lost
        await accept(first, said(id="1"))
    await accept(first, said(id="2"))
    await first._engine.writer.submit(lambda database: look_again(database, first._engine))
    assert len(read_workers(team.server.url)[0]) == 2
    monkeypatch.setattr(worker_locks, "_RETURNED", 0)
    await first._engine.writer.submit(lambda database: look_again(database, first._engine))
    assert [each.name for each in read_workers(team.server.url)[0]] == [first._engine.owner]


async def test_claims_whose_reply_was_lost_are_known_again(team: Workers) -> None:
    """The chat is with a live worker that does not know: the session that follows tells it, and its turn runs."""
    store = await team.open()
    await paused(store)
    await accept(store, said())
    LossyConnection.is_lossy = True
    with pytest.raises(StoreUnavailable):
        await balanced(store)
    assert team.holders() == {ANN: store._engine.owner}
    await until_open(store)
    await ready(store)
    lease = await claim(store)
    await store.journal.commit(lease, answered(lease))
    await write_transcripts(store)
    await balanced(store)
    assert team.holders() == {}


async def test_a_turn_whose_claim_lost_its_reply_is_given_back(team: Workers) -> None:
    """The lane is not left with a worker that does not know."""
    store = await team.open()
    await accept(store, said())
    await ready(store)
    LossyConnection.is_lossy = True
    with pytest.raises(StoreUnavailable):
        await store.journal.claim(ANN)
    await ready(store)
    assert (await claim(store)).rows[0].message == said()


async def test_a_commit_whose_reply_was_lost_is_recognised(team: Workers) -> None:
    """Made again at the same epoch it returns what is stored, and the answer is sent once."""
    store = await team.open()
    await accept(store, said())
    await ready(store)
    lease = await claim(store)
    await paused(store)
    LossyConnection.is_lossy = True
    with pytest.raises(StoreUnavailable):
        await store.journal.commit(lease, answered(lease, "one"))
    await until_open(store)
    record = await store.journal.commit(lease, answered(lease, "other"))
    assert record.lines == answered(lease, "one").record.lines
    assert [each.message.text for each in await store.outbox.undelivered(ANN)] == ["one"]


async def test_a_message_that_comes_to_two_workers_at_once_is_one(team: Workers) -> None:
    """Each looks before the other has stored it: one of the transactions is run again, and finds it."""
    stores = [await team.open() for _ in range(3)]
    for number in range(20):
        outcomes = [each.outcome for each in await asyncio.gather(*(accept(s, said(id=str(number))) for s in stores))]
        assert sorted(outcomes) == [AcceptOutcome.DUPLICATE, AcceptOutcome.DUPLICATE, AcceptOutcome.NEW]
    assert len(await stores[0].journal.waiting_rows(ANN)) == 20


async def test_a_bad_row_blocks_nothing(team: Workers) -> None:
    """Beside a conflict: the batch is run again one by one, and only the bad row fails."""
    first, second = await team.open(), await team.open()
    results = await asyncio.gather(
        accept(first, said(id="1")),
        first._engine.writer.submit(lambda database: database.execute("INSERT INTO inbox (seq) VALUES (1)")),
        accept(first, said(id="2")),
        accept(second, said(id="1")),
        accept(second, said(id="2")),
        return_exceptions=True,
    )
    assert isinstance(results[1], psycopg.IntegrityError)
    assert [row.message.message_id for row in await first.journal.waiting_rows(ANN)] == ["1", "2"]


async def test_a_release_beside_an_accept_loses_no_wake_up(team: Workers) -> None:
    """The message is stored after its chat was found idle, and before the release: somebody answers it."""
    first, second = await team.open(), await team.open()
    await paused(first)
    await paused(second)
    await accept(first, said(id="1"))
    await balanced(first)
    lease = await claim(first)
    await first.journal.commit(lease, answered(lease))
    await write_transcripts(first)
    engine = first._engine

    def release_slowly(database: SharedDatabase) -> object:
        database.execute("SELECT 1 FROM inbox").fetchall()  # the snapshot of this transaction
        asyncio.run_coroutine_threadsafe(accept(second, said(id="2")), loop).result(30)
        return share_work(database, engine, frozenset(), frozenset())

    loop = asyncio.get_running_loop()
    await engine.writer.submit(release_slowly)
    assert team.holders() == {}
    await balanced(second)
    assert (await claim(second)).rows[0].message.message_id == "2"


async def test_who_follows_a_session_misses_no_turn_that_is_committed_late(team: Workers) -> None:
    """A number that is taken first and committed last would be behind what a follower has seen already."""
    first = await first_with_chat(team)
    others, follower = await team.open(), await team.open()
    lease = await claim(first)
    turn = turn_commits.encode(answered(lease), 0)
    scope = turn.commit.record.scope
    is_begun, may_commit = Event(), Event()

    def commit_late(database: Database) -> None:
        turn_commits.commit_turn(database, lease, turn, first._engine.owner)
        is_begun.set()
        may_commit.wait(4)

    late = first._engine.writer.submit(commit_late)
    await until(is_begun.is_set)
    lines = replace(turn.commit.record, turn="t" * 16, lines=({"kind": "pointer"},), inbox=(), to_index=0)
    early = asyncio.create_task(others.records.append(lines))
    await until(lambda: early.done() or bool(team.server.query("SELECT 1 FROM pg_locks WHERE NOT granted")))
    seen = await follow(follower, scope, {})
    may_commit.set()
    await asyncio.gather(late, early)
    seen = await follow(follower, scope, seen)
    assert sorted(seen) == sorted([turn.commit.record.turn, lines.turn])


async def follow(store: SqlStore, scope: str, seen: dict[str, int]) -> dict[str, int]:
    """Return the turns of Ann's, and their numbers, with those behind *seen*, as the search index does."""
    last = max(seen.values(), default=-(2**62))
    for head in await store.transcripts.heads(scope, {ANN: last}):
        found = await store.transcripts.since(scope, ANN, head.transcript, last)
        seen = seen | {each.turn: each.seq for each in found}
    return seen


async def test_conflicting_batches_are_run_again(team: Workers) -> None:
    """Two workers that change two rows in opposite orders: nobody hears of the deadlock, both changes are there."""
    first, second = await team.open(), await team.open()
    loop = asyncio.get_running_loop()
    met = [asyncio.Event(), asyncio.Event()]

    def change(names: tuple[str, str], own: asyncio.Event, other: asyncio.Event) -> Operation[None]:
        def operation(database: Database) -> None:
            add = "UPDATE meta SET value = value || ? WHERE name = ?"
            database.execute(add, ("+", names[0]))
            loop.call_soon_threadsafe(own.set)
            asyncio.run_coroutine_threadsafe(other.wait(), loop).result(30)
            database.execute(add, ("+", names[1]))

        return operation

    team.server.query("INSERT INTO meta (name, value) VALUES ('a', ''), ('b', '')")
    await asyncio.gather(
        first._engine.writer.submit(change(("a", "b"), met[0], met[1])),
        second._engine.writer.submit(change(("b", "a"), met[1], met[0])),
    )
    assert team.server.query("SELECT value FROM meta WHERE name IN ('a', 'b')") == [("++",), ("++",)]


async def test_a_usage_row_outlives_conflicts(team: Workers) -> None:
    """What is posted and meets another worker's transaction each time is kept until it could be stored."""
    first, second = await team.open(), await team.open()
    await paused(first)
    loop = asyncio.get_running_loop()
    add = "UPDATE meta SET value = value || ? WHERE name = 'a'"
    tries: list[int] = []

    def other(database: Database) -> None:
        database.execute(add, ("-",))

    def posted(database: Database) -> None:
        database.execute("SELECT 1 FROM meta").fetchall()  # the snapshot of this transaction
        tries.append(1)
        if len(tries) <= 7:
            asyncio.run_coroutine_threadsafe(_done(second._engine.writer.submit(other)), loop).result(30)
        database.execute(add, ("+",))

    team.server.query("INSERT INTO meta (name, value) VALUES ('a', '')")
    first._engine.writer.submit_nowait(posted)
    await until(lambda: len(tries) == 8)
    await first.check()
    assert team.server.query("SELECT value FROM meta WHERE name = 'a'") == [("-------+",)]


async def _done(future: asyncio.Future[None]) -> None:
    await future


async def test_jobs_and_due_slots_are_done_once(team: Workers) -> None:
    """Every worker queues the slot and looks for due jobs; one of them gets it."""
    stores = [await team.open() for _ in range(3)]
    for slot in range(10):
        job = Job(id=f"dream:ann:{slot}", kind="k", scope="", payload={}, due_at=START)
        await asyncio.gather(*(store.jobs.put(job) for store in stores))
        due = await asyncio.gather(*(store.jobs.due(START, 10, kinds=("k",)) for store in stores))
        assert [each.id for jobs in due for each in jobs] == [job.id]


async def test_long_turns_hold_no_session(team: Workers) -> None:
    """A worker has one session to write in, one for caps and one for its heartbeat, however many turns it runs."""
    store = await team.open()
    await accept_all(store, CHATS)
    await until(lambda: len(team.holders()) == len(CHATS))
    since = (await store._engine.writer.submit(lambda database: database.execute(_OWN_START).fetchone()))[0]
    assert len([await claim(store, key) for key in CHATS]) == 10
    started = team.server.query(
        "SELECT backend_start FROM pg_stat_activity WHERE application_name = 'parlour' AND datname = current_database()"
    )
    assert len([at for (at,) in started if at >= since]) <= 3


async def test_one_that_shares_and_one_that_does_not_keep_each_other_out(team: Workers) -> None:
    """A gateway of today has the database for itself."""
    first = await team.open()
    with pytest.raises(StoreUnavailable, match="another Parlour uses"):
        await open_database(team.server.url, StoreLimits())
    await first.close()
    alone = await open_database(team.server.url, StoreLimits())
    try:
        with pytest.raises(StoreUnavailable, match="another Parlour uses"):
            await team.open()
    finally:
        await alone.close()


LINE = "telegram:123"


async def test_a_connection_has_one_worker_until_it_gives_it_back(team: Workers) -> None:
    """Another takes it at once, and by a notification; claims of chats are not disturbed by it."""
    first, second = await team.open(), await team.open()
    assert first.connections is not None
    assert second.connections is not None
    async with asyncio.timeout(30):
        await first.connections.acquire(LINE)
        waiting = asyncio.create_task(second.connections.acquire(LINE))
        await accept_all(first, CHATS)
        await until(lambda: len(chats_of(team)) == len(CHATS))
        assert not waiting.done()
        assert {line.connections for line in read_workers(team.server.url)[0]} == {(LINE,), ()}
        first.connections.release(LINE)
        await waiting
    assert holder_of(team) == second._engine.owner


async def test_a_dead_workers_connection_is_taken_over(team: Workers, monkeypatch: pytest.MonkeyPatch) -> None:
    """The one that was taken over from learns of it in the time that makes it dead, without the database's word."""
    first, second = await team.open(), await team.open()
    assert first.connections is not None
    assert second.connections is not None
    async with asyncio.timeout(30):
        await first.connections.acquire(LINE)
        waiting = asyncio.create_task(second.connections.acquire(LINE))
        await team.kill(first)
        await waiting
        assert holder_of(team) == second._engine.owner
        monkeypatch.setattr(claims, "DEAD_AFTER", timedelta(seconds=0.5))
        await first.connections.wait_lost(LINE)


async def test_workers_that_want_a_connection_at_once_do_not_share_it(team: Workers) -> None:
    """One of them has it, and after its end another."""
    stores = [await team.open() for _ in range(3)]
    waits = {
        asyncio.create_task(store.connections.acquire(LINE)): store for store in stores if store.connections is not None
    }
    async with asyncio.timeout(30):
        (done,), rest = await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
        assert holder_of(team) == waits[done]._engine.owner
        await asyncio.sleep(0.2)
        assert not any(each.done() for each in rest)
        await waits[done].close()
        (done,), rest = await asyncio.wait(rest, return_when=asyncio.FIRST_COMPLETED)
        assert holder_of(team) == waits[done]._engine.owner
        for each in rest:
            each.cancel()


def holder_of(team: Workers) -> str:
    """Return the worker that has `LINE`."""
    ((worker,),) = team.server.query(f"SELECT worker FROM claim WHERE name = 'conn:{LINE}'")  # noqa: S608
    return str(worker)


def chats_of(team: Workers) -> list[str]:
    """Return the chats that are claimed."""
    return [name for (name,) in team.server.query("SELECT name FROM claim WHERE name LIKE 'chat:%'")]


async def test_what_one_worker_changes_the_next_transaction_of_another_knows(team: Workers) -> None:
    """Roles, links of accounts and choices are read from memory, and are never older than what a claim returns."""
    first, second = await team.open(), await team.open()
    await paused(first)
    await paused(second)  # nothing looks by itself
    entry = AccessEntry(channel="telegram", who="9", standing=AccessStatus.BLOCKED, by="operator", at=START)
    edition = second.access.edition()
    await first.access.change(AccessChange(put=(entry,), notes={"claim": "hash"}))
    await first.people.prefer("people/telegram%3a9", "language", "de")
    account = PlatformAccount(kind="telegram", id="9")
    await first.links.note_chat(ANN, account)
    assert not second.access.members()
    members = second.access.members()
    await accept(second, said())
    assert (members, second.access.edition()) == ({("telegram", "9"): entry}, edition + 1)
    assert second.access.notes() == {"claim": "hash"}
    assert second.people.preferences("people/telegram%3a9") == {"language": "de"}
    assert second.links.account_of(ANN) == account
    await accept(second, said(id="2"))
    await second.access.change(AccessChange(remove=(("telegram", "9"),)))
    await accept(second, said(id="3"))
    assert second.access.edition() == edition + 2  # what it has changed itself is not read again
    await accept(first, said(id="4"))
    assert not first.access.members()


async def test_cached_notes_are_known_to_every_worker(team: Workers) -> None:
    """They are served from memory; a change at one worker is told to the other, which has it by then."""
    first, second = await team.open(), await team.open()
    seen: list[dict[str, str]] = []
    notes = second.state("web")
    notes.when_cached_changed(lambda: seen.append(dict(notes.cached())))
    await first.state("web").save(f"{CACHED_NOTES}a", "1")
    await first.state("slack").save(f"{CACHED_NOTES}a", "of another channel")
    await first.state("web").save("b", "not cached")
    await until(lambda: {f"{CACHED_NOTES}a": "1"} in seen)
    await first.state("web").save(f"{CACHED_NOTES}a", None)
    await until(lambda: seen[-1] == {})
    assert first.state("web").cached() == {}


async def test_a_note_is_taken_by_one_worker(team: Workers) -> None:
    """Of those that ask for it at once, however their transactions meet."""
    first, second = await team.open(), await team.open()
    for number in range(10):
        await first.state("web").save("code", str(number))
        found = await asyncio.gather(*(each.state("web").take("code") for each in (first, second, second)))
        assert sorted(found, key=str) == sorted([str(number), None, None], key=str)


def _clock_ahead(by: timedelta) -> datetime:
    return datetime.now(UTC) + by


async def test_gateways_go_by_the_clock_of_the_server(postgres: PostgresServer, tmp_path: Path) -> None:
    """A job that is due now is due at every gateway, however far apart the clocks of their machines are."""
    postgres.empty()
    stores = []
    try:
        for minutes in (3, -3):
            home = tmp_path / str(minutes)
            home.mkdir()
            clock = partial(_clock_ahead, timedelta(minutes=minutes))
            stores.append(await open_store(home, postgres.url, StoreLimits(is_shared=True), clock))
        ahead, behind = stores
        assert abs(ahead.journal.now() - behind.journal.now()) < timedelta(minutes=1)
        await ahead.jobs.put(Job(id="link:1", kind="link", scope="", payload={}, due_at=ahead.journal.now()))
        assert await behind.jobs.due(behind.journal.now() + timedelta(minutes=1), 1, kinds=["link"])
    finally:
        for store in stores:
            await store.close()
