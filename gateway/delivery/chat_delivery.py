"""One chat's deliveries, strictly in order: the worker that waits and gives up, and the sender of its parts."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Sequence
from dataclasses import dataclass, replace
from datetime import timedelta
from functools import partial
from typing import TypeVar

import structlog

from gateway.channel import Channel, SupportsReactions, SupportsSendTurns
from gateway.delivery.part_planner import AttachmentLost, DeliveryContext, PartPlanner, backoff, shown_name
from gateway.errors import (
    FormatRefused,
    OutcomeUnknown,
    ParlourError,
    PlaceGone,
    RetryLater,
    SendFailed,
    SendRefused,
    exponential_delay,
)
from gateway.events import Attachment, DeliveryReceipt, MessagePart, OutboundKind, OutboundMessage, SessionKey
from gateway.i18n import translate
from gateway.ports.journal import DelayedDelivery, OutboxPart, PartState, PendingDelivery
from gateway.ports.metrics import TraceSpan

log = structlog.get_logger(__name__)

ATTEMPTS = 12  # of a part that fails without the platform asking us to wait: about three quarters of an hour
_LONGEST_ASKED = 60.0  # seconds that repeated requests to wait grow to, where the platform names less
_SHORTEST_ASKED = 0.5
_UNFINISHED = (PartState.PENDING, PartState.SENDING, PartState.UNKNOWN)


@dataclass(frozen=True, slots=True)
class DeliveryChannel:
    """A channel, its planner, and the same channel by what else it supports.

    Built once: to compare a class with Protocols for each message would be 2 % of what a turn costs.
    """

    channel: Channel
    planner: PartPlanner
    send_turns: SupportsSendTurns | None  # if its chats wait for each other
    reactions: SupportsReactions | None  # if it acknowledges messages by reactions

    @classmethod
    def build(cls, channel: Channel, context: DeliveryContext) -> DeliveryChannel:
        """Return what deliveries need of *channel*."""
        return cls(
            channel,
            PartPlanner(channel, context),
            channel if isinstance(channel, SupportsSendTurns) else None,
            channel if isinstance(channel, SupportsReactions) else None,
        )


class ChatDeliveryWorker:
    """Delivers what one chat has, until it has nothing left."""

    def __init__(self, key: SessionKey, to: DeliveryChannel, context: DeliveryContext) -> None:
        self._key = key
        self._channel = to.channel
        self._send_turns = to.send_turns
        self._reactions = to.reactions
        self._context = context
        self._planner = to.planner
        self._part_sender = PartSender(to.channel, context)
        self._marked: MessagePart | None = None  # is stored as sending, for an attempt that was not made yet
        self._ended = ""  # the part whose message we ended, to go round only once
        self._part = ""  # the part that the figures below are about
        self._failures = 0
        self._asked = 0  # how often in a row we were asked to wait
        self._taken = ("", 0.0)  # the message under way, and when it was taken up
        self._waiting: asyncio.Task[None] | None = None  # this worker, while it waits for its turn
        self.is_resting = False
        self.is_woken = True  # the chat may have something that we have not seen
        self.delayed: DelayedDelivery | None = None  # from the first wait until something is delivered or given up

    async def run(self) -> None:
        """Deliver until the chat has nothing more or the gateway stops. Raises StoreUnavailable only when it stops."""
        try:
            while not self._context.stopping.is_set() and await self._step():
                pass
        finally:
            if (part := self._marked) is not None and self._context.stopping.is_set():
                self._marked = None  # the next start has no doubt about it
                await self._context.retry_store(lambda: self._context.outbox.mark_unsent(part, ""))

    async def _step(self) -> bool:
        """Bring one part one step on; False when there is nothing to do."""
        seconds, reason = self._context.pauses.remaining(self._key)
        if seconds:
            await self._rest(seconds, reason)
        if self._context.stopping.is_set():
            return False
        delivery = await self._next()
        if delivery is None:
            return False
        if await self._wait_turn(delivery):
            return True  # what waited may have been stopped, or overtaken
        rows = delivery.parts or await self._freeze(delivery)
        current = next((n for n, row in enumerate(rows) if row.state in _UNFINISHED), None)
        if current is None:
            return await self._end(rows)
        row = rows[current]
        # A file cannot take the preview's place; where nothing else comes first, a pointer was cut.
        preview = delivery.preview if current == 0 and row.part.file is None else None
        return await self._deliver(delivery.message, row, preview, rows[current + 1 :])

    async def _next(self) -> PendingDelivery | None:
        delivery = await self._ask_outbox()
        if delivery is None:
            return None
        preview = self._context.previews.get(delivery.message.turn)
        if preview is not None:
            # The answer never waits behind a preview, and must know what became of it.
            await preview.wait_closed()
            delivery = await self._ask_outbox()
        if delivery is not None and self._taken[0] != delivery.message.id:
            self._taken = (delivery.message.id, asyncio.get_running_loop().time())
        return delivery

    async def _ask_outbox(self) -> PendingDelivery | None:
        self.is_woken = False  # what woke us before this is in the answer
        delivery = await self._context.retry_store(lambda: self._context.outbox.next(self._key))
        if delivery is not None and delivery.is_marked:
            self._marked = delivery.parts[0].part
        return delivery

    async def _wait_turn(self, delivery: PendingDelivery) -> bool:
        """Wait until the channel lets this chat send; return True if that took time, or the gateway stops."""
        is_sent = bool(delivery.parts) and not any(row.state in _UNFINISHED for row in delivery.parts)
        if is_sent or self._send_turns is None:
            return False
        if self._context.stopping.is_set():
            return True
        self._waiting = asyncio.current_task()
        try:
            return await self._send_turns.wait_turn(self._key)
        finally:
            self._waiting = None

    def stop_waiting(self) -> None:
        """End the worker if it waits for a turn: nothing is being sent or stored then."""
        if self._waiting is not None:
            self._waiting.cancel()

    async def _end(self, rows: Sequence[OutboxPart]) -> bool:
        """End a message without parts left to send: its last ones were cancelled while another was being sent."""
        shown = [row for row in rows if row.state is PartState.SENT]
        if not rows:
            return True  # nothing to show: freezing ended it
        if not shown or self._ended == shown[-1].part.id:
            log.error("delivery.stuck", channel=self._channel.name, part=rows[-1].part.id)
            return False
        last, self._ended = shown[-1], shown[-1].part.id
        receipt = DeliveryReceipt(part=last.part.id, message_id=last.message_id, at=last.at or self._context.now())
        await self._context.retry_store(lambda: self._context.outbox.mark_sent(receipt))
        return True

    # -- freezing ------------------------------------------------------------------------------

    async def _freeze(self, delivery: PendingDelivery) -> tuple[OutboxPart, ...]:
        message = delivery.message
        parts = await self._context.formatted(message.text, lambda: self._planner.plan_parts(message, delivery.preview))
        if not parts:
            log.warning("delivery.nothing_to_show", channel=self._channel.name, message=message.id)
        rows = await self._context.retry_store(lambda: self._context.outbox.freeze(message, parts))
        if rows and rows[0].state is PartState.SENDING:
            self._marked = rows[0].part
        return rows

    # -- one part ------------------------------------------------------------------------------

    async def _deliver(
        self, message: OutboundMessage, row: OutboxPart, preview: OutboxPart | None, later: Sequence[OutboxPart]
    ) -> bool:
        """Try to send a part; False when the chat has nothing more."""
        part = row.part
        if self._part != part.id:
            self._part, self._failures, self._asked = part.id, 0, 0
        is_ours, self._marked = self._marked is not None and self._marked.id == part.id, None
        try:
            receipt = await self._deliver_part(row, preview, is_marked_sending=is_ours)
        except PartCancelled:
            pass
        except RetryLater as error:
            await self._put_off(part, error)
        except PlaceGone as error:
            await self._move(message, part, later, error)
        except SendRefused as error:
            if part.moved_to:  # the asker is told, whatever the other chat's reason
                await self._move(message, part, later, error)
            else:
                await self._bury(part, str(error), 1 + len(later))
        except SendFailed as error:
            await self._failed(part, error, 1 + len(later))
        else:
            return await self._delivered(receipt, later)
        return True

    async def _deliver_part(
        self, row: OutboxPart, preview: OutboxPart | None, *, is_marked_sending: bool
    ) -> DeliveryReceipt:
        began, error = self._context.now(), ""
        try:
            return await self._part_sender.deliver_part(row, preview, is_marked_sending=is_marked_sending)
        except ParlourError as failed:
            error = type(failed).__name__
            raise
        finally:
            if self._context.meter.records_spans:
                span = TraceSpan(
                    turn=row.part.turn,
                    name="deliver",
                    began=began,
                    ended=max(self._context.now(), began),
                    attributes={"parlour.channel": self._channel.name, "parlour.part": row.part.id},
                    error=error,
                )
                self._context.meter.span(span)

    async def _delivered(self, receipt: DeliveryReceipt, later: Sequence[OutboxPart]) -> bool:
        then = later[0].part if later and later[0].state is PartState.PENDING and self._goes_on() else None
        self.is_woken = False  # as in `_ask_outbox`: the answer says whether there is more
        has_more = await self._context.retry_store(lambda: self._context.outbox.mark_sent(receipt, then=then))
        self._marked = then
        self._remove_reactions()  # not before: a kill meanwhile would leave the part in doubt
        self.delayed = None
        self._context.meter.count("delivered", channel=self._channel.name)
        if not later:
            seconds = asyncio.get_running_loop().time() - self._taken[1]
            self._context.meter.time("delivery_seconds", seconds, channel=self._channel.name)
        return has_more

    def _goes_on(self) -> bool:
        """Return True if another part can be sent at once: one that has to wait is not marked as sending."""
        if self._context.stopping.is_set() or self._context.pauses.remaining(self._key)[0]:
            return False
        return self._send_turns is None or self._send_turns.try_turn(self._key)

    async def _put_off(self, part: MessagePart, error: RetryLater) -> None:
        """Wait as long as the platform asks, at least, for this chat only; never gives up."""
        self._asked += 1
        asked = max(error.delay.total_seconds(), _SHORTEST_ASKED)
        seconds = max(asked, exponential_delay(self._asked, _SHORTEST_ASKED, _LONGEST_ASKED))
        self._context.pauses.add(self._key, seconds, str(error))
        await self._not_sent(part, str(error))
        self._count_retry("later")
        log.info("delivery.later", channel=self._channel.name, part=part.id, seconds=round(seconds, 1))

    async def _failed(self, part: MessagePart, error: SendFailed, parts: int) -> None:
        self._failures += 1
        if self._failures >= ATTEMPTS:
            await self._bury(part, f"given up after {ATTEMPTS} attempts: {error}", parts)
            return
        if isinstance(error, OutcomeUnknown):
            await self._context.retry_store(lambda: self._context.outbox.mark_uncertain(part, str(error)))
        else:
            await self._not_sent(part, str(error))
        self._count_retry("unknown")
        seconds = backoff(self._failures)
        log.warning(
            "delivery.failed",
            channel=self._channel.name,
            part=part.id,
            reason=str(error),
            attempt=self._failures,
            seconds=round(seconds, 1),
        )
        await self._rest(seconds, str(error))

    async def _not_sent(self, part: MessagePart, reason: str) -> None:
        """Note that this attempt sent nothing. An earlier one may have: then the doubt stays."""
        outbox = self._context.outbox
        note = outbox.mark_uncertain if self._part_sender.is_doubtful else outbox.mark_unsent
        await self._context.retry_store(lambda: note(part, reason))

    async def _move(
        self, message: OutboundMessage, part: MessagePart, later: Sequence[OutboxPart], error: SendRefused
    ) -> None:
        """Send the message to another chat, or dead-letter it without one.

        The new parts have new numbers and so new send keys, and replace the old ones in one transaction: after a kill
        they are sent to the new chat.
        """
        outbox = self._context.outbox
        question = await self._context.retry_store(lambda: outbox.question(message.turn))
        planned: list[MessagePart] = []
        if question is not None:
            plan = partial(self._planner.plan_moved, message, part, question)
            planned = await self._context.formatted(message.text, plan)
        if question is None or not planned or await self._was_asker_told(message, planned):
            await self._bury(part, str(error), 1 + len(later))
            return
        last = int((later[-1].part if later else part).id.rpartition(".")[2])
        moved = [replace(each, id=f"{message.id}.{last + n}") for n, each in enumerate(planned, 1)]
        if await self._context.retry_store(lambda: outbox.move(message, part, moved, question)):
            is_line = moved[0].moved_to != message.key.parent.chat
            log.warning(
                "delivery.moved",
                channel=self._channel.name,
                part=part.id,
                to="asker" if is_line else "parent",
                reason=str(error),
            )

    async def _was_asker_told(self, message: OutboundMessage, planned: Sequence[MessagePart]) -> bool:
        """Return True if *planned* is the line to the asker, and another message of the turn has brought it."""
        if planned[0].moved_to == message.key.parent.chat:
            return False
        turn = await self._context.retry_store(lambda: self._context.outbox.messages_of(message.turn))
        parts = [row.part for each in turn for row in each.parts if each.message.id != message.id]
        return any(part.moved_to == planned[0].moved_to for part in parts)

    def _remove_reactions(self) -> None:
        if self._reactions is not None:
            self._reactions.remove_reactions(self._key)

    async def _bury(self, part: MessagePart, reason: str, parts: int) -> None:
        await self._context.retry_store(lambda: self._context.outbox.dead_letter(part, reason))
        self._remove_reactions()
        self.delayed = None
        self._context.meter.count("delivery_dead", parts, channel=self._channel.name)
        log.error("delivery.dead", channel=self._channel.name, part=part.id, parts=parts, reason=reason)

    def _count_retry(self, reason: str) -> None:
        self._context.meter.count("delivery_retries", channel=self._channel.name, reason=reason)

    async def _rest(self, seconds: float, reason: str) -> None:
        now = self._context.now()
        since = self.delayed.since if self.delayed else now
        until = now + timedelta(seconds=seconds)
        self.delayed = DelayedDelivery(key=self._key, since=since, until=until, reason=reason)
        self.is_resting = True
        self._context.quieter.set()
        await self._context.backoff_sleep(seconds)
        self.is_resting = False


T = TypeVar("T")

DOUBTFUL = (PartState.SENDING, PartState.UNKNOWN)


def placeholder(part: MessagePart, language: str) -> MessagePart:
    """Return the placeholder sent in place of *part* until its text is edited in."""
    blank = translate("delivery.placeholder", language)
    return replace(part, payload="", plain=blank, kind=OutboundKind.PREVIEW, choices=(), settles=False)


class PartCancelled(ParlourError):
    """The part was cancelled before it was sent; the chat continues with the next one."""


class PartSender:
    """Sends the parts of one chat, one after the other.

    `is_doubtful` says after each `post`, however it ended, whether the part may stand in the chat already.
    """

    def __init__(self, channel: Channel, context: DeliveryContext) -> None:
        self._channel = channel
        self._context = context
        self._first_sent: tuple[str, float] = ("", 0.0)  # a part, and when this process first sent it
        self.is_doubtful = False

    async def deliver_part(
        self, row: OutboxPart, preview: OutboxPart | None, *, is_marked_sending: bool
    ) -> DeliveryReceipt:
        """Send, edit or find *row*'s part and return the receipt. Raises SendFailed and PartCancelled.

        Whatever leaves for the platform is `sending` in the ledger before; *is_marked_sending* says that
        it is already, by us and for this attempt.
        """
        part = row.part
        self.is_doubtful = not is_marked_sending and row.state in DOUBTFUL
        is_preview_doubtful = False
        if preview is not None:
            standing, is_preview_doubtful = await self._find_preview(preview)
            if standing and (receipt := await self._adopt(standing, part, is_marked_sending)):
                return receipt
        if part.kind is OutboundKind.PREVIEW:
            # It only ever stood for the preview that is gone; there is nothing to point at.
            return DeliveryReceipt(part=part.id, message_id="", at=self._context.now())
        if part.is_placed:
            return await self._fill(row, is_marked_sending)
        is_keyed = self._is_key_good(part)
        if self.is_doubtful and not is_keyed and (found := await self._find(part)):
            return found
        part = await self._mark_sending(part, is_marked_sending)
        return await self._send(part, may_be_duplicate=(self.is_doubtful and not is_keyed) or is_preview_doubtful)

    async def _mark_sending(self, part: MessagePart, is_marked_sending: bool) -> MessagePart:
        """Return *part* as it is stored when it is marked as sending: an erasure may have changed it meanwhile."""
        if is_marked_sending:
            return part
        stored = await self._context.retry_store(lambda: self._context.outbox.sending(part))
        if stored is None:
            raise PartCancelled("it was stopped before it was sent")
        return stored

    # -- the preview ---------------------------------------------------------------------------

    async def _find_preview(self, preview: OutboxPart) -> tuple[str, bool]:
        """Return the platform's id of the preview, or "", and True if it may exist although its id is unknown."""
        if not self._channel.capabilities.edits:
            return "", preview.state in DOUBTFUL
        if preview.state is PartState.SENT:
            return preview.message_id, False
        if preview.state not in DOUBTFUL:
            return "", False
        try:
            receipt = await self._ask(preview.part, self._channel.find(preview.part))
        except RetryLater:
            raise
        except SendFailed:
            if not self._is_key_good(preview.part):
                # Of a preview that is placed nothing but the placeholder can stand there.
                return "", not preview.part.is_placed
            receipt = await self._send(preview.part, may_be_duplicate=False)
        if receipt is None:
            return "", False
        await self._context.retry_store(lambda: self._context.outbox.mark_sent(receipt))
        return receipt.message_id, False

    async def _adopt(self, message_id: str, part: MessagePart, is_marked_sending: bool) -> DeliveryReceipt | None:
        """Make the preview the part; None when the platform will not have it edited."""
        part = await self._mark_sending(part, is_marked_sending)
        try:
            return await self._edit(message_id, part)
        except SendRefused as error:
            log.info("delivery.preview_gone", channel=self._channel.name, part=part.id, reason=str(error))
            return None

    async def _edit(self, message_id: str, part: MessagePart) -> DeliveryReceipt:
        try:
            return await self._ask(part, self._channel.edit(message_id, part))
        except FormatRefused:
            self._count_retry("format")
        try:
            return await self._ask(part, self._channel.edit(message_id, replace(part, payload="")))
        except FormatRefused as error:
            raise SendRefused(f"not even as plain text: {error}") from error

    # -- the part itself -----------------------------------------------------------------------

    def _is_key_good(self, part: MessagePart) -> bool:
        """Return True if the platform would recognise a repeat of *part* now."""
        capabilities = self._channel.capabilities
        if not capabilities.send_key or capabilities.send_key_for is None:
            return capabilities.send_key
        name, at = self._first_sent
        age = asyncio.get_running_loop().time() - at
        return name == part.id and age < capabilities.send_key_for.total_seconds()

    async def _find(self, part: MessagePart) -> DeliveryReceipt | None:
        """Ask the platform for *part*; settles the doubt when it knows."""
        try:
            found = await self._ask(part, self._channel.find(part))
        except RetryLater:
            raise
        except SendFailed:
            return None
        self.is_doubtful = found is not None
        return found

    async def _send(self, part: MessagePart, *, may_be_duplicate: bool) -> DeliveryReceipt:
        if self._first_sent[0] != part.id:
            self._first_sent = (part.id, asyncio.get_running_loop().time())
        if may_be_duplicate:
            log.warning("delivery.marked", channel=self._channel.name, part=part.id)
        if part.file is not None:
            return await self._send_file(part, part.file, may_be_duplicate=may_be_duplicate)
        try:
            return await self._ask(part, self._channel.send(part, may_be_duplicate=may_be_duplicate))
        except FormatRefused:
            self._count_retry("format")
        try:
            return await self._ask(
                part, self._channel.send(replace(part, payload=""), may_be_duplicate=may_be_duplicate)
            )
        except FormatRefused as error:
            raise SendRefused(f"not even as plain text: {error}") from error

    async def _send_file(self, part: MessagePart, file: Attachment, *, may_be_duplicate: bool) -> DeliveryReceipt:
        """Send a file, or, when it is lost or not taken, the line that says so.

        Raises PlaceGone or SendRefused if the line is refused too: a place that takes no files may take text, and
        platforms refuse a file there with the code of a place that is gone.
        """
        try:
            return await self._ask(part, self._channel.send(part, may_be_duplicate=may_be_duplicate))
        except (SendRefused, FormatRefused) as error:
            sentence = "delivery.file_lost" if isinstance(error, AttachmentLost) else "delivery.file_refused"
            log.warning("delivery.file_not_sent", channel=self._channel.name, part=part.id, reason=str(error))
        line = translate(sentence, self._context.language(part.key), name=shown_name(file))
        more = await self._context.retry_store(lambda: self._context.on_missing_file(part))
        line = f"{line} {more}".rstrip()
        line_part = replace(part, file=None, payload="", plain=line)
        return await self._ask(line_part, self._channel.send(line_part, may_be_duplicate=may_be_duplicate))

    # -- delivery.once: strict -----------------------------------------------------------------

    async def _fill(self, row: OutboxPart, is_marked_sending: bool) -> DeliveryReceipt:
        """Edit the text into its placeholder, which is sent first; both may be repeated without a second answer."""
        part, place = await self._mark_sending(row.part, is_marked_sending), row.message_id
        if place:
            try:
                return await self._edit(place, part)
            except SendRefused as error:
                log.info("delivery.placeholder_gone", channel=self._channel.name, part=part.id, reason=str(error))
        blank = placeholder(part, self._context.language(part.key))
        placed = await self._ask(blank, self._channel.send(blank))
        await self._context.retry_store(lambda: self._context.outbox.mark_placed(part, placed.message_id))
        return await self._edit(placed.message_id, part)

    async def _ask(self, part: MessagePart, call: Awaitable[T]) -> T:
        context = self._context
        async with context.slots.setdefault(self._channel.name, asyncio.Semaphore(context.per_channel)):
            return await context.call_channel(self._channel, part, call)

    def _count_retry(self, reason: str) -> None:
        self._context.meter.count("delivery_retries", channel=self._channel.name, reason=reason)
