"""Memory's rooms, built from settings and store: what is remembered, what was said, and the work beside the turns."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import datetime

from agent.llm.model_client import ModelClient
from agent.locks import WorkerSlots
from agent.memory.account_links.account_linker import AccountLinker
from agent.memory.account_links.link_offers import AccountLinkService
from agent.memory.account_links.memory_merge import MemoryMerger
from agent.memory.account_links.scope_lock import ScopeLock, lock_handlers
from agent.memory.consolidation.consolidator import Consolidator
from agent.memory.consolidation.memory_reviser import MemoryReviser
from agent.memory.documents.file_documents import FileDocumentStore
from agent.memory.documents.version_keeper import VersionKeeper
from agent.memory.documents.version_store import VersionStore
from agent.memory.dream.dreamer import Dreamer
from agent.memory.editing.staged_changes import StagedChangeStore
from agent.memory.erasure.erase_service import EraseService
from agent.memory.jobs.approval_questions import ApprovalQuestions
from agent.memory.jobs.job_runner import Handler, JobRunner
from agent.memory.jobs.memory_jobs import REMEMBER, MemoryJobs
from agent.memory.jobs.token_budget import TokenBudget
from agent.memory.messages.message_range import KeepPolicy
from agent.memory.messages.message_reader import MessageReader
from agent.memory.notes.flush_jobs import FlushJobs
from agent.memory.notes.session_note_jobs import SessionNoteJobs
from agent.memory.privacy.export_jobs import ExportJobs
from agent.memory.prompt.conversation_cache import ConversationCache
from agent.memory.storage.disk import Disk
from agent.memory.storage.transcript_projector import TranscriptProjector
from agent.memory.stored_sessions import StoredSessions
from agent.memory.versioning.derived_data import DerivedDataFinder
from agent.memory.versioning.memory_service import MemoryService
from agent.memory.versioning.message_deletions import MessageDeletionJobs
from gateway.app.erasure import open_forgetting
from gateway.home import Home
from gateway.ports import InboxRow, MetricsRecorder, Store
from gateway.quarantine import Quarantine
from gateway.settings import Settings


@dataclass(frozen=True, slots=True)
class MemoryServices:
    """What the composition root passes on."""

    documents: FileDocumentStore
    conversations: ConversationCache
    sessions: StoredSessions
    projector: TranscriptProjector
    jobs: MemoryJobs
    desk: MemoryService
    forgetter: EraseService
    staging: StagedChangeStore
    gate: ScopeLock
    linking: AccountLinkService
    linker: AccountLinker
    consolidates: bool


def open_memory(
    settings: Settings,
    home: Home,
    store: Store,
    quarantine: Quarantine,
    meter: MetricsRecorder,
    *,
    now: Callable[[], datetime],
    consolidates: bool,
    kind: Callable[[str], str],
) -> MemoryServices:
    """Build what turns and commands read and write; *consolidates* says that there is a model that can summarise.

    *kind* tells a channel block's platform.
    """
    versions = VersionStore(home.path)
    documents = FileDocumentStore(home.path, keeper=VersionKeeper(home.path, Disk(), versions, now=now))
    conversations = ConversationCache(
        home.path,
        store.records,
        capacity=settings.agent.session_cache,
        window=settings.agents.defaults.memory_window,
        consolidates=consolidates,
        keep=KeepPolicy(settings.consolidation.keep),
        flush=settings.tools.memory_flush.threshold_tokens if settings.tools.memory_flush.enabled else None,
    )
    sessions = StoredSessions(home.path, store.records, store.journal)
    projector = TranscriptProjector(home.path, store.records)
    writing = asyncio.Lock()
    staging = StagedChangeStore(home.path, documents, now=now, writing=writing)
    jobs = MemoryJobs(store.jobs, documents, staging=staging, writing=writing, meter=meter)
    desk = MemoryService(home.path, documents, versions, store.journal, sessions)
    gate = ScopeLock()

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
    linker = AccountLinker(
        links=store.links,
        records=store.records,
        projector=projector,
        gate=gate,
        writing=jobs.writing,
        memories=MemoryMerger(home=home.path, versions=versions, disk=Disk()),
        notice=documents.notice,
        reopen=reopen,
        leave=forgetter.index.close_index,
        now=now,
        disk=Disk(),
    )
    return MemoryServices(
        documents,
        conversations,
        sessions,
        projector,
        jobs,
        desk,
        forgetter,
        staging,
        gate,
        AccountLinkService(store.links, now=now),
        linker,
        consolidates,
    )


def open_background(
    settings: Settings,
    home: Home,
    store: Store,
    memory: MemoryServices,
    *,
    model: ModelClient,
    meter: MetricsRecorder,
    purse: TokenBudget,
    dreamer: Dreamer,
    exports: ExportJobs,
    person: Callable[[InboxRow], str],
    zone: Callable[[str], str],
    now: Callable[[], datetime],
    slots: WorkerSlots,
) -> JobRunner:
    """Build the work that no reply waits for."""
    session_memory = settings.tools.session_memory
    passages = MessageReader(home.path, store.records, flush=memory.projector.flush)
    reviser = MemoryReviser(home.path, memory.documents, now=now)
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
    flushes = FlushJobs(
        home=home.path,
        jobs=store.jobs,
        passages=passages,
        documents=memory.documents,
        writing=memory.jobs.writing,
        model=model,
        zone=zone,
        now=now,
        room=model.room,
    )
    notes = SessionNoteJobs(
        home=home.path,
        passages=passages,
        model=model,
        zone=zone,
        now=now,
        max_messages=session_memory.max_messages,
        min_user_messages=session_memory.min_user_messages,
    )
    deletions = MessageDeletionJobs(
        home=home.path,
        journal=store.journal,
        records=store.records,
        jobs=store.jobs,
        documents=memory.documents,
        origins=DerivedDataFinder(home.path, VersionStore(home.path)),
        flush=memory.projector.flush,
        forgotten=memory.forgetter.index.purge_stale,
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
    asking = ApprovalQuestions(memory.staging, store.journal, now=now, account=store.links.account_of)
    return JobRunner(
        store.jobs,
        quick=lock_handlers(memory.gate, store.jobs, asking.after_each(quick)),
        slow=lock_handlers(memory.gate, store.jobs, asking.after_each(slow)),
        long={
            **memory.linker.long,
            **memory.forgetter.alone,
            **lock_handlers(memory.gate, store.jobs, {**memory.forgetter.long, **deletions.long, **exports.long}),
        },
        purse=purse,
        meter=meter,
        slots=slots,
    )
