"""Memory: documents, transcripts, forgetting, account links, privacy, Dream, and the jobs that keep them up to date."""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from agent.base.disk import Disk
from agent.base.scopes import person_of
from agent.files.file_workspace import ScopeWorkspaces
from agent.memory.account_links.account_linker import LINK_JOBS, AccountLinker, AccountLinkService
from agent.memory.conversations import (
    DELETION_OF_CONVERSATION_JOBS,
    TITLE_CONVERSATION,
    StoredConversations,
    TitlePrompt,
)
from agent.memory.editing.memory_archive import MemoryArchive
from agent.memory.editing.memory_versions import MemoryService
from agent.memory.editing.staged_changes import StagedChangeStore
from agent.memory.erasure.erase_service import ASK_ERASURE_JOBS, FORGET_JOBS, EraseService, PurgeJobs
from agent.memory.erasure.message_deletions import (
    DELETION_JOBS,
    UNINDEX_JOBS,
    DerivedDataFinder,
    MessageDeletionJobs,
)
from agent.memory.erasure.retention import RETENTION_JOBS, RetentionJob
from agent.memory.erasure.scope_eraser import SCOPE_ERASURE_JOBS, ScopeEraser
from agent.memory.erasure.scope_files import ErasureStorage
from agent.memory.erasure.word_eraser import WordEraser
from agent.memory.jobs.approval_questions import ApprovalQuestions
from agent.memory.jobs.chat_edits import EDIT_JOBS, REMEMBER_JOBS, ChatMemoryEditor, MemoryJobs
from agent.memory.jobs.job_runner import Handler, JobKind, JobPace, JobRunner, ScopeLock, lock_handler
from agent.memory.privacy import EXPORT_JOBS, ExportJobs, PrivacyFacts, PrivacyService
from agent.memory.prompt.conversation import ConversationCache
from agent.memory.prompt.due_jobs import (
    CONSOLIDATE,
    FLUSH,
    NOTE,
    SUMMARISE,
    SUMMARISE_RAW,
)
from agent.memory.storage.messages import KeepPolicy, MessageReader
from agent.memory.storage.scope_documents import ScopeDocuments
from agent.memory.storage.stored_sessions import StoredSessions
from agent.memory.update.consolidator import Consolidator
from agent.memory.update.conversation_updates import (
    APPLY_JOBS,
    UPDATE_JOBS,
    ConversationPrompt,
    FlushPrompt,
    MemoryUpdates,
    RawArchivePrompt,
    SessionNotePrompt,
    UpdateContext,
    UpdatePrompt,
)
from agent.memory.update.dream_phases import DREAM_JOBS
from agent.memory.update.dreamer import DreamApplier, Dreamer, DreamSchedule, DreamService
from agent.reminders.reminder import reminders_in
from agent.reminders.reminder_jobs import REMINDER_JOBS
from agent.tasks.task_jobs import TASK_END_JOBS, TASK_JOBS
from agent.tools.tool_questions import DECISION_JOBS, QUESTION_JOBS, StandingDecisions
from agent.workers.spoken_answers import SPEECH_JOBS
from gateway.app.channels import forget_page_users, list_browsers, list_shared_links, notify_browsers
from gateway.app.context import JOB_KINDS, LOCAL_ACCOUNTS, PUSH_JOBS
from gateway.app.models import configured_models
from gateway.home import HomeUnscopedData
from gateway.ports.journal import Job

if TYPE_CHECKING:
    from gateway.app.runtime import Runtime

_MOST_RUNS = 3_000  # of a reminder in an export: of one every quarter of an hour, those of 30 days


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryServices:
    """Memory as turns, commands, jobs and operators use it."""

    documents: ScopeDocuments
    archive: MemoryArchive
    conversations: ConversationCache
    sessions: StoredSessions
    stored_conversations: StoredConversations
    jobs: MemoryJobs
    service: MemoryService
    dreams: DreamService
    erasure: EraseService
    staging: StagedChangeStore
    editor: ChatMemoryEditor
    scope_lock: ScopeLock
    linking: AccountLinkService
    linker: AccountLinker
    workspaces: ScopeWorkspaces
    can_summarise: bool  # a model other than the offline one is configured
    consolidates: bool  # there are summaries: such a model, and a chat whose `memory_window` is not 0


