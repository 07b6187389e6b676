"""`parlour store migrate`: every row arrives, whatever it holds; a store that has lost its messages does not start."""

from __future__ import annotations

import asyncio
import os
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from gateway.commands.store import migrate_store
from gateway.errors import HomeInUse, ParlourError, SchemaTooNew, SettingsError, StoreUnavailable, UserError
from gateway.events import SessionKey
from gateway.home import Home, hold_lock
from gateway.journal_file import MOVED, STAMP, StoreKind, read_stamp
from gateway.ports.journal import AcceptOutcome
from gateway.ports.memory import FileKind
from gateway.store.claims import WorkerIdentity
from gateway.store.engine import StoreLimits
from gateway.store.files import SMALL_BYTES
from gateway.store.objects import DirectoryObjects
from gateway.store.postgres import copies, open_database
from gateway.store.postgres import open_store as open_on_database
from gateway.store.postgres import schema as database_schema
from gateway.store.row_codec import quote
from gateway.store.sql_store import SqlStore
from gateway.store.sqlite import FILE, open_file
from gateway.store.sqlite import open_store as open_on_file
from gateway.store.sqlite import schema as journal_schema
from gateway.store.tables import VERSION
from tests.fakes.earlier_tables import create_database, create_file
from tests.fakes.moved_stores import rows_of_database, rows_of_file, startable
from tests.fakes.postgres_server import PostgresServer
from tests.fakes.store import open_inline_store
from tests.fakes.turns import ANN, START, accept, answer, said, spent

CHATS = 1_000
ANN_SCOPE = "people/pocket%3aann"


@pytest.fixture
def home(tmp_path: Path, server: PostgresServer, monkeypatch: pytest.MonkeyPatch) -> Iterator[Home]:
    """Return a home whose settings name the server's database."""
    for name in [name for name in os.environ if name.startswith("PARLOUR_")]:
        monkeypatch.delenv(name)
    folder = tmp_path / "home"
    folder.mkdir(mode=0o700)
    monkeypatch.setenv("PARLOUR_HOME", str(folder))
    monkeypatch.setenv("PARLOUR_STORE__URL", server.address)
    before = os.umask(0o077)
    yield Home(folder)
    os.umask(before)


async def fill(store: SqlStore, chats: int = 3) -> None:
    """Leave something of everything: answered turns, waiting messages, a language, notes, usage."""
    for number in range(chats):
        key = SessionKey("telegram", str(number))
        await answer(store, said(f"\0 {number} \ud800 what\\N?\t\n", id="1", key=key), f"answer {number} ✓")
        await accept(store, said(f"and {number}?", id="2", key=key))
        store.journal.spend(spent(f"turn {number}", cost=0.1 * number))
    await store.people.prefer("telegram:ann", "language", "de")
    await store.state("web").save("a\0b", "\ufdd0")


async def write_home(home: Home) -> None:
    """Leave something of everything in the home's own file."""
    store = await open_on_file(home.path, "", StoreLimits())
    await fill(store)
    await store.close()


async def seen(store: SqlStore) -> list[object]:
    """Return what people and operators see of a store."""
    return [
        await store.records.sessions(),
        [await store.journal.waiting_rows(SessionKey("telegram", str(number))) for number in range(3)],
        [await store.outbox.undelivered(SessionKey("telegram", str(number))) for number in range(3)],
        await store.records.unwritten(0, 10),
        await store.usage.totals(since=START),
        store.people.preferences("telegram:ann"),
        await store.state("web").all("a"),
    ]


