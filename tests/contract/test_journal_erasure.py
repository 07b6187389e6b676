"""The Erasing port: words leave every kind of row and the pages behind them; keys, states and other people stay."""

from __future__ import annotations

import random
import sqlite3
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from gateway.events import AnswerSource, ChatKind, InboundMessage, OutboundMessage, Role, Sender, SessionKey
from gateway.ports.journal import Job, MessageOutcome, TurnCommit, TurnRecord, UsageRow
from gateway.ports.memory import ErasureFilter
from gateway.store.engine import StoreLimits
from gateway.store.sql_store import SqlStore
from gateway.store.sqlite import connection as sqlite_connection
from gateway.store.sqlite import open_store, schema
from gateway.store.sqlite.connection import CHECKPOINT, SqliteConnection, logged_pages
from tests.fakes.earlier_tables import create_file

ROOM = SessionKey("pocket", "room")
NOW = datetime(2026, 11, 22, 5, 0, tzinfo=UTC)
WORD = "zeppelin"


def without(value: Any) -> Any:
    """Take the word out of any JSON value."""
    if isinstance(value, str):
        return value.replace(WORD, "")
    if isinstance(value, list | tuple):
        return [without(each) for each in value]
    return {name: without(each) for name, each in value.items()} if isinstance(value, dict) else value


async def say(store: SqlStore, text: str, sender: str, n: int) -> None:
    """Have *sender* say something in the room."""
    message = InboundMessage(
        key=ROOM,
        message_id=f"{n:04d}",
        sender=Sender(id=sender, name=sender.title()),
        text=text,
        sent_at=datetime.now(UTC),
        chat_kind=ChatKind.GROUP,
    )
    await store.journal.accept(message, role=Role.MEMBER, is_control=False)


async def answered(store: SqlStore, text: str, sender: str, n: int) -> TurnRecord:
    """Have *sender* say something that is answered with the same words."""
    await say(store, text, sender, n)
    lease = await store.journal.claim(ROOM)
    assert lease is not None
    at = lease.session.next_index
    record = TurnRecord(
        turn=lease.turn,
        key=ROOM,
        transcript=lease.session.transcript,
        outcome=MessageOutcome.ANSWERED,
        lines=({"i": at, "turn": lease.turn, "role": "user", "content": text},),
        from_index=at,
        to_index=at + 1,
        inbox=tuple(row.seq for row in lease.rows),
        at=NOW,
        scope="chats/room",
    )
    job = Job(id=f"remember:{n}", kind="remember", scope="chats/room", payload={"fact": text}, due_at=NOW)
    sources = (AnswerSource("https://example.org/", text),)
    answer = OutboundMessage(id=f"{lease.turn}.1", key=ROOM, text=f"you said {text}", sources=sources)
    return await store.journal.commit(lease, TurnCommit(record=record, outbound=(answer,), jobs=(job,)))


def raw(home: Path) -> bytes:
    """Return every byte of the journal's files."""
    return b"".join(file.read_bytes() for file in sorted(home.glob("journal.db*")))


async def test_words_leave_rows_pages_and_log(tmp_path: Path) -> None:
    """Inbox, record, outbox, job and what deleted rows left: nothing of it is in any byte after the scrub."""
    store = await open_store(tmp_path, "", StoreLimits())
    try:
        record = await answered(store, f"my {WORD} leaks", "ann", 1)
        await say(store, f"and the {WORD} again", "ann", 2)
        [stored] = await store.records.unwritten(0, 10)
        assert WORD in stored.body.decode()
        gone = Job(id="gone", kind="x", scope="chats/room", payload={"fact": f"{WORD} " * 500}, due_at=NOW)
        await store.jobs.put(gone)
        await store.jobs.finish(gone)
        assert WORD.encode() in raw(tmp_path)
        reach = ErasureFilter(keys=frozenset({ROOM}), scope="chats/room")
        assert await store.erasing.redact(reach, without) >= 4
        assert await store.erasing.redact(reach, without) == 0
        assert await store.erasing.scrub()
        assert WORD.encode() not in raw(tmp_path)
        waiting = await store.journal.waiting_rows(ROOM)
        assert [row.message.text for row in waiting] == ["and the  again"]
        assert await store.journal.trace(record.turn) is not None
    finally:
        await store.close()


