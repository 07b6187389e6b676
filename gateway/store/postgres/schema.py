"""Opening a database, the lock of its one gateway, and its tables."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager, suppress
from dataclasses import asdict, dataclass
from datetime import datetime
from enum import StrEnum
from typing import Any, TypeVar

import psycopg
import structlog
from psycopg.conninfo import conninfo_to_dict

from gateway.errors import SchemaTooNew, SettingsError, StoreUnavailable, WorkerReplaced
from gateway.journal_file import OpenChoice
from gateway.ports.journal import SessionRow
from gateway.store import adoption, claims
from gateway.store.adoption import OpenWork
from gateway.store.claims import WorkerIdentity, WorkerStatus
from gateway.store.database import SET_META, Database, QueryResult
from gateway.store.migrations import ALONE, MIGRATIONS, Migration, drop_scope_files, require_known
from gateway.store.postgres.connection import PostgresConnection
from gateway.store.postgres.worker_locks import LOCK_HERE, describe_live, end_sessions, server_time, take_lock
from gateway.store.row_codec import moment, sql
from gateway.store.tables import SCHEMA, VERSION, run_script

log = structlog.get_logger(__name__)

T = TypeVar("T")

# Not those of partitions, which follow their table.
_COLUMNS_OF_WORDS = """
SELECT quote_ident(c.relname), quote_ident(a.attname),
    CASE a.atttypid WHEN 'text'::regtype THEN 'TEXT COLLATE "C"' ELSE 'BYTEA' END
FROM pg_attribute a JOIN pg_class c ON c.oid = a.attrelid
WHERE c.relnamespace = current_schema::regnamespace AND c.relkind IN ('r', 'p') AND NOT c.relispartition
    AND a.attnum > 0 AND NOT a.attisdropped AND a.atttypid IN ('text'::regtype, 'bytea'::regtype)
    AND coalesce(a.attstattarget, -1) <> 0
    AND (
        NOT EXISTS (SELECT 1 FROM pg_index i WHERE i.indrelid = c.oid AND a.attnum = ANY (i.indkey))
        OR (c.relname = 'stored_file' AND a.attname = 'name')
    )
