"""A command as it is declared, its roles, the services that it gets with its turn, what it returns, and the router.

Only the router checks roles. It is one for all channels.
"""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from difflib import get_close_matches
from typing import TYPE_CHECKING, Any

from agent.base import transcript_lines as build
from agent.files.file_workspace import ScopeWorkspaces
from agent.llm.chat_model import ToolCall
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
from agent.turns.turn import RunningTurns, Turn
from gateway.events import (
    InboundKind,
    InboundMessage,
    MessageButton,
    OutboundKind,
    OutboundMessage,
    PlatformAccount,
    Role,
    SessionKey,
)
from gateway.i18n import translate
from gateway.installation import load_entry_points
from gateway.ports.access import DecisionActor
from gateway.ports.journal import AcceptOutcome, Job, JobAdvance, MessageOutcome, TurnRecord

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
    # The direct chats of a person, by memory scope and accounts, with the account of each.
    find_direct_chats: Callable[
        [str, Collection[PlatformAccount]], Awaitable[Sequence[tuple[SessionKey, PlatformAccount]]]
    ]
    status: Callable[[], Awaitable[Mapping[str, Any]]]  # facts of /status, by name; raises StoreUnavailable

    async def archive(self, job: Job) -> bool:
        """Run /new's `summarise` job now if it is to be waited for; return False if it failed."""
        if not self.archives_first or not self.runner.can_do(job.kind):
            return True
        return await archive_now(job, self.runner.do, self.runner.jobs)


_COMMAND = re.compile(r"([/!]?)([a-z][a-z0-9_-]{0,31})(?:\s+(.*))?\Z", re.IGNORECASE | re.DOTALL)
ANY = "..."  # in place of a word: any arguments at all


@dataclass(frozen=True, slots=True, kw_only=True)
class CommandReply:
    """The result of a command; all of it is part of the turn's one commit."""

    text: str
    is_private: bool = False  # visible to the sender only, in a shared chat
    new_transcript: bool = False  # archive the transcript and start another
    ends: tuple[str, ...] = ()  # jobs whose id starts with one of these are removed
    jobs: tuple[Job, ...] = ()
    advances: tuple[JobAdvance, ...] = ()
    choices: tuple[MessageButton, ...] = ()  # buttons below the text
    settles: bool = False  # the pressed button has done its work: its message loses its buttons
    transcript_text: str = ""  # what the transcript shows instead of the command as typed
    transcript_reply: str = ""  # what the transcript shows instead of the text
    also: tuple[OutboundMessage, ...] = ()  # messages to other chats
    is_secret: bool = False  # holds a code: sent, but not stored in the transcript
    whom: str = ""  # for the audit line: "channel:id" that the decision is about
    outcome: str = "done"  # for the audit line
    tool: str = ""  # for the audit line: the tool that the decision is about
    audit: str = ""  # label of the audit line, set by the router; "" = not a decision
    begins: ToolCall | None = None  # instead of a reply: the model answers the message, beginning with this call


@dataclass(frozen=True, slots=True, kw_only=True)
class CommandContext:
    """The turn that a command runs in, its arguments, and the services it may use."""

    turn: Turn
    args: str
    now: datetime
    services: CommandServices
    commands: Sequence[Command]
    may_all: bool = True  # False: acts on the sender's own messages only (see `CommandNeed.others`)

    @property
    def key(self) -> SessionKey:
        """The chat the command was typed in."""
        return self.turn.key

    @property
    def message(self) -> InboundMessage:
        """The message that holds the command."""
        return self.turn.message

    @property
    def scope(self) -> str:
        """The memory scope of the chat."""
        return self.turn.scope

    @property
    def account(self) -> PlatformAccount:
        """The sender's account."""
        return self.turn.account

    @property
    def language(self) -> str:
        """The language of the chat."""
        return self.turn.language

    def translate(self, key: str, /, **fields: object) -> str:
        """Return the sentence *key* of the message catalogue in the chat's language."""
        return translate(key, self.language, **fields)

    def reply(self, key: str, /, **fields: object) -> CommandReply:
        """Return a reply of one sentence."""
        return CommandReply(text=translate(key, self.language, **fields))

    def private_reply(self, key: str, /, **fields: object) -> CommandReply:
        """Return a reply of one sentence that only the sender sees in a shared chat."""
        return CommandReply(text=translate(key, self.language, **fields), is_private=True)

    async def call(self, operation: str, arguments: Mapping[str, Any]) -> Sequence[Mapping[str, Any]]:
        """Run an operation for the sender and return its lines. Raises UserError, also for a role that may not."""
        return await self.services.call_operation(operation, arguments, self.decider, self.turn.role)

    @property
    def decider(self) -> DecisionActor:
        """The sender as the actor of a decision; the turn's id names the audit line."""
        return DecisionActor(by=actor_of(self.message), where=str(self.key), id=self.turn.id)


