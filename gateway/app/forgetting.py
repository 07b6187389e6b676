"""Forgetting's rooms: words, words for good, everything of a scope or of a person, and what lapses by itself."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from datetime import datetime

from agent.memory.files.documents import FileDocuments
from agent.memory.files.projector import Projector
from agent.memory.forgetting.derived import DerivedIndex
from agent.memory.forgetting.desk import ForgettingDesk
from agent.memory.forgetting.eraser import Eraser
from agent.memory.forgetting.forgetter import Forgetter
from agent.memory.forgetting.purge import Purge
from agent.memory.forgetting.retention import Retention
from agent.memory.links.gate import ScopeGate
from agent.memory.versioning.versions import Versions
from gateway.home import Home
from gateway.leftovers import HomeLeftovers
from gateway.ports import Store
from gateway.quarantine import Quarantine


def open_forgetting(
    home: Home,
    store: Store,
    quarantine: Quarantine,
    *,
    documents: FileDocuments,
    versions: Versions,
    projector: Projector,
    writing: asyncio.Lock,
    gate: ScopeGate,
    reopen: Callable[[str], None],
    kind: Callable[[str], str],
    days: int,
    now: Callable[[], datetime],
) -> ForgettingDesk:
    """Build what forgets; what was said lapses after *days*, 0 = never."""
    words = Forgetter(
        home.path,
        documents=documents,
        versions=versions,
        transcripts=projector,
        jobs=store.jobs,
        writing=writing,
        reopen=reopen,
    )
    index = DerivedIndex(home.path)
    leftovers = HomeLeftovers(home.path / "uploads", quarantine)
    purge = Purge(
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
    eraser = Eraser(
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
    retention = Retention(
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
    return ForgettingDesk(words, purge, eraser, retention, index)
