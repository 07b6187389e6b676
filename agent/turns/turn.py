"""One turn, from its claim to its commit: its facts, what it has written so far, and whether /stop ended it.

Also which addresses of its answer may be links although untrusted text was in its prompt: those that others wrote
first. A hijacked model can write an address that carries what the conversation holds; a click sends it. So an address
may be a link only if it is found, letter for letter, in the settings and memory, in what people typed or sent, or in
what the web tools brought. Other tools return text that the model may have composed.
"""

from __future__ import annotations

import asyncio
import re
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from enum import Enum, auto
from typing import TYPE_CHECKING, Any

from cachetools import LRUCache
from markdown_it.common.normalize_url import normalizeLinkText

from agent.base.file_facts import UNTRUSTED, facts_in
from agent.base.locks import TurnPhases, task_group
from agent.base.transcript_lines import estimate_message, estimate_messages
from agent.files.outgoing_files import BoundFileSender, OutgoingFiles
from agent.llm.chat_model import ToolCall
from agent.llm.media_model import UsageAttribution
from agent.memory.prompt.compaction import PromptLimit
from agent.memory.prompt.conversation import Conversation
from agent.memory.prompt.prompt_window import apply_trims
from agent.reminders.reminder_access import ReminderAccess
from agent.tasks.task_access import TaskAccess, TaskServices
from agent.tools.call_record import call_steps
from agent.tools.tool import ToolKind
from agent.tools.tool_questions import ToolQuestion, allowed_question
from agent.turns.chat_profiles import ChatProfile
from agent.turns.turn_draft import StagedEffects, TurnDraft
from gateway.events import ChatKind, InboundMessage, PlatformAccount, Role, SessionKey
from gateway.ports.access import CappedSender, MessageContext, capped_sender
from gateway.ports.channel import CallStep
from gateway.ports.journal import InboxRow, Job, Line, LinkFinder, NullPreview, Preview, TurnLease
from gateway.text import comparable_address, find_addresses
from gateway.text.linked_addresses import LONGEST

if TYPE_CHECKING:
    from gateway.store.jobs import SqlJobs
    from gateway.store.journal import SqlJournal

RETRY_PREFIX = "job:retry/"  # of a message id; then the turn that is answered again, and the row of the command

_MOST_STAGE_TIMES = 2_000  # turns
_STOP_WITHIN = 5.0  # seconds that /stop waits for the turn's end before it answers


class PromptFitter:
    """The prompt of a running turn, kept within the prompt limit."""

    def __init__(
        self, conversation: Conversation, draft: TurnDraft, assembled: Sequence[Mapping[str, Any]], *, overhead: int
    ) -> None:
        """*assembled* is the system prompt and the history; *overhead* is the weight of the tools' schemas."""
        self._conversation = conversation
        self._draft = draft
        self._system = assembled[0]
        self._fixed = estimate_message(assembled[0]) + overhead
        self._history = assembled[1:]
        self._history_weight = conversation.weight_with(draft.lines)

    @property
    def may_have_pictures(self) -> bool:
        """False if no message refers to a picture; takes the same time however long the conversation is."""
        own = self._draft.messages
        return self._conversation.auxiliary.pictures > 0 or any(isinstance(each.get("content"), list) for each in own)

    @property
    def messages(self) -> Sequence[Mapping[str, Any]]:
        """The prompt; until it is shrunk, it begins with the bytes of the turn before."""
        return [self._system, *self._history, *self._draft.messages]

    @property
    def weight(self) -> int:
        """Estimated tokens of the prompt and the tools; takes the same time however long the conversation is."""
        return self._fixed + self._history_weight + self._draft.weight

    def shrinking_lines(self, token_limit: int) -> Sequence[Line]:
        """Return the lines that make the prompt fit *token_limit*, as far as possible; none if it fits already."""
        if self.weight <= token_limit:
            return ()
        return self._conversation.compacted(
            apply_trims(self._draft.lines),
            self._draft.first_index,
            after=self._draft.lines,
            prompt_limit=PromptLimit(tokens=token_limit, taken=self._fixed),
        ).lines

    def reload(self) -> None:
        """Read the history again after the draft has recorded shrinking lines."""
        self._history = self._conversation.messages_with(self._draft.lines)
        self._history_weight = estimate_messages(self._history)


