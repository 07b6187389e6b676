"""The records of accepted messages, turns, jobs, usage and deliveries."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from enum import StrEnum
from typing import Any, Final, Protocol, TypeAlias

from gateway.events import InboundKind, InboundMessage, MessagePart, OutboundMessage, Role, SessionKey
from gateway.ports.channel import CallStep

Line: TypeAlias = Mapping[str, Any]  # one transcript line


# Prefixes of the message ids of jobs that a person set: a reminder, the end of a task, a call that was approved.
SET_BY_PERSON = ("job:remind/", "job:task/", "job:allowed/")


def is_set_by_person(message: InboundMessage) -> bool:
    """Return True for a job that its sender set; it needs their access and has their role when it runs."""
    return message.kind is InboundKind.JOB and message.message_id.startswith(SET_BY_PERSON)


EXPIRES = timedelta(hours=24)  # older messages expire, with one notice per chat


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
    trial: str  # for `SqlJournal.begin_trial`
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


@dataclass(frozen=True, slots=True)
class JobLimit:
    """The most jobs of one kind that some people, as `person` in the payloads names them, may have at once."""

    people: tuple[str, ...]
    most: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """Something due. `id` makes queuing idempotent; finishing twice is finishing once."""

    id: str
    kind: str  # remember, summarise, ...
    scope: str  # a scope name, or "" for the whole installation
    payload: Mapping[str, Any]
    due_at: datetime
    attempts: int = 0
    limit: JobLimit | None = None  # a turn's commit queues the job only below it


PUSH: Final = "push"  # the kind of a job that notifies a person of an answer that nobody saw


@dataclass(frozen=True, slots=True)
class JobAdvance:
    """A job and the one that takes its place, if it is still queued."""

    job: Job
    next: Job | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class AuditEntry:
    """One decision about people or a shared chat: no word of what was said is in it."""

    id: str  # the turn's, where a turn decided; the same id is written once
    at: datetime
    by: str  # "channel:user_id", "operator" or "code"
    where: str  # session key, or "" for the command line
    what: str  # the command and its declared word ("memory undo"), a tool's name, never an argument
    whom: str = ""  # "channel:who", for decisions about an account or chat
    outcome: str = "done"  # done, refused, or how the turn ended instead


@dataclass(frozen=True, slots=True, kw_only=True)
class CapNotice:
    """A notification that a cap was exceeded; stored with the commit that sends it."""

    name: str  # the cap and its subject
    chat: str  # where the notice was sent
    until: datetime  # when the window ends, and notices may be sent again
    limit: int  # a changed limit starts another window


@dataclass(frozen=True, slots=True, kw_only=True)
class TurnCommit:
    """Everything a turn leaves behind, in one transaction."""

    record: TurnRecord
    outbound: tuple[OutboundMessage, ...] = ()
    ends: tuple[str, ...] = ()  # jobs whose id starts with one of these are removed, before `jobs` are queued
    jobs: tuple[Job, ...] = ()
    advances: tuple[JobAdvance, ...] = ()  # as `SqlJobs.advance` does each
    audit: AuditEntry | None = None  # its decision about people or a shared chat
    cap_notices: tuple[CapNotice, ...] = ()  # sent with its outbox rows
    # Of the first of `outbound`. They are stored if its chat has nothing else to deliver, the first marked as sending.
    parts: tuple[MessagePart, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class UnwrittenTurn:
    """A committed turn that is in no file yet."""

    seq: int
    turn: str
    scope: str
    key: SessionKey
    transcript: str
    new_transcript: str  # as of the record
    at: datetime
    body: bytes  # its lines as JSON; empty once they are removed


@dataclass(frozen=True, slots=True, kw_only=True)
class UsageRow:
    """One model call, stored when it ends, whatever the turn's outcome; or one counted tool call."""

    turn: str
    person: str
    chat: str
    purpose: str  # answer, consolidation, dream, flush, embedding, transcription, speech, picture; tool-web, tool-act
    model: str
    tokens_in: int
    tokens_out: int
    tokens_cached: int
    cost: float | None  # US dollars; None = unknown
    at: datetime
    call: str = ""  # id of a running model call, whose figures are estimates; key of a tool call
    is_own: bool = False  # the turn was started by a job


LinkFinder = Callable[[str], tuple[str, ...]]  # returns the addresses in a Markdown text that may be links, comparable


class PartState(StrEnum):
    """State of a part. A part found `sending` at start is unknown."""

    PENDING = "pending"
    SENDING = "sending"  # stored before the platform is called
    SENT = "sent"
    UNKNOWN = "unknown"  # perhaps sent; looked up by the platform's key, else resent with a notice
    DEAD = "dead"
    CANCELLED = "cancelled"


@dataclass(frozen=True, slots=True, kw_only=True)
class OutboxPart:
    """A frozen part and its ledger entry."""

    part: MessagePart
    state: PartState
    attempts: int = 0
    message_id: str = ""  # the platform's id once sent; before that, the placeholder's
    at: datetime | None = None  # when it entered this state, if known


@dataclass(frozen=True, slots=True, kw_only=True)
class PendingDelivery:
    """The oldest undelivered message of a chat."""

    message: OutboundMessage
    parts: tuple[OutboxPart, ...]  # empty until frozen
    preview: OutboxPart | None  # the turn's row 0, to be adopted by the answer's first part
    is_marked: bool = False  # its commit marked the first part as sending, for an attempt that was not made yet


@dataclass(frozen=True, slots=True, kw_only=True)
class DelayedDelivery:
    """A chat whose oldest message was not delivered yet, although it was tried or its platform asked us to wait."""

    key: SessionKey
    since: datetime  # the first wait
    until: datetime  # the next attempt
    reason: str  # for the operator


class Preview(Protocol):
    """One turn's streaming preview. `show` and `status` return at once and never fail the turn."""

    @property
    def shown_at(self) -> datetime | None:
        """Time when the first words were shown in the chat; None before."""

    def show(self, text: str, links: LinkFinder | None = None) -> None:
        """Offer the full text so far; the last one wins, at the channel's own pace.

        *links* returns the only addresses of a text that may be links; None = all may.
        """

    def status(self, text: str, steps: Sequence[CallStep] = ()) -> None:
        """Show the current action (a tool's name) and the tool calls so far if the channel can; "" clears the first."""

    async def close(self) -> None:
        """Stop editing and typing, on every path. Waits briefly for the running call.

        The turn's answer is not sent before that call has ended.
        """


class NullPreview:
    """A preview without effect."""

    shown_at: datetime | None = None

    def show(self, text: str, links: LinkFinder | None = None) -> None:
        """Show nothing."""

    def status(self, text: str, steps: Sequence[CallStep] = ()) -> None:
        """Show nothing."""

    async def close(self) -> None:
        """Do nothing."""