def build_memory(app: Runtime) -> MemoryServices:
    """Build memory over the store and the files of the home."""
    settings, home, store, now, index = app.settings, app.home.path, app.store, app.now, app.recall
    session_files, memory_files = app.session_files, app.memory_files
    # The offline model cannot summarise.
    can_summarise = bool(settings.llm.model or app.plugins.models)
    windows = (settings.agents.defaults.memory_window, *(each.memory_window for each in settings.chats.values()))
    consolidates = can_summarise and any(windows)
    archive = MemoryArchive(max_chars=settings.memory.max_chars, history=store.history, now=now)
    documents = ScopeDocuments(
        store.documents, notice=memory_files.notice, find_commit=memory_files.find_change, fit=archive.fit
    )
    flush = settings.tools.memory_flush
    conversations = ConversationCache(
        store.transcripts,
        capacity=settings.agent.session_cache,
        window=settings.agents.defaults.memory_window,
        consolidates=can_summarise,
        keep=KeepPolicy(settings.consolidation.keep),
        flush=flush.threshold_tokens if flush.enabled else None,
    )
    sessions = StoredSessions(store.records, store.transcripts, store.journal, store.outbox)
    writing = asyncio.Lock()
    staging = StagedChangeStore(home, store.proposals, documents, store.history, now=now, writing=writing)
    jobs = MemoryJobs(store.jobs, documents, history=store.history, staging=staging, writing=writing, meter=app.meter)
    scope_lock = ScopeLock(lambda: store.links.moving)
    stored_conversations = StoredConversations(
        home=home,
        files=store.files,
        preferences=store.people,
        records=store.records,
        turns=store.transcripts,
        session_files=session_files,
        jobs=store.jobs,
        store=store.erasing,
        index=index,
        reopen=conversations.forget_scope,
        now=now,
        has_titles=can_summarise,
        own_jobs=frozenset((*TASK_JOBS.names, *TASK_END_JOBS.names)),
    )
    linker = AccountLinker(
        links=store.links,
        jobs=store.jobs if store.connections is not None else None,
        records=store.records,
        transcripts=store.transcripts,
        session_files=session_files,
        scope_lock=scope_lock,
        writing=writing,
        history=store.history,
        files=store.files,
        home=home,
        documents=store.documents,
        memory_files=memory_files,
        reopen=conversations.forget_scope,
        close_files=index.close_index,
        now=now,
        disk=Disk(),
    )
    workspaces = ScopeWorkspaces(store.files, most_mb=settings.files.workspace_mb, now=now, on_change=index.note_files)
    storage = ErasureStorage(
        home=home,
        documents=documents,
        transcripts=store.transcripts,
        session_files=session_files,
        history=store.history,
        files=store.files,
        settle_history=memory_files.settle_history,
        records=store.records,
        jobs=store.jobs,
        store=store.erasing,
        unscoped_data=HomeUnscopedData(home / "uploads", app.quarantine),
        index=index,
        staging=staging,
        writing=writing,
        settle_documents=memory_files.settle,
        reopen=conversations.forget_scope,
        now=now,
    )
    return MemoryServices(
        documents=documents,
        archive=archive,
        conversations=conversations,
        sessions=sessions,
        stored_conversations=stored_conversations,
        jobs=jobs,
        service=MemoryService(store.history, documents, store.journal, store.transcripts),
        dreams=DreamService(documents, can_run=can_summarise),
        erasure=_build_erasure(app, storage, jobs, scope_lock, workspaces, stored_conversations),
        staging=staging,
        editor=ChatMemoryEditor(store.history, documents, staging, writing=writing, now=now),
        scope_lock=scope_lock,
        linking=AccountLinkService(store.links, together=LOCAL_ACCOUNTS, now=now),
        linker=linker,
        workspaces=workspaces,
        can_summarise=can_summarise,
        consolidates=consolidates,
    )