async def test_a_thousand_chats_move_there_and_back(home: Home, server: PostgresServer) -> None:
    """Every row is the same on both sides, people see the same, and the server knows the sizes of the tables."""
    store = await open_inline_store(home.journal, StoreLimits(), clock=lambda: START)
    await fill(store, CHATS)
    before = await seen(store)
    await store.close()
    rows = rows_of_file(home.journal)
    assert len(rows["session"]) == CHATS
    migrate_store(StoreKind.POSTGRESQL)
    there = rows_of_database(server.url)
    assert there == rows
    sizes = dict(server.query("SELECT relname, reltuples::int FROM pg_class WHERE relname IN ('session', 'record')"))
    assert sizes == {"session": CHATS, "record": len(rows["record"])}
    (kept,) = home.backups.glob("journal-*.db")
    assert kept.stat().st_mode & 0o777 == 0o600
    assert rows_of_file(kept) == rows
    migrate_store(StoreKind.SQLITE)
    assert rows_of_file(home.journal) == rows
    assert home.journal.stat().st_mode & 0o777 == 0o600
    assert {path.name for path in home.path.iterdir()} == {FILE, STAMP, "backups", "lock", "schema"}
    back = await open_file(home.journal, StoreLimits(), clock=lambda: START)
    assert await seen(back) == before
    await back.close()


async def test_the_database_goes_on_where_the_file_stopped(home: Home, server: PostgresServer) -> None:
    """Redeliveries are recognized there, new messages get new numbers, and a language is remembered."""
    store = await open_file(home.journal, StoreLimits(), clock=lambda: START)
    await fill(store)
    last = (await accept(store, said(id="3"))).seq
    await store.close()
    migrate_store(StoreKind.POSTGRESQL)
    moved = await open_on_database(home.path, server.url, StoreLimits(), lambda: START)
    try:
        assert (await accept(moved, said(id="3"))).outcome is AcceptOutcome.DUPLICATE
        assert (await accept(moved, said(id="4"))).seq == last + 1
        assert [row.message.message_id for row in await moved.journal.waiting_rows(ANN)] == ["3", "4"]
        assert moved.people.preferences("telegram:ann") == {"language": "de"}
    finally:
        await moved.close()
    migrate_store(StoreKind.SQLITE)
    back = await open_on_file(home.path, "", StoreLimits(), lambda: START)
    assert [row.message.message_id for row in await back.journal.waiting_rows(ANN)] == ["3", "4"]
    await back.close()


VALUES = {
    "TEXT": st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0")),
    "INTEGER": st.integers(-(2**63), 2**63 - 1),
    "REAL": st.none() | st.floats(allow_nan=False),
    "BLOB": st.binary(),
}


@st.composite
def table_rows(draw: st.DrawFn) -> dict[str, list[tuple[object, ...]]]:
    """Return rows of any values for every table of the schema, each with keys of its own."""
    rows = {}
    with closing(sqlite3.connect(":memory:")) as model:
        journal_schema.prepare(model, None)
        for table in copies.copied_tables(model):
            kinds = [row[2] for row in model.execute(f"PRAGMA table_info({table.name})")]
            drawn = draw(st.lists(st.tuples(*(VALUES[kind] for kind in kinds)), max_size=3))
            unique = [row for number, row in enumerate(drawn) if _has_own_keys(row, drawn[:number])]
            rows[table.name] = [row for row in unique if not (table.name == "meta" and row[0] == database_schema.MOVE)]
    return rows


def _has_own_keys(row: tuple[object, ...], others: list[tuple[object, ...]]) -> bool:
    return all(value != other[at] for other in others for at, value in enumerate(row))


