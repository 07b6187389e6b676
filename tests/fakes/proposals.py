"""Changes that wait for approval, over the store's own statements in memory."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime
from pathlib import Path

from agent.base.transcript_lines import utc_now
from agent.memory.editing.staged_changes import StagedChangeStore
from agent.memory.history.folder_store import FileDocumentStore
from gateway.ports.memory import DocumentStore
from gateway.store.claims import WorkerIdentity
from gateway.store.engine import StoreEngine, StoreLimits
from gateway.store.history import SqlHistory
from gateway.store.proposals import SqlProposals
from tests.fakes.histories import open_history
from tests.fakes.store import InlineWriter, new_connection


def open_proposals() -> SqlProposals:
    """Return a store without proposals."""
    return SqlProposals(StoreEngine(InlineWriter(new_connection()), StoreLimits(), utc_now, WorkerIdentity()))


def open_staging(
    home: Path,
    documents: DocumentStore | None = None,
    *,
    proposals: SqlProposals | None = None,
    history: SqlHistory | None = None,
    now: Callable[[], datetime] = utc_now,
) -> StagedChangeStore:
    """Return the staged changes of a home."""
    return StagedChangeStore(
        home, proposals or open_proposals(), documents or FileDocumentStore(home), history or open_history(), now=now
    )