ORDER BY c.relname, a.attnum
"""

OLDEST = 150_000  # server version
# Advisory locks, beside those of workers. The other half is the schema's hash.
_LOCK = int.from_bytes(b"Parl")  # shared by workers; a gateway of before they were listed has it for itself
_START = _LOCK + 1  # of the worker that starts
_READ_SECONDS = 5  # for a command that only looks
LOCK_SECONDS = 6.0  # a killed gateway's session ends within them, and a gateway that hangs has missed its heartbeats
RELOCK_SECONDS = 1.0  # callers wait while our own broken session ends
# Each can be set in the address. A server or network that vanishes is noticed within a minute.
_DEFAULTS = {
    "application_name": "parlour",
    "keepalives_idle": "30",
    "keepalives_interval": "10",
    "keepalives_count": "3",
    "tcp_user_timeout": "60000",
}
# A plan is kept for a session. One that was made while a table was small reads it whole, also when it has grown.
NO_SCANS = "SET enable_seqscan = off"
# A statement that must scan has a high cost then, and would be compiled: 9 ms to count one row.
NO_COMPILER = "SET jit = off"
# The server notices a vanished gateway as soon, and frees its lock; an idle session is kept.
_SESSION = (
    NO_SCANS,
    NO_COMPILER,
    "SET tcp_keepalives_idle = 30",
    "SET tcp_keepalives_interval = 10",
    "SET tcp_keepalives_count = 3",
    "SET idle_session_timeout = 0",
    "SET idle_in_transaction_session_timeout = '5s'",  # or a hanging gateway keeps its rows from all that take over
    "SET client_min_messages = warning",
)
_OLD_HOLDER = sql(
    "SELECT host(client_addr), to_char(backend_start AT TIME ZONE 'UTC', 'YYYY-MM-DD HH24:MI')",
    "FROM pg_locks JOIN pg_stat_activity USING (pid) WHERE mode = 'ExclusiveLock' AND",
    LOCK_HERE,
    "AND classid = ?::oid AND objid = (hashtext(current_schema())::bigint & 4294967295)::oid",
)
_END_START = "SELECT pg_advisory_unlock(?::int, hashtext(current_schema()))"
_RIGHTS = sql(
    "SELECT quote_ident(current_user), quote_ident(current_database()),",
    "coalesce(has_schema_privilege(current_schema(), 'CREATE'), false)",
)
MOVE = "move"  # the row of `meta`
_BAD_ADDRESS = (
    "store.url is no address that PostgreSQL's client understands; it is"
    " postgresql://USER:PASSWORD@HOST/DATABASE?PARAMETER=VALUE, with each character of the password that is neither a"
    " letter nor a digit written as %XX (%40 for @), and with libpq's parameters only"
)
# As servers with English messages word it; libpq gives no SQLSTATE for a connection that was refused.
_PERMANENT = re.compile(
    r"password authentication failed|no password supplied|(role|database|user) \S+ does not exist|no pg_hba\.conf entry"
    r"|certificate verify failed|root certificate file|does not support SSL|permission denied for database"
    r"|is not permitted to log in"
)
_POOL_TRIES = 5
_POOLER = (
    "store.url leads to a pooler in transaction mode (PgBouncer's default), which loses the session and its locks: name"
    " the server itself, or a pool with pool_mode = session"
)
_IDENTITY = "BIGINT GENERATED BY DEFAULT AS IDENTITY"
# The largest tables are rewritten in parts by a purge, each of which others wait for. Databases of before have one.
_PIECES = re.compile(r"\bCREATE TABLE ((?:scope|file)_piece) \(")
_PARTITIONS = 32
_TYPES = (
    (re.compile(r"\bseq INTEGER PRIMARY KEY\b"), f"seq {_IDENTITY} PRIMARY KEY"),
    (re.compile(r"\bCREATE TABLE usage \("), f"CREATE TABLE usage (rowid {_IDENTITY},"),
    (re.compile(r"\bINTEGER\b"), "BIGINT"),
    (re.compile(r"\bREAL\b"), "DOUBLE PRECISION"),
    (re.compile(r"\bBLOB\b"), "BYTEA"),
    (re.compile(r"\bTEXT\b"), 'TEXT COLLATE "C"'),
    (re.compile(r"\bWITHOUT ROWID\b"), ""),
)


def connect(
    url: str,
    worker: WorkerIdentity,
    *,
    wrap: Callable[[psycopg.Connection[Any]], PostgresConnection] = PostgresConnection,
    wait: float = 0.0,
    broken: int = 0,
) -> PostgresConnection:
    """Connect as the database's one gateway. Raises StoreUnavailable, SettingsError for an invalid address.

    Another gateway is waited for, *wait* seconds at most; one that hangs, without a heartbeat for `DEAD_AFTER`, loses
    its session. *broken* is the server's process of our session before, which the server may still have where the
    network failed: it is ended. `enlist` is to follow.
    """
    raw = open_session(url)
    connection = wrap(raw)
    try:
        require_session(raw, url)
        _require(raw, connection)
        for statement in _SESSION:
            connection.execute(statement)
        _lock(connection, worker, wait, broken)
    except psycopg.Error as error:
        connection.close()
        raise StoreUnavailable(fault_line(error)) from error
    except BaseException:
        connection.close()
        raise
    return connection


def open_session(url: str, *, connect_timeout: int = 10) -> psycopg.Connection[Any]:
    """Open a session in autocommit mode. No error repeats the address, which may hold a password.

    *connect_timeout* is in seconds; the address may say another.
    """
    try:
        parameters = conninfo_to_dict(url)
    except psycopg.ProgrammingError:
        raise SettingsError(_BAD_ADDRESS) from None
    if "@" in str(parameters.get("host", "")):  # the end of a password: an error of the resolver would show it
        raise SettingsError(_BAD_ADDRESS)
    try:
        defaults = _DEFAULTS | {"connect_timeout": str(connect_timeout)}
        return psycopg.connect("", autocommit=True, **{**defaults, **parameters})  # type: ignore[arg-type]
    except psycopg.Error as error:
        line = fault_line(error)
        # Where the server refuses the address itself, another start would meet the same.
        raise (SettingsError if _PERMANENT.search(line) else StoreUnavailable)(line) from None


def open_reader(url: str) -> psycopg.Connection[Any]:
    """Open a session for a command that only looks: no statement waits longer than a few seconds, also for a lock."""
    raw = open_session(url, connect_timeout=_READ_SECONDS)
    try:
        require_session(raw, url)
        raw.execute(f"SET statement_timeout = '{_READ_SECONDS}s'")
    except BaseException:
        raw.close()
        raise
    return raw


def describe(url: str) -> str:
    """Return a line about the database for an operator, without taking its lock. Raises as `connect` does."""
    try:
        with closing(open_reader(url)) as raw:
            connection = PostgresConnection(raw)
            _require(raw, connection)
            facts = connection.execute("SELECT current_setting('server_version'), current_database()")
            ((version, name),) = facts.fetchall()
            number = schema_version(connection)
            if number:
                require_active(connection)
            if number < VERSION:
                _require_rights(connection)
    except psycopg.Error as error:
        raise StoreUnavailable(fault_line(error)) from error
    if number > VERSION:
        raise SchemaTooNew(_newer_line(number))
    tables = f"its tables have schema {number}" if number else "it has no tables yet, which the first start makes"
    return f"the journal is in PostgreSQL {version}, database {name}; {tables}"


def read_database(url: str, read: Callable[[Database], T]) -> T | None:
    """Return the result of *read* on a database, which may be in use; None where tables are missing or older.

    Raises StoreUnavailable for one that cannot be used, SettingsError where the messages are elsewhere.
    """
    try:
        with closing(open_reader(url)) as raw:
            connection = PostgresConnection(raw)
            if not schema_version(connection):
                return None
            require_active(connection)
            connection.execute("BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY")
            return read(connection)
    except (psycopg.errors.UndefinedTable, psycopg.errors.UndefinedColumn):
        return None
    except psycopg.Error as error:
        raise StoreUnavailable(fault_line(error)) from error


def adopt_database(url: str, choice: OpenChoice, sessions: Iterable[SessionRow]) -> OpenWork:
    """Mark a database that no gateway uses as adopted (gateway/store/adoption.py). Raises StoreUnavailable."""
    with closing(connect(url, WorkerIdentity(), wait=LOCK_SECONDS)) as connection:
        try:
            connection.begin_batch()
            work = adoption.mark(connection, choice, sessions)
            if connection.execute("SELECT 1 WHERE to_regclass('scope_state') IS NOT NULL").fetchone():
                connection.execute("DELETE FROM scope_state")  # the files of the home are newer: a start stores them
            connection.end_batch()
        except psycopg.Error as error:
            raise StoreUnavailable(fault_line(error)) from error
    return work


def read_workers(url: str) -> tuple[tuple[WorkerStatus, ...], datetime]:
    """Return the listed workers and the server's time, without taking a lock. Raises as `connect` does."""
    try:
        with closing(open_reader(url)) as raw:
            connection = PostgresConnection(raw)
            is_listed = _lists_workers(connection)
            return claims.list_workers(connection) if is_listed else (), moment(server_time(connection))
    except psycopg.Error as error:
        raise StoreUnavailable(fault_line(error)) from error


