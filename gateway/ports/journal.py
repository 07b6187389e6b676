"""The journal port: it makes messages durable and commits each turn as one record.

Methods that write return when the write is durable, and raise StoreUnavailable, without effect, otherwise. Every
method may be called again with the same arguments.
"""

from __future__ import annotations

import sys
from collections.abc import AsyncIterator, Callable, Collection, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from enum import StrEnum
from typing import Any, Protocol, TypeAlias

from gateway.events import InboundKind, InboundMessage, MessagePart, OutboundMessage, Role, SessionKey
from gateway.ports.access import AuditEntry
from gateway.ports.caps import CapNotice

Line: TypeAlias = Mapping[str, Any]  # one transcript line
CALL_NOTED_AFTER = timedelta(milliseconds=50)  # shorter calls leave no row if killed


# Prefixes of the message ids of jobs that a person set: a reminder, the end of a task, a call that was approved.
SET_BY_PERSON = ("job:remind/", "job:task/", "job:allowed/")


def is_set_by_person(message: InboundMessage) -> bool:
    """Return True for a job that its sender set; it needs their access and has their role when it runs."""
    return message.kind is InboundKind.JOB and message.message_id.startswith(SET_BY_PERSON)


class AcceptOutcome(StrEnum):
    """Result of accepting a message."""

    NEW = "new"
    DUPLICATE = "duplicate"  # known with the same revision; nothing changed
    EDITED = "edited"  # the waiting row now holds the new text
    NOTED = "noted"  # an edit or deletion of an answered message, passed to the next turn
    DELETED = "deleted"  # the waiting row ended as stopped
    FULL = "full"  # the backlog is full: stored as refused, notified at most once per chat and minute


class MessageOutcome(StrEnum):
    """How an accepted message ended. Exactly one, counted and visible."""

    ANSWERED = "answered"
    MERGED = "merged"
    STOPPED = "stopped"
    EXPIRED = "expired"
    REFUSED = "refused"
    DEAD = "dead"


@dataclass(frozen=True, slots=True, kw_only=True)
class AcceptResult:
    """The journal's answer to a message. With it, the platform may be acknowledged."""

    outcome: AcceptOutcome
    seq: int  # the inbox row's number; of the first delivery, for a duplicate
    queued: int = 0  # rows waiting in the chat, this one included


@dataclass(frozen=True, slots=True, kw_only=True)
class InboxRow:
    """An accepted message that has not ended."""

    seq: int
    message: InboundMessage
    accepted_at: datetime
    role: Role = Role.MEMBER
    is_control: bool = False  # bypasses the session queue
    turn: str = ""  # stamped by claim or steer
    attempts: int = 0  # crashes while it was on trial; dead-lettered after three
    is_lone: bool = False  # a suspect: in flight at two unclean stops, retried in isolation


REMEMBER = "remember"  # kind of the job that adds a fact to MEMORY.md; the next turn of its scope waits for it


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionRow:
    """The journal's row of a session; the commit of /new replaces `transcript`."""

    key: SessionKey
    transcript: str  # 16 random base32 characters
    next_index: int  # the `i` of the next transcript line
    created_at: datetime
    scope: str = ""  # scope of the session's last record
    used_at: datetime | None = None  # when its last turn ended; None where it was not asked for
    head: int = 0  # number of its last stored turn, as of a claim
    changes: int = 0  # of stored turns of its transcript, as of a claim
    memory_version: str = ""  # of the documents of its scope, as of a claim; "" = not known
    has_facts: bool = True  # False after a claim that found no `REMEMBER` job in its scope, nor in the shared one


@dataclass(frozen=True, slots=True, kw_only=True)
class TurnStep:
    """Something a turn did and must not do again: transcript lines, stored as they happen.

    n = 0 is the opening (snapshot, deltas, the user lines as rendered); then each model message
    with tool calls, each intent, and each tool result. Steps are adopted in order of `n`.
    """

    n: int
    kind: str  # opening, model, intent, result, steer, squeeze, stop, stop_wanted
    lines: tuple[Line, ...]
    call: str = ""  # tool call id, for intent and result
    blobs: Mapping[str, str] = field(default_factory=dict)  # sha256 -> text the opening's snapshot names