def _build_erasure(
    app: Runtime,
    storage: ErasureStorage,
    memory_jobs: MemoryJobs,
    scope_lock: ScopeLock,
    workspaces: ScopeWorkspaces,
    stored_conversations: StoredConversations,
) -> EraseService:
    """Build forgetting on request, of words, scopes and persons, and the deletion after `memory.retention_days`."""
    words = WordEraser(storage, workspaces, stored_conversations.forget_titles, JOB_KINDS)
    purge = PurgeJobs(storage=storage, word_eraser=words)

    async def forget_logins(accounts: Collection[str] | None) -> None:
        await app.logins.forget(accounts=accounts)
        await forget_page_users(app, accounts)

    eraser = ScopeEraser(
        storage=storage,
        word_eraser=words,
        people=app.store.people,
        links=app.store.links,
        scope_lock=scope_lock,
        forget_logins=forget_logins,
        kind=app.platform,
    )
    days = app.settings.memory.retention_days
    retention = RetentionJob(storage=storage, days=days, unlist=stored_conversations.drop)
    saving = {block.kind for block in app.settings.channels.values() if block.traits.saves_files}
    return EraseService(words, purge, eraser, retention, storage.index, storage.staging, memory_jobs.settle, saving)


def build_privacy(app: Runtime) -> PrivacyService:
    """Build /privacy and /export."""
    settings, store, memory = app.settings, app.store, app.memory
    longest = settings.files.max_mb * 1_000_000
    vectors = settings.tools.vector_memory

    async def export_logins(person: str) -> list[dict[str, str]]:
        found = await app.logins.of_person(person)
        return [{"service": each.server, "account": each.account, "at": each.at.isoformat()} for each in found]

    async def export_runs(jobs: Sequence[Job]) -> list[dict[str, Any]]:
        reminders = {each.id: each for each in reminders_in(jobs)}
        return [
            {"r": id_, "at": run.at.isoformat(), "state": run.state, "tokens": run.tokens, "cost": run.known_cost}
            for id_, reminder in reminders.items()
            for run in await app.reminders.runs(reminder, limit=_MOST_RUNS)
        ]

    exports = ExportJobs(
        home=app.home.path,
        jobs=store.jobs,
        records=store.records,
        outbox=store.outbox,
        usage=store.usage,
        session=store.journal.session,
        transcripts=store.transcripts,
        documents=memory.documents,
        history=store.history,
        files=store.files,
        staging=memory.staging,
        logins=export_logins,
        browsers=partial(list_browsers, app),
        links=partial(list_shared_links, app),
        runs=export_runs,
        limit=lambda channel: min(app.configured_channels.file_limit(channel), longest),
        zone=app.locales.zone,
        now=app.now,
        kinds=JOB_KINDS,
    )
    facts = PrivacyFacts(
        models=tuple(each.name for each in app.plugins.models) or configured_models(settings),
        listens=settings.llm.transcription_model,
        speaks=settings.speech.model,
        draws=settings.tools.draw.model,
        embeds=vectors.embedding_model if vectors.enabled else "",
        retention_days=settings.memory.retention_days,
        has_uploads=any(block.traits.has_uploads for block in settings.channels.values()),
    )
    return PrivacyService(facts, exports)


def _home_of_copies(app: Runtime) -> Path | None:
    return None if app.settings.store.shared else app.home.path


def build_dreamer(app: Runtime) -> Dreamer:
    """Build Dream's jobs and their schedule."""
    store, now, memory, model = app.store, app.now, app.memory, app.models.dream
    dream = app.settings.agents.defaults.dream
    return Dreamer(
        history=store.history,
        jobs=store.jobs,
        model=model,
        applier=DreamApplier(
            home=_home_of_copies(app),
            documents=memory.documents,
            history=store.history,
            staging=memory.staging,
            now=now,
        ),
        records=store.records,
        session=store.journal.session,
        sign=app.command_prefix,
        writing=memory.jobs.writing,
        zone=app.locales.zone,
        now=now,
        schedule=DreamSchedule(interval=timedelta(hours=dream.interval_h), cron=dream.cron or ""),
        is_scheduled=dream.enabled and memory.consolidates,
        is_one=app.settings.memory.isolation == "shared",
        max_batch_size=dream.max_batch_size,
        max_iterations=dream.max_iterations,
        token_limit=model.prompt_limit,
    )


def build_raw_archives(app: Runtime) -> RawArchivePrompt:
    """Build the prompt that summarises raw archives."""
    memory, store = app.memory, app.store
    context = UpdateContext(
        jobs=store.jobs,
        reader=MessageReader(store.transcripts),
        documents=memory.documents,
        history=store.history,
        writing=memory.jobs.writing,
        model=app.models.memory,
        zone=app.locales.zone,
        now=app.now,
        token_limit=app.models.memory.prompt_limit,
    )
    consolidator = Consolidator(
        home=_home_of_copies(app),
        documents=memory.documents,
        history=store.history,
        staging=memory.staging,
        zone=app.locales.zone,
        now=app.now,
        budget=app.settings.memory.max_chars,
        archive=memory.archive,
    )
    return RawArchivePrompt(
        context=context, consolidator=consolidator, dreamer=app.dreamer, is_scheduled=memory.consolidates
    )


