"""The one writer: many operations at once, and what a broken disk does to them."""

from __future__ import annotations

import asyncio
import contextlib
import sqlite3
from collections.abc import AsyncIterator, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, Protocol

import psycopg
import pytest

from gateway.errors import LeaseLost, StoreUnavailable
from gateway.events import Role
from gateway.ports.journal import AcceptOutcome
from gateway.store.database import Database, QueryResult
from gateway.store.engine import StoreLimits
from gateway.store.postgres import open_database
from gateway.store.postgres.connection import PostgresConnection
from gateway.store.sql_store import SqlStore
from gateway.store.sqlite import FILE, open_file, schema
from gateway.store.sqlite.connection import SqliteConnection, SqliteThread
from gateway.store.writer import BatchWriter
from tests.fakes.postgres_server import PostgresServer
from tests.fakes.store import kill
from tests.fakes.turns import (
    ANN,
    START,
    accept,
    answered,
    begin_turn,
    claim,
    next_delivery,
    parts_of,
    said,
    spent,
)


class FaultyConnections(Protocol):
    """Opens a store on connections that count commits, and fail on demand as a disk or a server does."""

    commits: int
    opened: int
    loses_replies: bool  # a commit that fails has happened all the same, as after a failed fsync
    fault: tuple[str, str] | None  # a statement's beginning, and what it meets: "broken", "full" or "busy"

    async def open(self, limits: StoreLimits | None = None) -> SqlStore:
        """Open the store."""
        ...

    async def open_killed(self) -> SqlStore:
        """Open what a kill of the process leaves now."""
        ...

    async def was_asked(self, beginning: str) -> None:
        """Return when a statement that begins so is run from now on."""
        ...


class FaultyEngine:
    """What the faulty connections of both engines share."""

    def __init__(self) -> None:
        self.commits = 0
        self.opened = 0
        self._loop = asyncio.get_running_loop()
        self._asked: dict[str, asyncio.Event] = {}
        self.loses_replies = False
        self.fault: tuple[str, str] | None = None

    async def was_asked(self, beginning: str) -> None:
        """Return when a statement that begins so is run from now on."""
        await self._asked.setdefault(beginning, asyncio.Event()).wait()

    def meet(self, statement: str, faults: Mapping[str, Exception]) -> None:
        """Count a statement, or fail it."""
        self.commits += statement == "COMMIT"
        for beginning, event in self._asked.items():
            if statement.startswith(beginning):
                self._loop.call_soon_threadsafe(event.set)
        if self.fault is not None and statement.startswith(self.fault[0]):
            raise faults[self.fault[1]]


def disk_error(code: int) -> sqlite3.Error:
    """Return an error of SQLite's."""
    error = sqlite3.OperationalError("disk I/O error")
    error.sqlite_errorcode = code
    return error


class FaultyDisk(FaultyEngine):
    """SQLite on a disk that fails."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self._path = path

    async def open(self, limits: StoreLimits | None = None) -> SqlStore:
        """Open the file."""
        return await open_file(self._path, limits or StoreLimits(), clock=lambda: START, connect=self.connect)

    async def open_killed(self) -> SqlStore:
        """Open a copy of the files."""
        return await open_file(kill(self._path, self._path.parent / "killed"), StoreLimits())

    def connect(self, path: Path) -> SqliteConnection:
        """Open *path*."""
        self.opened += 1
        disk = self
        faults = {
            "broken": disk_error(sqlite3.SQLITE_IOERR_FSYNC),
            "full": disk_error(sqlite3.SQLITE_FULL),
            "busy": disk_error(sqlite3.SQLITE_BUSY),
        }

        class FaultyConnection(SqliteConnection):
            def execute(self, statement: str, *parameters: Any) -> sqlite3.Cursor:
                if statement == "COMMIT" and disk.loses_replies:
                    super().execute(statement)
                disk.meet(statement, faults)
                return super().execute(statement, *parameters)

        return schema.connect(path, factory=FaultyConnection)


class FaultyServer(FaultyEngine):
    """PostgreSQL behind a network, or on a disk, that fails."""

    def __init__(self, server: PostgresServer) -> None:
        super().__init__()
        self._server = server

    async def open(self, limits: StoreLimits | None = None) -> SqlStore:
        """Open the database."""
        return await open_database(self._server.url, limits or StoreLimits(), clock=lambda: START, wrap=self.wrap)

    async def open_killed(self) -> SqlStore:
        """End the process's session and open another."""
        self._server.cut()
        return await open_database(self._server.url, StoreLimits())

    def wrap(self, session: psycopg.Connection[Any]) -> PostgresConnection:
        """Return a connection over *session*."""
        self.opened += 1
        server = self
        faults = {
            "broken": psycopg.OperationalError("server closed the connection unexpectedly"),
            "full": psycopg.errors.DiskFull("could not extend file"),
            "busy": psycopg.errors.AdminShutdown("terminating connection due to administrator command"),
        }

        class FaultyConnection(PostgresConnection):
            def execute(self, statement: str, *parameters: Any) -> QueryResult:
                if statement == "COMMIT" and server.loses_replies:
                    super().execute(statement).fetchall()
                server.meet(statement, faults)
                return super().execute(statement, *parameters)

        return FaultyConnection(session)