@dataclass(slots=True, kw_only=True, eq=False, repr=False)
class Turn:
    """A claimed turn.

    Its facts are derived once, by `TurnServices.claim`, and are not there before. The scope is locked from then to the
    commit, so it is the one in which the record is stored. A changed setting, choice, role or account link takes
    effect on the next turn.
    """

    lease: TurnLease
    is_control: bool = False  # a command that no queue holds; its lease is of this process alone

    # facts of the lease
    id: str = field(init=False)
    key: SessionKey = field(init=False)  # the session
    row: InboxRow = field(init=False)  # the first inbox row: its sender is the turn's one principal
    message: InboundMessage = field(init=False)  # the first message
    is_shared: bool = field(init=False)  # in a chat of several people
    retried: str = field(init=False)  # the id of the turn that this one answers again; empty except for /retry

    # facts
    account: PlatformAccount = field(init=False)  # the sender, whichever bot they wrote to; usage is charged to it
    person: str = field(init=False)  # the person the account belongs to: itself unless accounts are linked
    accounts: tuple[PlatformAccount, ...] = field(init=False)  # all accounts of the person, the oldest first
    scope: str = field(init=False)  # memory scope
    role: Role = field(init=False)
    is_admitted: bool = field(init=False)  # False: the sender lost the right to write while the message waited
    is_named: bool = field(init=False)  # an owner, or admitted by their own id
    language: str = field(init=False)  # of the chat, for our own sentences
    zone: str = field(init=False)  # IANA time zone of the memory scope
    profile: ChatProfile = field(init=False)  # model, tools, persona and window that the chat's settings choose
    capped_sender: CappedSender = field(init=False)  # the sender and the chat's caps, for the usage caps

    # what it is made of
    draft: TurnDraft = field(init=False)
    prompt: PromptFitter = field(init=False)  # not there before it is assembled
    is_assembled: bool = False
    conversation: Conversation = field(init=False)  # not there before it is loaded
    has_conversation: bool = False  # not in a turn that is refused, nor in a control command
    preview: Preview = field(default_factory=NullPreview)
    is_watched: bool = False  # the answer is streamed only where a stream would be seen: it costs CPU
    pictured: set[str] = field(default_factory=set)  # ids of calls whose picture is being stored
    _calls: dict[str, tuple[str, str]] = field(default_factory=dict, init=False)  # by id: tool, progress
    _steps: tuple[CallStep, ...] = field(default=(), init=False)

    # how far it is
    task: asyncio.Task[None] | None = None
    phases: TurnPhases | None = None
    is_stop_wanted: bool = False  # /stop: end as stopped
    is_committing: bool = False  # past this point /stop is "already answered"
    opening_call: ToolCall | None = None  # the call with which a command lets the model's answer begin
    tool: str = ""  # the tool that is running
    model_calls: int = 0  # answered ones of this attempt, with their tokens and cost
    tokens: int = 0
    dollars: float = 0.0
    stage_times: dict[str, datetime] = field(default_factory=dict)  # when each stage began

    def __post_init__(self) -> None:
        """Begin with what an earlier attempt stored."""
        self.draft = TurnDraft(self.lease)
        self.id, self.key, self.row = self.lease.turn, self.lease.key, self.lease.rows[0]
        self.message = message = self.row.message
        self.is_shared = message.chat_kind is ChatKind.GROUP
        self.retried = retried_turn(message.message_id)

    @property
    def allowed(self) -> ToolQuestion | None:
        """The call that a person allowed, in the turn that runs it."""
        return allowed_question(self.message)

    @property
    def first_call(self) -> ToolCall | None:
        """The call that the turn begins with, as if the model had requested it; None = the model decides."""
        if (allowed := self.allowed) is not None:
            return self.profile.toolbox.requested(allowed.call)
        return self.opening_call

    @property
    def attribution(self) -> UsageAttribution:
        """The account, chat and turn that model calls are charged to."""
        return UsageAttribution(self.id, self.account, str(self.key))

    def identify(
        self, facts: MessageContext, *, role: Role, is_admitted: bool, is_named: bool, profile: ChatProfile
    ) -> None:
        """Set what the gateway knows about the sender and the chat."""
        self.account, self.person, self.accounts = facts.account, facts.person, facts.accounts
        self.scope, self.role = facts.scope, role
        self.is_admitted, self.is_named = is_admitted, is_named
        self.profile = profile
        self.capped_sender = capped_sender(facts, is_named=is_named)

    # -- conversation and prompt -----------------------------------------------------------------

    def use(self, conversation: Conversation) -> None:
        """Continue *conversation*."""
        self.conversation, self.has_conversation = conversation, True

    def restart(self, lease: TurnLease) -> None:
        """Drop what was written and loaded, and begin with what *lease* has."""
        if self.has_conversation:
            del self.conversation
        self.draft, self.has_conversation, self.is_assembled = TurnDraft(lease), False, False

    def set_prompt(self, assembled: Sequence[Mapping[str, Any]]) -> None:
        """Ask with *assembled*, the system prompt and the history, and the draft's messages."""
        overhead = self.profile.toolbox.overhead
        self.prompt = PromptFitter(self.conversation, self.draft, assembled, overhead=overhead)
        self.is_assembled = True

    def all_lines(self) -> list[Line]:
        """Return the transcript lines of the conversation and of the turn so far."""
        return [*self.conversation.lines, *self.draft.lines]

    def find_links(self) -> LinkFinder | None:
        """Return the function that finds the allowed links of an answer to the prompt; None = all are allowed."""
        if not self.draft.is_tainted:
            return None
        toolbox, system = self.profile.toolbox, str(self.prompt.messages[0]["content"])

        def is_from_web(line: Line) -> bool:
            return toolbox.kind_of(ToolCall("", str(line.get("name", "")), "")) is ToolKind.WEB

        return AnswerLinks(system, self.all_lines, is_from_web).find

    # -- tool calls ------------------------------------------------------------------------------

    def bind_files(self, outgoing: OutgoingFiles, effects: StagedEffects) -> BoundFileSender:
        """Return the sender of files that go with the turn's answer, for one call with *effects*."""
        sent_count = len(self.draft.attachments)
        return outgoing.bind(self.scope, self.key, self.all_lines, effects.send, sent_count=sent_count)

    def bind_reminders(
        self,
        jobs: SqlJobs,
        now: Callable[[], datetime],
        *,
        taint: Callable[[], None] = lambda: None,
        staged_jobs: Callable[[], Iterable[Job]] = tuple,
    ) -> ReminderAccess:
        """Return the reminders that the turn's sender may see, set and change."""
        return ReminderAccess(
            jobs=jobs,
            key=self.key,
            message=self.message,
            account=self.account,
            accounts=self.accounts,
            role=self.role,
            scope=self.scope,
            zone=self.zone,
            now=now,
            taint=taint,
            staged_jobs=staged_jobs,
        )

    def bind_tasks(
        self,
        services: TaskServices,
        now: Callable[[], datetime],
        *,
        staged_jobs: Callable[[], Iterable[Job]] = tuple,
    ) -> TaskAccess:
        """Return the tasks that the turn's sender may see, start and stop."""
        return TaskAccess(
            services=services,
            key=self.key,
            message=self.message,
            account=self.account,
            accounts=self.accounts,
            role=self.role,
            scope=self.scope,
            capped_sender=self.capped_sender,
            now=now,
            staged_jobs=staged_jobs,
        )

    def is_running(self, call: ToolCall) -> bool:
        """Return True if *call* runs; one that was left behind after its timeout does not."""
        return call.id in self._calls

    def show_call(self, call: ToolCall, progress: str = "") -> None:
        """Show *call* and its progress in the status line."""
        self._calls[call.id] = (call.name, progress)
        self._show_status()

    def end_call(self, call: ToolCall) -> None:
        """Show another call that still runs instead of *call*, or none."""
        self._calls.pop(call.id, None)
        self._show_status()

    def show_steps(self) -> None:
        """Show the tool calls so far; those without a result run."""
        self._steps = tuple(call_steps(self.draft.lines, self.zone, self.language, is_running=True))
        self._show_status()

    def _show_status(self) -> None:
        name, progress = next(reversed(self._calls.values()), ("", ""))
        self.tool = name
        self.preview.status(f"{name}: {progress}" if progress else name, self._steps)

    # -- /stop -----------------------------------------------------------------------------------

    def is_meant(self, sender: str, before: int) -> bool:
        """Return True if a /stop for *sender*, or for all if empty, in the inbox row *before* means this turn."""
        return self.row.seq < before and sender in ("", self.message.sender.id)

    def stop(self) -> bool:
        """Ask the turn to end as stopped; return False if its answer is already being stored."""
        if self.is_stop_wanted:  # a second cancel would hit the commit of the first
            return True
        if self.is_committing or self.task is None:
            return False
        self.is_stop_wanted = True
        self.task.cancel()
        return True