def actor_of(message: InboundMessage) -> str:
    """Return the actor of a decision as the audit line names it: ``channel:user_id``."""
    return f"{message.key.channel}:{message.sender.id}"


@dataclass(frozen=True, slots=True, kw_only=True)
class CommandNeed:
    """Role required for a command, or for one of its words.

    In a direct chat every sender is admin. A shared chat is any chat of several people, threads and private threads
    included. A command that requires a role leaves an audit line, whether it ran or was refused.
    """

    direct: Role = Role.MEMBER
    shared: Role = Role.MEMBER
    others: Role | None = None  # role that acts on all messages of a shared chat; others act on their own (`may_all`)
    single: Role | None = None  # with one memory for the whole installation (memory.isolation: shared)
    unless: Callable[[CommandContext], Awaitable[bool]] | None = None  # lets senders without the role
    looks: bool = False  # decides nothing: no audit line
    is_audited: bool = False  # leaves an audit line although no role is required

    def role(self, context: CommandContext) -> Role:
        """Return the required role."""
        role = self.shared if context.turn.is_shared else self.direct
        if self.single is not None and not context.scope and not role.covers(self.single):
            return self.single
        return role

    def may_all(self, context: CommandContext) -> bool:
        """Return True if the command acts on every sender's messages rather than the sender's own."""
        return self.others is None or not context.turn.is_shared or context.turn.role.covers(self.others)

    def is_decision(self, context: CommandContext) -> bool:
        """Return True if the command is audited: it requires a role, or acts on other senders' messages."""
        if self.looks:
            return False
        acts_on_others = self.others is not None and context.turn.is_shared and self.may_all(context)
        return self.is_audited or self.role(context) is not Role.MEMBER or acts_on_others


def first_word(args: str) -> str:
    """Return the first word of the arguments in lower case."""
    return args.partition(" ")[0].lower()


@dataclass(frozen=True, slots=True, kw_only=True)
class CommandNeeds:
    """Roles required for a command: in general, and for some of its words."""

    general: CommandNeed = CommandNeed()
    words: Mapping[str, CommandNeed] = field(default_factory=dict)
    word: Callable[[str], str] = first_word  # returns the word of the arguments

    def of(self, args: str) -> tuple[str, CommandNeed]:
        """Return the declared word that *args* begin with ("" without one), and the need that applies."""
        word = self.word(args)
        if word in self.words:
            return word, self.words[word]
        if args.strip() and ANY in self.words:
            return "", self.words[ANY]
        return "", self.general


