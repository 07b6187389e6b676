"""Statements of several operations, sent to the server together.

A statement that is sent alone makes both sides wait for each other. Operations that touch different rows therefore run
side by side: each runs until it needs a result, then the statements of all of them are sent in one exchange, in libpq's
pipeline mode (ADR 119).

An operation is an ordinary function, which calls `execute` and uses the result. It is suspended when it asks for the
result, because it runs in a greenlet. A statement whose result is not asked for is sent with the next.
"""

from __future__ import annotations

import select
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from itertools import count, islice
from typing import Any, TypeAlias

import psycopg
from greenlet import getcurrent, greenlet
from psycopg.adapt import PyFormat, Transformer
from psycopg.errors import error_from_result
from psycopg.pq import ConnStatus, ExecStatus
from psycopg.pq.abc import PGconn, PGresult

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