def _build_updates(app: Runtime) -> MemoryUpdates:
    """Build the jobs that ask a model and bring its answers into memory."""
    home, store, memory, raw_archives = app.home.path, app.store, app.memory, app.raw_archives
    context, session_memory = raw_archives.context, app.settings.tools.session_memory
    conversations = ConversationPrompt(
        context=context,
        consolidator=raw_archives.consolidator,
        session=store.journal.session,
        dreamer=app.dreamer,
        notes=session_memory.enabled,
        flushes=memory.can_summarise,
    )
    notes = SessionNotePrompt(
        context=context,
        home=home,
        max_messages=session_memory.max_messages,
        min_user_messages=session_memory.min_user_messages,
    )
    prompts: dict[str, UpdatePrompt] = {
        CONSOLIDATE: conversations,
        SUMMARISE: conversations,
        SUMMARISE_RAW: raw_archives,
        FLUSH: FlushPrompt(context=context, home=home),
        NOTE: notes,
        TITLE_CONVERSATION: TitlePrompt(
            context=context, conversations=memory.stored_conversations, records=store.records
        ),
    }
    off = () if memory.consolidates else tuple(each for each in prompts if each != TITLE_CONVERSATION)
    return MemoryUpdates(context, prompts, off=off)


def build_job_runner(app: Runtime) -> JobRunner:
    """Build the runner of the jobs that no reply waits for."""
    store, now, memory, dreamer, updates = app.store, app.now, app.memory, app.dreamer, _build_updates(app)
    deletions = MessageDeletionJobs(
        home=app.home.path,
        session_files=app.session_files,
        files=store.files,
        journal=store.journal,
        records=store.records,
        transcripts=store.transcripts,
        jobs=store.jobs,
        documents=memory.documents,
        derived_data=DerivedDataFinder(store.documents, store.history),
        staging=memory.staging,
        purge_index=memory.erasure.index.purge_stale,
        person=lambda row: person_of(row.message, app.platform(row.message.key.channel)),
        writing=memory.jobs.writing,
        now=now,
    )
    erasure = memory.erasure
    handlers: dict[JobKind, Handler] = {
        REMEMBER_JOBS: memory.jobs.apply,
        EDIT_JOBS: memory.editor.stage,
        ASK_ERASURE_JOBS: erasure.ask,
        QUESTION_JOBS: app.questions.lapse,
        DECISION_JOBS: StandingDecisions(store.jobs).expire,
        APPLY_JOBS: updates.apply,
        DELETION_JOBS: deletions.run,
        UNINDEX_JOBS: deletions.unindex,
        DELETION_OF_CONVERSATION_JOBS: memory.stored_conversations.erase,
        FORGET_JOBS: erasure.purge_jobs.run,
        SCOPE_ERASURE_JOBS: erasure.scope_eraser.erase,
        RETENTION_JOBS: erasure.retention.expire,
        LINK_JOBS: memory.linker.run,
        EXPORT_JOBS: app.privacy.exports.run,
        SPEECH_JOBS: app.run_speech,
        PUSH_JOBS: partial(notify_browsers, app),
    }
    if app.settings.tools.reminders:
        handlers[REMINDER_JOBS] = app.reminders.run
    if app.settings.tools.tasks.enabled:
        handlers |= {TASK_JOBS: app.run_task, TASK_END_JOBS: app.task_ends.run}
    if memory.can_summarise:
        handlers |= {DREAM_JOBS: dreamer.run, UPDATE_JOBS: updates.ask}
    questions = ApprovalQuestions(memory.staging, store.journal, now=now, account=store.links.account_of)
    for kind, handler in handlers.items():
        asking = handler if kind.pace in (JobPace.LONG, JobPace.TASK, JobPace.PUSH) else questions.after(handler)
        handlers[kind] = asking if kind.locks_scopes else lock_handler(memory.scope_lock, store.jobs, asking)
    return JobRunner(
        store.jobs,
        handlers,
        tasks_at_once=app.settings.tools.tasks.at_once,
        token_budget=app.token_budget,
        now=app.now,
        meter=app.meter,
        slots=app.slots,
    )