def _lists_workers(database: Database) -> bool:
    """Return False for a database without our tables, or with those of before workers were listed."""
    return database.execute("SELECT to_regclass('worker')").fetchone()[0] is not None


def fault_line(error: Exception) -> str:
    """Return the line that says why the database cannot be used."""
    reason = " ".join(str(error).split()).removeprefix("connection failed: ")
    return f"the PostgreSQL database of store.url cannot be used: {reason}"


def require_session(raw: psycopg.Connection[Any], url: str) -> None:
    """Raise SettingsError if a pooler hands each transaction of *raw* to another session of the server.

    Session locks, heartbeats and prepared statements would go to sessions that others use, too.
    """
    own = _backend(raw)
    if own == raw.info.backend_pid:
        return  # the server itself has greeted us
    try:
        for _ in range(_POOL_TRIES):
            with closing(open_session(url)) as second:
                second.execute("BEGIN")
                # Our session is idle: a pooler in transaction mode has it free for the second one, or moves us.
                if _backend(second) == own or _backend(raw) != own:
                    raise SettingsError(_POOLER)
    except psycopg.Error as error:
        if "statement pooling" in str(error):  # refuses BEGIN
            raise SettingsError(_POOLER) from None
        raise


def _backend(raw: psycopg.Connection[Any]) -> int:
    found = raw.execute("SELECT pg_backend_pid()", prepare=False).fetchone()
    return int(found[0]) if found is not None else 0


