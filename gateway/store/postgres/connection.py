"""A connection to the database, as the writer uses it: the rules' SQL in PostgreSQL's spelling, and its faults.

Operations that touch different rows run side by side: each runs until it needs a result, then the statements of all
of them are sent in one exchange, in libpq's pipeline mode (ADR 119). An operation is an ordinary function, which calls
`execute` and uses the result. It is suspended when it asks for the result, because it runs in a greenlet. A statement
whose result is not asked for is sent with the next.
"""

from __future__ import annotations

import re
import select
import time
from collections.abc import Callable, Collection, Hashable, Iterable, Iterator, Sequence
from contextlib import suppress
from functools import lru_cache, partial
from itertools import count, groupby, islice
from typing import Any, NamedTuple, TypeAlias

import psycopg
import structlog
from greenlet import getcurrent, greenlet
from psycopg.adapt import Loader, PyFormat, Transformer
from psycopg.errors import error_from_result
from psycopg.pq import ConnStatus, ExecStatus, TransactionStatus
from psycopg.pq.abc import PGconn, PGresult
from psycopg.raw_cursor import RawCursor
from psycopg.types.numeric import Int8Dumper
from psycopg.types.string import BytesBinaryDumper, StrDumper

from gateway.store.database import LISTED, LOCKED, BatchedOperation, CachedRows, Database, QueryResult, run_operation
from gateway.store.postgres.worker_locks import RUNNING, give_lock, take_dead
from gateway.store.row_codec import sql
from gateway.store.shared_caches import EDITIONS, parse_editions, write_edition

_AUTO = (PyFormat.AUTO,)
_PreparedKey: TypeAlias = tuple[bytes, tuple[int, ...]]  # a statement, and the types of its parameters


class StatementResult:
    """The result of a statement, which is waited for when it is asked for something.

    Of a statement with several rows of parameters, it has the rows of the last run, and what all of them have changed.
    """

    def __init__(self, pipeline: StatementPipeline, text: bytes, parameters: Sequence[Sequence[Any]]) -> None:
        self._pipeline = pipeline
        self.text = text
        self.parameters = parameters
        self._results: Sequence[PGresult] | None = None
        self._rows: Iterator[tuple[Any, ...]] = iter(())

    def fill(self, results: Sequence[PGresult], rows: Iterable[tuple[Any, ...]]) -> None:
        """Take over what the server has returned."""
        self._results, self._rows = results, iter(rows)

    def _wait(self) -> Sequence[PGresult]:
        if self._results is None:
            self._pipeline.wait()
        return self._results or ()

    @property
    def rowcount(self) -> int:
        """Return the number of changed rows, of a SELECT that of its rows."""
        return sum([each.command_tuples or 0 for each in self._wait()])

    @property
    def description(self) -> Sequence[tuple[str]]:
        """Return the names of the columns, each in a tuple."""
        last = self._wait()[-1]
        return [((last.fname(place) or b"").decode(),) for place in range(last.nfields)]

    def fetchone(self) -> tuple[Any, ...] | None:
        """Return the next row; None after the last."""
        self._wait()
        return next(self._rows, None)

    def fetchall(self) -> list[tuple[Any, ...]]:
        """Return the remaining rows."""
        self._wait()
        return list(self._rows)

    def __iter__(self) -> Iterator[tuple[Any, ...]]:
        self._wait()
        return self._rows

    def close(self) -> None:
        """Do nothing: the result is not waited for."""


