"""Stages 3 and 4: admit, then accept. Nothing is stored, downloaded or shown before a message is admitted."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextvars import ContextVar
from dataclasses import KW_ONLY, dataclass, field, replace
from datetime import UTC, datetime
from typing import TYPE_CHECKING

import structlog
from cachetools import TTLCache

from gateway.admission import Decision, Rejected
from gateway.errors import UserError
from gateway.events import ChatKind, InboundKind, InboundMessage, Role, turn_id
from gateway.i18n import translate
from gateway.ports.access import MessageContext
from gateway.ports.channel import Channel, IntakeResult, IntakeVerdict, MembershipChange, PlatformEvent, SupportsReplay
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


@dataclass(slots=True, eq=False)
class GatewayIntake:
    """Implements `gateway.ports.channel.Intake`: runs admission and accepts messages of all channels.

    *newcomer* is called when the bot is added to or removed from a chat; *language* returns that of a chat.
    """

    journal: SqlJournal
    _: KW_ONLY
    context_of: Callable[[InboundMessage], MessageContext]
    admit: Admit
    classify: Classify
    quarantine: Quarantine
    meter: MetricsRecorder
    pre_admission_handlers: Sequence[PreAdmissionHandler] = ()
    newcomer: Callable[[MembershipChange], Awaitable[None]] | None = None
    language: Callable[[InboundMessage, MessageContext], Awaitable[str]]
    _told_unreadable: TTLCache[str, None] = field(default_factory=lambda: TTLCache(_CHATS, _TOLD_FOR), init=False)

    @property
    def is_cautious(self) -> bool:
        """Return True if events must be fetched and handled one at a time."""
        return self.quarantine.is_cautious

    async def handle(self, event: PlatformEvent, work: Callable[[], Awaitable[None]]) -> None:
        """Run *work* with *event* in our keeping; see the port."""
        token = _EVENT_BEGAN.set(datetime.now(UTC))
        try:
            await self.quarantine.handle(event, work)
        finally:
            _EVENT_BEGAN.reset(token)

    async def replay(self, name: str, channels: Mapping[str, Channel]) -> bool:
        """Pass a quarantined event to its channel again; return False if the event does not exist.

        Raises UserError if the channel cannot take it now, and errors of handling it.
        """

        async def work(event: PlatformEvent) -> None:
            channel = channels.get(event.channel)
            if not isinstance(channel, SupportsReplay):
                raise UserError(f"no running channel {event.channel} can replay events")
            if not channel.is_ready():
                raise UserError(f"the channel {event.channel} is not connected to its platform; try again when it is")
            await channel.replay(event)

        return await self.quarantine.replay(name, work)

    async def receive(self, message: InboundMessage) -> IntakeResult:
        """Admit and store *message*; raises StoreUnavailable when it could not be made durable."""
        parsed_at = datetime.now(UTC)
        context = self.context_of(message)
        decision = self.admit(message, context)
        for handler in self.pre_admission_handlers:
            if (met := await handler(message, decision)) is not None:
                return met
        if isinstance(decision, Rejected):
            self.meter.count("rejected", reason=decision.reason)
            return IntakeResult(verdict=IntakeVerdict.REJECTED, reason=decision.reason)
        if message.kind is InboundKind.MESSAGE and message.is_empty:
            if not message.revision:
                return await self._refuse_empty(message, context)
            message = replace(message, kind=InboundKind.DELETION)  # an edit that leaves nothing
        admitted_at = datetime.now(UTC)
        result = await self.accept(message, decision.role, context)
        if result.verdict is IntakeVerdict.ACCEPTED and self.meter.records_spans:
            self._trace(message, parsed_at, admitted_at)
        return result

    async def _refuse_empty(self, message: InboundMessage, context: MessageContext) -> IntakeResult:
        """Reject a message that has nothing to read, and say so; in a chat only now and then."""
        self.meter.count("rejected", reason=_EMPTY)
        line, is_addressed = "", message.is_addressed or message.chat_kind is ChatKind.DIRECT
        if is_addressed and str(message.key) not in self._told_unreadable:
            self._told_unreadable[str(message.key)] = None
            line = translate("files.unreadable", await self.language(message, context))
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
            self.meter.span(TraceSpan(turn=turn, name=name, began=start, ended=end, attributes=attributes))

    async def membership_changed(self, place: MembershipChange) -> None:
        """Record that we were added to *place*, or removed; nothing is said there. Raises StoreUnavailable."""
        log.info("intake.joined", channel=place.channel, place=place.entry, is_gone=place.is_gone)
        if self.newcomer is not None:
            await self.newcomer(place)

    async def accept(self, message: InboundMessage, role: Role, context: MessageContext | None = None) -> IntakeResult:
        """Store a message whose sender is admitted (or that is our own: a job); *context* is that of admission."""
        is_control = self.classify(message)
        if is_control is not None and not (is_control and message.kind is InboundKind.BUTTON):
            # A press of a queued command is queued like the typed command.
            message = replace(message, kind=InboundKind.COMMAND)
        acceptance = await self.journal.accept(
            message,
            role=role,
            is_control=bool(is_control) or message.kind is InboundKind.BUTTON,
            language=await self.language(message, context or self.context_of(message)),
        )
        self.meter.count("accepted", outcome=str(acceptance.outcome))
        if acceptance.outcome is AcceptOutcome.FULL:
            log.debug("intake.full", key=str(message.key), queued=acceptance.queued)
            return IntakeResult(verdict=IntakeVerdict.FULL)
        is_repeated = acceptance.outcome is not AcceptOutcome.NEW
        return IntakeResult(verdict=IntakeVerdict.ACCEPTED, is_repeated=is_repeated, row=acceptance.seq)
