"""The dependencies of turns, and the stages that every kind of turn shares: claim and commit."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import AbstractContextManager, asynccontextmanager
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, TypeVar

import structlog

from agent.attachments.document_reader import may_have_text
from agent.commands.command import CommandRouter, CommandServices
from agent.memory.jobs.chat_edits import MemoryJobs
from agent.memory.jobs.job_runner import ScopeLock
from agent.memory.prompt.conversation import Conversation, ConversationCache
from agent.memory.prompt.due_jobs import due_jobs
from agent.memory.storage.messages import SenderNames
from agent.reminders.reminder_jobs import ReminderJobs
from agent.tasks.task_access import TaskServices
from agent.tools.toolbox import FILES_SEARCH
from agent.turns.agent_loop import AgentLoop
from agent.turns.chat_profiles import ChatProfile, ChatProfiles
from agent.turns.prompt_assembly import PromptAssembler
from agent.turns.turn import Turn
from gateway.errors import ScopeMoved, StoreUnavailable
from gateway.events import (
    AnswerSource,
    Attachment,
    ChatKind,
    InboundKind,
    InboundMessage,
    MessageButton,
    OutboundKind,
    OutboundMessage,
    SessionKey,
    turn_id,
)
from gateway.ports.access import MessageContext
from gateway.ports.journal import (
    AuditEntry,
    CapNotice,
    InboxRow,
    Job,
    JobAdvance,
    MessageOutcome,
    SessionRow,
    TurnCommit,
    TurnLease,
    TurnRecord,
    TurnStep,
)
from gateway.ports.metrics import MetricsRecorder
from gateway.text.redaction import SecretRedactor

if TYPE_CHECKING:
    from agent.memory.search.scope_recall import ScopeRecall
    from agent.workers.spoken_answers import SpokenAnswers
    from gateway.access.pairing_service import FindOwner
    from gateway.access.usage_caps import UsageCapTracker
    from gateway.admission import Admitted
    from gateway.chat_locales import ChatLocales
    from gateway.delivery import OutboxDispatcher
    from gateway.store.account_links import SqlAccountLinks
    from gateway.store.journal import SqlJournal


log = structlog.get_logger(__name__)

T = TypeVar("T")

_STORE_PAUSE = timedelta(seconds=0.5)
_TYPED = frozenset({InboundKind.MESSAGE, InboundKind.COMMAND})  # stand in the chat, so that an answer can refer to them


class RetryingJournal:
    """The journal as turns use it: a call waits while the store is unavailable, for example with a full disk.

    Every call is safe to retry (gateway/ports/journal.py). Cancelling ends the wait.
    """

    def __init__(self, journal: SqlJournal) -> None:
        self._journal = journal

    async def step(self, lease: TurnLease, *steps: TurnStep) -> None:
        """Store turn steps in one transaction."""
        await _until_stored(lambda: self._journal.step(lease, *steps))

    async def steer(self, lease: TurnLease) -> tuple[InboxRow, ...]:
        """Claim the messages that the sender wrote while the turn ran."""
        return await _until_stored(lambda: self._journal.steer(lease))

    def watch_messages(self, key: SessionKey, notify: Callable[[InboundMessage], None]) -> AbstractContextManager[None]:
        """Call *notify* with each message that is accepted in *key* from the claim to the end of the block."""
        return self._journal.watch_messages(key, notify)

    async def commit(self, lease: TurnLease, commit: TurnCommit) -> TurnRecord:
        """Store the turn."""
        return await _until_stored(lambda: self._journal.commit(lease, commit))

    async def settle(self, row: InboxRow, commit: TurnCommit) -> TurnRecord:
        """Store the turn of a control command."""
        return await _until_stored(lambda: self._journal.settle(row, commit))

    async def session(self, key: SessionKey) -> SessionRow:
        """Return the current session of *key*."""
        return await _until_stored(lambda: self._journal.session(key))


async def _until_stored(write: Callable[[], Awaitable[T]]) -> T:
    while True:
        try:
            return await write()
        except StoreUnavailable:
            log.warning("turn.waits_for_store")
            await asyncio.sleep(_STORE_PAUSE.total_seconds())


@dataclass(frozen=True, slots=True, kw_only=True)
class TurnServices:
    """The dependencies of turns; built once by the composition root."""

    journal: RetryingJournal
    previews: OutboxDispatcher
    conversations: ConversationCache
    assembler: PromptAssembler
    loop: AgentLoop
    router: CommandRouter
    commands: CommandServices
    memory_jobs: MemoryJobs
    search: ScopeRecall
    context_of: Callable[[InboundMessage], MessageContext]
    current_admission: Callable[[InboxRow, MessageContext], Awaitable[Admitted | None]]  # None: access ended
    find_owner: FindOwner
    locales: ChatLocales
    profiles: ChatProfiles
    caps: UsageCapTracker
    reminders: ReminderJobs
    tasks: TaskServices
    spoken_answers: SpokenAnswers | None  # None: answers are not read out
    on_expired: Callable[[InboundMessage], object]  # called for each message that expired
    meter: MetricsRecorder
    now: Callable[[], datetime]
    links: SqlAccountLinks
    scope_lock: ScopeLock
    redactor: SecretRedactor
    isolation: str
    page_address: str  # of the chat page, as a browser takes it; "" where no page is enabled
    clock_ahead: Callable[[], Awaitable[timedelta]]  # how far our clock is ahead of the platforms', beyond a day

    @asynccontextmanager
    async def claim(self, source: Turn | InboxRow, *, is_ending: bool = False) -> AsyncIterator[Turn]:
        """Derive the facts of a turn; a control command becomes a turn of its row here.

        The turn's memory scope is locked, so it is not moved, until the exit. The sender is admitted again, because
        access may have been revoked while the message waited; not for a turn that *is_ending*, which must not wait for
        a platform's answer. Raises ScopeMoved for a turn whose claim is older than a link or unlink.
        """
        row = source if isinstance(source, InboxRow) else source.row
        message = row.message
        context: MessageContext

        def current_scope() -> str:
            nonlocal context
            context = self.context_of(message)
            return context.scope

        moving = self.links.moving
        async with self.scope_lock.hold_shared(current_scope):
            if isinstance(source, Turn) and not is_ending and self.links.moving != moving:
                raise ScopeMoved("the memory that the claim has read is another one now")
            admission = None if is_ending else await self.current_admission(row, context)
            if not is_ending:
                await self.profiles.skills.refresh()
            locale = self.locales.observe(message, context)
            is_named = admission is not None and admission.is_named
            turn = source if isinstance(source, Turn) else Turn(lease=await self._lease_control(row), is_control=True)
            turn.identify(
                context,
                role=row.role if admission is None else admission.role,
                is_admitted=is_ending or admission is not None,
                is_named=is_named,
                profile=await self.profile_of(turn.lease.rows, context),
            )
            turn.language, turn.zone = locale.language, locale.zone
            yield turn

    async def profile_of(self, rows: Sequence[InboxRow], context: MessageContext) -> ChatProfile:
        """Return the profile of the chat of *rows*, with a search of files only where there are any."""
        profile = self.profiles.apply(rows[0].message.key, context.overrides)
        sent = [each for row in rows for each in row.message.attachments]
        is_new = any(may_have_text(kind=each.kind, name=each.name, media_type=each.media_type) for each in sent)
        if is_new or await self.search.has_files(context.scope):
            return profile
        return profile.remove_tool(FILES_SEARCH)

    async def _lease_control(self, row: InboxRow) -> TurnLease:
        """Return a lease of this process alone. Call it with the scope locked: a moved scope has a new transcript."""
        session = await self.journal.session(row.message.key)
        turn = row.turn or turn_id(row.message)
        return TurnLease(key=row.message.key, turn=turn, epoch=0, rows=(row,), session=session)

    async def load_conversation(self, turn: Turn) -> Conversation:
        """Load and return the turn's conversation. Memory changes of earlier turns in the scope are applied first."""
        await self.memory_jobs.settle_turn(turn.lease.session, turn.scope)
        if turn.message.chat_kind is ChatKind.DIRECT and len(turn.accounts) > 1:
            await self._note_chat(turn)
        await self.profiles.note(turn.key, turn.message.guild)
        is_open = self.conversations.is_open(turn.key)
        opening = self.conversations.open(turn.lease.session, turn.scope, window=turn.profile.memory_window)
        if is_open:
            opened = await opening
        else:  # both wait for the disk
            opened, _ = await asyncio.gather(opening, self.assembler.read_memory(turn))
        turn.use(opened)
        return opened

    def add_notes(self, turn: Turn) -> None:
        """Add the edits and deletions of earlier messages, which the turn's queue had before it."""
        names = turn.conversation.speaker_names if turn.has_conversation else SenderNames()
        for row in turn.lease.notes:
            turn.draft.add(self.assembler.note(turn.draft, row, turn.zone, names))

    async def _note_chat(self, turn: Turn) -> None:
        """Store which linked account a direct chat belongs to: unlinking the accounts later separates their chats."""
        noted = self.links.account_of(turn.key)
        if self.isolation == "strict" and (noted is None or noted.name != turn.account.name):
            await self.links.note_chat(turn.key, turn.account)

    async def finish(
        self,
        turn: Turn,
        outcome: MessageOutcome,
        outbound: Sequence[OutboundMessage] = (),
        *,
        failure: str = "",
        ends: Sequence[str] = (),
        jobs: Sequence[Job] = (),
        advances: Sequence[JobAdvance] = (),
        audit: AuditEntry | None = None,
        cap_notice: CapNotice | None = None,
        new_transcript: str = "",
    ) -> MessageOutcome:
        """Store the turn with its messages and jobs in one transaction; return *outcome*.

        Once it starts, /stop has no effect. It is the one way in which a turn ends.
        """
        draft, conversation = turn.draft, turn.conversation if turn.has_conversation else None
        record = draft.record(
            outcome,
            self.now(),
            scope=turn.scope,
            failure=failure,
            supersedes="" if conversation is None else turn.retried,
            new_transcript=new_transcript,
        )
        turn.is_committing = True
        due: Sequence[Job] = ()
        if conversation is not None:
            record = conversation.with_mark(record)
            due = due_jobs(conversation, record)
        # The parts of a reply that can be sent at once; those of a doubtful turn are looked up first.
        is_reply = bool(outbound) and outbound[0].key == turn.key and not turn.lease.is_uncertain
        is_sendable = is_reply and not turn.is_control
        all_jobs = (*draft.jobs(turn.account.name, record.at, turn.scope), *jobs, *due)
        commit = TurnCommit(
            record=record,
            outbound=tuple(outbound),
            parts=self.previews.plan_at_once(outbound[0]) if is_sendable else (),
            ends=(*draft.ended_jobs, *ends),
            jobs=all_jobs,
            advances=tuple(advances),
            audit=audit,
            cap_notices=(cap_notice,) if cap_notice else (),
        )
        if turn.is_control:
            await self.journal.settle(turn.row, commit)
        else:
            stored = await self.journal.commit(turn.lease, commit)
            if conversation is not None:
                conversation.adopt(stored)
        if new_transcript or (conversation is None and not turn.is_control):  # a cached one lacks what is stored now
            self.conversations.forget(turn.key)
        self.search.note(turn.scope)
        if failure:
            self.meter.count("turn_failures", failure=failure)
        for job in all_jobs:
            self.memory_jobs.note(job)
        return outcome