class StatementPipeline:
    """Runs prepared statements on a session; nothing else may be running on it."""

    def __init__(self, session: psycopg.Connection[Any]) -> None:
        self._session = session
        self._transformer = Transformer.from_context(session)
        self._prepared: dict[_PreparedKey, bytes] = {}  # never dropped: the statements of the store are constants
        self._numbers = count()
        self._unsent: list[StatementResult] = []
        self._hub: greenlet | None = None  # resumes the calls that run side by side

    def execute(self, text: bytes, parameters: Sequence[Sequence[Any]]) -> StatementResult:
        """Have a statement run once for each of *parameters*: with the next one whose result is asked for."""
        result = StatementResult(self, text, parameters)
        self._unsent.append(result)
        return result

    def wait(self) -> None:
        """Return when every statement so far has its result; other calls of `run_side_by_side` go on in between.

        Raises the error of the first that failed.
        """
        if self._hub is None:
            self._exchange()
        else:
            self._hub.switch()

    def forget(self) -> None:
        """Forget what is not sent: the transaction is rolled back."""
        self._unsent = []

    def run_side_by_side(self, calls: Iterable[Callable[[], object]]) -> None:
        """Run *calls*, which touch different rows. Raises the first error; the other calls end where they are."""
        self._hub = getcurrent()
        running = [greenlet(call) for call in calls]
        try:
            while running:
                for each in running:
                    each.switch()
                running = [each for each in running if not each.dead]
                if running:
                    self._exchange()
        finally:
            self._hub = None
            for each in running:
                each.throw()  # nothing, if it has ended

    def _exchange(self) -> None:
        """Send all statements, then wait for their results."""
        connection, sent = self._session.pgconn, self._unsent
        self._unsent = []
        new: dict[_PreparedKey, bytes] = {}
        commands: list[Callable[[], None]] = []
        runs: list[int] = []  # places of the commands that are no preparation
        for text, row in ((each.text, row) for each in sent for row in each.parameters):
            values = self._transformer.dump_sequence(row, _AUTO * len(row))
            types = self._transformer.types or ()
            name = self._prepared.get((text, types)) or new.get((text, types))
            if name is None:
                name = new[text, types] = b"parlour%d" % next(self._numbers)
                commands.append(partial(connection.send_prepare, name, text, types))
            runs.append(len(commands))
            commands.append(partial(connection.send_query_prepared, name, values, self._transformer.formats))
        results = _run(connection, commands) if commands else []
        self._prepared |= new
        following = (results[place] for place in runs)
        for each in sent:
            own = list(islice(following, len(each.parameters)))
            each.fill(own, self._rows_of(own[-1]) if own else ())

    def _rows_of(self, result: PGresult) -> Sequence[tuple[Any, ...]]:
        if not result.ntuples:
            return ()
        self._transformer.set_pgresult(result)
        return self._transformer.load_rows(0, result.ntuples, tuple)


def _run(connection: PGconn, commands: Iterable[Callable[[], None]]) -> Sequence[PGresult]:
    """Send *commands* and return their results. Raises the error of the first that failed."""
    connection.enter_pipeline_mode()
    for send in commands:
        send()
    connection.pipeline_sync()
    results = _receive(connection)
    connection.exit_pipeline_mode()
    for result in results:
        if result.status == ExecStatus.FATAL_ERROR:
            raise error_from_result(result)
    return results


def _receive(connection: PGconn) -> list[PGresult]:
    """Return the results up to the next synchronisation. Raises OperationalError if the session is lost."""
    results: list[PGresult] = []
    while connection.flush():
        # The server may wait for us to read before it reads on.
        _wait(connection, select.POLLIN | select.POLLOUT)
    while True:
        while connection.is_busy():
            _wait(connection, select.POLLIN)
        result = connection.get_result()
        if result is None:  # the end of a statement's results
            if connection.status == ConnStatus.BAD:
                raise psycopg.OperationalError(connection.get_error_message())
        elif result.status == ExecStatus.PIPELINE_SYNC:
            return results
        else:
            results.append(result)


def _wait(connection: PGconn, events: int) -> None:
    poll = select.poll()
    poll.register(connection.socket, events)
    if poll.poll()[0][1] != select.POLLOUT:
        connection.consume_input()


log = structlog.get_logger(__name__)

_PARAMETER = re.compile(r"\?(\d*)")
_LISTED = "= ANY (ARRAY(SELECT json_array_elements_text(?::json)))"  # as an array, which an index can be asked for
# SQLSTATE classes and codes that are no fault of a statement: connection, resources (a full disk), operator's
# intervention (a stopping server), system, corruption; a standby; a lock not given. Conflicts: lost serialization,
# deadlock.
_FAULT_CLASSES = ("08", "53", "57", "58", "XX")
_CONFLICT_CODES = ("40001", "40P01")
_FAULT_CODES = ("25006", "55P03")
# Against removal; heartbeats do not wait for it.
_FENCE = sql("SELECT (", EDITIONS, ") FROM worker WHERE name = ? FOR KEY SHARE")
_PARTS = sql(  # names as the server quotes them
    "SELECT coalesce(inhrelid::regclass, name::regclass)::text FROM unnest(?::text[]) WITH ORDINALITY AS t(name, n)",
    "LEFT JOIN pg_inherits ON inhparent = name::regclass ORDER BY n, inhrelid",
)  # fmt: skip
_NEXT_TRANSACTION = "SELECT pg_snapshot_xmax(pg_current_snapshot())::xid::text"
_OLDER_READERS = sql(
    "SELECT 1 FROM pg_stat_activity WHERE datname = current_database() AND pid != pg_backend_pid()",
    "AND greatest(age(backend_xmin), age(backend_xid)) > age(?::text::xid) LIMIT 1",
)
# Rows that older transactions may see are kept by VACUUM. Its horizon, which it leaves here, tells. The sessions do not
# tell all: one that is being opened has a snapshot before it is listed, for as long as its client authenticates.
_IS_KEPT = "SELECT age(relfrozenxid) > age(?::text::xid) FROM pg_class WHERE oid = ?::text::regclass"
_SCRUB_TRIES, _SCRUB_PAUSE = 3, 0.05  # seconds
_TEXT_TABLES = (
    "inbox",
    "step",
    "record",
    "history_entry",
    "raw_message",
    "note_file",
    "memory_mark",
    "outbox",
    "part",
    "dead",
    "job",
    "preference",
    "note",
    "audit",
    "alert",
    "frame",
    "document_line",
    "document_change",
    "proposal",
    "stored_file",
    "file_piece",
)


