"""Memory's rooms, built from settings and store: what is remembered, what was said, and the work beside the turns."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import datetime

from agent.llm.client import ModelClient
from agent.locks import Slots
from agent.memory.consolidation.consolidator import Consolidator
from agent.memory.consolidation.reading import Passages
from agent.memory.consolidation.revising import Reviser
from agent.memory.consolidation.slice import Keep
from agent.memory.dream.dreamer import Dreamer
from agent.memory.files.disk import Disk
from agent.memory.files.documents import FileDocuments
from agent.memory.files.projector import Projector
from agent.memory.forgetting.desk import ForgettingDesk
from agent.memory.links.gate import ScopeGate, gated
from agent.memory.links.linker import Linker
from agent.memory.links.memories import Memories
from agent.memory.links.offers import LinkDesk
from agent.memory.noting.flushing import Flushes
from agent.memory.noting.session_notes import SessionNotes
from agent.memory.prompt.conversations import Conversations
from agent.memory.rights.export import Exports
from agent.memory.sessions import StoredSessions
from agent.memory.versioning.deletions import Deletions
from agent.memory.versioning.desk import MemoryDesk
from agent.memory.versioning.keeping import Keeper
from agent.memory.versioning.origins import Origins
from agent.memory.versioning.versions import Versions
from agent.memory.waiting.asking import Asking
from agent.memory.waiting.staging import Staging
from agent.memory.work.background import Background, Handler
from agent.memory.work.jobs import REMEMBER, MemoryJobs
from agent.memory.work.purse import Purse
from gateway.app.forgetting import open_forgetting
from gateway.home import Home
from gateway.ports import InboxRow, Meter, Store
from gateway.quarantine import Quarantine
from gateway.settings import Settings


@dataclass(frozen=True, slots=True)
class Memory:
    """What the composition root passes on."""

    documents: FileDocuments
    conversations: Conversations
    sessions: StoredSessions
    projector: Projector
    jobs: MemoryJobs
    desk: MemoryDesk
    forgetter: ForgettingDesk
    staging: Staging
    gate: ScopeGate
    linking: LinkDesk
    linker: Linker
    consolidates: bool


def open_memory(
    settings: Settings,
    home: Home,
    store: Store,
    quarantine: Quarantine,
    meter: Meter,
    *,
    now: Callable[[], datetime],
    consolidates: bool,
    kind: Callable[[str], str],
) -> Memory:
    """Build what turns and commands read and write; *consolidates* says that there is a model that can summarise.

    *kind* tells a channel block's platform.
    """
    versions = Versions(home.path)
    documents = FileDocuments(home.path, keeper=Keeper(home.path, Disk(), versions, now=now))
    conversations = Conversations(
        home.path,
        store.records,
        capacity=settings.agent.session_cache,
        window=settings.agents.defaults.memory_window,
        consolidates=consolidates,
        keep=Keep(settings.consolidation.keep),
        flush=settings.tools.memory_flush.threshold_tokens if settings.tools.memory_flush.enabled else None,
    )
    sessions = StoredSessions(home.path, store.records, store.journal)
    projector = Projector(home.path, store.records)
    writing = asyncio.Lock()
    staging = Staging(home.path, documents, now=now, writing=writing)
    jobs = MemoryJobs(store.jobs, documents, staging=staging, writing=writing, meter=meter)
    desk = MemoryDesk(home.path, documents, versions, store.journal, sessions)
    gate = ScopeGate()

    def reopen(scope: str) -> None:
        conversations.forget_scope(scope)
        jobs.unsettle(scope)
        sessions.forget_scope(scope)

    forgetter = open_forgetting(
        home,
        store,
        quarantine,
        documents=documents,
        versions=versions,
        projector=projector,
        writing=jobs.writing,
        gate=gate,
        reopen=reopen,
        kind=kind,
        days=settings.memory.retention_days,
        now=now,
    )
    linker = Linker(
        links=store.links,
        records=store.records,
        projector=projector,
        gate=gate,
        writing=jobs.writing,
        memories=Memories(home=home.path, versions=versions, disk=Disk()),
        notice=documents.notice,
        reopen=reopen,
        leave=forgetter.index.leave,
        now=now,
        disk=Disk(),
    )
    return Memory(
        documents,
        conversations,
        sessions,
        projector,
        jobs,
        desk,
        forgetter,
        staging,
        gate,
        LinkDesk(store.links, now=now),
        linker,
        consolidates,
    )


def open_background(
    settings: Settings,
    home: Home,
    store: Store,
    memory: Memory,
    *,
    model: ModelClient,
    meter: Meter,
    purse: Purse,
    dreamer: Dreamer,
    exports: Exports,
    person: Callable[[InboxRow], str],
    zone: Callable[[str], str],
    now: Callable[[], datetime],
    slots: Slots,
) -> Background:
    """Build the work that no reply waits for."""
    session_memory = settings.tools.session_memory
    passages = Passages(home.path, store.records, flush=memory.projector.flush)
    reviser = Reviser(home.path, memory.documents, now=now)
    consolidator = Consolidator(
        home=home.path,
        jobs=store.jobs,
        passages=passages,
        records=store.records,
        session=store.journal.session,
        adopt=memory.conversations.adopt,
        writing=memory.jobs.writing,
        reviser=reviser,
        model=model,
        zone=zone,
        now=now,
        notes=session_memory.enabled,
        flushes=memory.consolidates,
        room=model.room,
    )
    flushes = Flushes(
        home=home.path,
        jobs=store.jobs,
        passages=passages,
        reviser=reviser,
        writing=memory.jobs.writing,
        model=model,
        zone=zone,
        now=now,
        room=model.room,
    )
    notes = SessionNotes(
        home=home.path,
        passages=passages,
        model=model,
        zone=zone,
        now=now,
        max_messages=session_memory.max_messages,
        min_user_messages=session_memory.min_user_messages,
    )
    deletions = Deletions(
        home=home.path,
        journal=store.journal,
        records=store.records,
        jobs=store.jobs,
        documents=memory.documents,
        origins=Origins(home.path, Versions(home.path)),
        flush=memory.projector.flush,
        forgotten=memory.forgetter.index.forgotten,
        adopt=memory.conversations.adopt,
        person=person,
        writing=memory.jobs.writing,
        now=now,
    )
    quick: Mapping[str, Handler] = {
        REMEMBER: memory.jobs.apply,
        **dreamer.after_each(consolidator.quick),
        **flushes.quick,
        **deletions.quick,
        **exports.quick,
    }
    models = {**consolidator.slow, **notes.slow, **flushes.slow, **dreamer.slow}
    slow: Mapping[str, Handler] = models if memory.consolidates else {}
    asking = Asking(memory.staging, store.journal, now=now, account=store.links.account_of)
    return Background(
        store.jobs,
        quick=gated(memory.gate, store.jobs, asking.after_each(quick)),
        slow=gated(memory.gate, store.jobs, asking.after_each(slow)),
        long={
            **memory.linker.long,
            **memory.forgetter.alone,
            **gated(memory.gate, store.jobs, {**memory.forgetter.long, **deletions.long, **exports.long}),
        },
        purse=purse,
        meter=meter,
        slots=slots,
    )
