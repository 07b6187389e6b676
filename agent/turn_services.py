"""What a turn works with, and the steps that every kind of turn shares."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, replace
from datetime import datetime, timedelta

from agent.agent_loop import AgentLoop
from agent.attachments.image_inliner import ImageInliner
from agent.attachments.outgoing_files import OutgoingFiles
from agent.chat_profiles import ChatProfiles
from agent.commands import CommandRouter, CommandServices
from agent.memory.account_links.scope_lock import ScopeLock
from agent.memory.jobs.memory_jobs import MemoryJobs
from agent.memory.prompt.conversation import Conversation
from agent.memory.prompt.conversation_cache import ConversationCache
from agent.memory.prompt.due_jobs import due_jobs
from agent.memory.scopes import SHARED, person_of, scope_of
from agent.prompt_assembly import PromptAssembler, TurnScope
from agent.retrying_journal import RetryingJournal
from agent.turn_draft import TurnDraft
from agent.worker_pool import RunningTurn
from gateway.events import (
    Attachment,
    ChatKind,
    InboundKind,
    InboundMessage,
    MessageButton,
    OutboundKind,
    OutboundMessage,
    Role,
)
from gateway.ports import (
    AccountLinkStore,
    AuditEntry,
    InboxRow,
    Job,
    LocaleProvider,
    MetricsRecorder,
    PreviewFactory,
    SearchIndex,
    TurnCommit,
    TurnLease,
    TurnRecord,
)
from gateway.ports.caps import CapNotice, UsageCaps
from gateway.text.redaction import SecretRedactor

Admits = Callable[[InboxRow], Awaitable[Role | None]]  # what the sender may decide now; None = not even speak

_TYPED = frozenset({InboundKind.MESSAGE, InboundKind.COMMAND})  # what stands in a chat, so that one can answer to it


async def clock_is_right() -> timedelta:
    """Return how far a clock is ahead that nobody doubts."""
    return timedelta(0)


@dataclass(frozen=True, slots=True, kw_only=True)
class TurnServices:
    """What a turn works with; built once by the composition root."""

    journal: RetryingJournal
    previews: PreviewFactory
    conversations: ConversationCache
    context: PromptAssembler
    loop: AgentLoop
    router: CommandRouter
    house: CommandServices
    memory_jobs: MemoryJobs
    search: SearchIndex
    pictures: ImageInliner
    outgoing: OutgoingFiles
    admits: Admits
    locales: LocaleProvider
    manners: ChatProfiles
    caps: UsageCaps
    on_expired: Callable[[InboundMessage], object]  # told of each message that came too long ago to be answered
    meter: MetricsRecorder
    now: Callable[[], datetime]
    kinds: Callable[[str], str]  # block name -> platform kind, which names a person whichever bot they wrote to
    links: AccountLinkStore
    gate: ScopeLock
    redactor: SecretRedactor
    isolation: str = "strict"
    clock_ahead: Callable[[], Awaitable[timedelta]] = clock_is_right  # by how much, beyond a day

    def scope_in_use(self, row: InboxRow) -> AbstractAsyncContextManager[str]:
        """Be at work in the row's scope: meanwhile it stays the row's, and nobody moves its files."""
        return self.gate.shared(lambda: self.place(row).scope)

    async def open(self, lease: TurnLease) -> tuple[Conversation, TurnScope]:
        """Return the live window and the place of a turn, memory settled."""
        head = lease.rows[0]
        place = self.place(head)
        # What earlier turns of this scope wanted remembered stands before this one reads it.
        await self.memory_jobs.settle(place.scope)
        await self.memory_jobs.settle(SHARED)
        person = self.person(head)
        if head.message.chat_kind is ChatKind.DIRECT and self.links.accounts(self.links.person(person)):
            await self._note_chat(lease, person)
        await self.manners.note(lease.key, head.message.guild)
        window = self.manners.window(lease.key, head.message.guild)
        conversation = await self.conversations.open(lease.session, place.scope, window=window)
        return conversation, place

    async def commit(
        self,
        running: RunningTurn,
        conversation: Conversation,
        record: TurnRecord,
        outbound: Sequence[OutboundMessage],
        draft: TurnDraft,
        jobs: Sequence[Job] = (),
        audit: AuditEntry | None = None,
        told: tuple[CapNotice, ...] = (),
    ) -> None:
        """Store the turn and what follows from it; past this point /stop comes too late."""
        lease = running.lease
        person = self.person(lease.rows[0])
        # A turn that was stopped and taken up again may have begun before its scope moved.
        record = replace(record, scope=self.place(lease.rows[0]).scope)
        running.is_committing = True
        marked = conversation.with_mark(record)
        every = (
            *(replace(each, scope=record.scope) for each in draft.jobs(person, record.at)),
            *jobs,
            *due_jobs(conversation, marked),
        )
        stored = await self.journal.commit(
            lease, TurnCommit(record=marked, outbound=tuple(outbound), jobs=every, audit=audit, told=told)
        )
        conversation.adopt(stored)
        self.search.note(record.scope)
        if record.failure:
            self.meter.count("turn_failures", failure=record.failure)
        for job in every:
            self.memory_jobs.note(job)

    def place(self, row: InboxRow) -> TurnScope:
        """Return whose memory the row reads and which clock it goes by."""
        scope = scope_of(row.message, self.links.person(self.person(row)), isolation=self.isolation)
        self.locales.note(row.message.key, scope, row.message.guild)
        return TurnScope(scope, self.locales.zone(scope))

    def language(self, row: InboxRow) -> str:
        """Return the language of what we say in the row's chat ourselves."""
        self.place(row)
        return self.locales.language(row.message.key)

    def person(self, row: InboxRow) -> str:
        """Return the account that wrote, whichever bot it wrote to: whose words these are, and who pays for them."""
        return person_of(row.message, self.kinds(row.message.key.channel))

    async def _note_chat(self, lease: TurnLease, account: str) -> None:
        """Note whose chat this is while several accounts are one person: what comes apart again must be told apart."""
        if self.isolation == "strict" and self.links.account_of(lease.key) != account:
            await self.links.note_chat(lease.key, account)


def build_reply(
    lease: TurnLease,
    text: str,
    kind: OutboundKind,
    is_private: bool = False,
    attachments: Sequence[Attachment] = (),
    *,
    choices: Sequence[MessageButton] = (),
    settles: bool = False,
    rings: bool = True,
) -> tuple[OutboundMessage, ...]:
    """Return the turn's one message to its chat; nothing for an empty text. Only what answers a press *settles* it.

    What answers a slash command is for its sender alone.
    """
    if not text:
        return ()
    message = lease.rows[-1].message
    shared = message.chat_kind is ChatKind.GROUP
    is_private = is_private or (message.is_ephemeral and kind is OutboundKind.NOTICE)
    return (
        OutboundMessage(
            id=f"{lease.turn}.1",
            key=lease.key,
            text=text,
            kind=kind,
            reply_to=message.message_id if message.kind in _TYPED else "",
            visible_to=message.sender.id if is_private and shared else "",
            chat_kind=message.chat_kind,
            attachments=tuple(attachments),
            choices=tuple(choices),
            settles=settles and message.kind is InboundKind.BUTTON,
            rings=rings,
        ),
    )
