"""Workers on one PostgreSQL server: listed, alive by their heartbeat, and replaced when they are not."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from datetime import timedelta

import psycopg
import pytest

from gateway.errors import LeaseLost, StoreUnavailable
from gateway.store import claims
from gateway.store.engine import StoreLimits
from gateway.store.postgres import open_database, schema, worker_locks
from gateway.store.postgres.sessions import WorkerHeartbeat
from gateway.store.sql_store import SqlStore
from tests.fakes.postgres_server import PostgresServer
from tests.fakes.store import until_open
from tests.fakes.turns import ANN, START, accept, answered, begin_turn, claim, said

HOUR = 3_600_000_000  # microseconds
NAMES = "SELECT name FROM worker ORDER BY started_at"


@pytest.fixture
async def server(postgres: PostgresServer, monkeypatch: pytest.MonkeyPatch) -> PostgresServer:
    """Return a server with empty tables; no gateway waits for another one."""
    monkeypatch.setattr(schema, "LOCK_SECONDS", 0.0)
    monkeypatch.setattr(schema, "RELOCK_SECONDS", 0.0)
    monkeypatch.setattr(claims, "HEARTBEAT", timedelta(days=1))
    monkeypatch.setattr(worker_locks, "_DEAD_AFTER", HOUR)  # however slow the machine is
    postgres.empty()
    return postgres


async def open_at(server: PostgresServer) -> SqlStore:
    """Open a store as a process that starts would."""
    return await open_database(server.url, StoreLimits(), clock=lambda: START)


@pytest.fixture
async def store(server: PostgresServer) -> AsyncIterator[SqlStore]:
    """Return an open store."""
    opened = await open_at(server)
    yield opened
    await opened.close()


async def test_a_worker_is_listed_until_it_ends(server: PostgresServer) -> None:
    """With what it holds; the row goes with its end, also if that is for one command."""
    store = await open_at(server)
    await accept(store, said())
    await claim(store)
    ((status,), now) = schema.read_workers(server.url)
    assert (status.name, status.turns, status.jobs) == (store._engine.owner, 1, 0)
    assert timedelta(0) <= now - status.beat_at < timedelta(minutes=1)
    await store.close(has_served=False)
    assert schema.read_workers(server.url)[0] == ()


async def test_a_gateway_that_hangs_is_replaced_and_writes_nothing_more(
    store: SqlStore, server: PostgresServer
) -> None:
    """Its session lives, so its lock is held: without a heartbeat for five seconds it is dead all the same.

    What it ran is given back, and when it goes on, its commit is refused.
    """
    lease = await begin_turn(store)
    with pytest.raises(StoreUnavailable, match=r"another Parlour uses the database.*process \d+, since 20"):
        await open_at(server)
    server.query(f"UPDATE worker SET beat_at = beat_at - {HOUR}")  # noqa: S608
    second = await open_at(server)
    try:
        assert server.query(NAMES) == [(second._engine.owner,)]
        again = await claim(second)
        assert (again.turn, again.epoch) == (lease.turn, lease.epoch + 1)
        for _ in range(2):
            with pytest.raises(StoreUnavailable):
                await store.journal.commit(lease, answered(lease, "late"))
        await second.journal.commit(again, answered(again, "one"))
    finally:
        await second.close()
    await until_open(store)  # the database is free again; the lease has gone for good
    assert (await store.journal.commit(lease, answered(lease, "late"))).lines == answered(again, "one").record.lines
    assert [each.message.text for each in await store.outbox.undelivered(ANN)] == ["one"]


async def test_a_worker_that_was_removed_behind_its_back_writes_nothing(
    store: SqlStore, server: PostgresServer
) -> None:
    """The row is the fence: with it goes the right to write, whatever becomes of the session."""
    lease = await begin_turn(store)
    server.query("BEGIN; DELETE FROM worker; UPDATE lane SET owner = ''; UPDATE inbox SET state = 'stamped'; COMMIT")
    with pytest.raises(StoreUnavailable):
        await store.journal.commit(lease, answered(lease, "late"))
    await until_open(store)
    with pytest.raises(LeaseLost):  # nobody else has come: it is listed again, without its leases
        await store.journal.commit(lease, answered(lease, "late"))
    assert server.query(NAMES) == [(store._engine.owner,)]
    again = await claim(store)
    await store.journal.commit(again, answered(again, "one"))


async def test_a_worker_is_not_removed_in_the_middle_of_its_batch(store: SqlStore, server: PostgresServer) -> None:
    """Who takes over waits for the transaction that is under way: it is stored whole, or not at all."""
    with psycopg.connect(server.url, autocommit=True) as other:

        def remove_meanwhile(_: object) -> None:
            with pytest.raises(psycopg.errors.LockNotAvailable):
                other.execute("DELETE FROM worker")

        other.execute("SET lock_timeout = 50")
        await store._engine.writer.submit(remove_meanwhile)
        other.execute("UPDATE worker SET beat_at = 0")


async def test_of_two_that_start_at_once_one_has_the_database(server: PostgresServer) -> None:
    """Neither does both run, nor does neither."""
    for _ in range(5):
        opened = await asyncio.gather(open_at(server), open_at(server), return_exceptions=True)
        stores = [each for each in opened if isinstance(each, SqlStore)]
        assert len(stores) == 1
        assert [type(each) for each in opened if each not in stores] == [StoreUnavailable]
        assert len(server.query(NAMES)) == 1
        await stores[0].close()


async def test_a_gateway_of_the_version_before_keeps_the_database(server: PostgresServer) -> None:
    """It is not listed; its lock is exclusive, and ours keeps it out."""
    take = f"SELECT pg_try_advisory_lock({schema._LOCK}, hashtext(current_schema()))"
    with psycopg.connect(server.url, autocommit=True) as older:
        older.execute(take.replace("try_", "").encode())  # when the sessions of the test before have ended
        with pytest.raises(StoreUnavailable, match=r"another Parlour uses the database.*since 20"):
            await open_at(server)
        older.execute("SELECT pg_advisory_unlock_all()")
        store = await open_at(server)
        assert older.execute(take.encode()).fetchone() == (False,)
        await store.close()


async def test_a_gateway_with_the_tables_of_schema_8_keeps_the_database(
    store: SqlStore, server: PostgresServer
) -> None:
    """Its rows have no column `shares`: it is seen before the tables are changed."""
    server.query("ALTER TABLE worker RENAME COLUMN shares TO later")
    try:
        with pytest.raises(StoreUnavailable, match="another Parlour uses the database"):
            await open_at(server)
    finally:
        server.query("ALTER TABLE worker RENAME COLUMN later TO shares")
    await store.check()


async def test_heartbeats_are_noted_until_the_worker_is_removed(
    server: PostgresServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By the server's clock; they end with the row, and a broken session is opened again."""
    monkeypatch.setattr(claims, "HEARTBEAT", timedelta(milliseconds=10))
    store = await open_at(server)
    beats = "SELECT beat_at FROM worker"

    async def another() -> None:
        (before,) = server.query(beats)
        async with asyncio.timeout(30):
            while True:
                await asyncio.sleep(0.01)
                if server.query(beats) != [before]:
                    return

    await another()
    server.cut()
    await another()
    await until_open(store)
    await store.close()
    assert server.query(beats) == []


