"""Transactions that store nothing of what is being erased from their scope.

The job of an erasure has its words from the first pass to the last. A transaction that stores texts of a scope sees the
jobs of all gateways there, and is refused if its texts did not pass their words. They pass outside of the transaction,
because matching is slow, and it runs again. Where no erasure runs this costs one look at an index.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Hashable, Mapping, Sequence
from functools import partial
from typing import Any, Protocol, TypeAlias, TypeVar

from gateway.errors import ParlourError
from gateway.ports.journal import Job, TurnCommit
from gateway.ports.memory import FileKind, HistoryEntry, MemoryProposal
from gateway.store.database import LISTED, Database
from gateway.store.engine import StoreEngine
from gateway.store.row_codec import JOB_COLUMNS, quote, read_job, sql, write_json

T = TypeVar("T")
V = TypeVar("V")

_ERASURES = "FROM job WHERE scope = ? AND kind IN ('forget', 'purge')"
# With the scope, and the ids of erasures whose words the texts have passed.
NO_OTHER_ERASURE = sql("NOT EXISTS (SELECT 1", _ERASURES, "AND NOT id", LISTED, ")")
_FIND = sql("SELECT", JOB_COLUMNS, _ERASURES, "ORDER BY seq")


class ErasedWords(Protocol):
    """Takes the words of erasures that are not done out of what is about to be stored in their scope.

    *erasures* are their jobs. Each method is a pure function and runs in a thread. Values without the words are
    returned as they are.
    """

    def clear_commit(self, erasures: Sequence[Job], commit: TurnCommit) -> TurnCommit:
        """Return a commit without the words in its lines, messages and jobs."""

    def clear_job(self, erasures: Sequence[Job], job: Job) -> Job | None:
        """Return a job without the words; None if it is not to be queued."""

    def clear_texts(
        self, erasures: Sequence[Job], texts: Mapping[str, str], before: Mapping[str, str], by: str
    ) -> Mapping[str, str]:
        """Return new texts of documents without the words; *before* are the stored ones, *by* is who changes them."""

    def clear_entry(self, erasures: Sequence[Job], entry: HistoryEntry) -> HistoryEntry:
        """Return a history entry without the words."""

    def clear_messages(self, erasures: Sequence[Job], messages: Sequence[Any]) -> Sequence[Any]:
        """Return messages that no model could summarise without the words."""

    def clear_file(self, erasures: Sequence[Job], kind: FileKind, name: str, data: bytes) -> bytes | None:
        """Return the bytes of a workspace's file or of a result without the words; None if it is not to be kept."""

    def clear_proposal(self, erasures: Sequence[Job], proposal: MemoryProposal) -> MemoryProposal | None:
        """Return a proposal without the words; None if it is not to be stored."""


Clear: TypeAlias = Callable[[ErasedWords, Sequence[Job], V], V]


class ErasureRunning(ParlourError):
    """Texts of a scope must pass the words of its erasures, which have begun since; then they are stored again."""

    def __init__(self, erasures: Sequence[Job]) -> None:
        super().__init__("words of this memory are being erased")
        self.erasures = erasures


def check_erasures(database: Database, scope: str, erasure_ids: str) -> None:
    """Raise ErasureRunning if *scope* has an erasure that is not in *erasure_ids*, both as column values."""
    found = database.execute(sql("SELECT", NO_OTHER_ERASURE), (scope, erasure_ids)).fetchone()
    if not found[0]:
        raise ErasureRunning([read_job(columns) for columns in database.execute(_FIND, (scope,)).fetchall()])


def erasure_ids_of(erasures: Collection[Job]) -> str:
    """Return the erasures as a column value."""
    return write_json([quote(each.id) for each in erasures])


async def clear_texts(engine: StoreEngine, refusal: ErasureRunning, value: V, clear: Clear[V]) -> V:
    """Return *value* without the words of the erasures."""
    words = engine.limits.erased_words
    return value if words is None else await asyncio.to_thread(clear, words, refusal.erasures, value)


async def store_cleared(
    engine: StoreEngine,
    scope: str,
    value: V,
    clear: Clear[V],
    store: Callable[[Database, V], T],
    *,
    then: Callable[[T], None] | None = None,
    group: Hashable | None = None,
) -> T:
    """Run *store* with *value*, once it has passed the words of every erasure that *scope* has in the transaction."""
    column, erasure_ids = quote(scope), "[]"

    def run(database: Database, value: V, erasure_ids: str) -> T:
        check_erasures(database, column, erasure_ids)
        return store(database, value)

    while True:
        try:
            return await engine.writer.submit(partial(run, value=value, erasure_ids=erasure_ids), then, group=group)
        except ErasureRunning as refusal:
            value, erasure_ids = await clear_texts(engine, refusal, value, clear), erasure_ids_of(refusal.erasures)