# /stop came after the turn was released or killed: its next claim ends it. No other step has so high a number.
STOP_WANTED = TurnStep(n=1_000_000, kind="stop_wanted", lines=())


@dataclass(frozen=True, slots=True, kw_only=True)
class TurnLease:
    """The right to run one turn of one lane; `epoch` fences every write made under it."""

    key: SessionKey
    turn: str
    epoch: int
    rows: tuple[InboxRow, ...]  # one sender's, in (platform time, message id) order
    session: SessionRow
    steps: tuple[TurnStep, ...] = ()  # steps of earlier attempts
    notes: tuple[InboxRow, ...] = ()  # edits and deletions that came after their turn
    more: int = 0  # rows queued behind this turn
    is_uncertain: bool = False  # may have been answered already: the journal was restored since

    @property
    def is_lone(self) -> bool:
        """True if the turn is a suspect."""
        return any(row.is_lone for row in self.rows)

    @property
    def attempts(self) -> int:
        """Crashes while the turn was on trial."""
        return max(row.attempts for row in self.rows)


@dataclass(frozen=True, slots=True, kw_only=True)
class Suspect:
    """A claimed turn or control row that may have crashed the process (`gateway/store/suspects.py`)."""

    work: TurnLease | InboxRow
    trial: str  # for `Journal.begin_trial`
    is_alone: bool  # on trial from its claim to its end, with no other suspect in flight


@dataclass(frozen=True, slots=True, kw_only=True)
class TurnRecord:
    """A turn as it stands for good: the unit of the transcript."""

    turn: str
    key: SessionKey
    transcript: str
    outcome: MessageOutcome
    lines: tuple[Line, ...]  # transcript lines in file order, the `end` line last
    from_index: int
    to_index: int  # exclusive: the session's next index after this record
    inbox: tuple[int, ...]  # seq of every row this turn answers
    at: datetime
    new_transcript: str = ""  # /new: the transcript that begins after this record
    blobs: Mapping[str, str] = field(default_factory=dict)
    failure: str = ""  # key of the failure message, for failed turns
    supersedes: str = ""  # the turn a /retry answers again
    scope: str = ""  # scope of the transcript: people/…, chats/…, or "" for the home itself
    seq: int = field(default=0, compare=False)  # its number; 0 before it is stored
    previous: int = field(default=0, compare=False)  # the number of the session's turn before it, as of a commit


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """Something due. `id` makes queuing idempotent; finishing twice is finishing once."""

    id: str
    kind: str  # remember, summarise, ...
    scope: str  # a scope name, or "" for the whole installation
    payload: Mapping[str, Any]
    due_at: datetime
    attempts: int = 0


@dataclass(frozen=True, slots=True)
class JobAdvance:
    """A job and the one that takes its place, if it is still queued."""

    job: Job
    next: Job | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class JobQueueStats:
    """How the unfinished jobs of one kind stand."""

    kind: str
    waiting: int  # due and not leased
    lag_seconds: float  # age of the oldest due job
    later: int  # scheduled or postponed