@pytest.fixture(params=["sqlite", "postgres"])
async def disk(request: pytest.FixtureRequest, tmp_path: Path) -> FaultyConnections:
    """Return an engine that works until it is told to fail."""
    if request.param == "sqlite":
        return FaultyDisk(tmp_path / FILE)
    server: PostgresServer = request.getfixturevalue("postgres")
    server.empty()
    return FaultyServer(server)


@pytest.fixture
async def store(disk: FaultyConnections) -> AsyncIterator[SqlStore]:
    """Return a store on *disk*."""
    opened = await disk.open()
    yield opened
    disk.fault = None
    await opened.close()


async def test_what_waits_together_is_one_transaction(store: SqlStore, disk: FaultyConnections) -> None:
    """A hundred messages cost a commit or two, not a hundred."""
    before = disk.commits
    accepted = await asyncio.gather(*(accept(store, said(id=str(n))) for n in range(100)))
    assert [each.outcome for each in accepted] == [AcceptOutcome.NEW] * 100
    assert disk.commits - before <= 2


async def test_operations_happen_in_the_order_of_the_calls(store: SqlStore) -> None:
    """First asked, first stored; a usage row is there before a commit that was asked for later."""
    accepted = await asyncio.gather(*(accept(store, said(id=str(n))) for n in range(50)))
    assert [each.seq for each in accepted] == sorted(each.seq for each in accepted)
    lease = await claim(store)
    store.journal.spend(spent(lease.turn))
    commit = asyncio.ensure_future(store.journal.commit(lease, answered(lease)))
    sums = store.usage.totals(since=START)
    await commit
    assert len(await sums) == 1


async def test_a_bad_row_fails_alone(store: SqlStore) -> None:
    """Its neighbours in the batch are stored, once; its caller hears of it."""
    too_large = replace(spent("t"), tokens_in=2**70)
    results = await asyncio.gather(
        accept(store, said(id="1")),
        store.usage.totals(since=START, person="x"),
        store._engine.writer.submit(lambda database: database.execute("INSERT INTO inbox (seq) VALUES (1)")),
        accept(store, said(id="2")),
        return_exceptions=True,
    )
    assert isinstance(results[2], (sqlite3.IntegrityError, psycopg.IntegrityError))
    store.journal.spend(too_large)  # nobody waits for it: it is logged and dropped
    store.journal.spend(spent("t"))
    waiting = await store.journal.waiting_rows(ANN)
    assert [row.message.message_id for row in waiting] == ["1", "2"]
    assert [row["calls"] for row in await store.usage.totals(since=START)] == [1]


async def test_what_cannot_be_encoded_never_reaches_the_batch(store: SqlStore) -> None:
    """Its caller gets the error at once, and nothing else happens."""
    lease = await begin_turn(store)
    with pytest.raises(AttributeError):
        await store.journal.commit(lease, answered(lease, blobs={"x": object()}))
    await store.journal.commit(lease, answered(lease))


FAULTS = [("COMMIT", "broken"), ("INSERT INTO inbox", "full"), ("BEGIN", "busy")]


@pytest.mark.parametrize("fault", FAULTS, ids=["broken", "full", "busy"])
async def test_a_disk_fault_confirms_nothing_and_ends(
    store: SqlStore, disk: FaultyConnections, fault: tuple[str, str]
) -> None:
    """Everybody in the batch gets StoreUnavailable; the connection is not used again; all works once the disk does."""
    await accept(store, said(id="0"))
    disk.fault = fault
    results = await asyncio.gather(*(accept(store, said(id=str(n))) for n in range(1, 4)), return_exceptions=True)
    assert {type(result) for result in results} == {StoreUnavailable}
    assert disk.opened == 1
    disk.fault = None
    again = [await accept(store, said(id=str(n))) for n in range(4)]
    assert [each.outcome for each in again] == [AcceptOutcome.DUPLICATE] + [AcceptOutcome.NEW] * 3
    assert disk.opened == 2
    async with contextlib.AsyncExitStack() as stack:
        killed = await disk.open_killed()
        stack.push_async_callback(killed.close)
        assert len(await killed.journal.waiting_rows(ANN)) == 4


