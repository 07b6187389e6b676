"""Operations of a batch that run side by side on PostgreSQL: as if one after the other, in fewer exchanges."""

from __future__ import annotations

import asyncio
import random
import re
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

import psycopg
import pytest

from gateway.errors import StoreUnavailable, UserError
from gateway.events import SessionKey
from gateway.ports.journal import AcceptOutcome
from gateway.store.database import BatchedOperation, Database, QueryResult
from gateway.store.engine import StoreLimits
from gateway.store.postgres import connection as postgres_connection
from gateway.store.postgres import open_database, schema
from gateway.store.postgres.connection import PostgresConnection
from gateway.store.sql_store import SqlStore
from gateway.store.sqlite import FILE, open_file
from gateway.store.writer import run_batch
from tests.fakes.postgres_server import PostgresServer
from tests.fakes.turns import START, accept, answer, answered, parts_of, receipt, said, spent

CHATS = [SessionKey("telegram", str(number)) for number in range(20)]
_PUT = "INSERT INTO note (channel, name, value) VALUES (?, ?, ?)"
_COUNT = "SELECT count(*) FROM note"


@pytest.fixture
async def store(server: PostgresServer) -> AsyncIterator[SqlStore]:
    """Return an open store."""
    opened = await open_database(server.url, StoreLimits(queued=7), clock=lambda: START)
    yield opened
    await opened.close()


@pytest.fixture
def connection(server: PostgresServer) -> Iterator[PostgresConnection]:
    """Return a connection to the tables, without a worker."""
    with closing(PostgresConnection(schema.open_session(server.url))) as opened:
        schema.prepare(opened)
        yield opened


def put(*names: str) -> Callable[[Database], int]:
    """Return an operation that stores a note for each name, and returns how many notes there are then."""

    def operation(database: Database) -> int:
        for name in names:
            database.execute(_PUT, ("telegram", name, ""))
        return int(database.execute(_COUNT).fetchone()[0])

    return operation


