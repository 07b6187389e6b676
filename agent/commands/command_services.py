"""Services for commands, by subject; a command gets them with its turn."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Any

from agent.base import transcript_lines as build
from agent.files.file_workspace import ScopeWorkspaces
from agent.memory.account_links.account_linker import AccountLinkService
from agent.memory.editing.memory_versions import MemoryService
from agent.memory.editing.staged_changes import StagedChangeStore
from agent.memory.erasure.erase_service import EraseService
from agent.memory.jobs.chat_edits import ChatMemoryEditor
from agent.memory.jobs.job_runner import JobRunner
from agent.memory.privacy import PrivacyService
from agent.memory.storage.messages import DEFAULT_MEMORY_WINDOW
from agent.memory.storage.stored_sessions import StoredSessions
from agent.memory.update.conversation_updates import archive_now
from agent.memory.update.dreamer import DreamService
from agent.tasks.task_access import TaskServices
from agent.tools.tool_questions import StandingDecisions, ToolApprovals
from agent.turns.chat_profiles import ChatProfiles, EffectiveSetting
from agent.turns.turn import RunningTurns
from gateway.events import InboundMessage, OutboundKind, PlatformAccount, Role, SessionKey
from gateway.ports.access import DecisionActor, ToolCallCaps
from gateway.ports.journal import AcceptOutcome, Job, MessageOutcome, TurnRecord

if TYPE_CHECKING:
    from agent.mcp.servers import McpServers
    from agent.memory.search.scope_recall import ScopeRecall
    from gateway.access.usage_caps import UsageCapTracker
    from gateway.chat_locales import ChatLocales
    from gateway.store.jobs import SqlJobs
    from gateway.store.journal import SqlJournal
    from gateway.store.outbox import SqlOutbox
    from gateway.store.records import SqlPreferences, SqlTurnRecords
    from gateway.store.usage import SqlUsage


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueService:
    """Session queues: list and stop what runs and waits, and enqueue a retry."""

    journal: SqlJournal
    outbox: SqlOutbox
    records: SqlTurnRecords
    turns: RunningTurns
    now: Callable[[], datetime]

    async def stop(self, key: SessionKey, *, sender: str, before: int) -> tuple[bool, int]:
        """Stop the running turn and the queue before the inbox row *before*; an empty *sender* means every sender's.

        Return whether a turn was stopped, and the number of queued messages that were.
        """
        stopped, dropped = await self.turns.stop(key, sender=sender, before=before)
        # The outbox does not know whose answer it delivers, so only a stop of every sender's turn holds answers back.
        if not stopped and not sender:
            stopped = await self._hold_back(key, before)
        return stopped, dropped

    async def _hold_back(self, key: SessionKey, before: int) -> bool:
        """Cancel the undelivered parts of answers; a `cut` line in the transcript lists the parts shown.

        Answers to messages from the inbox row *before* on stay.
        """
        undelivered = await self.outbox.undelivered(key)
        found = sorted({each.message.turn for each in undelivered if each.message.kind is OutboundKind.ANSWER})
        turns = [each for each in found if await self._first_row(each) < before]
        for turn in turns:
            shown = await self.outbox.cancel(turn)
            session = await self.journal.session(key)
            record = TurnRecord(
                turn=f"{turn}.cut",
                key=key,
                transcript=session.transcript,
                scope=session.scope,
                outcome=MessageOutcome.STOPPED,
                lines=(build.cut(turn, shown),),
                from_index=session.next_index,
                to_index=session.next_index,
                inbox=(),
                at=self.now(),
            )
            await self.records.append(record)
        return bool(turns)

    async def _first_row(self, turn: str) -> int:
        """Return the first inbox row that *turn* answered; 0 if none is known."""
        trace = await self.journal.trace(turn)
        return min((row["seq"] for row in trace.inbox), default=0) if trace is not None else 0

    async def enqueue(self, message: InboundMessage, role: Role) -> bool:
        """Enqueue a synthetic message (a retry); return False if the queue is full."""
        accepted = await self.journal.accept(message, role=role, is_control=False)
        return accepted.outcome is not AcceptOutcome.FULL


@dataclass(frozen=True, slots=True, kw_only=True)
class UsageService:
    """Tokens and cost of the past, and what the usage caps leave."""

    store: SqlUsage
    caps: UsageCapTracker
    tool_calls: ToolCallCaps
    day_zone: str  # IANA time zone of the days that caps and sums count

    async def totals(
        self, *, since: datetime, accounts: Sequence[str] = ("",), chat: str = ""
    ) -> Sequence[Mapping[str, Any]]:
        """Return sums over usage records of *accounts* (by default all) in *chat* (by default all)."""
        sums = [await self.store.totals(since=since, person=each, chat=chat) for each in accounts]
        return [row for each in sums for row in each]


@dataclass(frozen=True, slots=True, kw_only=True)
class CommandServices:
    """The services of all commands."""

    queue: QueueService
    documents: MemoryService
    editor: ChatMemoryEditor
    staging: StagedChangeStore
    erasure: EraseService
    dreams: DreamService
    privacy: PrivacyService
    workspaces: ScopeWorkspaces
    search: ScopeRecall
    sessions: StoredSessions
    runner: JobRunner
    archives_first: bool = False  # /new answers after its summary is stored
    memory_window: int = DEFAULT_MEMORY_WINDOW  # of a chat without its own; 0 = no summaries
    # Runs an operation by name, with its arguments, for the sender of a command in their role.
    call_operation: Callable[[str, Mapping[str, Any], DecisionActor, Role], Awaitable[Sequence[Mapping[str, Any]]]]
    links: AccountLinkService
    profiles: ChatProfiles
    locales: ChatLocales
    preferences: SqlPreferences
    list_settings: Callable[[SessionKey, str, str], Sequence[EffectiveSetting]]  # of a chat, its guild and its scope
    usage: UsageService
    jobs: SqlJobs  # which hold the reminders
    tasks: TaskServices
    interrupt_task: Callable[[str], None]  # by its id: the step that this gateway runs of it ends
    approvals: ToolApprovals
    decisions: StandingDecisions
    mcp: McpServers
    find_direct_chat: Callable[[str, PlatformAccount], Awaitable[SessionKey | None]]  # of an account, in a channel
    status: Callable[[], Awaitable[Mapping[str, Any]]]  # facts of /status, by name; raises StoreUnavailable

    async def archive(self, job: Job) -> bool:
        """Run /new's `summarise` job now if it is to be waited for; return False if it failed."""
        if not self.archives_first or not self.runner.can_do(job.kind):
            return True
        return await archive_now(job, self.runner.do, self.runner.jobs)