Run = Callable[[CommandContext], Awaitable[CommandReply]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Command:
    """A declared command; `help` is a catalogue key."""

    name: str
    run: Run
    needs: CommandNeeds
    is_control: bool  # runs at once, not in the session queue that it may act on
    help: str
    control_words: frozenset[str] = frozenset()  # arguments that begin with one of these run at once

    def is_for(self, context: CommandContext) -> bool:
        """Return True if the sender has the role that the command requires here."""
        return context.turn.role.covers(self.needs.general.role(context))

    def runs_at_once(self, args: str) -> bool:
        """Return True if the command with *args* bypasses the session queue."""
        return self.is_control or first_word(args) in self.control_words


def command(
    name: str,
    *,
    who: Role = Role.MEMBER,
    who_in_groups: Role | None = None,
    others: Role | None = None,
    single: Role | None = None,
    looks: bool = False,
    words: Mapping[str, CommandNeed] | None = None,
    word: Callable[[str], str] = first_word,
    is_control: bool = False,
    control_words: Collection[str] = (),
) -> Callable[[Run], Command]:
    """Declare an async function as the command */name*; its help line is ``commands.help_<name>``.

    *who* is the role required in a direct chat, *who_in_groups* in a shared one (the same by default); *others*,
    *single* and *looks* are fields of `CommandNeed`. *words* have needs different from the command's; *word* finds
    the word in the arguments. A command never checks roles itself. A button bypasses the session queue if its command
    does: *control_words* are for commands that send buttons.
    """
    shared = who if who_in_groups is None else who_in_groups
    general = CommandNeed(direct=who, shared=shared, others=others, single=single, looks=looks)

    def declare(run: Run) -> Command:
        return Command(
            name=name,
            run=run,
            needs=CommandNeeds(general=general, words=dict(words or {}), word=word),
            is_control=is_control,
            help=f"commands.help_{name}",
            control_words=frozenset(control_words),
        )

    return declare


# -- router -------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class ParsedCommand:
    """A command as parsed; its name may be unknown."""

    name: str
    args: str


class CommandRouter:
    """All commands; built once at start."""

    def __init__(self, commands: Sequence[Command]) -> None:
        self._commands = {command.name: command for command in commands}

    @classmethod
    def load(cls) -> CommandRouter:
        """Load the commands of the entry points `parlour.commands`."""
        return cls([entry.load() for entry in sorted(load_entry_points("parlour.commands"), key=lambda e: e.name)])

    @property
    def commands(self) -> Sequence[Command]:
        """All commands, by name."""
        return [self._commands[name] for name in sorted(self._commands)]

    def parse(self, message: InboundMessage) -> ParsedCommand | None:
        """Return the command in *message*, or None.

        Only the field `command` is parsed: every word in it is the sender's. `/name` is a command even if the name is
        unknown; `!name` and a bare name after a mention of the bot only if it is known.
        """
        if message.is_forwarded or message.kind not in (InboundKind.MESSAGE, InboundKind.COMMAND, InboundKind.BUTTON):
            return None
        match = _COMMAND.match(message.command)
        if match is None:
            return None
        sign, name, arguments = match[1], match[2].lower(), (match[3] or "").strip()
        if sign != "/" and name not in self._commands:
            return None  # "!important" is emphasis, "@bot hello" a greeting
        return ParsedCommand(name, arguments)

    def is_control(self, parsed: ParsedCommand) -> bool:
        """Return True if the command bypasses the session queue; unknown commands do."""
        command = self._commands.get(parsed.name)
        return command is None or command.runs_at_once(parsed.args)

    async def run(self, parsed: ParsedCommand, context: CommandContext) -> CommandReply:
        """Run the command, or return the reply that it is unknown or requires another role.

        Roles are checked here, except for a decision on a question, which names who may decide (`/tools`). The reply of
        a decision has the label of its audit line.
        """
        command = self._commands.get(parsed.name)
        if command is None:
            return self._unknown(parsed.name, context)
        word, need = command.needs.of(parsed.args)
        label = f"{command.name} {word}".strip()
        role = need.role(context)
        if not context.turn.role.covers(role) and not (need.unless is not None and await need.unless(context)):
            text = context.translate(f"commands.only_{role}", command=label)
            return CommandReply(text=text, is_private=True, audit="" if need.looks else label, outcome="refused")
        reply = await command.run(replace(context, may_all=need.may_all(context)))
        return replace(reply, audit=f"{label} {reply.tool}".strip() if need.is_decision(context) else "")

    def audit_label(self, parsed: ParsedCommand, context: CommandContext) -> str:
        """Return the label of the command's audit line; "" if it is not a decision."""
        command = self._commands.get(parsed.name)
        if command is None:
            return ""
        word, need = command.needs.of(parsed.args)
        return f"{command.name} {word}".strip() if need.is_decision(context) else ""

    def _unknown(self, name: str, context: CommandContext) -> CommandReply:
        if near := get_close_matches(name, self._commands, n=1):
            return context.private_reply("commands.did_you_mean", name=name, near=near[0])
        return context.private_reply("commands.unknown", name=name)