def _require(raw: psycopg.Connection[Any], connection: Database) -> None:
    """Refuse a server that cannot keep the guarantees."""
    if raw.info.server_version < OLDEST:
        major = raw.info.server_version // 10_000
        raise SettingsError(f"PostgreSQL {OLDEST // 10_000} or newer is needed; the server of store.url is {major}")
    if (encoding := raw.info.parameter_status("server_encoding")) != "UTF8":
        raise SettingsError(f"the database of store.url has the encoding {encoding}; create it with UTF8")
    if raw.info.parameter_status("in_hot_standby") == "on":
        raise StoreUnavailable("the server of store.url is a standby, which cannot be written; name the primary")
    if raw.info.parameter_status("default_transaction_read_only") == "on":
        raise StoreUnavailable("sessions of store.url are read-only; set default_transaction_read_only to off for them")
    settings = "SELECT current_setting('synchronous_commit'), current_setting('fsync')"
    synchronous, fsync = connection.execute(settings).fetchone()
    if synchronous == "off":  # a confirmed message could be lost in a crash
        connection.execute("SET synchronous_commit = on")
    if fsync == "off":
        log.warning("store.fsync_off")


def _require_rights(connection: Database) -> None:
    """Refuse a role that cannot make or change the tables."""
    role, name, is_allowed = connection.execute(_RIGHTS).fetchone()
    if not is_allowed:
        raise SettingsError(
            f"the role {role} may not make tables in the database of store.url; make it the owner, with: ALTER DATABASE"
            f" {name} OWNER TO {role}"
        )


def _lock(connection: Database, worker: WorkerIdentity, wait: float, broken: int) -> None:
    """Take the locks that this session holds until it ends, and that of the start, which `enlist` gives back."""
    until = time.monotonic() + wait
    while holder := _other_gateway(connection, worker, broken):
        if time.monotonic() >= until:
            raise StoreUnavailable(
                f"another Parlour uses the database of store.url ({holder}): stop it, or give this one a database of"
                " its own"
            )
        time.sleep(0.1)  # on the writer's thread


def _other_gateway(connection: Database, worker: WorkerIdentity, broken: int) -> str:
    """Take the locks and return an empty string, or return a description of the gateway that has the database."""
    if not _take(connection, "pg_try_advisory_lock_shared(?::int, hashtext(current_schema()))", _LOCK):
        address, since = connection.execute(_OLD_HOLDER, (_LOCK,)).fetchone() or ("", "?")
        return f"from {address or 'this machine'}, since {since} UTC"
    if not _take(connection, "pg_try_advisory_lock(?::int, hashtext(current_schema()))", _START):
        return "it is starting"
    holder = ""
    if _lists_workers(connection):
        end_sessions(connection, worker.name, broken)
        holder = describe_live(connection, worker.name, shares=worker.shares)
    if not holder and take_lock(connection, worker.name):
        return ""
    connection.execute(_END_START, (_START,))
    return holder or "it takes over from this process"


