"""What only PostgreSQL can do to a store: a server that dies, a second gateway, copies into a file."""

from __future__ import annotations

import asyncio
import re
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, closing, suppress
from pathlib import Path
from typing import Any

import psycopg
import pytest
from psycopg.conninfo import make_conninfo

from gateway.app.context import open_store as open_configured
from gateway.errors import SchemaTooNew, SettingsError, StoreUnavailable
from gateway.ports.journal import AcceptOutcome
from gateway.ports.memory import ErasureFilter
from gateway.settings import load_settings
from gateway.store import erasure
from gateway.store.database import Database
from gateway.store.engine import StoreLimits
from gateway.store.file_copies import TABLES as EARLIER_TABLES
from gateway.store.postgres import open_database, open_store, schema
from gateway.store.postgres.connection import PostgresConnection
from gateway.store.sql_store import SqlStore
from gateway.store.sqlite import FILE, open_file
from gateway.store.tables import VERSION
from tests.fakes.postgres_server import PostgresServer
from tests.fakes.turns import (
    ANN,
    BOB,
    START,
    accept,
    answer,
    answered,
    begin_turn,
    said,
    spent,
)


@pytest.fixture
async def store(server: PostgresServer) -> AsyncIterator[SqlStore]:
    """Return an open store."""
    async with open_at(server) as opened:
        yield opened


@asynccontextmanager
async def open_at(server: PostgresServer) -> AsyncIterator[SqlStore]:
    """Open a store as a process that starts would."""
    store = await open_database(server.url, StoreLimits(), clock=lambda: START)
    yield store
    await store.close()


async def until_stored(store: SqlStore, number: str) -> AcceptOutcome:
    """Deliver a message until it is stored, as a platform does."""
    async with asyncio.timeout(30):
        while True:
            with suppress(StoreUnavailable):
                return (await accept(store, said(id=number))).outcome
            await asyncio.sleep(0.02)


async def test_a_server_killed_in_a_batch_loses_and_doubles_nothing(store: SqlStore, server: PostgresServer) -> None:
    """Everybody in the batch hears StoreUnavailable; what was confirmed is there, the rest once it is sent again.

    The turn that ran goes on under its lease.
    """
    if not server.is_ours:
        pytest.skip("the server is not ours to kill")
    confirmed = [str(n) for n in range(10)]
    for number in confirmed:
        await accept(store, said(id=number, key=BOB))
    lease = await begin_turn(store, said(id="running"))

    def kill(database: Database) -> None:
        database.execute("SELECT 1")
        server.kill()
        database.execute("SELECT 1")

    batch = [str(n) for n in range(10, 30)]
    first = [accept(store, said(id=number)) for number in batch[:10]]
    results = await asyncio.gather(
        *first,
        store._engine.writer.submit(kill),
        *(accept(store, said(id=number)) for number in batch[10:]),
        return_exceptions=True,
    )
    assert {type(each) for each in results} == {StoreUnavailable}
    with pytest.raises(StoreUnavailable, match=r"cannot be written now: the PostgreSQL database of store\.url"):
        await accept(store, said(id="30", key=BOB))
    store.journal.spend(spent(lease.turn))  # kept until it can be stored
    server.start()
    assert [await until_stored(store, number) for number in batch] == [AcceptOutcome.NEW] * 20
    await store.journal.commit(lease, answered(lease, "one"))
    assert len(await store.outbox.undelivered(ANN)) == 1
    assert [row["calls"] for row in await store.usage.totals(since=START)] == [1]
    for key, numbers in ((BOB, confirmed), (ANN, batch)):
        assert [row.message.message_id for row in await store.journal.waiting_rows(key)] == numbers


