"""Documents over the store's own statements in memory, which a test may also read and change without awaiting."""

from __future__ import annotations

import asyncio
import sqlite3
import time
from collections.abc import Callable, Coroutine, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from datetime import datetime
from pathlib import Path
from typing import Any, TypeVar

from agent.base.transcript_lines import utc_now
from agent.memory.storage.scope_documents import BY_HAND, ScopeDocuments
from gateway.ports.memory import DocumentChange, DocumentState, TextChange
from gateway.store.claims import WorkerIdentity
from gateway.store.documents import SqlDocuments
from gateway.store.engine import StoreEngine, StoreLimits
from gateway.store.sqlite.connection import SqliteConnection
from tests.fakes.store import InlineWriter, new_connection

T = TypeVar("T")
_SAVED = 0.12  # seconds


class FakeDocuments(SqlDocuments):
    """Documents and their changes. *step* is called before and behind each write, and may raise."""

    def __init__(
        self,
        *,
        now: Callable[[], datetime] = utc_now,
        step: Callable[[], None] = lambda: None,
        connection: SqliteConnection | None = None,
    ) -> None:
        self.connection = connection or new_connection()
        super().__init__(StoreEngine(InlineWriter(self.connection), StoreLimits(), now, WorkerIdentity()))
        self.step = step

    async def _change(
        self, scope: str, texts: Mapping[str, TextChange], *, why: str, by: str = "", **fields: Any
    ) -> tuple[DocumentChange, Mapping[str, str]] | None:
        self.step()
        done = await super()._change(scope, texts, why=why, by=by, **fields)
        self.step()
        return done

    async def replace(self, states: Mapping[str, Iterable[DocumentState]], **fields: Any) -> bool:
        """Replace, or die before or behind it."""
        self.step()
        done = await super().replace(states, **fields)
        self.step()
        return done

    def put(self, scope: str, *, why: str = BY_HAND, by: str = "", **texts: str) -> DocumentChange:
        """Replace documents, named without their ending, by one change; as a person does by default."""
        return run(self._put(scope, {f"{name}.md": text for name, text in texts.items()}, why, by))

    def text(self, scope: str, name: str = "MEMORY.md") -> str:
        """Return a document."""
        return run(self.read(scope, name)).text

    def changes(self, scope: str, *, limit: int = 1_000) -> Sequence[DocumentChange]:
        """Return the changes of a scope, the newest first."""
        return run(self.log(scope, limit=limit))

    async def _put(self, scope: str, texts: Mapping[str, str], why: str, by: str) -> DocumentChange:
        changes = {name: TextChange((await self.read(scope, name)).rev, text) for name, text in texts.items()}
        change = await super().change(scope, changes, why=why, by=by)
        assert change is not None
        return change


def open_documents(**fields: Any) -> tuple[ScopeDocuments, FakeDocuments]:
    """Return documents as jobs and commands have them, and the store behind them."""
    changes = FakeDocuments(**fields)
    return ScopeDocuments(changes), changes


@contextmanager
def stored_documents(home: Path) -> Iterator[FakeDocuments]:
    """Open the documents of a home, whether or not a gateway is running there."""
    path = home / "journal.db"
    connection = sqlite3.connect(path, isolation_level=None, check_same_thread=False, factory=SqliteConnection)
    try:
        yield FakeDocuments(connection=connection)
    finally:
        connection.close()


def stored_text(home: Path, scope: str, name: str = "MEMORY.md") -> str:
    """Return a document of a home."""
    with stored_documents(home) as documents:
        return documents.text(scope, name)


def stored_states(home: Path, scope: str) -> Sequence[DocumentState]:
    """Return the changes of a scope's documents with the texts after each, the oldest first."""
    with stored_documents(home) as documents:
        return run(documents.states(scope))


def stored_changes(home: Path, scope: str) -> Sequence[DocumentChange]:
    """Return the changes of a scope's documents, the newest first."""
    with stored_documents(home) as documents:
        return documents.changes(scope)


def edit_by_hand(path: Path, text: str) -> None:
    """Save a document's file as a person has done a while ago: an editor may write a fresh file once more."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    while time.time() - path.stat().st_ctime < _SAVED:  # a property of the file's own time
        time.sleep(_SAVED / 10)


def run(work: Coroutine[Any, Any, T]) -> T:
    """Return the result of *work*, whether or not an event loop is running here."""
    with ThreadPoolExecutor(1) as executor:
        return executor.submit(asyncio.run, work).result()
