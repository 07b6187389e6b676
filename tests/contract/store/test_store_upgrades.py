"""Rolling upgrades: gateways of one version go on while the next one changes the tables; doctor names a mix."""

from __future__ import annotations

import re
import sqlite3
from collections.abc import Mapping, Sequence
from contextlib import closing
from datetime import timedelta
from typing import Any

import pytest

from gateway.errors import SchemaTooNew, StoreUnavailable
from gateway.events import SessionKey
from gateway.health.network_checks import server_findings
from gateway.store.database import Database
from gateway.store.engine import StoreLimits
from gateway.store.file_copies import drop_tables
from gateway.store.migrations import ALONE, MIGRATIONS, Migration
from gateway.store.postgres import open_database, schema
from gateway.store.postgres.connection import PostgresConnection
from gateway.store.postgres.sessions import read_server_facts
from gateway.store.row_codec import write_json
from gateway.store.sql_store import SqlStore
from gateway.store.sqlite import schema as sqlite_schema
from gateway.store.tables import VERSION
from gateway.text.json_lines import decode_lines
from tests.fakes.earlier_tables import create_database, create_file, create_tables
from tests.fakes.postgres_server import PostgresServer
from tests.fakes.turns import ANN, BOB, START, accept, answered, claim, said

_EXPANDS = re.compile(
    r"CREATE (TABLE|INDEX) |ALTER TABLE \w+ ADD COLUMN (?!.*\bNOT NULL\b(?!.*\bDEFAULT\b))|INSERT INTO |SELECT "
)


class RecordingDatabase:
    """Runs statements, and keeps them."""

    def __init__(self, database: sqlite3.Connection) -> None:
        self._database = database
        self.statements: list[str] = []

    def execute(self, statement: str, parameters: Sequence[Any] = (), /) -> sqlite3.Cursor:
        """Run one statement."""
        self.statements.append(statement)
        return self._database.execute(statement, parameters)

    def executemany(self, statement: str, parameters: Any, /) -> sqlite3.Cursor:
        """Run a statement several times."""
        self.statements.append(statement)
        return self._database.executemany(statement, parameters)


def contractions(statements: Sequence[str]) -> list[str]:
    """Return the statements that a gateway of the version before may not live with."""
    bare = [" ".join(re.sub(r"--[^\n]*", "", each).split()) for each in statements]
    return [each for each in bare if each and not _EXPANDS.match(each)]


def statements_of_each() -> dict[int, list[str]]:
    """Return the statements of each migration."""
    found = {}
    with closing(sqlite3.connect(":memory:", isolation_level=None)) as raw:
        create_tables(raw)
        for number, migration in MIGRATIONS.items():
            recorded = RecordingDatabase(raw)
            migration(recorded)
            found[number] = recorded.statements
    return found


def test_migrations_only_add() -> None:
    """A table, an index, a column with a default. Those that take something away are listed."""
    assert {number for number, each in statements_of_each().items() if contractions(each)} <= ALONE


def _tables_of_file(connection: sqlite3.Connection) -> set[tuple[object, ...]]:
    found: set[tuple[object, ...]] = set()
    for kind, name, text in connection.execute("SELECT type, name, sql FROM sqlite_master").fetchall():
        found.add((kind, name, "WITHOUT ROWID" in (text or "")))
        if kind == "table":
            found |= {(name, *row[1:]) for row in connection.execute(f"PRAGMA table_info({name})")}
            found |= {(name, *row[1:]) for row in connection.execute(f"PRAGMA index_list({name})")}
        else:
            found |= {(name, *row) for row in connection.execute(f"PRAGMA index_xinfo({name})")}
    return found


def test_an_upgraded_file_has_the_tables_of_a_new_one() -> None:
    """Columns in their order, types, defaults, keys and indices are written twice, and are the same."""
    with (
        closing(sqlite3.connect(":memory:", isolation_level=None)) as old,
        closing(sqlite3.connect(":memory:", isolation_level=None)) as new,
    ):
        create_file(old)
        sqlite_schema.prepare(old, None)
        sqlite_schema.prepare(new, None)
        assert _tables_of_file(old) == _tables_of_file(new)


_NOTE = "INSERT INTO note (channel, name, value) VALUES ('telegram', 'reaction/42/7', '[]')"
_NOTES = "SELECT channel, name, value FROM note ORDER BY name"