@contextlib.contextmanager
def lost_reply(disk: FaultyConnections) -> Iterator[None]:
    """What is committed in here stands in the file, and its caller hears StoreUnavailable."""
    disk.fault, disk.loses_replies = ("COMMIT", "broken"), True
    with pytest.raises(StoreUnavailable):
        yield
    disk.fault, disk.loses_replies = None, False


async def test_an_accept_whose_reply_was_lost_wakes_all_the_same(store: SqlStore, disk: FaultyConnections) -> None:
    """The redelivery is a duplicate; lane and control row are offered."""
    with lost_reply(disk):
        await accept(store, said(id="1"))
    assert (await accept(store, said(id="1"))).outcome is AcceptOutcome.DUPLICATE
    with lost_reply(disk):
        await accept(store, said("/stop", id="2"), is_control=True)
    assert (await accept(store, said("/stop", id="2"), is_control=True)).outcome is AcceptOutcome.DUPLICATE
    assert await asyncio.wait_for(anext(store.journal.ready_sessions()), 60) == ANN
    assert (await asyncio.wait_for(anext(store.journal.control_rows()), 60)).message.text == "/stop"


async def test_a_claim_whose_reply_was_lost_is_given_back(store: SqlStore, disk: FaultyConnections) -> None:
    """A lane never belongs to a worker that does not know."""
    await accept(store, said())
    lanes = store.journal.ready_sessions()
    await anext(lanes)
    with lost_reply(disk):
        await store.journal.claim(ANN)
    assert await asyncio.wait_for(anext(lanes), 60) == ANN
    assert (await claim(store)).rows[0].message == said()


async def test_a_commit_whose_reply_was_lost_is_recognised(store: SqlStore, disk: FaultyConnections) -> None:
    """Made again it returns what stands; lane, chat and projector are woken even if nobody makes it again."""
    await accept(store, said(id="1"))
    await accept(store, said(id="2"))
    lanes, chats = store.journal.ready_sessions(), store.outbox.chats()
    await anext(lanes)
    lease = await claim(store)
    await store.records.wait_unwritten()
    with lost_reply(disk):
        await store.journal.commit(lease, answered(lease, "one"))
    with pytest.raises(LeaseLost):
        await store.journal.release(lease)
    assert await asyncio.wait_for(anext(lanes), 60) == ANN
    assert await asyncio.wait_for(anext(chats), 60) == ANN
    await asyncio.wait_for(store.records.wait_unwritten(), 60)
    assert (await store.journal.commit(lease, answered(lease, "other"))).turn == lease.turn
    assert [each.message.text for each in await store.outbox.undelivered(ANN)] == ["one"]
    assert (await claim(store)).rows[0].message.message_id == "2"


async def test_a_reply_whose_commit_lost_its_reply_is_not_doubtful(store: SqlStore, disk: FaultyConnections) -> None:
    """The process knows that it has not sent what its commit marked as sending, although it heard of a fault."""
    lease = await begin_turn(store)
    commit = answered(lease, "answer")
    commit = replace(commit, parts=tuple(parts_of(commit.outbound[0], 1)))
    with lost_reply(disk):
        await store.journal.commit(lease, commit)
    delivery = await next_delivery(store)
    assert (delivery.is_marked, [row.part for row in delivery.parts]) == (True, list(commit.parts))
    await store.journal.commit(lease, commit)  # as a turn does until it is stored
    assert not (await next_delivery(store)).is_marked


async def test_a_lane_in_work_stays_in_work_after_a_fault(store: SqlStore, disk: FaultyConnections) -> None:
    """What was claimed before the fault is still its worker's."""
    lease = await begin_turn(store, said(id="1"))
    disk.fault = ("COMMIT", "broken")
    with pytest.raises(StoreUnavailable):
        await store.check()
    disk.fault = None
    await accept(store, said(id="2"))
    assert await store.journal.claim(ANN) is None
    await store.journal.commit(lease, answered(lease))


async def test_a_disk_that_stays_broken_is_asked_less_often(store: SqlStore, disk: FaultyConnections) -> None:
    """Callers hear StoreUnavailable at once; between attempts nothing touches the disk."""
    disk.fault = ("BEGIN", "broken")
    for n in range(200):
        with pytest.raises(StoreUnavailable):
            await accept(store, said(id=str(n)))
    assert disk.opened < 20


async def test_a_usage_row_outlives_a_fault(store: SqlStore, disk: FaultyConnections) -> None:
    """What was spent is stored when the disk is back, without anybody asking again."""
    disk.fault = ("COMMIT", "full")
    store.journal.spend(spent("t1"))
    with pytest.raises(StoreUnavailable):
        await store.check()
    store.journal.spend(spent("t2"))
    disk.fault = None
    await disk.was_asked("INSERT INTO usage")
    (row,) = await store.usage.totals(since=START)
    assert row["calls"] == 2