async def test_messages_of_many_chats_take_the_exchanges_of_one(
    store: SqlStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Accepting in twenty chats at once exchanges as often with the server as accepting in one."""
    counts = [0]
    run = postgres_connection._run

    def counted(*parameters: Any) -> Any:
        counts[-1] += 1
        return run(*parameters)

    monkeypatch.setattr(postgres_connection, "_run", counted)
    for keys in CHATS[:1], CHATS[1:6]:
        await asyncio.gather(*(accept(store, said(key=key)) for key in keys))
        counts.append(0)
    assert 0 < counts[1] <= counts[0]


async def test_no_statement_of_a_turn_reads_a_whole_table(server: PostgresServer) -> None:
    """Nor a whole index. A plan is kept while tables grow, so neither while they are small, nor when they are not.

    An index of what is open has few entries when the plan is made, and may have many later.
    """
    asked: dict[str, Sequence[Any]] = {}

    class NotingConnection(PostgresConnection):
        def execute(self, statement: str, parameters: Sequence[Any] = (), /) -> QueryResult:
            asked[statement] = parameters
            return super().execute(statement, parameters)

        def executemany(self, statement: str, parameters: Iterable[Sequence[Any]], /) -> QueryResult:
            rows = list(parameters)
            asked.update((statement, row) for row in rows)
            return super().executemany(statement, rows)

    opened = await open_database(server.url, StoreLimits(), clock=lambda: START, wrap=NotingConnection)
    asked.clear()
    for number in range(3):
        lease = await answer(opened, said(id=str(number)), "one")
        opened.journal.spend(spent(lease.turn))
        assert (await _step(opened, lease.key, 3, 0))[0] == "delivered"
        opened.records.mark_written([stored.seq for stored in await opened.records.unwritten(0, 10)])
    planned = [each for each in asked.items() if each[0].startswith(("SELECT", "INSERT", "UPDATE", "DELETE"))]
    assert len(planned) > 15
    server.query("ANALYZE")  # as autovacuum does, while nothing is open
    for rows in (0, 2_000):
        for table, id_, is_open in ("inbox", "turn", "{}"), ("outbox", "id", '{"open": 1}'):
            changed = f"""jsonb_build_object('seq', 1000 + n, '{id_}', n, 'ended_at', NULL) || '{is_open}'"""
            server.query(
                f"INSERT INTO {table} SELECT (jsonb_populate_record(t, {changed})).* FROM {table} AS t, "  # noqa: S608
                f"generate_series(1, {rows}) AS n WHERE t.seq = 1"
            )
        plans = {
            statement: await opened._engine.writer.submit(
                lambda database, each=(f"EXPLAIN {statement}", values): [row for (row,) in database.execute(*each)]  # type: ignore[misc]
            )
            for statement, values in planned
        }
        assert [statement for statement, plan in plans.items() if _reads_whole(plan)] == []
    await opened.close()


def _reads_whole(plan: Sequence[str]) -> bool:
    """Return True if a step of *plan* looks at every row of a table, or every entry of an index."""
    details = [detail for step, detail in zip(plan, [*plan[1:], ""], strict=True) if " using " in step]
    # The entries of `inbox_open` are those without an end.
    return "Seq Scan" in str(plan) or not all(re.search(r"Index Cond: \((?!ended_at)", each) for each in details)


async def test_no_statement_is_compiled(store: SqlStore) -> None:
    """One that must read a whole table has a cost for which the server would compile it, for longer than it runs."""
    explain = "EXPLAIN ANALYZE SELECT count(*) FROM schema_version WHERE number > 0"
    plan = await store._engine.writer.submit(lambda database: str(database.execute(explain).fetchall()))
    assert "Seq Scan" in plan
    assert "JIT" not in plan, plan


async def test_the_backlog_holds_as_many_as_it_may(store: SqlStore) -> None:
    """Twenty chats write at once: seven messages have room, thirteen do not."""
    outcomes = [each.outcome for each in await asyncio.gather(*(accept(store, said(key=key)) for key in CHATS))]
    assert outcomes.count(AcceptOutcome.NEW) == 7
    assert outcomes.count(AcceptOutcome.FULL) == 13


def test_one_group_and_what_has_none_are_in_order(connection: PostgresConnection) -> None:
    """An operation without a group sees all before it and nothing behind it; those of one group see each other."""
    operations = [("a", "a"), ("b", "b"), ("c", "a"), (None, ""), ("d", "b"), ("e", "a")]
    batch = run_batch(
        connection, [BatchedOperation(put(name) if name else put(), group or None) for name, group in operations]
    )
    assert batch.fault is None
    assert sorted(batch.results[:3]) == [1, 2, 3] or sorted(batch.results[:3]) == [2, 2, 3]
    assert batch.results[0] < batch.results[2] == batch.results[3] == 3
    assert {*batch.results[4:]} <= {4, 5}
    assert connection.execute(_COUNT).fetchone() == (5,)


def test_a_bad_operation_fails_alone(connection: PostgresConnection) -> None:
    """The others that ran beside it are stored, once; one that refuses has changed nothing."""

    def refuse(database: Database) -> None:
        database.execute(_COUNT).fetchone()
        raise UserError("no")

    def fail(database: Database) -> None:
        put("half")(database)
        database.execute("SELECT 1 / ?", (0,))

    operations = [put("a"), fail, put("b", "c"), refuse]
    batch = run_batch(connection, [BatchedOperation(each, place) for place, each in enumerate(operations)])
    assert [type(each) for each in batch.results] == [int, psycopg.errors.DivisionByZero, int, UserError]
    assert [name for (name,) in connection.execute("SELECT name FROM note ORDER BY name")] == ["a", "b", "c"]


def test_a_statement_that_failed_can_be_run_again(connection: PostgresConnection) -> None:
    """A statement that was first sent behind one that failed is prepared at its next use."""

    def fail(database: Database) -> None:
        database.execute("SELECT 2 / ?", (0,))

    for _ in range(2):
        batch = run_batch(connection, [BatchedOperation(fail, 0), BatchedOperation(put("a"), 1)])
        assert [type(each) for each in batch.results] == [psycopg.errors.DivisionByZero, int]
        connection.execute("DELETE FROM note")


def test_more_than_the_sockets_hold_goes_both_ways(connection: PostgresConnection) -> None:
    """Forty statements of a megabyte each, with results as large, in one exchange: neither side waits for ever."""
    texts = [f"{number}" + "x" * 1_000_000 for number in range(40)]

    def echo(text: str) -> Callable[[Database], bool]:
        return lambda database: bool(database.execute("SELECT ?::text", (text,)).fetchone() == (text,))

    batch = run_batch(connection, [BatchedOperation(echo(text), text) for text in texts])
    assert batch.results == [True] * 40


async def test_a_session_that_is_lost_confirms_nothing(store: SqlStore, server: PostgresServer) -> None:
    """It ends while operations wait for its results: each of them fails, nothing is stored, and the next works."""

    def cut(database: Database) -> None:
        put("cut")(database)
        server.cut()
        put("again")(database)

    submit = store._engine.writer.submit
    futures = [submit(put(str(number)), group=number) for number in range(5)] + [submit(cut, group="cut")]
    results = await asyncio.gather(*futures, return_exceptions=True)
    assert {type(each) for each in results} == {StoreUnavailable}
    assert await submit(put("after")) == 1


@pytest.mark.parametrize("seed", range(3))
async def test_what_chats_do_side_by_side_is_what_they_do_one_by_one(
    server: PostgresServer, tmp_path: Path, seed: int
) -> None:
    """Random traffic of eight chats, all of a round at once, has the same results on both engines."""
    found = []
    for opened in (
        await open_database(server.url, StoreLimits(queued_per_chat=3), clock=lambda: START),
        await open_file(tmp_path / FILE, StoreLimits(queued_per_chat=3), clock=lambda: START),
    ):
        chances = random.Random(seed)  # noqa: S311
        rounds = []
        for number in range(12):
            steps = [_step(opened, key, chances.randrange(4), number) for key in CHATS[:8]]
            rounds.append(await asyncio.gather(*steps))
        found.append(rounds)
        await opened.close()
    assert found[0] == found[1]
    assert {each[0] for rounds in found[0] for each in rounds} == {"accepted", "answered", "delivered", "nothing"}


async def _step(store: SqlStore, key: SessionKey, what: int, number: int) -> tuple[Any, ...]:
    """Do something in a chat, and return what came of it, without numbers of rows."""
    if what < 2:
        told = await accept(store, said(f"message {number}", key=key, id=str(number - what)))
        return "accepted", told.outcome, told.queued
    if what == 2:
        lease = await store.journal.claim(key)
        if lease is not None:
            record = await store.journal.commit(lease, answered(lease, f"answer {number}"))
            return "answered", record.lines, record.transcript != "", record.to_index, lease.more
    elif (delivery := await store.outbox.next(key)) is not None:
        (part,) = parts_of(delivery.message, 1)
        await store.outbox.freeze(delivery.message, [part])
        return "delivered", delivery.message.text, await store.outbox.mark_sent(receipt(part))
    return ("nothing",)
