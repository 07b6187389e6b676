"""The file itself: private, checked, copied whole, migrated or refused."""

from __future__ import annotations

import asyncio
import os
import shutil
import sqlite3
import stat
import sys
import threading
from collections.abc import AsyncIterator
from contextlib import closing
from datetime import timedelta
from pathlib import Path

import pytest

from gateway.errors import SchemaTooNew, SchemaTooOld, SettingsError, StoreUnavailable, UserError
from gateway.events import InboundKind, SessionKey
from gateway.journal_file import damaged_line, lost_journal
from gateway.store.database import Database
from gateway.store.engine import StoreLimits
from gateway.store.migrations import MIGRATIONS, OLDEST
from gateway.store.sql_store import SqlStore
from gateway.store.sqlite import FILE, find_file_damage, open_file, open_store, schema
from gateway.store.sqlite.connection import SqliteConnection
from gateway.store.tables import VERSION
from tests.fakes.earlier_tables import create_file
from tests.fakes.turns import ANN, BOB, START, WallClock, accept, answer, next_delivery, parts_of, said


@pytest.fixture
async def store(tmp_path: Path) -> AsyncIterator[SqlStore]:
    """Return an open store."""
    opened = await open_file(tmp_path / FILE, StoreLimits())
    yield opened
    await opened.close()


async def test_the_files_are_private(tmp_path: Path) -> None:
    """0600 and 0700 from the first write, whatever the umask."""
    before = os.umask(0)
    try:
        home = tmp_path / "home"
        store = await open_store(home, "", StoreLimits())
        await accept(store, said())
        await store.backup(tmp_path / "backups" / "journal.db")
        modes = {path.name: stat.S_IMODE(path.stat().st_mode) for path in home.iterdir()}
        copied = stat.S_IMODE((tmp_path / "backups" / "journal.db").stat().st_mode)
        await store.close()
    finally:
        os.umask(before)
    assert set(modes) == {"journal.db", "journal.db-wal", "journal.db-shm", "journal.stamp"}
    assert {*modes.values(), copied} == {0o600}
    assert stat.S_IMODE(home.stat().st_mode) == 0o700


async def test_a_backup_is_of_one_instant_while_others_write(store: SqlStore, tmp_path: Path) -> None:
    """It opens as a store of its own, holds what was confirmed before it, and leaves no part behind."""
    await answer(store, said(id="1"), "one")
    target = tmp_path / "backup" / FILE
    writing = asyncio.ensure_future(asyncio.gather(*(accept(store, said(id=str(n), key=BOB)) for n in range(2, 50))))
    await store.backup(target)
    await writing
    assert [path.name for path in target.parent.iterdir()] == [FILE]
    restored = await open_file(target, StoreLimits())
    assert [each.message.text for each in await restored.outbox.undelivered(ANN)] == ["one"]
    await restored.close()


async def test_what_is_read_does_not_wait_for_the_writer(store: SqlStore) -> None:
    """A window, a page of history or a scan sees what was committed while a long operation runs."""
    await answer(store, said(id="1"), "one")
    is_read = threading.Event()
    writing = asyncio.ensure_future(store._engine.writer.submit(lambda _: is_read.wait(30)))
    async with asyncio.timeout(20):
        (turn,) = await store.transcripts.newest("", ANN, 10)
        assert (await store.transcripts.window("", ANN, turn.transcript)).turns == [turn]
        assert await store.transcripts.scan("") == [turn]
    is_read.set()
    assert await writing


async def test_a_store_whose_writer_was_opened_again_keeps_its_locks(store: SqlStore, tmp_path: Path) -> None:
    """Another program does not take its log away, though a scrub's descriptor was closed and a reader was open."""
    await answer(store, said(id="1"), "one")
    assert await store.erasing.scrub()
    assert await store.transcripts.newest("", ANN, 10)
    fault = sqlite3.OperationalError("disk I/O error")
    fault.sqlite_errorcode = sqlite3.SQLITE_IOERR

    def fail(_: Database) -> None:
        raise fault

    with pytest.raises(StoreUnavailable):
        await store._engine.writer.submit(fail)
    await answer(store, said(id="2"), "two")
    other = f"import sqlite3; sqlite3.connect({str(tmp_path / FILE)!r}).execute('PRAGMA user_version').fetchall()"
    process = await asyncio.create_subprocess_exec(sys.executable, "-c", other)
    assert await process.wait() == 0
    assert (tmp_path / f"{FILE}-wal").stat().st_size
    await answer(store, said(id="3"), "three")
    assert len(await store.transcripts.newest("", ANN, 10)) == 3


async def test_a_backup_that_cannot_be_written_says_so(store: SqlStore, tmp_path: Path) -> None:
    """It is a plain StoreUnavailable and touches nothing that was there."""
    (tmp_path / "file").write_text("mine")
    with pytest.raises(StoreUnavailable, match="could not be written"):
        await store.backup(tmp_path / "file" / "backup.db")
    assert (tmp_path / "file").read_text() == "mine"


