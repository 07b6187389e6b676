"""Forgetting's rooms: words, words for good, everything of a scope or of a person, and what lapses by itself."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from datetime import datetime

from agent.memory.account_links.scope_lock import ScopeLock
from agent.memory.documents.file_documents import FileDocumentStore
from agent.memory.documents.version_store import VersionStore
from agent.memory.erasure.derived_index import DerivedIndex
from agent.memory.erasure.erase_service import EraseService
from agent.memory.erasure.purge_jobs import PurgeJobs
from agent.memory.erasure.retention import RetentionJob
from agent.memory.erasure.scope_eraser import ScopeEraser
from agent.memory.erasure.word_eraser import WordEraser
from agent.memory.storage.transcript_projector import TranscriptProjector
from gateway.home import Home
from gateway.ports import Store
from gateway.quarantine import Quarantine
from gateway.unscoped_data import HomeUnscopedData


def open_forgetting(
    home: Home,
    store: Store,
    quarantine: Quarantine,
    *,
    documents: FileDocumentStore,
    versions: VersionStore,
    projector: TranscriptProjector,
    writing: asyncio.Lock,
    gate: ScopeLock,
    reopen: Callable[[str], None],
    kind: Callable[[str], str],
    days: int,
    now: Callable[[], datetime],
) -> EraseService:
    """Build what forgets; what was said lapses after *days*, 0 = never."""
    words = WordEraser(
        home.path,
        documents=documents,
        versions=versions,
        transcripts=projector,
        jobs=store.jobs,
        writing=writing,
        reopen=reopen,
    )
    index = DerivedIndex(home.path)
    leftovers = HomeUnscopedData(home.path / "uploads", quarantine)
    purge = PurgeJobs(
        home=home.path,
        forgetter=words,
        versions=versions,
        transcripts=projector,
        records=store.records,
        jobs=store.jobs,
        erasing=store.erasing,
        leftovers=leftovers,
        index=index,
        writing=writing,
        now=now,
    )
    eraser = ScopeEraser(
        home=home.path,
        files=projector,
        forgetter=words,
        versions=versions,
        documents=documents,
        records=store.records,
        jobs=store.jobs,
        people=store.people,
        links=store.links,
        erasing=store.erasing,
        leftovers=leftovers,
        gate=gate,
        index=index,
        writing=writing,
        reopen=reopen,
        kind=kind,
        now=now,
    )
    retention = RetentionJob(
        home=home.path,
        days=days,
        files=projector,
        records=store.records,
        jobs=store.jobs,
        erasing=store.erasing,
        index=index,
        writing=writing,
        reopen=reopen,
        now=now,
    )
    return EraseService(words, purge, eraser, retention, index)