def _take(connection: Database, lock: str, key: int) -> bool:
    return bool(connection.execute(sql("SELECT", lock), (key,)).fetchone()[0])


def enlist(connection: PostgresConnection, worker: WorkerIdentity, *, is_new: bool) -> None:
    """List the worker, and let its session write for it. Raises StoreUnavailable, WorkerReplaced.

    A worker that shares the database is listed once: others have taken its chats when it *is_new* no more and is not
    listed, and what it still does must end with its process.
    """
    try:
        listed = claims.beat(connection, worker.name, server_time(connection))
        if not listed and worker.shares and not is_new:
            raise WorkerReplaced("other gateways have taken over the work of this one")
        claims.enlist(connection, worker, server_time(connection))
        connection.execute(_END_START, (_START,))
    except psycopg.Error as error:
        raise StoreUnavailable(fault_line(error)) from error
    connection.worker = worker.name


class SchemaDatabase:
    """The migrations' database: they are written in SQLite's types, once for all engines."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def execute(self, statement: str, parameters: Sequence[Any] = (), /) -> QueryResult:
        """Run one statement, with PostgreSQL's types."""
        for pattern, replacement in _TYPES:
            statement = pattern.sub(replacement, statement)
        if found := _PIECES.search(statement):
            result = self._database.execute(f"{statement.rstrip()} PARTITION BY HASH (scope)", parameters)
            for n in range(_PARTITIONS):
                bounds = f"FOR VALUES WITH (MODULUS {_PARTITIONS}, REMAINDER {n})"
                self._database.execute(f"CREATE TABLE {found[1]}_{n} PARTITION OF {found[1]} {bounds}")
            return result
        return self._database.execute(statement, parameters)

    def executemany(self, statement: str, parameters: Iterable[Sequence[Any]], /) -> QueryResult:
        """Run a statement once for each of *parameters*."""
        return self._database.executemany(statement, parameters)


def schema_version(database: Database) -> int:
    """Return the schema's number; 0 for a database without our tables."""
    if database.execute("SELECT to_regclass('schema_version')").fetchone()[0] is None:
        return 0
    return int(database.execute("SELECT number FROM schema_version").fetchone()[0])


def prepare(connection: PostgresConnection, migrations: Mapping[int, Migration] = MIGRATIONS) -> None:
    """Bring the tables to this version.

    Raises SchemaTooNew for a newer one, StoreUnavailable when refused, SettingsError for a role without the right,
    SchemaTooOld for one from before 0.2.0.
    """
    newest = max(migrations)
    try:
        before = schema_version(connection)
        if before > newest:
            raise SchemaTooNew(_newer_line(before))
        require_known(before)
        if before == newest:
            return
        _require_rights(connection)
        if before and any(before < number for number in ALONE):
            _require_others_stopped(connection)
        if not before:
            with _change(connection, VERSION):
                run_script(SchemaDatabase(connection), SCHEMA)
                connection.execute("CREATE TABLE schema_version (number INTEGER NOT NULL)")
                connection.execute("INSERT INTO schema_version VALUES (0)")
        for number in range((before or VERSION) + 1, newest + 1):
            with _change(connection, number):
                if migrations[number] is not drop_scope_files:  # a start does, behind the take-over of their rows
                    migrations[number](SchemaDatabase(connection))
        _leave_out_of_statistics(connection)
    except psycopg.Error as error:
        raise StoreUnavailable(fault_line(error)) from error
    if before:
        log.info("store.migrated", before=before, now=newest)