def retried_turn(message_id: str) -> str:
    """Return the turn that a retry's message answers again; empty for any other message."""
    return message_id.removeprefix(RETRY_PREFIX).split("/")[0] if message_id.startswith(RETRY_PREFIX) else ""


class RunningTurns:
    """Running turns by session, and stopping them."""

    def __init__(self, journal: SqlJournal) -> None:
        self._journal = journal
        self._running: dict[SessionKey, Turn] = {}
        self._stop_when_claimed: set[str] = set()  # turn ids
        self.active: set[SessionKey] = set()  # sessions that a worker runs or will run a turn of
        self._stage_times: LRUCache[str, Mapping[str, datetime]] = LRUCache(_MOST_STAGE_TIMES)

    def add(self, turn: Turn) -> bool:
        """Register a claimed turn; return False if /stop asked for its end before it was claimed."""
        self._running[turn.key] = turn
        if turn.id not in self._stop_when_claimed:
            return True
        self._stop_when_claimed.discard(turn.id)
        turn.is_stop_wanted = True
        return False

    def remove(self, key: SessionKey) -> None:
        """Forget the turn of *key*, which has ended, but for the times of its stages."""
        turn = self._running.pop(key, None)
        if turn is not None:
            self._stage_times[turn.id] = turn.stage_times

    def stage_times(self, turn: str) -> Mapping[str, datetime]:
        """Return when each stage of *turn* began; empty for turns from before the start, and for old ones."""
        running = (each.stage_times for each in self._running.values() if each.id == turn)
        return next(running, self._stage_times.get(turn, {}))

    def get(self, key: SessionKey) -> Turn | None:
        """Return the running turn of *key*."""
        return self._running.get(key)

    def __len__(self) -> int:
        return len(self._running)

    async def stop(self, key: SessionKey, *, sender: str = "", before: int = sys.maxsize) -> tuple[bool, int]:
        """Stop the running turn and the queue of *key*; with *sender* only that sender's.

        Messages from the inbox row *before* on go on: a kill repeats a /stop, after which people have written more.
        Return whether a turn was stopped, and the number of queued messages that were.
        """
        dropped = await self._journal.drop(key, sender=sender, before=before)
        if key not in self._running:
            # A turn that started before a crash and is not claimed again yet.
            queued = await self._journal.waiting_rows(key)
            meant = (row for row in queued if row.seq < before and sender in ("", row.message.sender.id))
            interrupted = {row.turn for row in meant if row.turn}
            if interrupted and key not in self._running:
                self._stop_when_claimed |= interrupted
                return True, dropped
        running = self._running.get(key)
        if running is None or not running.is_meant(sender, before):
            return False, dropped
        if not running.stop() or running.task is None:
            return False, dropped
        # The answer to /stop is stored after the turn's end: a kill in between repeats /stop and does not lose it.
        await asyncio.wait({running.task}, timeout=_STOP_WITHIN)
        return True, dropped

    async def stop_in_threads(self, chat: SessionKey, *, sender: str, before: int) -> tuple[bool, int]:
        """Stop what *sender* has running and queued in the threads of *chat*; return as `stop` does."""
        threads = [key for key in {*self._running, *self.active} if key.parent == chat != key]
        async with task_group() as tasks:
            stops = [
                tasks.create_task(self.stop(key, sender=sender, before=before), name=f"stop {key}") for key in threads
            ]
        results = [each.result() for each in stops]
        return any(stopped for stopped, _ in results), sum(dropped for _, dropped in results)