def test_notes_of_reactions_become_the_first_row_that_may_have_one(postgres: PostgresServer) -> None:
    """With no message open it is 0: each reaction of the last days is looked at once."""
    first_row = [("telegram", "first_row/", "0")]
    with closing(sqlite3.connect(":memory:", isolation_level=None)) as old:
        create_file(old)
        old.execute(_NOTE)
        sqlite_schema.prepare(old, None)
        assert old.execute(_NOTES).fetchall() == first_row
    postgres.query("DROP SCHEMA public CASCADE")
    postgres.query("CREATE SCHEMA public")
    with closing(PostgresConnection(schema.open_session(postgres.url))) as database:
        create_database(database)
        postgres.query(_NOTE)
        schema.prepare(database)
    assert postgres.query(_NOTES) == first_row


_FACTS = (
    "SELECT table_name, column_name, ordinal_position, data_type, collation_name, column_default, is_nullable,"
    " is_identity FROM information_schema.columns WHERE table_schema = current_schema()",
    "SELECT tablename, indexname, indexdef FROM pg_indexes WHERE schemaname = current_schema()",
    "SELECT conrelid::regclass::text, contype, pg_get_constraintdef(oid) FROM pg_constraint WHERE connamespace ="
    " current_schema::regnamespace",
    "SELECT c.relname, c.relkind, c.relispartition, pg_get_expr(c.relpartbound, c.oid) FROM pg_class c"
    " WHERE c.relnamespace = current_schema::regnamespace",
    "SELECT attrelid::regclass::text, attname, attstattarget FROM pg_attribute a JOIN pg_class c ON c.oid = a.attrelid"
    " WHERE c.relnamespace = current_schema::regnamespace AND a.attnum > 0 AND NOT a.attisdropped",
)


def test_an_upgraded_database_has_the_tables_of_a_new_one(postgres: PostgresServer) -> None:
    """Columns, types, keys, indices, partitions and what statistics leave out are the same."""
    found = []
    for is_old in (True, False):
        postgres.query("DROP SCHEMA public CASCADE")
        postgres.query("CREATE SCHEMA public")
        with closing(PostgresConnection(schema.open_session(postgres.url))) as database:
            if is_old:
                create_database(database)
            schema.prepare(database)
            database.begin_batch()
            drop_tables(database)
            database.end_batch()
        found.append([set(postgres.query(facts)) for facts in _FACTS])
    assert found[0] == found[1]


@pytest.mark.parametrize(
    "statement",
    [
        "DROP TABLE x",
        "ALTER TABLE x RENAME COLUMN a TO b",
        "ALTER TABLE x DROP COLUMN a",
        "ALTER TABLE x ADD COLUMN y TEXT NOT NULL",
        "CREATE UNIQUE INDEX i ON x (y)",
        "DELETE FROM x",
        "UPDATE x SET y = 1",
    ],
)
def test_what_takes_away_is_seen(statement: str) -> None:
    """Gateways of the version before would fail at it, or write what the next one cannot read."""
    assert contractions([statement]) == [statement]


def _expand(database: Database) -> None:
    """Be the next version's migration."""
    database.execute("ALTER TABLE inbox ADD COLUMN next_version TEXT NOT NULL DEFAULT ''")
    database.execute("ALTER TABLE claim ADD COLUMN next_version INTEGER NOT NULL DEFAULT 0")
    database.execute("CREATE TABLE next_version (name TEXT PRIMARY KEY) WITHOUT ROWID")


async def answer_next(store: SqlStore, key: SessionKey) -> None:
    """Accept a message, and answer it once its chat is ours."""
    await accept(store, said(key=key))
    async for each in store.journal.ready_sessions():
        if each == key:
            break
    lease = await claim(store, key)
    await store.journal.commit(lease, answered(lease, "answer"))