async def test_a_member_reaches_their_own_turns_alone(tmp_path: Path) -> None:
    """Bob's message, his answer and his job stay when Ann takes hers back; what came after *upto* stays too."""
    store = await open_store(tmp_path, "", StoreLimits())
    try:
        await answered(store, f"ann's {WORD}", "ann", 1)
        await answered(store, f"bob's {WORD}", "bob", 2)
        await say(store, f"ann's later {WORD}", "ann", 3)
        await store.erasing.redact(ErasureFilter(keys=frozenset({ROOM}), sender="ann", upto=2), without)
        with sqlite3.connect(tmp_path / "journal.db") as look:
            inbox = [payload for (payload,) in look.execute("SELECT payload FROM inbox ORDER BY seq")]
            outbox = [payload for (payload,) in look.execute("SELECT payload FROM outbox ORDER BY seq")]
        assert [WORD in each for each in inbox] == [False, True, True]
        assert [WORD in each for each in outbox] == [False, True]
    finally:
        await store.close()


async def test_who_is_forgotten_is_in_no_sum_of_theirs_and_the_house_adds_up(tmp_path: Path) -> None:
    """Usage loses the person and keeps the tokens; a session goes only when nothing is going on in it."""
    store = await open_store(tmp_path, "", StoreLimits())
    try:
        await answered(store, "hello", "ann", 1)
        row = UsageRow(
            turn="t1", person="pocket%3aann", chat=str(ROOM), purpose="answer", model="m", tokens_in=3, tokens_out=4,
            tokens_cached=0, cost=0.0, at=NOW,
        )  # fmt: skip
        store.journal.spend(row)
        await store.erasing.unlink(person="pocket%3aann", keys=[ROOM])
        since = NOW - timedelta(days=1)
        assert not await store.usage.totals(since=since, person="pocket%3aann")
        [total] = await store.usage.totals(since=since)
        assert total["tokens_in"] == 3
        assert not await store.erasing.drop_sessions([ROOM])  # its record is in no file yet
        store.records.mark_written([each.seq for each in await store.records.unwritten(0, 10)])
        await say(store, "more", "ann", 2)
        assert not await store.erasing.drop_sessions([ROOM])  # somebody waits
        await store.journal.drop(ROOM)
        assert await store.erasing.drop_sessions([ROOM]) == {ROOM}
        await store.erasing.anonymise(sender="ann", keys=[ROOM])
        with sqlite3.connect(tmp_path / "journal.db") as look:
            assert not look.execute("SELECT 1 FROM inbox WHERE payload LIKE '%Ann%' OR sender != ''").fetchall()
    finally:
        await store.close()


async def test_a_reader_puts_the_scrub_off(tmp_path: Path) -> None:
    """While a backup reads, nobody waits for it: the scrub says no, and does it when asked again."""
    store = await open_store(tmp_path, "", StoreLimits())
    try:
        await answered(store, WORD, "ann", 1)
        reader = sqlite3.connect(tmp_path / "journal.db", isolation_level=None)
        reader.execute("BEGIN")
        reader.execute("SELECT count(*) FROM inbox").fetchone()
        await say(store, "meanwhile", "bob", 2)
        assert not await store.erasing.scrub()
        reader.close()
        assert await store.erasing.scrub()
        assert len(await store.journal.waiting_rows(ROOM)) == 1
    finally:
        await store.close()


def crowd(connection: SqliteConnection, seed: int, turns: int) -> None:
    """Store and remove rows with words so often that pages are split, joined and used again."""
    chance = random.Random(seed)  # noqa: S311 - no secret
    for n in range(turns):
        text = f"my {WORD} leaks " * chance.randrange(1, 60)
        connection.execute("BEGIN")
        connection.execute("INSERT INTO record VALUES (NULL, ?, ?)", (f"k{chance.randrange(100)}", text))
        connection.execute("INSERT INTO step VALUES (?, ?)", (f"t{chance.randrange(10**9)}", text[: 30 * 14]))
        note = (f"s{chance.randrange(300)}", f"a {WORD} " * chance.randrange(1, 10))
        connection.execute("INSERT OR REPLACE INTO note VALUES (?, ?)", note)
        if not n % 3:
            connection.execute("DELETE FROM step WHERE turn IN (SELECT turn FROM step LIMIT 2)")
        connection.execute("COMMIT")


