"""Stages 3 and 4: admit, then accept. Nothing is stored, downloaded or shown before a message is admitted."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from contextvars import ContextVar
from dataclasses import replace
from datetime import UTC, datetime
from typing import TYPE_CHECKING

import structlog
from cachetools import TTLCache

from gateway.admission import Decision, Rejected
from gateway.events import Attachment, ChatKind, InboundKind, InboundMessage, Role, turn_id
from gateway.i18n import translate
from gateway.ports.access import MessageContext
from gateway.ports.channel import IntakeResult, IntakeVerdict, MembershipChange, PlatformEvent
from gateway.ports.journal import AcceptOutcome
from gateway.ports.metrics import MetricsRecorder, TraceSpan
from gateway.quarantine import Quarantine

if TYPE_CHECKING:
    from gateway.store.journal import SqlJournal


log = structlog.get_logger(__name__)

# When the platform's event was received that is being handled; None for messages that no event brought.
_EVENT_BEGAN: ContextVar[datetime | None] = ContextVar("event began", default=None)

_EMPTY = "nothing to read"
_CHATS, _TOLD_FOR = 1_000, 600.0  # chats, and seconds until one is told again

Admit = Callable[[InboundMessage, MessageContext], Decision]
Classify = Callable[[InboundMessage], bool | None]  # None = no command; True = a control message
# Handles messages to the gateway itself (a code) before admission: they are neither stored nor processed. Returns the
# result for a message that it consumes; None to continue as the decision says. Cheap for all others. Raises
# StoreUnavailable.
PreAdmissionHandler = Callable[[InboundMessage, Decision], Awaitable[IntakeResult | None]]


class Intake:
    """Runs admission and accepts the messages of all channels."""

    def __init__(
        self,
        journal: SqlJournal,
        *,
        context_of: Callable[[InboundMessage], MessageContext],
        admit: Admit,
        classify: Classify,
        quarantine: Quarantine,
        meter: MetricsRecorder,
        pre_admission_handlers: Sequence[PreAdmissionHandler],
        newcomer: Callable[[MembershipChange], Awaitable[None]],
        language: Callable[[InboundMessage, MessageContext], Awaitable[str]],
    ) -> None:
        """*newcomer* is called when the bot is added to a chat or removed; *language* returns that of a chat."""
        self.quarantine = quarantine
        self._journal = journal
        self._context_of = context_of
        self._admit = admit
        self._classify = classify
        self._meter = meter
        self._pre_admission_handlers = pre_admission_handlers
        self._newcomer = newcomer
        self._language = language
        self._told_unreadable: TTLCache[str, None] = TTLCache(_CHATS, _TOLD_FOR)

    @property
    def is_cautious(self) -> bool:
        """Return True if the last two runs were killed: events are then fetched and handled one at a time."""
        return self.quarantine.is_cautious

    async def handle(self, event: PlatformEvent, work: Callable[[], Awaitable[None]]) -> None:
        """Run *work*, which parses *event* and passes it to `receive`. Acknowledge the event when the call returns.

        An event that cannot be parsed (UnreadableEvent) is quarantined. If *work* fails with a bug, the exception is
        raised twice, so that the platform delivers the event again, and the event is quarantined the third time. While
        `is_cautious`, the event is on disk while *work* runs: an event that is there at two crashes is quarantined and
        skipped. After the first crash it is handled once more, when the platform delivers it again or by
        `SupportsReplay`. Other ParlourErrors (StoreUnavailable, SendFailed) are raised and not counted.
        """
        token = _EVENT_BEGAN.set(datetime.now(UTC))
        try:
            await self.quarantine.handle(event, work)
        finally:
            _EVENT_BEGAN.reset(token)

    async def receive(
        self, message: InboundMessage, *, attach: Callable[[], Awaitable[tuple[Attachment, ...]]] | None = None
    ) -> IntakeResult:
        """Admit and store *message*; return when it is durable.

        *attach* stores its files and returns them; it is called once the sender is admitted. Raises StoreUnavailable
        when it could not be stored: do not ack, the platform will deliver again.
        """
        parsed_at = datetime.now(UTC)
        context = self._context_of(message)
        decision = self._admit(message, context)
        for handler in self._pre_admission_handlers:
            if (met := await handler(message, decision)) is not None:
                return met
        if isinstance(decision, Rejected):
            self._meter.count("rejected", reason=decision.reason)
            return IntakeResult(verdict=IntakeVerdict.REJECTED, reason=decision.reason)
        if attach is not None:
            message = replace(message, attachments=await attach())
        if message.kind is InboundKind.MESSAGE and message.is_empty:
            if not message.revision:
                return await self._refuse_empty(message, context)
            message = replace(message, kind=InboundKind.DELETION)  # an edit that leaves nothing
        admitted_at = datetime.now(UTC)
        result = await self.accept(message, decision.role, context)
        if result.verdict is IntakeVerdict.ACCEPTED and self._meter.records_spans:
            self._trace(message, parsed_at, admitted_at)
        return result

    async def _refuse_empty(self, message: InboundMessage, context: MessageContext) -> IntakeResult:
        """Reject a message that has nothing to read, and say so; in a chat only now and then."""
        self._meter.count("rejected", reason=_EMPTY)
        line, is_addressed = "", message.is_addressed or message.chat_kind is ChatKind.DIRECT
        if is_addressed and str(message.key) not in self._told_unreadable:
            self._told_unreadable[str(message.key)] = None
            line = translate("files.unreadable", await self._language(message, context))
        return IntakeResult(verdict=IntakeVerdict.REJECTED, reason=_EMPTY, line=line)

    def _trace(self, message: InboundMessage, parsed_at: datetime, admitted_at: datetime) -> None:
        """Record the first four stages of an accepted message; `receive` spans the others."""
        turn, began, ended = turn_id(message), _EVENT_BEGAN.get() or parsed_at, datetime.now(UTC)
        times = {
            "receive": (began, ended),
            "parse": (began, parsed_at),
            "admit": (parsed_at, admitted_at),
            "accept": (admitted_at, ended),
        }
        attributes = {"parlour.channel": message.key.channel}
        for name, (start, end) in times.items():
            self._meter.span(TraceSpan(turn=turn, name=name, began=start, ended=end, attributes=attributes))

    async def membership_changed(self, place: MembershipChange) -> None:
        """Handle that the bot was added to or removed from a chat. Acknowledge the event when the call returns.

        Calls with the same id are idempotent. Admission of members is decided at their messages. Raises
        StoreUnavailable like `receive`.
        """
        log.info("intake.joined", channel=place.channel, place=place.entry, is_gone=place.is_gone)
        await self._newcomer(place)

    async def accept(self, message: InboundMessage, role: Role, context: MessageContext | None = None) -> IntakeResult:
        """Store a message whose sender is admitted (or that is our own: a job); *context* is that of admission."""
        is_control = self._classify(message)
        if is_control is not None and not (is_control and message.kind is InboundKind.BUTTON):
            # A press of a queued command is queued like the typed command.
            message = replace(message, kind=InboundKind.COMMAND)
        acceptance = await self._journal.accept(
            message,
            role=role,
            is_control=bool(is_control) or message.kind is InboundKind.BUTTON,
            language=await self._language(message, context or self._context_of(message)),
        )
        self._meter.count("accepted", outcome=str(acceptance.outcome))
        if acceptance.outcome is AcceptOutcome.FULL:
            log.debug("intake.full", key=str(message.key), queued=acceptance.queued)
            return IntakeResult(verdict=IntakeVerdict.FULL)
        is_repeated = acceptance.outcome is not AcceptOutcome.NEW
        return IntakeResult(verdict=IntakeVerdict.ACCEPTED, is_repeated=is_repeated, row=acceptance.seq)