class _TranslatedStatement(NamedTuple):
    text: bytes
    is_write: bool


@lru_cache(maxsize=1024)
def _translate(statement: str) -> _TranslatedStatement:
    """Return *statement* with `$1`, `$2`… for its parameters."""
    number = count(1)
    spelled = statement.replace(LISTED, _LISTED).replace(LOCKED, "FOR SHARE")
    text = _PARAMETER.sub(lambda found: f"${found[1] or next(number)}", spelled)
    return _TranslatedStatement(text.encode(), not statement.startswith(("SELECT", "SHOW")))


class _WholeLoader(Loader):
    """Reads a `numeric`, which here is always a sum of integers."""

    def load(self, data: Any) -> int:
        """Return the number."""
        return int(bytes(data))


class PostgresConnection:
    """A `StoreConnection` over psycopg's."""

    def __init__(self, connection: psycopg.Connection[Any]) -> None:
        """Take *connection*, which is in autocommit mode."""
        self._connection = connection
        self._has_written = False
        self._when_closed: Callable[[], object] = lambda: None
        self.worker = ""  # the listed worker that this session writes for; empty before it is
        self._locks: list[str] = []  # of dead workers
        self._scrub_from = ""  # the transaction before which all had ended or run when a scrub began
        self._column: str | None = ""  # the editions as the last transaction has seen them
        self._editions: dict[str, str] | None = None  # of what is in memory; None = not known
        self._written: dict[str, str] = {}  # editions of the open transaction
        self._on_change: Callable[[Database, Collection[str]], object] = lambda *_: None
        connection.cursor_factory = RawCursor
        connection.prepare_threshold = None  # the pipeline prepares; psycopg would drop its statements too
        # One type for every number and every text, or a statement would be prepared once for each size of its numbers.
        connection.adapters.register_dumper(int, Int8Dumper)
        connection.adapters.register_dumper(str, StrDumper)
        connection.adapters.register_dumper(bytes, BytesBinaryDumper)  # not twice its size, as the text would be
        connection.adapters.register_loader("numeric", _WholeLoader)
        self._pipeline = StatementPipeline(connection)
        self._is_in_batch = False

    def when_closed(self, call: Callable[[], object]) -> None:
        """Call *call* when the connection is closed."""
        self._when_closed = call

    def when_changed(self, call: Callable[[Database, Collection[str]], object]) -> None:
        """Call *call* at the beginning of a transaction with the cached rows that others have changed before it."""
        self._on_change = call

    @property
    def session(self) -> psycopg.Connection[Any]:
        """Return psycopg's connection, for what the rules do not need; every statement so far has been run."""
        self._pipeline.wait()
        return self._connection

    @property
    def process(self) -> int:
        """Return the number of the server's process."""
        return self._connection.info.backend_pid

    def execute(self, statement: str, parameters: Sequence[Any] = (), /) -> QueryResult:
        """Run one statement; in a batch it is sent when a result is asked for, this one or a later one."""
        translated = _translate(statement)
        self._has_written |= translated.is_write
        if not self._is_in_batch:
            return self._connection.execute(translated.text, parameters)
        return self._pipeline.execute(translated.text, (parameters,))

    def executemany(self, statement: str, parameters: Iterable[Sequence[Any]], /) -> QueryResult:
        """Run a statement once for each of *parameters*, sent together."""
        self._has_written = True
        result = self._pipeline.execute(_translate(statement).text, list(parameters))
        if not self._is_in_batch:
            self._pipeline.wait()
        return result

    def run_operations(self, operations: Sequence[BatchedOperation]) -> list[Any]:
        """Run *operations*; those of different groups side by side, up to one without a group."""
        results: list[Any] = [None] * len(operations)

        def run(places: Sequence[int]) -> None:
            for place in places:
                results[place] = run_operation(operations[place].run, self)

        for is_grouped, part in groupby(range(len(operations)), lambda place: operations[place].group is not None):
            if not is_grouped:
                run(list(part))
                continue
            groups: dict[Hashable, list[int]] = {}
            for place in part:
                groups.setdefault(operations[place].group, []).append(place)
            self._pipeline.run_side_by_side([partial(run, places) for places in groups.values()])
        return results

    def dead_workers(self, worker: str, *, shares: bool) -> Sequence[str]:
        """Return the other workers that are dead; their locks are held until the next call."""
        for name in self._locks:
            give_lock(self, name)
        self._locks = []
        self._locks = take_dead(self, worker, shares=shares)
        return self._locks

    def notify(self) -> None:
        """Have the other workers look for work, once this transaction is stored."""
        self.execute("NOTIFY parlour")

    def notify_worker(self, name: str) -> None:
        """Notify one worker, by its name: nothing that people wrote is in a notification."""
        self.execute("SELECT pg_notify('parlour', ?)", (name,))

    def changes_cached(self, rows: CachedRows) -> None:
        """Write a new edition of *rows*; the other workers look for it at once."""
        self._written[rows] = write_edition(self, rows)
        self.notify()

    def begin_batch(self) -> None:
        """Begin a transaction. Raises ConnectionAbortedError if another worker has taken over from ours.

        The row is locked until the end of the transaction, for which a takeover waits.
        """
        self._written = {}
        self._is_in_batch = True
        self.execute("BEGIN ISOLATION LEVEL REPEATABLE READ")
        if self.worker:
            found = self.execute(_FENCE, (self.worker,)).fetchone()
            if found is None:
                raise ConnectionAbortedError("another gateway has taken over the work of this one")
            if found[0] != self._column or self._editions is None:
                self._look_at_editions(found[0])
        self._has_written = False

    def _look_at_editions(self, column: str | None) -> None:
        editions, known = parse_editions(column), self._editions
        changed = [name for name, edition in editions.items() if known is None or known.get(name) != edition]
        if changed:
            self._on_change(self, changed)
        self._column, self._editions = column, editions

    def end_batch(self) -> bool:
        """Make the transaction durable; return True if it may have changed something."""
        has_written = self._has_written
        if self._connection.info.transaction_status is TransactionStatus.INERROR:
            raise psycopg.errors.InFailedSqlTransaction("an operation went on after an error")
        self.execute("COMMIT").fetchall()
        self._is_in_batch = False
        if self._editions is not None:
            self._editions |= self._written  # of two workers that change the same rows, one has a conflict
        return has_written

    def roll_back(self) -> None:
        """Roll the transaction back, if there is one."""
        self._is_in_batch = False
        self._pipeline.forget()
        with suppress(psycopg.Error):
            if self._connection.info.transaction_status is not TransactionStatus.IDLE:
                self.execute("ROLLBACK")

    def is_fault(self, error: Exception) -> bool:
        """Return True if *error* is a fault of the server, its disk or the network, not of a statement."""
        if not isinstance(error, psycopg.Error):
            return isinstance(error, (OSError, MemoryError))
        state = error.sqlstate or ""
        if self._connection.closed or (not state and isinstance(error, psycopg.OperationalError)):
            return True
        return state.startswith(_FAULT_CLASSES) or state in _FAULT_CODES

    def is_conflict(self, error: Exception) -> bool:
        """Return True if *error* says that another worker's transaction came first: ours may be run again."""
        return isinstance(error, psycopg.Error) and error.sqlstate in _CONFLICT_CODES

    def running_transactions(self) -> Collection[str]:
        """Return the transactions of the sessions in which other workers write."""
        return [name for (name,) in self.execute(RUNNING)]

    def scrub_parts(self) -> Sequence[str]:
        """Return the tables that hold texts and files; of a partitioned one its partitions."""
        ((self._scrub_from,),) = self.execute(_NEXT_TRANSACTION)
        return [name for (name,) in self.execute(_PARTS, (list(_TEXT_TABLES),))]

    def has_older_readers(self) -> bool:
        """Return True while a session of the database has a snapshot of before `scrub_parts`.

        VACUUM keeps rows that such a snapshot sees: of a dump, or of a gateway that hangs. Sessions of other users are
        seen by a user that may read all statistics.
        """
        return bool(self.execute(_OLDER_READERS, (self._scrub_from,)).fetchall())

    def scrub(self, part: str) -> bool:
        """Rewrite the table *part* without what was deleted from it; return False if the server kept some of it.

        The write-ahead log and its archives are the server's, and keep what they have for as long as it says.
        """
        for _ in range(_SCRUB_TRIES):
            try:
                self.execute(f"VACUUM (FULL) {part}")
            except psycopg.errors.LockNotAvailable as error:
                log.warning("store.scrub_failed", error=str(error).strip())
                return False
            ((is_kept,),) = self.execute(_IS_KEPT, (self._scrub_from, part))
            if not is_kept:
                return True
            time.sleep(_SCRUB_PAUSE)  # on the writer's thread, which the rewriting holds anyway
        return False

    def close(self) -> None:
        """Close the connection."""
        self._when_closed()
        with suppress(psycopg.Error):
            self._connection.close()