async def test_a_running_gateway_lives_with_the_next_schema(postgres: PostgresServer) -> None:
    """It answers on; one of its version that starts now is told to install the newer one."""
    migrations: Mapping[int, Migration] = {**MIGRATIONS, VERSION + 1: _expand}
    postgres.empty()
    store = await open_database(postgres.url, StoreLimits(), clock=lambda: START, shares=True)
    try:
        await answer_next(store, ANN)
        with closing(PostgresConnection(schema.open_session(postgres.url))) as database:
            schema.prepare(database, migrations)
        await answer_next(store, BOB)
        with pytest.raises(SchemaTooNew, match="Install the newer version"):
            await open_database(postgres.url, StoreLimits(), shares=True)
    finally:
        await store.close()
        postgres.query("ALTER TABLE inbox DROP COLUMN next_version")
        postgres.query("ALTER TABLE claim DROP COLUMN next_version")
        postgres.query("DROP TABLE next_version")
        postgres.query(f"UPDATE schema_version SET number = {VERSION}")  # noqa: S608
    assert postgres.query("SELECT count(*) FROM record") == [(2,)]


async def test_a_change_that_others_cannot_live_with_waits_until_they_have_stopped(postgres: PostgresServer) -> None:
    """The line names one that runs, and nothing is changed; once it has stopped, the tables are."""
    postgres.empty()
    store = await open_database(postgres.url, StoreLimits(), shares=True)
    postgres.query(f"UPDATE schema_version SET number = {max(ALONE) - 1}")  # noqa: S608
    try:
        with (
            closing(PostgresConnection(schema.open_session(postgres.url))) as database,
            pytest.raises(StoreUnavailable, match="stop every other gateway of this database first"),
        ):
            schema.prepare(database)
    finally:
        postgres.query(f"UPDATE schema_version SET number = {VERSION}")  # noqa: S608
        await store.close()


def test_a_turn_that_was_in_no_file_yet_gets_the_line_that_ends_it() -> None:
    """The version before added it while it wrote the file; readers of files ignore a turn without one."""
    end = {"kind": "end", "turn": "t2", "from": 4, "to": 4, "inbox": [], "outcome": "merged"}
    with closing(sqlite3.connect(":memory:", isolation_level=None)) as database:
        create_tables(database, min(ALONE) - 1)
        for turn, lines in (("t1", [{"kind": "forgotten", "mid": "7"}]), ("t2", [{"kind": "pointer"}, end])):
            (seq,) = database.execute(
                "INSERT INTO record (turn, key, transcript, outcome, from_index, to_index, inbox, at, new_transcript, "
                "failure, supersedes, scope) VALUES (?, 'a:1', 'x', 'merged', 4, 4, '[3]', 0, '', '', '', '') "
                "RETURNING seq",
                (turn,),
            ).fetchone()
            database.execute("INSERT INTO body (seq, key, body) VALUES (?, 'a:1', ?)", (seq, write_json([lines])))
        MIGRATIONS[min(ALONE)](database)
        found = [tuple(decode_lines(body)) for (body,) in database.execute("SELECT body FROM record ORDER BY seq")]
    at = "1970-01-01T00:00:00Z"
    assert found[0][1:] == (
        {"kind": "end", "turn": "t1", "from": 4, "to": 4, "inbox": ["3"], "outcome": "merged", "at": at},
    )
    assert found[1] == ({"kind": "pointer"}, end)


async def test_facts_of_the_server_are_read_beside_its_gateways(postgres: PostgresServer) -> None:
    """Its sessions, its clock, and the versions that use it."""
    postgres.empty()
    store = await open_database(postgres.url, StoreLimits(), shares=True)
    try:
        facts = read_server_facts(postgres.url)
        assert 2 <= facts.sessions <= facts.session_limit
        assert abs(facts.clock_ahead) < timedelta(seconds=2)
        assert len(facts.worker_versions) == 1
        postgres.query("INSERT INTO worker VALUES ('w', 'host', 7, '0.0.1', 0, 0, 0)")
        assert facts.worker_versions[0] in read_server_facts(postgres.url).worker_versions
        assert "0.0.1" in read_server_facts(postgres.url).worker_versions
    finally:
        await store.close()


def test_doctor_warns_of_a_full_server_another_clock_and_a_mix() -> None:
    """Each is a finding of its own, and the ordinary is none."""
    assert list(server_findings(8, 10, timedelta(seconds=1), ("1",))) == []
    warned = list(server_findings(9, 10, timedelta(seconds=-5), ("1", "2")))
    assert [(each.id, each.level.name) for each in warned] == [
        ("store.connections", "WARN"), ("store.clock", "WARN"), ("store.versions", "WARN")
    ]  # fmt: skip
    assert "5 s behind" in warned[1].text
    (ahead,) = server_findings(1, 10, timedelta(seconds=5), ())
    assert "5 s ahead of" in ahead.text