@dataclass(frozen=True, slots=True, kw_only=True)
class TurnCommit:
    """Everything a turn leaves behind, in one transaction."""

    record: TurnRecord
    outbound: tuple[OutboundMessage, ...] = ()
    ends: tuple[str, ...] = ()  # jobs whose id starts with one of these are removed, before `jobs` are queued
    jobs: tuple[Job, ...] = ()
    advances: tuple[JobAdvance, ...] = ()  # as `JobQueue.advance` does each
    audit: AuditEntry | None = None  # its decision about people or a shared chat
    cap_notices: tuple[CapNotice, ...] = ()  # sent with its outbox rows
    # Of the first of `outbound`. They are stored if its chat has nothing else to deliver, the first marked as sending.
    parts: tuple[MessagePart, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredRecord:
    """A committed record, its number, and its lines as bytes of JSON."""

    seq: int
    record: TurnRecord
    body: bytes = b""


@dataclass(frozen=True, slots=True, kw_only=True)
class UsageRow:
    """One model call, stored when it ends, whatever the turn's outcome; or one counted tool call."""

    turn: str
    person: str
    chat: str
    purpose: str  # answer, consolidation, dream, flush, embedding, transcription; tool-web, tool-act
    model: str
    tokens_in: int
    tokens_out: int
    tokens_cached: int
    cost: float | None  # US dollars; None = unknown
    at: datetime
    call: str = ""  # id of a running model call, whose figures are estimates; key of a tool call
    is_own: bool = False  # the turn was started by a job


@dataclass(frozen=True, slots=True, kw_only=True)
class DeadLetter:
    """Something that will not be tried again, kept 90 days for the operator."""

    id: str  # inbox:<seq> or a part id
    key: SessionKey
    reason: str
    at: datetime


@dataclass(frozen=True, slots=True, kw_only=True)
class TurnTrace:
    """Everything the journal knows of one turn, for `parlour turn`."""

    turn: str
    key: SessionKey
    inbox: tuple[Mapping[str, Any], ...]
    steps: tuple[Mapping[str, Any], ...]
    record: Mapping[str, Any] | None
    parts: tuple[Mapping[str, Any], ...]
    usage: tuple[UsageRow, ...]
    dead: tuple[DeadLetter, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class TurnQuery:
    """The turns that an operator looks for. All fields that are set apply."""

    chat: SessionKey | None = None  # with its threads
    scope: str = ""  # of the threads of `chat`, where others are to be left out
    accounts: tuple[str, ...] = ()  # names of accounts: turns that one of them caused
    since: datetime | None = None
    until: datetime | None = None  # exclusive
    limit: int = 50


@dataclass(frozen=True, slots=True, kw_only=True)
class TurnSummary:
    """One line about a turn, without a word of it."""

    turn: str
    key: SessionKey
    outcome: str  # "running" for a turn that has not ended
    at: datetime
    failure: str = ""
    calls: int = 0
    tokens: int = 0
    known_cost: float = 0.0
    unpriced_calls: int = 0


class Journal(Protocol):
    """Inbox, lanes, tool steps and the commit. One writer; many operations per transaction."""

    def now(self) -> datetime:
        """Return the time by the clock that all gateways of the store go by."""

    async def accept(
        self, message: InboundMessage, *, role: Role, is_control: bool, language: str = "en"
    ) -> AcceptResult:
        """Make *message* durable, once.

        Dedupe as docs/formats.md says: the logical key decides, event ids only where there is no
        message id. A full backlog stores the row as refused and enqueues the one polite line, in *language*.
        Raises UnreadableEvent for a message with an id of more than 512 bytes.
        """

    def ready_sessions(self) -> AsyncIterator[SessionKey]:
        """Yield each key that has unclaimed lane rows: the backlog of the last run first, then as they come.

        A key may be yielded again while it is being worked on; claim then returns None.
        """

    @property
    def earlier_controls(self) -> Mapping[int, SessionKey]:
        """The control rows that the last run left open: chats by row number. They are the first of `control_rows`."""

    def control_rows(self) -> AsyncIterator[InboxRow]:
        """Yield each control row (commands, buttons) as it is accepted, the last run's first."""

    async def claim(self, key: SessionKey) -> TurnLease | None:
        """Claim the session's next turn. Return None if it has none, is leased, or the turn is a suspect.

        Rows are stamped with the turn id before the call returns. Rows stamped by an earlier attempt are claimed again
        with their steps. Merging follows `settings.agent.merge`: one sender's album, split paste or burst.
        """

    async def wait_suspect(self) -> None:
        """Return when there may be a suspect to claim: a turn or control row in flight at two unclean stops."""

    async def claim_suspect(self, *, beside: int) -> Suspect | None:
        """Claim the suspect with the fewest attempts, of all session queues and control rows.

        Return None without suspects, or if the next one may not be in flight with *beside* other suspects.
        """

    async def begin_trial(self, suspect: Suspect, answered: Collection[str]) -> bool:
        """Store that *suspect* is on trial, in place of any other: a crash from now on is charged to it.

        Return False, and store nothing, while an answer of the turns *answered* is being delivered.
        """

    async def end_trial(self) -> None:
        """Store that nothing is on trial. Has no effect the second time."""

    async def acquit(self) -> None:
        """Give back the attempt that was running when the process before was killed: something else was in hand."""

    def watch_messages(self, key: SessionKey, notify: Callable[[InboundMessage], None]) -> AbstractContextManager[None]:
        """Call *notify* with each message for the queue of *key* that this gateway accepts during the block.

        It is first called with those that were accepted between the claim and the block. One block per session at a
        time. Messages that other gateways accept are not among them. *notify* must not raise.
        """

    async def steer(self, lease: TurnLease) -> tuple[InboxRow, ...]:
        """Add the sender's new messages to the running turn, stamped as in `claim`.

        Returns () for a suspect.
        """

    async def step(self, lease: TurnLease, *steps: TurnStep) -> None:
        """Store *steps* in one transaction; storing the same `n` again changes nothing. Raises LeaseLost."""

    async def commit(self, lease: TurnLease, commit: TurnCommit) -> TurnRecord:
        """Store the record, end its rows, enqueue outbound and jobs: one transaction, fenced by the lease.

        Shielded from cancellation. Committing a turn that is committed returns the stored record
        and changes nothing else. Raises LeaseLost when the lane has another owner.
        """

    async def settle(self, row: InboxRow, commit: TurnCommit) -> TurnRecord:
        """Commit a control row's record outside the lane; idempotent by turn like commit."""

    async def release(self, lease: TurnLease) -> None:
        """Give the rows back to the lane, steps kept; a chosen stop does not count as an attempt."""

    async def last_message_at(self, key: SessionKey) -> datetime | None:
        """Return when the last message of a user was accepted in *key*; None if that was over 30 days ago."""

    async def session(self, key: SessionKey) -> SessionRow:
        """Return the key's session, created if missing, for records outside the session queue."""

    async def waiting_rows(self, key: SessionKey, *, sender: str = "") -> tuple[InboxRow, ...]:
        """Return the accepted lane rows of *key* that have not ended, in order, running ones included."""

    async def drop(self, key: SessionKey, *, sender: str = "", before: int = sys.maxsize) -> int:
        """End the unclaimed rows of *key*, or those of one sender, as stopped; return their number.

        Rows from the seq *before* on stay: those of messages that came after the one that stops others.
        An unclaimed turn that had begun is not among them: it gets the step STOP_WANTED.
        """

    def calling(self, usage: UsageRow) -> None:
        """Note a running model call: *usage* is an estimate, its `call` a unique name. Returns at once.

        The note remains if a kill interrupts the call. It is written if the call takes longer than
        `CALL_NOTED_AFTER`, and waits for another transaction for at most a quarter of a second.
        """

    def spend(self, usage: UsageRow) -> None:
        """Store a usage row with the next batch, before any later commit; returns at once.

        One with a `call` takes the place of the estimate that `calling` may have stored.
        """

    async def trace(self, reference: str) -> TurnTrace | None:
        """Return the trace of the turn whose id begins with *reference*."""

    async def find_turns(self, query: TurnQuery) -> tuple[TurnSummary, ...]:
        """Return the turns that *query* names among the newest 20,000, the newest first, running ones before."""

    async def depth(self) -> Mapping[str, Any]:
        """Return counters for /status, /readyz and metrics: queued, oldest_seconds, undelivered, dead, unwritten.

        `commits` counts the transactions that were made durable since the start.
        """


class TurnRecordStore(Protocol):
    """Committed turn records, and which of them are in no file yet."""

    async def unwritten(self, after: int, limit: int) -> tuple[StoredRecord, ...]:
        """Return committed records that are in no file yet, in commit order, seq > *after*."""

    async def wait_unwritten(self) -> None:
        """Return when a record was committed since the last call (or since start)."""

    def mark_written(self, seqs: Sequence[int]) -> None:
        """Note that these records are in their files: every later operation sees it, and a kill may undo it.

        It is stored with the next transaction, which is a message's as a rule.
        """

    async def append(self, record: TurnRecord, *, outbound: Sequence[OutboundMessage] = ()) -> None:
        """Commit lines that belong to no inbox row (pointer, mark, snapshot, delta, cut), and what is said beside them.

        A record of this turn that is there already changes nothing.
        """

    async def pending_notes(self, key: SessionKey, note: int) -> InboxRow | None:
        """Return the note (an edit or deletion that came after its turn) while no turn has taken it up."""

    async def append_for(self, note: int, record: TurnRecord) -> bool:
        """Commit lines and end the note that they come of; False, and nothing, when a turn has taken it up."""

    async def sessions(self) -> tuple[SessionRow, ...]:
        """Return every session, the most recently used first."""

    async def scope_of(self, key: SessionKey) -> str | None:
        """Return the scope of the session *key*; None if it has no session."""

    async def has_session(self, chat: SessionKey, scope: str) -> bool:
        """Return True if *chat* or one of its threads has a session of *scope*. Reads the sessions of *chat* alone."""


class JobQueue(Protocol):
    """Durable background work. A job that was due before a crash is due after it."""

    async def put(self, job: Job) -> None:
        """Queue *job*; the same id again changes nothing."""

    async def due(self, now: datetime, limit: int, *, kinds: Collection[str]) -> tuple[Job, ...]:
        """Return jobs of *kinds* due at *now*, oldest first, each leased to this process until finished or put off."""

    async def next_due(self, after: datetime, *, kinds: Collection[str]) -> datetime | None:
        """Return when the first job of *kinds* becomes due that is not leased and due later than *after*."""

    async def pending_in(self, scope: str) -> tuple[Job, ...]:
        """Return the scope's unfinished jobs, due or not, in the order they were queued."""

    async def pending_of(self, kind: str) -> tuple[Job, ...]:
        """Return the unfinished jobs of *kind* in every scope, due or not, the earliest first."""

    async def finish(self, job: Job) -> None:
        """Remove *job*."""

    async def advance(self, job: Job, next_: Job | None) -> bool:
        """Replace *job* with *next_* in one transaction, or remove it; False, and no effect, if it was removed.

        A job that was cancelled while it ran is therefore not queued again.
        """

    async def put_off(
        self,
        job: Job,
        delay: timedelta,
        reason: str,
        *,
        counts: bool = True,
        payload: Mapping[str, Any] | None = None,
    ) -> None:
        """Make *job* due again after *delay*; its attempt is counted, unless it only had to wait for its turn.

        *payload* replaces that of the job, if given.
        """

    async def count(self) -> tuple[JobQueueStats, ...]:
        """Return the number of unfinished jobs by kind and state."""

    async def wait_changed(self, at_most: timedelta) -> None:
        """Return when a job was queued, or after *at_most*."""


class PreferenceStore(Protocol):
    """Choices of people and chats (time zone, language, model, owner), by subject."""

    def preferences(self, subject: str) -> Mapping[str, str]:
        """Return the choices of *subject* (a scope name); served from memory."""

    async def prefer(self, subject: str, name: str, value: str) -> None:
        """Store one choice; an empty value removes it."""

    def choosers(self) -> Mapping[SessionKey, str]:
        """Return the chats of every subject that had chosen a language when the store was opened, and whose each is."""


class UsageStore(Protocol):
    """Sums over usage rows. Those of single calls are kept for 30 days, a day's sums for good."""

    async def totals(self, *, since: datetime, person: str = "", chat: str = "") -> tuple[Mapping[str, Any], ...]:
        """Return per (purpose, model): calls, tokens_in, tokens_out, tokens_cached, cost (None if any is unknown).

        And known_cost, of the calls whose cost is known, and unpriced_calls. Tool calls are left out.
        """


class UsageReports(UsageStore, Protocol):
    """Usage reports for the operator, and the counted tool calls."""

    async def tool_calls(self, *, since: datetime) -> Mapping[tuple[str, str], int]:
        """Return the number of counted tool calls, by account name and kind of tool."""

    async def interrupted_tool_calls(self) -> Sequence[str]:
        """Return the keys of the counted tool calls of turns that have not ended."""

    async def by(self, group: str, *, since: datetime, until: datetime, zone: str) -> tuple[Mapping[str, Any], ...]:
        """Return sums per `person`, `chat`, `purpose` or `day` (ISO 8601, of the IANA *zone*), under that name.

        Each also has calls, tokens_in, tokens_out, tokens_cached, cost (None if any is unknown), known_cost (of the
        calls whose cost is known) and unpriced_calls. A person or chat that was forgotten is "".
        """