@settings(max_examples=10, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(rows=table_rows())
def test_any_row_of_any_table_moves_there_and_back(
    home: Home, server: PostgresServer, rows: dict[str, list[tuple[object, ...]]]
) -> None:
    """Whatever a column may hold: every number, every text that is stored, nothing at all."""
    server.empty()
    home.journal.unlink(missing_ok=True)
    with closing(journal_schema.connect(home.journal)) as journal:
        journal_schema.prepare(journal, home.journal)
        for name, each in rows.items():
            for row in each:
                journal.execute(f"INSERT INTO {name} VALUES ({', '.join('?' * len(row))})", row)  # noqa: S608 - our tables
    before = rows_of_file(home.journal)
    migrate_store(StoreKind.POSTGRESQL)
    assert rows_of_database(server.url) == before
    migrate_store(StoreKind.SQLITE)
    assert rows_of_file(home.journal) == before


async def test_the_store_that_was_left_does_not_start(home: Home, server: PostgresServer) -> None:
    """The line says where the messages are, and the command that brings them back."""
    await write_home(home)
    assert startable(home.journal, server.url) == {"file"}
    with pytest.raises(SettingsError, match="parlour store migrate postgresql"):
        await open_on_database(home.path, server.url, StoreLimits())
    migrate_store(StoreKind.POSTGRESQL)
    stamp = read_stamp(home.journal)
    assert stamp is not None
    assert stamp.store == ""  # the next start takes the store that it finds
    assert startable(home.journal, server.url) == {"database"}
    with pytest.raises(SettingsError, match=r"were moved to PostgreSQL .* set PARLOUR_STORE__URL .* migrate sqlite"):
        await open_on_file(home.path, "", StoreLimits())
    migrate_store(StoreKind.SQLITE)
    assert not (home.path / MOVED).exists()
    assert startable(home.journal, server.url) == {"file"}
    with pytest.raises(SettingsError, match=r"were moved to .*journal\.db .* leave store\.url empty"):
        await open_database(server.url, StoreLimits())
    again = await open_on_file(home.path, "", StoreLimits())
    await accept(again, said(id="later"))
    await again.close()
    migrate_store(StoreKind.POSTGRESQL)  # what was left behind there is replaced
    assert startable(home.journal, server.url) == {"database"}
    assert len(rows_of_database(server.url)["inbox"]) == 7


async def test_the_same_command_again_changes_nothing(home: Home, capsys: pytest.CaptureFixture[str]) -> None:
    """Both directions say where the messages are."""
    await write_home(home)
    for kind in (StoreKind.POSTGRESQL, StoreKind.SQLITE):
        migrate_store(kind)
        capsys.readouterr()
        migrate_store(kind)
        assert "the messages are in" in capsys.readouterr().out


async def test_a_move_says_how_far_it_is(
    home: Home, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A line for each table, and for large ones several; the sum and the kept file at the end."""
    monkeypatch.setattr(copies, "_REPORT_EVERY", 2)
    await write_home(home)
    migrate_store(StoreKind.POSTGRESQL)
    printed = capsys.readouterr().out.splitlines()
    assert [line for line in printed if "inbox" in line] == [f"  inbox: {count} rows" for count in (2, 4, 6, 6)]
    assert printed[-1].startswith(f"{sum(len(rows) for rows in rows_of_database_of(home).values())} rows are in")


def rows_of_database_of(home: Home) -> dict[str, list[str]]:
    """Return the rows that the kept file has."""
    (kept,) = home.backups.glob("journal-*.db")
    return rows_of_file(kept)


async def moved(home: Home) -> None:
    """Move a home with messages into the database."""
    await write_home(home)
    migrate_store(StoreKind.POSTGRESQL)


async def test_a_database_with_messages_is_not_overwritten(home: Home, server: PostgresServer) -> None:
    """Of whatever home they are: nothing is changed on either side."""
    theirs = await open_database(server.url, StoreLimits())
    await accept(theirs, said(id="theirs"))
    await theirs.close()
    store = await open_on_file(home.path, "", StoreLimits())
    await store.close()
    rows, before = rows_of_database(server.url), rows_of_file(home.journal)
    with pytest.raises(UserError, match=r"not empty .* createdb"):
        migrate_store(StoreKind.POSTGRESQL)
    assert (rows_of_database(server.url), rows_of_file(home.journal)) == (rows, before)
    with pytest.raises(UserError, match="exists, and would be overwritten"):
        migrate_store(StoreKind.SQLITE)
    assert (rows_of_database(server.url), rows_of_file(home.journal)) == (rows, before)


async def test_a_running_gateway_is_not_moved_from_under_its_feet(
    home: Home, server: PostgresServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Neither one on this home nor one on that database."""
    monkeypatch.setattr(database_schema, "LOCK_SECONDS", 0.1)
    for kind in StoreKind:
        with hold_lock(home), pytest.raises(HomeInUse):
            migrate_store(kind)
    other = await open_database(server.url, StoreLimits())
    try:
        for kind in StoreKind:
            with pytest.raises(StoreUnavailable, match="another Parlour uses the database"):
                migrate_store(kind)
    finally:
        await other.close()


async def test_another_database_is_not_taken_for_the_one_that_was_moved_to(home: Home, server: PostgresServer) -> None:
    """Neither an empty one nor one that holds the copy of an earlier, interrupted move."""
    await moved(home)
    note = "UPDATE meta SET value = replace(value, '\"active\"', '\"copied\"') WHERE name = 'move'"
    server.query(note)
    server.query("UPDATE meta SET value = regexp_replace(value, '\"id\": \"\\w+', '\"id\": \"0') WHERE name = 'move'")
    with pytest.raises(UserError, match=r"are in another database \(.*\) since"):
        migrate_store(StoreKind.POSTGRESQL)
    with pytest.raises(SettingsError, match="interrupted"):
        migrate_store(StoreKind.SQLITE)
    server.empty()
    with pytest.raises(UserError, match=r"are in another database \(.*\) since"):
        migrate_store(StoreKind.POSTGRESQL)


async def test_rows_that_went_to_another_home_are_not_moved_twice(
    home: Home, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The database keeps them after it was left, for its own home only."""
    await moved(home)
    migrate_store(StoreKind.SQLITE)
    (tmp_path / "other").mkdir()
    monkeypatch.setenv("PARLOUR_HOME", str(tmp_path / "other"))
    with pytest.raises(SettingsError, match=str(home.journal)):
        migrate_store(StoreKind.SQLITE)
    assert not (tmp_path / "other" / FILE).exists()


@pytest.mark.parametrize("kind", StoreKind)
def test_nothing_is_moved_from_nowhere(
    home: Home, server: PostgresServer, monkeypatch: pytest.MonkeyPatch, kind: StoreKind
) -> None:
    """No address, no home, no messages."""
    server.query("DROP SCHEMA public CASCADE")
    server.query("CREATE SCHEMA public")
    with pytest.raises(UserError, match="nothing to move"):
        migrate_store(kind)
    monkeypatch.setenv("PARLOUR_HOME", "/nowhere")
    with pytest.raises(UserError, match="nothing to move"):
        migrate_store(kind)
    monkeypatch.setenv("PARLOUR_STORE__URL", "")
    with pytest.raises(UserError, match="PARLOUR_STORE__URL"):
        migrate_store(kind)


async def test_newer_data_is_not_moved(home: Home, server: PostgresServer) -> None:
    """On neither side."""
    await write_home(home)
    with closing(sqlite3.connect(home.journal)) as journal:
        journal.execute("PRAGMA user_version = 99")
    with pytest.raises(SchemaTooNew, match="schema 99"):
        migrate_store(StoreKind.POSTGRESQL)
    with closing(sqlite3.connect(home.journal)) as journal:
        journal.execute(f"PRAGMA user_version = {VERSION}")
    database = await open_database(server.url, StoreLimits())
    await database.close()
    server.empty()
    server.query("UPDATE schema_version SET number = 99")
    try:
        with pytest.raises(SchemaTooNew, match="schema 99"):
            migrate_store(StoreKind.POSTGRESQL)
    finally:
        server.query(f"UPDATE schema_version SET number = {VERSION}")  # noqa: S608 - a number of ours
    migrate_store(StoreKind.POSTGRESQL)
    assert startable(home.journal, server.url) == {"database"}


def test_older_data_is_brought_up_to_date_first(home: Home, server: PostgresServer) -> None:
    """As a start does it, on the side that is read and on the side that is written."""
    with closing(journal_schema.connect(home.journal)) as journal:
        create_file(journal, VERSION - 1)
        journal.execute("INSERT INTO note VALUES ('web', 'name', 'value')")
    server.query("DROP SCHEMA public CASCADE")
    server.query("CREATE SCHEMA public")
    with closing(database_schema.connect(server.url, WorkerIdentity())) as connection:
        create_database(connection, VERSION - 1)
    migrate_store(StoreKind.POSTGRESQL)
    assert rows_of_database(server.url)["note"] == ["('web', 'name', 'value')"]


async def test_a_copy_that_differs_is_given_up(home: Home, server: PostgresServer) -> None:
    """Here a trigger of somebody changes a row; nothing is moved, and the file goes on."""
    await write_home(home)
    server.query(
        "CREATE FUNCTION change() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN NEW.value := 'x'; RETURN NEW; END $$"
    )
    server.query("CREATE TRIGGER change BEFORE INSERT ON note FOR EACH ROW EXECUTE FUNCTION change()")
    try:
        with pytest.raises(StoreUnavailable, match=r"the copy of the table note differs .* nothing was changed"):
            migrate_store(StoreKind.POSTGRESQL)
    finally:
        server.query("DROP FUNCTION change CASCADE")
    assert rows_of_database(server.url)["inbox"] == []
    assert startable(home.journal, server.url) == {"file"}
    migrate_store(StoreKind.POSTGRESQL)


async def test_a_row_that_postgresql_refuses_is_named(home: Home, server: PostgresServer) -> None:
    """A journal of ours has none; one that somebody has edited may."""
    store = await open_on_file(home.path, "", StoreLimits())
    await store.close()
    with closing(sqlite3.connect(home.journal)) as journal, journal:
        journal.execute("INSERT INTO note VALUES ('web', 'long', ?)", (quote("x"),))
        journal.execute("INSERT INTO meta VALUES ('checked_at', CAST(x'00' AS TEXT))")
    with pytest.raises(ParlourError, match="nothing was moved"):
        migrate_store(StoreKind.POSTGRESQL)
    assert startable(home.journal, server.url) == {"file"}


LARGE, SMALL = b"large" * SMALL_BYTES, b"small"


async def file_contents(store: SqlStore) -> dict[str, bytes | None]:
    """Return the verified bytes of Ann's files."""
    return {file.name: await store.files.load(ANN_SCOPE, file) for file in await store.files.files(ANN_SCOPE)}


@pytest.mark.parametrize("has_objects", [False, True])
async def test_bytes_of_files_move_there_and_back(
    home: Home, server: PostgresServer, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, has_objects: bool
) -> None:
    """Small and large ones, with and without a bucket; the home's copies go to backups/ with the journal."""
    if has_objects:
        monkeypatch.setenv("PARLOUR_STORE__OBJECTS__URL", f"file://{tmp_path / 'objects'}")
    store = await open_on_file(home.path, "", StoreLimits(), lambda: START)
    for data in (LARGE, SMALL, b""):
        await store.files.put(ANN_SCOPE, FileKind.ATTACHMENT, data, at=START)
    before = await file_contents(store)
    await store.close()
    assert len([*home.path.glob("people/*/bytes/*")]) == 1
    await asyncio.to_thread(migrate_store, StoreKind.POSTGRESQL)
    assert not [*home.path.glob("people/*/bytes")]
    assert [path.read_bytes() for path in home.backups.glob("journal-*/people/*/bytes/*")] == [LARGE]
    limits = StoreLimits(objects=DirectoryObjects(tmp_path / "objects") if has_objects else None)
    moved = await open_on_database(home.path, server.url, limits, lambda: START)
    if has_objects:
        assert [path.read_bytes() for path in (tmp_path / "objects").iterdir()] == [LARGE]
    assert await file_contents(moved) == before
    await moved.close()
    await asyncio.to_thread(migrate_store, StoreKind.SQLITE)
    back = await open_on_file(home.path, "", StoreLimits(), lambda: START)
    assert await file_contents(back) == before
    await back.close()
    await asyncio.to_thread(migrate_store, StoreKind.POSTGRESQL)  # over the rows that the first move has left
    again = await open_on_database(home.path, server.url, limits, lambda: START)
    await again.files.collect_garbage()
    assert await file_contents(again) == before
    await again.close()


async def test_lost_bytes_are_not_left_behind(home: Home, server: PostgresServer) -> None:
    """A move of files that are not what was stored changes nothing."""
    store = await open_on_file(home.path, "", StoreLimits(), lambda: START)
    await store.files.put(ANN_SCOPE, FileKind.ATTACHMENT, LARGE, at=START)
    await store.close()
    (path,) = home.path.glob("people/*/bytes/*")
    path.write_bytes(LARGE[:-1])
    with pytest.raises(StoreUnavailable, match="is lost or not what was stored; nothing was moved"):
        await asyncio.to_thread(migrate_store, StoreKind.POSTGRESQL)
    assert startable(home.journal, server.url) == {"file"}