async def test_a_damaged_file_is_refused_with_a_line_that_helps(tmp_path: Path) -> None:
    """Nothing is overwritten, whether a page or the head is broken."""
    store = await open_file(tmp_path / FILE, StoreLimits())
    for n in range(50):
        await answer(store, said("x" * 1_000, id=str(n)), "y")
    await store.close()
    path = tmp_path / FILE
    whole = path.read_bytes()
    middle = len(whole) // 2
    for damaged in (whole[: middle - 3_000] + b"\xff" * 6_000 + whole[middle + 3_000 :], b"no database" * 100):
        path.write_bytes(damaged)
        with pytest.raises(StoreUnavailable, match="parlour restore"):
            await open_file(path, StoreLimits())
        assert path.read_bytes() == damaged
    path.write_bytes(whole)
    store = await open_file(path, StoreLimits())
    await store.close()


async def fill(path: Path, chats: int) -> None:
    """Write a journal of more than four megabytes, in which so many chats have an answer that was delivered."""
    store = await open_file(path, StoreLimits())
    for n in range(90):
        await accept(store, said("x" * 100_000, id=str(n), key=SessionKey("telegram", "long")))
    for n in range(chats):
        await answer(store, said(id="1", key=SessionKey("telegram", str(n))), "y")
    await store.close()
    with closing(sqlite3.connect(path)) as database, database:
        database.execute("UPDATE outbox SET open = NULL, ended_at = 1")


async def test_a_large_file_is_read_whole_after_a_kill_only(tmp_path: Path) -> None:
    """No start waits for it. Damage ends the gateway that finds it, and each later start until it is gone."""
    path = tmp_path / FILE
    await fill(path, chats=1)
    whole = path.read_bytes()
    middle = len(whole) // 2
    damaged = whole[: middle - 3_000] + b"\xff" * 6_000 + whole[middle + 3_000 :]
    path.write_bytes(damaged)
    store = await open_file(path, StoreLimits())  # was closed in order
    await store.verify()
    killed = shutil.copytree(tmp_path, tmp_path / "killed") / FILE
    await store.close()
    assert lost_journal(path) == ""

    store = await open_file(killed, StoreLimits())
    assert lost_journal(killed) == ""
    with pytest.raises(UserError, match="is damaged"):
        await store.verify()
    await store.close()
    assert lost_journal(killed) == damaged_line(killed)
    mended = killed.read_bytes()
    killed.write_bytes(mended[: middle - 3_000] + whole[middle - 3_000 : middle + 3_000] + mended[middle + 3_000 :])
    assert lost_journal(killed) == ""
    store = await open_file(killed, StoreLimits())
    await store.close()
    assert lost_journal(killed) == ""


async def test_damage_that_a_start_meets_in_a_large_file_has_the_line_that_helps(tmp_path: Path) -> None:
    """A start that fails reads the whole file for the reason."""
    path = tmp_path / FILE
    await fill(path, chats=1)
    whole = path.read_bytes()
    damaged = whole[:4_096] + b"\xff" * (len(whole) - 4_096)
    path.write_bytes(damaged)
    with pytest.raises(StoreUnavailable, match=r"is damaged.*`parlour restore"):
        await open_file(path, StoreLimits())


async def test_a_check_of_a_whole_file_ends_with_the_gateway(tmp_path: Path) -> None:
    """A whole file passes it; one that is cancelled stops reading, and the file can be closed."""
    path = tmp_path / FILE
    await fill(path, chats=1)
    assert await find_file_damage(path) == ""
    store = await open_file(path, StoreLimits())
    reading = asyncio.create_task(find_file_damage(path))
    await asyncio.sleep(0)
    reading.cancel()
    with pytest.raises(asyncio.CancelledError):
        await reading
    await store.close()


async def test_a_start_costs_the_same_with_many_chats(tmp_path: Path) -> None:
    """It reads no message that has ended: a chat more costs a look at its lane, as a check of the file does not."""
    steps: list[int] = []

    def count_steps(path: Path) -> SqliteConnection:
        connection = schema.connect(path)
        connection.set_progress_handler(count, 1)
        return connection

    def count() -> None:
        steps[-1] += 1

    for chats in (100, 300):
        path = tmp_path / str(chats) / FILE
        await fill(path, chats)
        steps.append(0)
        store = await open_file(path, StoreLimits(), connect=count_steps)
        await store.close()
    assert steps[1] - steps[0] < 200 * 20


async def test_no_word_of_a_message_stays_in_the_inbox_after_a_week(tmp_path: Path) -> None:
    """Neither what was said nor the command that it is."""
    wall = WallClock()
    store = await open_file(tmp_path / FILE, StoreLimits(), clock=wall.now)
    await answer(store, said("/remember a secret", command="/remember a secret", kind=InboundKind.COMMAND), "done")
    store.records.mark_written([record.seq for record in await store.records.unwritten(0, 10)])
    wall.advance(days=8)
    await store.prune()
    await store.close()
    with closing(sqlite3.connect(tmp_path / FILE)) as database:
        (payload,) = database.execute("SELECT payload FROM inbox").fetchone()
    assert "secret" not in payload