async def test_a_session_cut_in_a_batch_is_opened_again(store: SqlStore, server: PostgresServer) -> None:
    """An operator's command, a failover or a network may end it at any statement."""
    await accept(store, said(id="1"))

    def cut(database: Database) -> None:
        database.execute("INSERT INTO note (channel, name, value) VALUES ('x', 'y', 'z')")
        server.cut()

    with pytest.raises(StoreUnavailable):
        await store._engine.writer.submit(cut)
    assert await until_stored(store, "1") is AcceptOutcome.DUPLICATE
    assert await store.state("x").load("y") is None


async def test_a_session_that_the_server_still_has_is_replaced(
    server: PostgresServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where the network failed, the server learns of it a minute later: until then the session has the lock."""
    monkeypatch.setattr(schema, "RELOCK_SECONDS", 0.0)
    lost: list[psycopg.Connection[Any]] = []

    class LostConnection(PostgresConnection):
        def close(self) -> None:
            lost.append(self._connection)  # the server does not hear of it

    store = await open_database(server.url, StoreLimits(), clock=lambda: START, wrap=LostConnection)

    def break_off(database: Database) -> None:
        raise OSError("network is unreachable")

    try:
        await accept(store, said(id="1"))
        with pytest.raises(StoreUnavailable):
            await store._engine.writer.submit(break_off)
        assert (await accept(store, said(id="1"))).outcome is AcceptOutcome.DUPLICATE
        with pytest.raises(psycopg.OperationalError):
            lost[0].execute("SELECT 1")
    finally:
        await store.close()
        for session in lost:
            session.close()


async def test_a_second_gateway_is_refused_until_the_first_has_ended(
    store: SqlStore, server: PostgresServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its line says who has the database; a killed gateway's lock goes with its session."""
    monkeypatch.setattr(schema, "LOCK_SECONDS", 0.2)
    monkeypatch.setattr(schema, "RELOCK_SECONDS", 0.0)
    await accept(store, said(id="1"))
    with pytest.raises(StoreUnavailable, match=r"another Parlour uses the database.*since 20"):
        await open_database(server.url, StoreLimits())
    assert (await accept(store, said(id="1"))).outcome is AcceptOutcome.DUPLICATE
    server.cut()
    async with open_at(server) as second:
        assert (await accept(second, said(id="1"))).outcome is AcceptOutcome.DUPLICATE
        for _ in range(3):  # the first cannot write behind the second's back
            with pytest.raises(StoreUnavailable):
                await accept(store, said(id="2"))
        assert len(await second.journal.waiting_rows(ANN)) == 1


async def test_an_operation_that_hides_an_error_is_not_confirmed(store: SqlStore) -> None:
    """The server has rolled its transaction back; its neighbours are stored, once."""

    def hide(database: Database) -> None:
        with suppress(psycopg.Error):
            database.execute("INSERT INTO inbox (seq) VALUES (1)").fetchall()

    results = await asyncio.gather(
        accept(store, said(id="1")),
        store._engine.writer.submit(hide),
        accept(store, said(id="2")),
        return_exceptions=True,
    )
    assert isinstance(results[1], psycopg.errors.InFailedSqlTransaction)
    assert [row.message.message_id for row in await store.journal.waiting_rows(ANN)] == ["1", "2"]


async def test_texts_are_ordered_by_their_bytes_whatever_the_server_says(
    store: SqlStore, server: PostgresServer
) -> None:
    """Ranges of names are prefixes: the server's own order, here English, would put more into them."""
    if server.is_ours:
        assert server.query("SELECT 'a' < 'B'") == [(True,)]
    notes = store.state("web")
    for name in ("ab", "aB", "a.b", "A", "a-", "aé", "b"):
        await notes.save(name, "x")
    assert sorted(await notes.all("a")) == ["a-", "a.b", "aB", "ab", "aé"]
    assert sorted(await notes.all("a.")) == ["a.b"]


async def test_newer_tables_are_refused_untouched(server: PostgresServer) -> None:
    """The line says what to install."""
    async with open_at(server):
        pass
    server.query("UPDATE schema_version SET number = 99")
    try:
        with pytest.raises(SchemaTooNew, match="schema 99"):
            await open_database(server.url, StoreLimits())
        assert server.query("SELECT number FROM schema_version") == [(99,)]
    finally:
        server.query(f"UPDATE schema_version SET number = {VERSION}")  # noqa: S608 - a number of ours


async def test_a_session_that_can_only_read_is_refused(server: PostgresServer) -> None:
    """The doctor and a start say the same: a start would end at its first statement, or an hour later."""
    url = make_conninfo(server.url, options="-c default_transaction_read_only=on")
    with pytest.raises(StoreUnavailable, match="set default_transaction_read_only to off"):
        schema.describe(url)
    with pytest.raises(StoreUnavailable, match="set default_transaction_read_only to off"):
        await open_database(url, StoreLimits())


async def test_a_role_that_cannot_make_tables_is_refused(server: PostgresServer) -> None:
    """The line is the statement that mends it; the doctor has it before a start."""
    server.query('CREATE ROLE "weak one" LOGIN; CREATE SCHEMA kept; GRANT USAGE ON SCHEMA kept TO "weak one"')
    url = make_conninfo(server.url, user="weak one", options="-c search_path=kept")
    try:
        with pytest.raises(SettingsError, match=r'ALTER DATABASE .* OWNER TO "weak one"'):
            schema.describe(url)
        with pytest.raises(SettingsError, match=r'ALTER DATABASE .* OWNER TO "weak one"'):
            await open_database(url, StoreLimits())
    finally:
        server.query('DROP SCHEMA kept; DROP ROLE "weak one"')


@pytest.mark.parametrize(
    ("url", "error"),
    [
        ("postgresql://ann:canary@127.0.0.1:1/db", StoreUnavailable),
        ("postgresql://ann:canary@[::1/db", SettingsError),
        ("postgresql://ann:canary@h/db?nonsense=canary", SettingsError),
        ("postgresql://ann:an@canary@h/db", SettingsError),  # an unescaped @ makes the password's end a host
    ],
)
async def test_an_unusable_address_is_one_line_without_the_password(url: str, error: type[Exception]) -> None:
    """Nothing of what libpq says about an address it cannot read is repeated."""
    with pytest.raises(error, match=r"store\.url") as caught:
        await open_database(url, StoreLimits())
    assert "canary" not in str(caught.value)
    assert "\n" not in str(caught.value)


async def test_without_the_driver_one_line_says_what_to_install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Psycopg is an extra; nothing else needs it."""
    for name in [name for name in sys.modules if name.startswith("gateway.store.postgres")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "psycopg", None)
    settings = load_settings({"PARLOUR_HOME": str(tmp_path), "PARLOUR_STORE__URL": "postgresql://h/d"})
    with pytest.raises(SettingsError, match="needs psycopg: run `make install`"):
        async with open_configured(settings, has_served=False):
            raise AssertionError("it opened")


async def test_a_home_with_a_journal_is_not_begun_anew(tmp_path: Path) -> None:
    """The messages that wait in the file would be forgotten without a word."""
    (tmp_path / FILE).write_bytes(b"")
    with pytest.raises(SettingsError, match=re.escape(str(tmp_path / FILE))):
        await open_store(tmp_path, "postgresql://h/db", StoreLimits())


async def test_a_backup_is_a_journal_that_the_embedded_store_takes(store: SqlStore, tmp_path: Path) -> None:
    """All of one instant: what waits, what was answered, who chose what; the numbers go on behind it."""
    await answer(store, said("\0 first \ud800", id="1"), "hello")
    store.journal.spend(spent("t"))
    await store.people.prefer("telegram:ann", "language", "de")
    await accept(store, said(id="2"))
    await store.backup(tmp_path / "copy" / FILE)
    await accept(store, said(id="3"))  # too late
    assert (tmp_path / "copy" / FILE).stat().st_mode & 0o777 == 0o600
    assert [path.name for path in (tmp_path / "copy").iterdir()] == [FILE]
    copy = await open_file(tmp_path / "copy" / FILE, StoreLimits(), clock=lambda: START)
    try:
        assert [row.message.message_id for row in await copy.journal.waiting_rows(ANN)] == ["2"]
        assert [(each.message.text) for each in await copy.outbox.undelivered(ANN)] == ["hello"]
        assert (await copy.usage.totals(since=START))[0]["calls"] == 1
        assert copy.people.preferences("telegram:ann") == {"language": "de"}
        assert (await accept(copy, said(id="1"))).outcome is AcceptOutcome.DUPLICATE
        assert (await accept(copy, said(id="4"))).seq == (await accept(store, said(id="3"))).seq
    finally:
        await copy.close()


async def test_a_backup_that_fails_leaves_nothing(store: SqlStore, server: PostgresServer, tmp_path: Path) -> None:
    """Neither a half file nor one under the name that was asked for."""
    server.query("ALTER TABLE usage RENAME COLUMN cost TO price")
    try:
        with pytest.raises(StoreUnavailable, match="could not be written"):
            await store.backup(tmp_path / "copy" / FILE)
    finally:
        server.query("ALTER TABLE usage RENAME COLUMN price TO cost")
    assert list((tmp_path / "copy").iterdir()) == []


async def test_erased_words_leave_the_tables_files(store: SqlStore, server: PostgresServer) -> None:
    """After a scrub no file of a table holds them. The server's log of changes does for a while, as documented."""
    if not server.is_ours:
        pytest.skip("the server's files are not ours to read")
    for n in range(4):  # of some rows the server keeps values in its statistics, of one it does not
        await answer(store, said(f"canarysecret {n}", id=f"{n}"), f"the canarysecret again {n}")
    store.records.mark_written([record.seq for record in await store.records.unwritten(0, 10)])
    server.query("ANALYZE")
    analysed = {name for (name,) in server.query("SELECT attname FROM pg_stats WHERE tablename = 'inbox'")}
    assert "key" in analysed
    assert "payload" not in analysed
    server.query("CHECKPOINT")
    assert server.files_with(b"canarysecret")
    reach = ErasureFilter(keys=frozenset({ANN}))
    await store.erasing.redact(reach, _without)
    await store.transcripts.rewrite("", lambda raw: raw.replace(b"canarysecret", b""))
    assert await store.erasing.scrub()
    server.query("CHECKPOINT")
    assert not server.files_with(b"canarysecret")


async def test_a_scrub_is_not_done_while_the_server_keeps_rows_for_a_session_that_it_does_not_list(
    store: SqlStore, server: PostgresServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A session that is being opened has a snapshot already: what was kept tells, not who is listed."""
    if not server.is_ours:
        pytest.skip("the server's files are not ours to read")
    monkeypatch.setattr(PostgresConnection, "has_older_readers", lambda _: False)
    await answer(store, said("canarysecret", id="1"), "the canarysecret again")
    with closing(psycopg.connect(server.url)) as reader:
        reader.execute("BEGIN ISOLATION LEVEL REPEATABLE READ")
        reader.execute("SELECT count(*) FROM meta")
        await store.erasing.redact(ErasureFilter(keys=frozenset({ANN})), _without)
        await store.transcripts.rewrite("", lambda raw: raw.replace(b"canarysecret", b""))
        assert not await store.erasing.scrub()
    assert await store.erasing.scrub()
    server.query("CHECKPOINT")
    assert not server.files_with(b"canarysecret")


async def test_a_scrub_waits_for_those_that_may_still_read_the_words(
    store: SqlStore, server: PostgresServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """While a transaction has an older snapshot, as that of a dump, the server keeps deleted rows: it is not done."""
    if not server.is_ours:
        pytest.skip("the server's files are not ours to read")
    await answer(store, said("canarysecret", id="1"), "the canarysecret again")
    with closing(psycopg.connect(server.url)) as reader:
        reader.execute("BEGIN ISOLATION LEVEL REPEATABLE READ")
        reader.execute("SELECT count(*) FROM meta")  # its lock on `inbox` would make the server refuse
        await store.erasing.redact(ErasureFilter(keys=frozenset({ANN})), _without)
        await store.transcripts.rewrite("", lambda raw: raw.replace(b"canarysecret", b""))
        monkeypatch.setattr(erasure, "_READERS_WAIT", 0.1)
        assert not await store.erasing.scrub()
        monkeypatch.undo()
        scrubbing = asyncio.create_task(store.erasing.scrub())
        await store.check()
        assert not scrubbing.done()
        reader.rollback()
        assert await scrubbing
    server.query("CHECKPOINT")
    assert not server.files_with(b"canarysecret")


# Tables without words of people: numbers, ids, names of scopes, chats and files, and what operators have set.
_WITHOUT_WORDS = frozenset(
    [
        "access",
        "access_note",
        "account",
        "account_chat",
        "alert_post",
        "cap_count",
        "cap_entry",
        "cap_told",
        "claim",
        "dedupe",
        "document",
        "history",
        "lane",
        "link_note",
        "memory_scope",
        "meta",
        "model_fact",
        "move",
        "schema_version",
        "session",
        "stale_file",
        "unwritten",
        "unused_object",
        "usage",
        "watch",
        "worker",
    ]
)


async def test_a_scrub_rewrites_every_table_with_words(store: SqlStore, server: PostgresServer) -> None:
    """A new table is listed among those that are rewritten, or here among those without words."""
    parts = await store._engine.writer.submit_exclusive(lambda connection: connection.scrub_parts())
    found = server.query(
        "SELECT relname FROM pg_class WHERE relkind = 'r' AND relnamespace = current_schema::regnamespace"
    )
    tables = {str(name) for (name,) in found if not str(name).startswith(EARLIER_TABLES)}  # the first start drops those
    assert {"inbox", "proposal", "document_line", "history_entry"} < tables
    assert tables - set(parts) == _WITHOUT_WORDS


async def test_a_scrub_lets_turns_pass_between_its_parts(store: SqlStore) -> None:
    """The table of files is rewritten in partitions."""
    parts = await store._engine.writer.submit_exclusive(lambda connection: connection.scrub_parts())
    assert sum(part.startswith("file_piece_") for part in parts) == 32
    assert {"inbox", "record", "outbox"} < set(parts)
    assert "file_piece" not in parts
    scrubbing = asyncio.create_task(store.erasing.scrub())
    await asyncio.sleep(0)
    await store.check()
    assert not scrubbing.done()
    assert await scrubbing


async def test_statements_behind_an_error_are_not_reported(
    store: SqlStore, server: PostgresServer, caplog: pytest.LogCaptureFixture
) -> None:
    """The first error of several statements is raised, and nothing goes to the log for those that did not run."""
    del store  # which has made the tables
    many = [(f"name {n}",) for n in range(500)]  # the error comes while they are still being sent
    with closing(PostgresConnection(schema.open_session(server.url))) as connection:
        connection.begin_batch()
        with pytest.raises(psycopg.errors.UniqueViolation):
            connection.executemany("INSERT INTO meta (name, value) VALUES (?, '')", [("a",), ("a",), *many]).fetchall()
        connection.roll_back()
        connection.begin_batch()
        connection.executemany("INSERT INTO meta (name, value) VALUES (?, '')", many)
        assert connection.end_batch()
    assert [record.getMessage() for record in caplog.records if record.name == "psycopg"] == []


def _without(value: object) -> object:
    if isinstance(value, str):
        return value.replace("canarysecret", "")
    if isinstance(value, dict):
        return {name: _without(each) for name, each in value.items()}
    return [_without(each) for each in value] if isinstance(value, (list, tuple)) else value


def test_the_lock_number_fits_its_column() -> None:
    """It is a signed 32-bit number; with it go the database and the schema."""
    assert 0 < schema._LOCK < 2**31