async def test_a_lane_is_offered_again_after_a_failed_claim(store: SqlStore, disk: FaultyConnections) -> None:
    """The wake-up that a fault used up comes back."""
    await accept(store, said())
    lanes = store.journal.ready_sessions()
    assert await anext(lanes) == ANN
    disk.fault = ("BEGIN", "broken")
    with pytest.raises(StoreUnavailable):
        await store.journal.claim(ANN)
    disk.fault = None
    assert await asyncio.wait_for(anext(lanes), 60) == ANN


async def test_a_commit_that_met_a_fault_can_be_made_again(store: SqlStore, disk: FaultyConnections) -> None:
    """Nothing of it counted, and the lease still holds."""
    lease = await begin_turn(store)
    disk.fault = ("UPDATE lane SET owner = ''", "full")
    with pytest.raises(StoreUnavailable):
        await store.journal.commit(lease, answered(lease, "one"))
    disk.fault = None
    assert await store.outbox.undelivered(ANN) == ()
    await store.journal.commit(lease, answered(lease, "one"))
    assert len(await store.outbox.undelivered(ANN)) == 1


async def test_a_full_file_system_confirms_nothing_and_recovers(tmp_path: Path) -> None:
    """The same with SQLite's own limit on the file's size instead of a fake."""
    limits: list[int] = [1_000_000]

    def connect(path: Path) -> SqliteConnection:
        connection = schema.connect(path)
        connection.execute(f"PRAGMA max_page_count = {limits[0]}")
        return connection

    store = await open_file(tmp_path / FILE, StoreLimits(), connect=connect)
    await accept(store, said(id="1"))
    limits[0] = 1  # SQLite takes the present size as the least
    with pytest.raises(StoreUnavailable):
        await store._engine.writer.submit(_fill)
    with pytest.raises(StoreUnavailable):
        await accept(store, said("x" * 1_000_000, id="2"))
    limits[0] = 1_000_000
    async with asyncio.timeout(30):
        while True:
            with contextlib.suppress(StoreUnavailable):
                await accept(store, said("x" * 1_000_000, id="2"))
                break
            await asyncio.sleep(0)
    assert [row.message.message_id for row in await store.journal.waiting_rows(ANN)] == ["1", "2"]
    await store.close()


def _fill(database: Database) -> None:
    database.execute("PRAGMA max_page_count = 1")
    database.execute("INSERT INTO note (channel, name, value) VALUES ('x', 'x', zeroblob(1000000))")


def test_only_the_disks_errors_are_faults() -> None:
    """A bad row is not the disk's fault, whatever class SQLite gives its error."""
    with contextlib.closing(sqlite3.connect(":memory:", factory=SqliteConnection)) as database:
        assert database.is_fault(OSError("x"))
        assert not database.is_fault(ValueError("x"))
        with pytest.raises(sqlite3.Error) as caught:
            database.execute("SELECT nothing")
        assert not database.is_fault(caught.value)


async def test_close_writes_what_is_queued_and_ends_the_streams(tmp_path: Path) -> None:
    """Nothing that was asked for before close is lost; afterwards everything is StoreUnavailable."""
    store = await open_file(tmp_path / FILE, StoreLimits())
    lanes = store.journal.ready_sessions()
    pending = [asyncio.ensure_future(accept(store, said(id=str(n)))) for n in range(20)]
    await asyncio.sleep(0)  # they have asked
    await store.close()
    await store.close()
    assert {(await each).outcome for each in pending} == {AcceptOutcome.NEW}
    assert [key async for key in lanes] == [ANN]
    with pytest.raises(StoreUnavailable):
        await store.check()


async def test_a_cancelled_accept_is_stored_all_the_same(store: SqlStore) -> None:
    """A caller that goes away takes nothing back that was asked for."""
    task = asyncio.create_task(store.journal.accept(said(), role=Role.OWNER, is_control=False))
    await asyncio.sleep(0)  # it has asked
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert len(await store.journal.waiting_rows(ANN)) == 1
    assert await anext(store.journal.ready_sessions()) == ANN


async def test_a_writer_that_ends_by_a_bug_leaves_nobody_waiting(tmp_path: Path) -> None:
    """Even then every caller hears StoreUnavailable."""

    def broken(_: object) -> None:
        raise RuntimeError("a bug in a wake-up")

    writer = BatchWriter(lambda: SqliteThread.open(lambda: schema.connect(tmp_path / FILE)))
    await writer.open()
    first = writer.submit(lambda database: None, broken)
    second = writer.submit(lambda database: None)
    with pytest.raises(StoreUnavailable):
        await asyncio.wait_for(asyncio.gather(first, second), 60)
    with pytest.raises(StoreUnavailable):
        writer.submit(lambda database: None)
    await writer.close(lambda database: None)