# An address ends where none of its own signs follows; CJK scripts write the next word right beside it.
_ADDRESS_BEGINS, _ADDRESS_ENDS = r"(?<![A-Za-z0-9.@_%-])", r"/?(?![A-Za-z0-9_#&=%~@+-]|[/?.][A-Za-z0-9_%#&=~+-])"

MOST_ADDRESSES = 200  # of one answer; a millisecond for each in a prompt of a megabyte


class _Author(Enum):
    PERSON = auto()  # or operator
    PAGE = auto()  # a web tool's result, or a forwarded message
    MODEL = auto()


class AnswerLinks:
    """Finds the links that an answer to one prompt may have."""

    def __init__(self, system: str, lines: Callable[[], Sequence[Line]], is_from_web: Callable[[Line], bool]) -> None:
        """*system* is the system prompt, *lines* the rest; *is_from_web* is asked about lines of results."""
        self._system = system
        self._lines = lines
        self._is_from_web = is_from_web
        self._texts: list[tuple[_Author, str, str]] | None = None  # with the text in lower case, read once
        self._known: dict[str, bool] = {}

    def find(self, markdown: str) -> tuple[str, ...]:
        """Return the addresses in *markdown* that may be links, comparable and each once.

        Only the first `MOST_ADDRESSES` are looked for in the prompt. Takes longer than the event loop has for an answer
        with many; safe in a thread.
        """
        found = dict.fromkeys(comparable_address(each) for each in find_addresses(markdown))
        candidates = [each for each in found if each and len(each) <= LONGEST][:MOST_ADDRESSES]
        return tuple(each for each in candidates if self._may_be_link(each))

    def _may_be_link(self, address: str) -> bool:
        if address not in self._known:
            self._known[address] = self._stands_in_prompt(address)
        return self._known[address]

    def _stands_in_prompt(self, address: str) -> bool:
        if self._texts is None:
            texts = [(_Author.PERSON, self._system), *(each for line in self._lines() for each in self._texts_of(line))]
            self._texts = [(author, text, text.lower()) for author, text in texts]
        forms = {address, normalizeLinkText(f"http://{address}").removeprefix("http://")}  # encoded, and as it is read
        hosts = {re.split("[/?#]", each, maxsplit=1)[0].lower() for each in forms}
        pattern = re.compile(f"{_ADDRESS_BEGINS}(?:{'|'.join(map(re.escape, forms))}){_ADDRESS_ENDS}", re.IGNORECASE)
        is_models = False
        for author, text, lowered in self._texts:
            if (author is _Author.PAGE and is_models) or not any(host in lowered for host in hosts):
                continue
            if any(comparable_address(found[0]) == address for found in pattern.finditer(text)):
                if author is not _Author.MODEL:
                    return True
                is_models = True  # what a page says after the model may be its echo
        return False

    def _texts_of(self, line: Line) -> Iterator[tuple[_Author, str]]:
        content = line.get("content")
        text = content if isinstance(content, str) else ""
        match line.get("role"):
            case "user":
                is_others = line.get("origin") == UNTRUSTED
                yield _Author.PAGE if is_others else _Author.PERSON, text
                for fact in facts_in(line):
                    yield _Author.PAGE, "\n".join(str(fact.get(name, "")) for name in ("text", "said", "caption"))
            case "assistant":
                calls = [str(_function(each).get("arguments", "")) for each in line.get("tool_calls") or ()]
                yield _Author.MODEL, "\n".join([text, *calls])
            case "tool" if self._is_from_web(line):
                yield _Author.PAGE, "\n".join([text, *(str(each.get("url", "")) for each in line.get("sources") or ())])


def _function(call: Mapping[str, Any]) -> Mapping[str, Any]:
    found = call.get("function")
    return found if isinstance(found, Mapping) else {}
