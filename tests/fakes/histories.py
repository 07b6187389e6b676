"""The history of a scope in rows, read and written without an event loop, and one whose process dies."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Coroutine, Generator, Hashable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any, Generic, TypeVar, cast

from agent.memory.editing.memory_file_writer import MemoryFileWriter
from agent.memory.history.history_files import printed_files
from gateway.ports.memory import HistoryEntry, MarkKind, ScopeHistory, StoredNote
from gateway.store.claims import WorkerIdentity
from gateway.store.database import Database, StoreConnection
from gateway.store.engine import StoreEngine, StoreLimits, utc_now
from gateway.store.erased_words import Clear
from gateway.store.history import SqlHistory
from gateway.store.sqlite import schema
from gateway.store.writer import Operation, StoreWriter
from gateway.text.json_lines import read_entry
from tests.fakes.memory import SCOPE, FakeRecords, FaultyDisk
from tests.fakes.store import InlineWriter, new_connection

T = TypeVar("T")
V = TypeVar("V")


class _Done(Generic[T]):
    def __init__(self, result: T) -> None:
        self._result = result

    def __await__(self) -> Generator[Any, None, T]:
        return self._result
        yield


class _ImmediateWriter(InlineWriter):
    def submit(  # type: ignore[override]
        self,
        operation: Operation[T],
        then: Callable[[T], None] | None = None,
        *,
        group: Hashable | None = None,
        within: float = 0.0,
    ) -> _Done[T]:
        """Run *operation* now."""
        batch = self._transact(operation)
        if batch.fault is not None:
            raise batch.fault
        if isinstance(batch.results[0], Exception):
            raise batch.results[0]
        return _Done(batch.results[0])


def finish(work: Coroutine[Any, Any, T]) -> T:
    """Return the result of a coroutine that waits for nothing."""
    try:
        work.send(None)
    except StopIteration as done:
        result: T = done.value
        return result
    raise AssertionError("it waits")


class SyncHistory:
    """What is stored of one scope, for tests."""

    def __init__(self, connection: StoreConnection, scope: str = SCOPE) -> None:
        self.rows = SqlHistory(
            StoreEngine(cast("StoreWriter", _ImmediateWriter(connection)), StoreLimits(), utc_now, WorkerIdentity())
        )
        self.scope = scope

    def after(self, cursor: int) -> tuple[HistoryEntry, ...]:
        """Return the entries behind a cursor."""
        return tuple(finish(self.rows.after(self.scope, cursor)))

    def append(self, *entries: HistoryEntry) -> tuple[HistoryEntry, ...]:
        """Store entries."""
        return tuple(finish(self.rows.append(self.scope, *entries)))

    def load(self) -> ScopeHistory:
        """Return all that is stored."""
        return finish(self.rows.load(self.scope))

    def replace(self, contents: ScopeHistory) -> None:
        """Store *contents* instead."""
        assert finish(self.rows.replace({self.scope: contents}, was={self.scope: self.load()}))

    def put_note(self, name: str, text: str, owner: str = "") -> None:
        """Store a note."""
        contents = self.load()
        notes = {**contents.notes, name: StoredNote(body=text.encode(), owner=owner)}
        self.replace(
            ScopeHistory(
                entries=contents.entries,
                raws=contents.raws,
                notes=notes,
                marks=contents.marks,
                cursor=contents.cursor,
                dream_cursor=contents.dream_cursor,
            )
        )

    def keep_raw(self, entry: HistoryEntry, *messages: Any) -> None:
        """Store messages without a summary."""
        finish(self.rows.keep_raw(self.scope, entry, messages))

    @property
    def notes(self) -> dict[str, str]:
        """The notes by name."""
        return {name: note.body.decode() for name, note in self.load().notes.items()}

    def marks(self, kind: MarkKind) -> dict[str, str]:
        """Return the marks of a kind."""
        return dict(finish(self.rows.marks(self.scope, kind)))

    @property
    def dream_cursor(self) -> int:
        """Dream's cursor."""
        return finish(self.rows.dream_cursor(self.scope))

    @dream_cursor.setter
    def dream_cursor(self, cursor: int) -> None:
        finish(self.rows.advance_dream(self.scope, cursor))

    @property
    def files(self) -> dict[str, str]:
        """The texts of the files that are printed from it, by name."""
        return {name: data.decode() for name, data in printed_files(self.load()).items()}


class KilledHistory(SqlHistory):
    """Rows in whose change the process may die, before it or right behind it."""

    def __init__(self, engine: StoreEngine, disk: FaultyDisk | None) -> None:
        super().__init__(engine)
        self._disk = disk

    async def _change(self, operation: Callable[[Database], T]) -> T:
        self._step()
        result = await super()._change(operation)
        self._step()
        return result

    async def _store_cleared(self, scope: str, value: V, clear: Clear[V], store: Callable[[Database, V], T]) -> T:
        self._step()
        result = await super()._store_cleared(scope, value, clear, store)
        self._step()
        return result

    def _step(self) -> None:
        if self._disk is not None:
            self._disk.step("journal")


def open_history() -> SqlHistory:
    """Return an empty history."""
    return SqlHistory(StoreEngine(InlineWriter(new_connection()), StoreLimits(), utc_now, WorkerIdentity()))


async def write_histories(home: Path, records: FakeRecords) -> None:
    """Write the files of every history of *records*."""
    writer = MemoryFileWriter(home, records.documents, records.history)
    for scope in await records.history.scopes():
        await writer.settle_history(scope)


def stored_entries(home: Path, scope: str) -> tuple[HistoryEntry, ...]:
    """Return the entries in the journal of a home, also while its gateway runs."""
    with closing(sqlite3.connect(f"file:{home / 'journal.db'}?mode=ro", uri=True)) as journal:
        found = journal.execute("SELECT body FROM history_entry WHERE scope = ? ORDER BY cursor", (scope,)).fetchall()
    return tuple(entry for (body,) in found if (entry := read_entry(body)) is not None)


@contextmanager
def open_journal_history(home: Path, scope: str) -> Iterator[SyncHistory]:
    """Yield what the journal of a stopped gateway has of a scope."""
    with closing(schema.connect(home / "journal.db")) as connection:
        yield SyncHistory(connection, scope)