@contextmanager
def _change(connection: PostgresConnection, number: int) -> Iterator[None]:
    """Change the tables and the number of their schema, or nothing."""
    connection.begin_batch()
    try:
        yield
        connection.execute("UPDATE schema_version SET number = ?", (number,))
        connection.end_batch()
    except BaseException:
        with suppress(psycopg.Error):
            connection.roll_back()
        raise


class MoveState(StrEnum):
    """The progress of `parlour store migrate` with a database."""

    COPIED = "copied"  # a copy of a journal file, which may still be in use
    ACTIVE = "active"  # moved here
    LEFT = "left"  # moved away, into a journal file


@dataclass(frozen=True, slots=True, kw_only=True)
class DatabaseMove:
    """The last move to or from a database: a row of its `meta`, which is never copied."""

    id: str  # random; a JournalMove has the same one
    state: MoveState
    file: str  # the journal's path
    at: str  # ISO 8601, UTC

    @property
    def is_active(self) -> bool:
        """Return True if the database has the messages."""
        return self.state is MoveState.ACTIVE


def read_move(database: Database) -> DatabaseMove | None:
    """Return the last move to or from a database whose tables are there; None without one."""
    found = database.execute("SELECT value FROM meta WHERE name = ?", (MOVE,)).fetchone()
    if found is None:
        return None
    fields = json.loads(found[0])
    return DatabaseMove(id=fields["id"], state=MoveState(fields["state"]), file=fields["file"], at=fields["at"])


def write_move(database: Database, move: DatabaseMove) -> None:
    """Note a move to or from the database, in the transaction that is open."""
    database.execute(SET_META, (MOVE, json.dumps(asdict(move))))


def save_move(connection: PostgresConnection, move: DatabaseMove) -> None:
    """Note a move durably. Raises StoreUnavailable."""
    try:
        connection.begin_batch()
        write_move(connection, move)
        connection.end_batch()
    except psycopg.Error as error:
        raise StoreUnavailable(f"{fault_line(error)}; run the command again") from error


def require_active(database: Database) -> None:
    """Raise SettingsError when the messages are in a journal file and not in this database."""
    move = read_move(database)
    if move is None or move.is_active:
        return
    if move.state is MoveState.LEFT:
        raise SettingsError(
            f"the messages of the database of store.url were moved to {move.file} on {_minute(move)} UTC: leave"
            " store.url empty; if that was interrupted, run `parlour store migrate sqlite` again"
        )
    raise SettingsError(
        f"moving {move.file} to the database of store.url was interrupted on {_minute(move)} UTC: run `parlour store"
        " migrate postgresql` again, or leave store.url empty to go on with the file"
    )


def _minute(move: DatabaseMove) -> str:
    return move.at[:16].replace("T", " ")


def _require_others_stopped(connection: Database) -> None:
    """Refuse to change what a gateway of the version before, which still runs, would fail at."""
    if _lists_workers(connection) and (holder := describe_live(connection, "", shares=False)):
        raise StoreUnavailable(
            "this version keeps conversations in other tables, which the gateways that run cannot use: stop every other"
            f" gateway of this database first (one runs {holder})"
        )


def _newer_line(version: int) -> str:
    return (
        f"a newer Parlour wrote the database of store.url (schema {version}, this one knows {VERSION})."
        " Install the newer version again, or restore a dump of before the upgrade into another database"
    )


def _leave_out_of_statistics(connection: PostgresConnection) -> None:
    """Have ANALYZE keep no values of columns with words of people: its table is not ours to clean after an erasure.

    These are all columns of text and bytes that no index has, and names of files. Giving a column its own type again
    removes what was kept of it, without writing the table.
    """
    connection.begin_batch()
    try:
        for table, column, type_ in connection.execute(_COLUMNS_OF_WORDS).fetchall():
            connection.execute(
                f"ALTER TABLE {table} ALTER COLUMN {column} TYPE {type_}, ALTER COLUMN {column} SET STATISTICS 0"
            )
        connection.end_batch()
    except BaseException:
        with suppress(psycopg.Error):
            connection.roll_back()
        raise