async def test_newer_data_is_refused_untouched(tmp_path: Path) -> None:
    """The line names the way back."""
    store = await open_file(tmp_path / FILE, StoreLimits())
    await store.close()
    database = sqlite3.connect(tmp_path / FILE)
    database.execute("PRAGMA user_version = 99")
    database.close()
    before = (tmp_path / FILE).read_bytes()
    with pytest.raises(SchemaTooNew, match=r"schema 99.*parlour restore"):
        await open_file(tmp_path / FILE, StoreLimits())
    assert (tmp_path / FILE).read_bytes() == before


@pytest.mark.parametrize("version", [0, OLDEST])
def test_a_file_has_no_index_that_only_pruning_would_read(version: int, tmp_path: Path) -> None:
    """A new file is without them, and one of before loses them: each would cost every message a page."""
    path = tmp_path / FILE
    with closing(schema.connect(path)) as database:
        if version:
            create_file(database, version)
        schema.prepare(database, path)
        names = {name for (name,) in database.execute("SELECT name FROM sqlite_master WHERE type = 'index'")}
    assert not names & {"inbox_ended", "outbox_ended", "dedupe_seq"}
    assert "inbox_open" in names


def test_a_file_that_is_too_old_is_refused_untouched(tmp_path: Path) -> None:
    """The line names the version that upgrades it."""
    path = tmp_path / FILE
    with closing(schema.connect(path)) as database:
        create_file(database)
        database.execute(f"PRAGMA user_version = {OLDEST - 1}")
        with pytest.raises(SchemaTooOld, match="start the home once with the version of commit b09faca5"):
            schema.prepare(database, path)
        assert database.execute("PRAGMA user_version").fetchone() == (OLDEST - 1,)


def test_a_migration_is_all_or_nothing(tmp_path: Path) -> None:
    """One that fails leaves the file at its version."""
    path = tmp_path / FILE
    database = schema.connect(path)
    schema.prepare(database, path)

    def broken(connection: Database) -> None:
        connection.execute("CREATE TABLE half (x)")
        raise RuntimeError("broken migration")

    with pytest.raises(RuntimeError):
        schema.prepare(database, path, {**MIGRATIONS, VERSION + 1: broken})
    assert database.execute("PRAGMA user_version").fetchone() == (VERSION,)
    assert database.execute("SELECT count(*) FROM sqlite_master WHERE name = 'half'").fetchone() == (0,)
    schema.prepare(database, path, {**MIGRATIONS, VERSION + 1: lambda connection: None})
    assert database.execute("PRAGMA user_version").fetchone() == (VERSION + 1,)
    database.close()


async def test_another_engines_url_is_refused(tmp_path: Path) -> None:
    """And a secret in it is not repeated."""
    with pytest.raises(SettingsError) as caught:
        await open_store(tmp_path, "postgresql://ann:secret@host/db", StoreLimits())
    assert "secret" not in str(caught.value)
    assert not await asyncio.to_thread((tmp_path / FILE).exists)


async def test_an_unwritable_place_is_a_plain_line(tmp_path: Path) -> None:
    """A home that cannot be made is StoreUnavailable, not a traceback of SQLite's."""
    (tmp_path / "file").write_text("")
    with pytest.raises(StoreUnavailable, match="cannot be opened"):
        await open_store(tmp_path / "file" / "home", "", StoreLimits())


async def test_old_dead_letters_are_forgotten_after_ninety_days(tmp_path: Path) -> None:
    """The operator has a quarter of a year to look at them."""
    time = [START]
    store = await open_file(tmp_path / FILE, StoreLimits(), clock=lambda: time[0])
    await answer(store, said(), "one")
    delivery = await next_delivery(store)
    (part,) = parts_of(delivery.message, 1)
    await store.outbox.freeze(delivery.message, [part])
    await store.outbox.dead_letter(part, "blocked")
    for days, left in ((89, 1), (91, 0)):
        time[0] = START + timedelta(days=days)
        await store.prune()
        assert (await store.journal.depth())["dead"] == left
    await store.close()


async def test_what_was_taken_back_leaves_the_rows_at_once(store: SqlStore, tmp_path: Path) -> None:
    """The text of a deleted message is in no inbox row any more, whether it waited or was answered."""
    await answer(store, said("answered secret", id="1"), "hello")
    await accept(store, said("waiting secret", id="2"))
    for number in ("1", "2"):
        await accept(store, said("", id=number, kind=InboundKind.DELETION))
    await store.backup(tmp_path / "copy.db")
    with closing(sqlite3.connect(tmp_path / "copy.db")) as copy:
        rows = [payload for (payload,) in copy.execute("SELECT payload FROM inbox ORDER BY seq")]
    assert len(rows) == 3
    assert not [payload for payload in rows if "secret" in payload]
