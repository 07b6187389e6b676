"""Statements of several operations, sent to the server together.

A statement that is sent alone makes both sides wait for each other. Operations that touch different rows therefore run
side by side: each runs until it needs a result, then the statements of all of them are sent in one exchange, in libpq's
pipeline mode (ADR 119).

An operation is an ordinary function, which calls `execute` and uses the result. It is suspended in that call because it
runs in a greenlet.
"""

from __future__ import annotations

import select
from collections.abc import Callable, Iterator, Sequence
from itertools import count
from typing import Any, NamedTuple

import psycopg
from greenlet import getcurrent, greenlet
from psycopg.adapt import PyFormat, Transformer
from psycopg.errors import error_from_result
from psycopg.pq import ConnStatus, ExecStatus
from psycopg.pq.abc import PGconn, PGresult

_AUTO = (PyFormat.AUTO,)


class StatementRequest(NamedTuple):
    """A statement, to be run once for each of its rows of parameters, of which there is one at least."""

    text: bytes
    rows: Sequence[Sequence[Any]]


class StatementResult:
    """The result of a request: the rows of its last run, and the number of those that all runs have changed."""

    def __init__(self, last: PGresult | None, rows: Sequence[tuple[Any, ...]], rowcount: int) -> None:
        self._last = last
        self._rows = iter(rows)
        self.rowcount = rowcount

    @property
    def description(self) -> Sequence[tuple[str]]:
        """Return the names of the columns, each in a tuple."""
        last = self._last
        return [] if last is None else [((last.fname(place) or b"").decode(),) for place in range(last.nfields)]

    def fetchone(self) -> tuple[Any, ...] | None:
        """Return the next row; None after the last."""
        return next(self._rows, None)

    def fetchall(self) -> list[tuple[Any, ...]]:
        """Return the remaining rows."""
        return list(self._rows)

    def __iter__(self) -> Iterator[tuple[Any, ...]]:
        return self._rows

    def close(self) -> None:
        """Do nothing: the rows are here already."""


NOTHING = StatementResult(None, (), 0)  # of a statement that was not run


class StatementPipeline:
    """Runs prepared statements on a session; nothing else may be running on it."""

    def __init__(self, session: psycopg.Connection[Any]) -> None:
        self._session = session
        self._transformer = Transformer.from_context(session)
        self._prepared: dict[tuple[bytes, tuple[int, ...]], bytes] = {}
        self._numbers = count()
        self._hub: greenlet | None = None  # resumes the calls that run side by side

    def execute(self, request: StatementRequest) -> StatementResult:
        """Run a statement; in `run_side_by_side` together with those of the other calls. Raises psycopg's errors."""
        if self._hub is None:
            return self.exchange((request,))[0]
        result: StatementResult = self._hub.switch(request)
        return result

    def run_side_by_side(self, calls: Sequence[Callable[[], object]]) -> None:
        """Run *calls*, which touch different rows. Raises the first error; the other calls end where they are."""
        self._hub = getcurrent()
        running = [greenlet(call) for call in calls]
        try:
            asked = [each.switch() for each in running]
            while pairs := [pair for pair in zip(running, asked, strict=True) if not pair[0].dead]:
                running = [each for each, _ in pairs]
                results = self.exchange([request for _, request in pairs])
                asked = [each.switch(result) for each, result in zip(running, results, strict=True)]
        finally:
            self._hub = None
            for each in running:
                each.throw()  # nothing, if it has ended

    def exchange(self, requests: Sequence[StatementRequest]) -> list[StatementResult]:
        """Send all statements, then wait for their results. Raises the error of the first that failed."""
        connection, transformer = self._session.pgconn, self._transformer
        new: dict[tuple[bytes, tuple[int, ...]], bytes] = {}
        runs = []
        for text, rows in requests:
            for row in rows:
                values = transformer.dump_sequence(row, _AUTO * len(row))
                key = text, transformer.types or ()
                name = self._prepared.get(key) or new.setdefault(key, b"parlour%d" % next(self._numbers))
                runs.append((name, values, transformer.formats))
        connection.enter_pipeline_mode()
        for (text, types), name in new.items():
            connection.send_prepare(name, text, types)
        for run in runs:
            connection.send_query_prepared(*run)
        connection.pipeline_sync()
        results = _receive(connection)
        connection.exit_pipeline_mode()
        for result in results:
            if result.status == ExecStatus.FATAL_ERROR:
                raise error_from_result(result)
        self._prepared |= new
        following = iter(results[len(new) :])
        return [self._read([next(following) for _ in rows]) for _, rows in requests]

    def _read(self, results: Sequence[PGresult]) -> StatementResult:
        last, rows = results[-1], list[tuple[Any, ...]]()
        if last.ntuples:
            self._transformer.set_pgresult(last)
            rows = self._transformer.load_rows(0, last.ntuples, tuple)
        return StatementResult(last, rows, sum([each.command_tuples or 0 for each in results]))


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