def crowded(path: Path, seed: int, turns: int) -> SqliteConnection:
    """Return the writer's connection to a file from whose rows the words are gone, and not from its bytes."""
    connection = schema.connect(path)
    connection.execute("PRAGMA cache_size = -64000")  # every page stays in memory
    connection.execute("CREATE TABLE record (seq INTEGER PRIMARY KEY, key TEXT, body TEXT)")
    connection.execute("CREATE INDEX record_key ON record (key, seq)")
    connection.execute("CREATE TABLE step (turn TEXT PRIMARY KEY, body TEXT) WITHOUT ROWID")
    connection.execute("CREATE TABLE note (scope TEXT PRIMARY KEY, body TEXT) WITHOUT ROWID")
    crowd(connection, seed, turns)
    connection.execute("UPDATE record SET body = replace(body, ?, 'boat')", (WORD,))
    connection.execute("DELETE FROM step")
    connection.execute("UPDATE note SET body = replace(body, ?, 'boat')", (WORD,))
    return connection


@pytest.mark.parametrize("seed", range(3))
def test_copies_of_rows_that_have_moved_are_cleared(tmp_path: Path, seed: int) -> None:
    """`secure_delete` leaves them; after a scrub there are none, what is written then brings none, and rows stay."""
    path = tmp_path / "journal.db"
    connection = crowded(path, seed, 3_000)
    connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()
    assert WORD.encode() in raw(tmp_path)
    rows = connection.execute("SELECT * FROM record").fetchall(), connection.execute("SELECT * FROM note").fetchall()
    for part in connection.scrub_parts():
        connection.execute("UPDATE record SET body = body || '!' WHERE seq = (SELECT max(seq) FROM record)")
        assert connection.scrub(part)
    assert WORD.encode() not in raw(tmp_path)
    connection.execute("UPDATE record SET body = body || '!'")
    connection.execute("UPDATE note SET body = body || '!'")
    connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()
    assert WORD.encode() not in raw(tmp_path)
    assert connection.execute("PRAGMA integrity_check").fetchall() == [("ok",)]
    left = connection.execute("SELECT seq, key, rtrim(body, '!') FROM record").fetchall()
    assert (left, connection.execute("SELECT scope, rtrim(body, '!') FROM note").fetchall()) == rows
    assert connection.execute("PRAGMA wal_autocheckpoint").fetchone() == (CHECKPOINT,)
    connection.close()


def test_what_moves_beside_a_scrub_is_cleared(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Many rows are written between two pieces, so that pages change their places in the file."""
    monkeypatch.setattr(sqlite_connection, "_AT_ONCE", 64 * 1024)
    connection, chance = crowded(tmp_path / "journal.db", 7, 3_000), random.Random(7)  # noqa: S311 - no secret
    parts = connection.scrub_parts()
    assert len(parts) > 20
    for n, part in enumerate(parts):
        assert connection.scrub(part)
        for extra in range(10):  # each splits a page into one that was free, often before it
            scope = f"s{chance.randrange(300)}-{n}-{extra}"
            connection.execute("INSERT INTO note VALUES (?, ?)", (scope, "a boat " * chance.randrange(10, 60)))
    connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()
    assert WORD.encode() not in raw(tmp_path)
    assert connection.execute("PRAGMA integrity_check").fetchall() == [("ok",)]
    connection.close()


def test_pages_that_were_written_behind_a_piece_are_cleared_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A page of a piece that is done may have got bytes of a later one: the log tells which were written since."""
    monkeypatch.setattr(sqlite_connection, "_AT_ONCE", 64 * 1024)
    connection = crowded(tmp_path / "journal.db", 7, 600)
    first, *_, last = connection.scrub_parts()[:-1]
    assert connection.scrub(first)
    connection.execute("UPDATE note SET body = 'a boat' WHERE scope IN (SELECT scope FROM note LIMIT 40)")
    written = logged_pages((tmp_path / "journal.db-wal").read_bytes())
    cleared: list[tuple[int, int]] = []
    monkeypatch.setattr(SqliteConnection, "_clear", lambda _, path, size, ranges: cleared.extend(ranges))
    assert connection.scrub(last)
    assert min(written) < 100 < int(last)
    assert cleared == [(int(last), 128), *((page, 1) for page in sorted(written))]
    connection.close()


def test_a_file_of_an_earlier_version_is_rebuilt_once(tmp_path: Path) -> None:
    """SQLite may have been built so that it left what it deleted, on pages that are used again."""
    path = tmp_path / "journal.db"
    connection = schema.connect(path)
    create_file(connection)
    connection.execute("PRAGMA secure_delete = OFF")
    for n in range(200):
        connection.execute("INSERT INTO meta VALUES (?, ?)", (f"n{n}", f"a {WORD} " * 300))
    connection.execute("DELETE FROM meta")
    connection.close()
    assert WORD.encode() in raw(tmp_path)
    connection = schema.connect(path)
    schema.prepare(connection, path)
    connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()
    assert WORD.encode() not in raw(tmp_path)
    connection.close()
