"""The open gateway: every subsystem as one object, for `run`, operators and tests."""

from __future__ import annotations

import asyncio
import secrets
import time
from collections import Counter
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from agent.attachments.attachment_store import AttachmentStore
from agent.chat_profiles import ModelCatalog
from agent.command_services import CommandServices
from agent.files.file_workspace import ScopeWorkspaces
from agent.llm.model_client import ModelClient
from agent.memory.account_links.account_linker import AccountLinker
from agent.memory.consolidation.raw_archive_jobs import RawArchiveJobs
from agent.memory.dream.dreamer import Dreamer
from agent.memory.editing.document_file_writer import DocumentFileWriter
from agent.memory.history.history_file_writer import HistoryFileWriter
from agent.memory.jobs.job_runner import JobRunner
from agent.memory.jobs.memory_jobs import MemoryJobs
from agent.memory.scopes import chat_scope
from agent.memory.search.scope_recall import ScopeRecall
from agent.memory.storage.session_file_writer import SessionFileWriter
from agent.memory.stored_sessions import StoredSessions
from agent.reminders.reminder import REMIND, reminders_in
from agent.tools.result_pages import ToolResultPages
from agent.turn_replay import TurnReplayer
from agent.worker_pool import WorkerPool
from gateway.access.refusal_log import RefusalLog
from gateway.app.access import AccessServices
from gateway.app.alerts import AlertServices
from gateway.app.channels import Judge
from gateway.app.context import ChannelPlatforms
from gateway.app.quarantine_retrier import QuarantineRetrier
from gateway.app.role_resolver import has_lost_access
from gateway.app.usage import UsageServices
from gateway.backup import BackupProgress, BackupResult, backup
from gateway.delivery import OutboxDispatcher
from gateway.errors import UserError
from gateway.events import ChatKind, InboundKind, InboundMessage, PlatformAccount, Role, Sender, SessionKey, turn_id
from gateway.home import Home
from gateway.intake import GatewayIntake
from gateway.ports import (
    Channel,
    IntakeVerdict,
    JobQueue,
    PlatformTraits,
    SessionRow,
    Store,
)
from gateway.settings import Settings
from gateway.store_watcher import StoreWatcher
from gateway.supervisor import Supervisor
from gateway.web.metrics import PrometheusRecorder
from gateway.web.server import WebServer
from gateway.web_console.console_routes import WebConsole

_AT_ONCE = 200  # reminders that are judged before other work gets a chance


@dataclass(slots=True, kw_only=True)
class GatewayApp:
    """The subsystems of a gateway."""

    settings: Settings
    home: Home
    store: Store
    store_watcher: StoreWatcher
    meter: PrometheusRecorder
    pool: WorkerPool
    commands: CommandServices
    replayer: TurnReplayer
    intake: GatewayIntake
    sessions: StoredSessions
    session_files: SessionFileWriter
    document_files: DocumentFileWriter
    history_files: HistoryFileWriter
    workspaces: ScopeWorkspaces
    blobs: AttachmentStore
    pages: ToolResultPages
    recall: ScopeRecall
    memory_jobs: MemoryJobs
    linker: AccountLinker
    background: JobRunner
    dreamer: Dreamer
    raw_archives: RawArchiveJobs
    dispatcher: OutboxDispatcher
    model: ModelClient  # the usual one
    models: ModelCatalog
    refusals: RefusalLog
    usage: UsageServices
    alerts: AlertServices
    access: AccessServices
    channels: Mapping[str, Channel]
    platforms: ChannelPlatforms
    supervisor: Supervisor
    quarantine_retrier: QuarantineRetrier
    console: WebConsole | None  # None = no page is enabled
    web: WebServer
    restart: asyncio.Event | None = None  # set to stop, and to start again; None where the caller cannot start again
    started_at: float = field(default_factory=time.monotonic)

    @asynccontextmanager
    async def pause_writes(self) -> AsyncIterator[None]:
        """Write committed turns to their files, then hold jobs and these files, and the bytes of files."""
        await self.history_files.flush()
        async with (
            self.memory_jobs.writing,
            self.session_files.pause_writes(),
            self.history_files.pause_writes(),
            self.store.files.keep_bytes(),
        ):
            yield

    async def backup(self, target: Path, progress: BackupProgress | None = None) -> BackupResult:
        """Write a backup of the home, and of everything that other gateways of its database have written."""
        await self.document_files.notice_all()
        return await backup(
            self.home,
            self.store.backup,
            target,
            copy_objects=self.store.files.copy_objects,
            still=self.pause_writes(),
            progress=progress,
        )

    async def submit(self, key: SessionKey, text: str) -> str:
        """Accept *text* as a job in the session *key* and return the id of its turn.

        Raises UserError for an unknown channel, an unknown recipient and a full queue.
        """
        self.platforms.require(key.channel)
        sessions = await self.store.records.sessions()
        chat_kind, sender = resolve_recipient(key, self.platforms.traits(key.channel), sessions)
        message = InboundMessage(
            key=key,
            message_id=f"job:send/{secrets.token_hex(8)}",
            sender=sender,
            text=text,
            sent_at=datetime.now(UTC),
            kind=InboundKind.JOB,
            chat_kind=chat_kind,
            is_private=is_private(key, sessions),
        )
        accepted = await self.intake.accept(message, Role.OWNER)
        if accepted.verdict is IntakeVerdict.FULL:
            raise UserError(f"too many messages are queued for {key}; try again when some are answered")
        return turn_id(message)


def resolve_recipient(
    key: SessionKey, traits: PlatformTraits, sessions: Sequence[SessionRow]
) -> tuple[ChatKind, Sender]:
    """Return the kind of chat *key* is and its sender, from the scope of its session or of its parent chat.

    Raises UserError when no session exists and the id of the chat does not tell.
    """
    scopes = {row.key: row.scope for row in sessions if row.scope}
    scope = scopes.get(key) or next((scopes[known] for known in scopes if known.parent == key.parent), "")
    area, _, name = scope.partition("/")
    if area == "chats":
        return ChatKind.GROUP, Sender(id=key.chat)
    if area == "people":
        account = PlatformAccount.from_name(name)
        return ChatKind.DIRECT, Sender(id=account.id, team=account.team)
    if traits.chat_is_person and not key.thread and not traits.is_group(key):
        return ChatKind.DIRECT, Sender(id=key.chat)
    raise UserError(f"{key} has no messages yet, so its memory scope is unknown; write there once first")


def is_private(key: SessionKey, sessions: Sequence[SessionRow]) -> bool:
    """Return True if *key* is a private thread: one that has a scope apart from its parent chat's."""
    own = chat_scope(key)
    return bool(key.thread) and any(row.key == key and row.scope == own for row in sessions)


async def count_orphaned_reminders(jobs: JobQueue, judge: Judge, now: datetime) -> Sequence[Mapping[str, Any]]:
    """Return ``{"who": "channel:user_id", "count": n}`` for each person who has reminders and no access."""
    found = [each for each in reminders_in(await jobs.pending_of(REMIND)) if not each.is_fired]
    verdicts: dict[tuple[str, str], bool] = {}
    counts: Counter[str] = Counter()
    for n, reminder in enumerate(found, 1):
        place = (str(reminder.key), reminder.by)
        if place not in verdicts:
            verdicts[place] = has_lost_access(judge, reminder.message("", now, reminder.kind))
        if verdicts[place]:
            counts[f"{reminder.key.channel}:{reminder.by}"] += 1
        if n % _AT_ONCE == 0:
            await asyncio.sleep(0)
    return [{"who": who, "count": count} for who, count in sorted(counts.items())]