def build_reply(
    turn: Turn,
    text: str,
    kind: OutboundKind,
    is_private: bool = False,
    attachments: Sequence[Attachment] = (),
    *,
    choices: Sequence[MessageButton] = (),
    settles: bool = False,
    rings: bool = True,
    links: tuple[str, ...] | None = None,
    sources: tuple[AnswerSource, ...] = (),
) -> tuple[OutboundMessage, ...]:
    """Return the turn's one message to its chat; an empty tuple for an empty text.

    The answer to a slash command is visible to its sender only. *settles* has an effect for a button press alone.
    *links* are the only addresses in *text* that may be links; None = all.
    """
    if not text:
        return ()
    message = turn.lease.rows[-1].message
    is_private = is_private or (message.is_ephemeral and kind is OutboundKind.NOTICE)
    return (
        OutboundMessage(
            id=f"{turn.id}.1",
            key=turn.key,
            text=text,
            kind=kind,
            reply_to=message.message_id if message.kind in _TYPED else "",
            visible_to=message.sender.id if is_private and turn.is_shared else "",
            chat_kind=message.chat_kind,
            attachments=tuple(attachments),
            choices=tuple(choices),
            settles=settles and message.kind is InboundKind.BUTTON,
            rings=rings,
            links=links,
            sources=sources,
        ),
    )


def call_person(turn: Turn, message: OutboundMessage) -> OutboundMessage:
    """Return a message to a shared chat that mentions the turn's person, and no one else."""
    sender = turn.message.sender
    return replace(message, calls=sender.id, calls_name=sender.name)