async def test_a_start_that_blocks_the_loop_is_not_taken_for_dead(
    server: PostgresServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Imports of channels can take longer than a worker may be silent, on a busy machine."""
    monkeypatch.setattr(claims, "HEARTBEAT", timedelta(milliseconds=10))
    store = await open_at(server)
    until, seen = time.monotonic() + 30, set[object]()
    while len(seen) < 4:  # the loop answers nothing here; it could have answered once before
        assert time.monotonic() < until, seen
        seen.update(server.query("SELECT beat_at FROM worker"))
    await store.close()


async def test_a_start_ends_when_the_gateway_says_so(server: PostgresServer, monkeypatch: pytest.MonkeyPatch) -> None:
    """From then on a loop that hangs is silence, although half a minute is not over."""
    begun: list[WorkerHeartbeat] = []

    def begin(heartbeat: WorkerHeartbeat) -> None:
        begun.append(heartbeat)

    monkeypatch.setattr(WorkerHeartbeat, "start", begin)
    store = await open_at(server)
    assert [each._is_starting() for each in begun] == [True]
    store.note_started()
    assert [each._is_starting() for each in begun] == [False]
    await store.close()


def test_a_worker_whose_loop_hangs_has_no_heartbeat() -> None:
    """A process that does nothing is not alive because one of its threads is."""
    loop = asyncio.new_event_loop()
    heartbeat = WorkerHeartbeat(str, "name", loop)
    assert [heartbeat._is_answered() for _ in range(3)] == [True, False, False]
    loop.call_soon(loop.stop)
    loop.run_forever()
    assert [heartbeat._is_answered() for _ in range(2)] == [True, False]
    loop.close()
