"""The outbox loop: a worker for each chat that has something, and the previews of the turns that run.

A preview streams and types at the channel's pace, the last text wins, and nothing of it fails a turn.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from datetime import datetime, timedelta

import structlog

from gateway.channel import Channel
from gateway.delivery.chat_delivery import ChatDeliveryWorker, DeliveryChannel, placeholder
from gateway.delivery.part_planner import DeliveryContext, GrowingText, backoff, is_cheap
from gateway.errors import LeaseLost, OutcomeUnknown, RetryLater, SendFailed, SendRefused, StoreUnavailable
from gateway.events import InboundKind, MessagePart, OutboundKind, OutboundMessage, SessionKey
from gateway.i18n import translate
from gateway.ports.channel import CallStep, ChatActivity
from gateway.ports.journal import DelayedDelivery, LinkFinder, NullPreview, PartState, Preview, TurnLease
from gateway.text import LengthUnit

log = structlog.get_logger(__name__)

_FIRST_WORDS = 40  # characters that are worth a notification at once; fewer wait for one pace
_LONGEST_HOLD = 1.0  # seconds that the first words are held back at most
_SAYS_STOP_AFTER = 15.0  # docs/using.md: from then on the status says how to stop
_CLOSE_WITHIN = 5.0  # seconds that the call under way has when it is closed
_TURN_WAITS = 0.5  # seconds that a turn waits for that: its worker is wanted where the platform is well
_SHOW_WITHIN = 5.0
_STATUS_EVERY = 1.0  # seconds between two statuses
_STRIKES = 3  # bugs of a channel in one preview


class TurnPreview:
    """Row 0 of one turn: written before it is sent, edited from then on, adopted by the answer.

    One task does everything, so that a call never meets another of the same preview.
    """

    def __init__(
        self, lease: TurnLease, language: str, channel: Channel, context: DeliveryContext, tasks: asyncio.TaskGroup
    ) -> None:
        """Begin at once, in a task of *tasks*."""
        self._lease = lease
        self._language = language
        self._channel = channel
        self._context = context
        self._loop = asyncio.get_running_loop()
        self._opened = self._loop.time()
        self._wake = asyncio.Event()
        self._is_closed = False
        self._shows_text = channel.capabilities.preview_every is not None and channel.capabilities.edits
        every = channel.capabilities.preview_every
        self._every = every.total_seconds() if every else 0.0
        self._due: float | None = None  # when the text may be shown
        self._text = ""  # offered and not shown yet
        self._links: LinkFinder | None = None
        self._growth = GrowingText(
            self._render,
            context.redactor,
            limit=channel.capabilities.text_limit,
            unit=LengthUnit(channel.capabilities.unit),
            note=translate("delivery.goes_on", language),
        )
        self._made: MessagePart | None = None  # the newest part, shown or not
        self._message_id = ""
        self.shown_at: datetime | None = None
        self._shown: MessagePart | None = None
        self._is_placed = context.uses_placeholders(channel, self._message(""))
        self._strikes = 0
        self._status = ""
        self._steps: Sequence[CallStep] = ()  # the turn's tool calls
        self._said: tuple[str, Sequence[CallStep]] = ("", ())  # status and tool calls as they were last shown
        self._status_due = 0.0  # when another may be shown
        self._before = context.previews.get(lease.turn)
        context.previews[lease.turn] = self
        self._task = tasks.create_task(self._run(), name=f"preview {lease.turn}")

    # -- the Preview port ----------------------------------------------------------------------

    def show(self, text: str, links: LinkFinder | None = None) -> None:
        """Offer the full text so far; *links* finds the allowed links in it."""
        if self._is_closed or not self._shows_text or not text.strip():
            return
        if self._due is None:
            hold = 0.0 if len(text) >= _FIRST_WORDS else min(self._every, _LONGEST_HOLD)
            self._due = self._loop.time() + hold
        self._text, self._links = text, links
        self._wake.set()

    def status(self, text: str, steps: Sequence[CallStep] = ()) -> None:
        """Show a status line, "" clears it; and the tool calls so far."""
        self._status, self._steps = text, steps
        self._wake.set()

    async def close(self) -> None:
        """Stop. A call that is still running, and typing, may end shortly after."""
        self._end_soon()
        await asyncio.wait({self._task}, timeout=_TURN_WAITS)

    async def wait_closed(self) -> None:
        """Stop, and return when its last call has ended."""
        self._end_soon()
        await asyncio.wait({self._task})

    def _end_soon(self) -> None:
        if not self._is_closed:
            self._loop.call_later(_CLOSE_WITHIN, self._task.cancel)
        self._is_closed = True
        self._wake.set()

    # -- its task ------------------------------------------------------------------------------

    async def _run(self) -> None:
        try:
            if self._before is not None:  # the same turn, given back a moment ago
                await self._before.wait_closed()
            await self._show_activity(ChatActivity(key=self._lease.key, on=True))
            while not self._is_closed:
                await self._wait()
                if self._is_closed:
                    break
                await self._show_status()
                if self._text and self._seconds_left() <= 0:
                    await self._push()
        except Exception:  # the channel boundary: a preview never fails its turn
            log.exception("preview.failed", turn=self._lease.turn)
        finally:
            if self._context.previews.get(self._lease.turn) is self:
                del self._context.previews[self._lease.turn]
            await self._show_activity(self._activity(on=False))

    async def _wait(self) -> None:
        """Wait until there is something to do: a word from outside, a text that is due, the fifteen seconds."""
        waits = []
        if self._text:
            waits.append(self._seconds_left())
        if self._elapsed() < _SAYS_STOP_AFTER:
            waits.append(_SAYS_STOP_AFTER - self._elapsed())
        if (self._status_text(), self._steps) != self._said:
            waits.append(self._status_due - self._loop.time())
        with suppress(TimeoutError):
            async with asyncio.timeout(max(min(waits), 0.0) if waits else None):
                await self._wake.wait()
        self._wake.clear()

    def _elapsed(self) -> float:
        return self._loop.time() - self._opened

    def _seconds_left(self) -> float:
        due = self._due - self._loop.time() if self._due is not None else 0.0
        return max(due, self._context.pauses.remaining(self._lease.key)[0])

    # -- typing and status ---------------------------------------------------------------------

    def _status_text(self) -> str:
        if self._elapsed() < _SAYS_STOP_AFTER:
            return self._status
        name = "delivery.doing" if self._status else "delivery.working"
        return translate(name, self._language, what=self._status)

    async def _show_status(self) -> None:
        text = self._status_text()
        if (text, self._steps) != self._said and self._loop.time() >= self._status_due:
            self._said, self._status_due = (text, self._steps), self._loop.time() + _STATUS_EVERY
            await self._show_activity(self._activity(text))

    def _activity(self, text: str = "", *, on: bool = True) -> ChatActivity:
        turn = self._lease.turn if self._steps else ""
        return ChatActivity(key=self._lease.key, on=on, text=text, turn=turn, steps=self._steps)

    async def _show_activity(self, activity: ChatActivity) -> None:
        if not self._channel.capabilities.shows_activity:
            return
        try:
            async with asyncio.timeout(_SHOW_WITHIN):
                await self._channel.show(activity)
        except TimeoutError:
            log.info("preview.activity_slow", channel=self._channel.name)
        except Exception:  # the channel boundary: showing is never worth a turn
            log.exception("preview.activity_failed", channel=self._channel.name)

    # -- the text ------------------------------------------------------------------------------

    async def _push(self) -> None:
        """Show the newest text unless it looks like the shown one."""
        self._due = self._loop.time() + self._every
        if not self._message_id and self._lease.key in self._context.working:
            return  # an earlier answer of this chat comes first
        text, self._text = self._text, ""
        part = await self._part(text)
        if part is None:
            return
        try:
            if self._message_id:
                await self._edit(part)
            elif not await self._begin(part):
                self._offer_again(text)
            elif self._message_id and self._shown is not None and self._shown.is_placed:
                await self._edit(part)
        except RetryLater as error:
            self._context.pauses.add(self._lease.key, max(error.delay.total_seconds(), self._every), str(error))
            self._offer_again(text)
        self._due = self._loop.time() + self._every

    def _offer_again(self, text: str) -> None:
        self._text = self._text or text

    async def _part(self, text: str) -> MessagePart | None:
        """Return the part to show for *text*; None if it is shown already."""
        # Only the first part is shown, so that a long answer does not cost its length at every edit.
        head = text[: 2 * self._channel.capabilities.text_limit]
        made = self._made = await self._context.formatted(head, lambda: self._growth.grow(head)) or self._made
        self._context.remember_preview(self._lease.turn, self._growth.shown)
        shown = self._shown
        is_new = made and (shown is None or (made.payload, made.plain) != (shown.payload, shown.plain))
        return made if is_new else None

    def _render(self, markdown: str) -> Sequence[MessagePart]:
        parts = self._channel.render(self._message(markdown))
        return [self._context.without_secrets(part) for part in parts]

    def _message(self, text: str) -> OutboundMessage:
        heard = self._lease.rows[-1].message
        return OutboundMessage(
            id=f"{self._lease.turn}.0",
            key=self._lease.key,
            text=text,
            kind=OutboundKind.PREVIEW,
            reply_to=heard.message_id if heard.kind is InboundKind.MESSAGE else "",
            links=None if self._links is None else self._links(text),
        )

    def _first(self, part: MessagePart) -> MessagePart:
        """Return the first part to send: the text, or a placeholder if a lost send could not be looked up."""
        if not self._is_placed:
            return part
        return replace(placeholder(part, self._language), is_placed=True)

    async def _edit(self, part: MessagePart) -> None:
        try:
            await self._ask_edit(part)
        except RetryLater:
            raise
        except SendRefused as error:
            self._give_up(str(error))
        except OutcomeUnknown:
            # The next edit says everything again; only a channel that never answers is left alone.
            self._strikes += 1
            if self._strikes >= _STRIKES:
                self._give_up("edits fail")
        except SendFailed as error:
            log.info("preview.edit_failed", channel=self._channel.name, reason=str(error))
        else:
            self._shown, self._strikes = part, 0
            self._context.meter.count("preview_edits", channel=self._channel.name)

    async def _ask_edit(self, part: MessagePart) -> None:
        await self._context.call_channel(self._channel, part, self._channel.edit(self._message_id, part))

    async def _begin(self, part: MessagePart) -> bool:
        """Bring the preview into the chat for the first time; False when it has to wait."""
        try:
            row = await self._context.outbox.preview(self._lease, self._first(part))
        except StoreUnavailable:
            return False
        except LeaseLost:
            self._give_up("the turn has another owner")
            return True
        if row.state is PartState.SENT:
            self._note_shown(row.message_id)
            await self._edit(part)
        elif row.state in (PartState.PENDING, PartState.SENDING):
            if row.state is PartState.PENDING:
                await self._context.retry_store(lambda: self._context.outbox.sending(row.part))
            await self._send(row.part)
        elif row.state is PartState.UNKNOWN:
            await self._resolve(row.part)
        else:
            self._give_up(str(row.state))
        return True

    async def _send(self, part: MessagePart) -> None:
        outbox = self._context.outbox
        try:
            receipt = await self._context.call_channel(self._channel, part, self._channel.send(part))
            self._note_shown(receipt.message_id)
            self._shown = part
            await self._context.retry_store(lambda: outbox.mark_sent(receipt))
        except OutcomeUnknown as error:
            reason = str(error)
            await self._context.retry_store(lambda: outbox.mark_uncertain(part, reason))
            self._strikes += 1
            await self._resolve(part)
        except SendFailed as error:
            reason = str(error)
            await self._context.retry_store(lambda: outbox.mark_unsent(part, reason))
            if isinstance(error, RetryLater):
                raise
            self._give_up(reason)
        except asyncio.CancelledError:
            # Whoever reads the ledger next must not take this for a send of its own.
            with suppress(StoreUnavailable):
                await outbox.mark_uncertain(part, "closed")
            raise

    async def _resolve(self, part: MessagePart) -> None:
        """Look up a preview that may exist on the platform; without an answer no preview is shown this time."""
        if self._strikes >= _STRIKES:
            self._give_up("sends fail")
            return
        try:
            receipt = await self._context.call_channel(self._channel, part, self._channel.find(part))
        except RetryLater:
            raise
        except SendFailed as error:
            self._give_up(str(error))
            return
        if receipt is None:
            await self._context.retry_store(lambda: self._context.outbox.sending(part))
            await self._send(part)
            return
        self._note_shown(receipt.message_id)
        self._shown = part
        await self._context.retry_store(lambda: self._context.outbox.mark_sent(receipt))

    def _note_shown(self, message_id: str) -> None:
        self._message_id = message_id
        self.shown_at = self.shown_at or self._context.now()

    def _give_up(self, reason: str) -> None:
        """Show no more text; the answer comes all the same."""
        log.info("preview.given_up", channel=self._channel.name, turn=self._lease.turn, reason=reason)
        self._shows_text, self._text = False, ""


DELAYED_AFTER = timedelta(minutes=1)  # shorter waits are a rate limit's daily business
_STORE_PAUSE = 1.0
_LAST_MOMENT = timedelta(seconds=1)  # for sends under way when the grace is over


class OutboxDispatcher:
    """Delivers what is committed: strictly in order in a chat, chats beside each other.

    One chat's trouble (Retry-After, a refusal, a bug in its channel) never delays another chat. Previews
    can be opened while `run` runs; before and after it they show nothing.
    """

    def __init__(self, channels: Mapping[str, Channel], context: DeliveryContext) -> None:
        """Deliver the outbox of *context* through *channels*."""
        self._channels = {name: DeliveryChannel.build(each, context) for name, each in channels.items()}
        self._context = context
        self._workers: dict[SessionKey, ChatDeliveryWorker] = {}
        self._tasks: asyncio.TaskGroup | None = None
        self._missing: set[str] = set()  # channels that are not configured, each said once

    async def run(self) -> None:
        """Deliver until `drain` or cancellation. Cancelled sends have an unknown outcome: drain first."""
        try:
            async with asyncio.TaskGroup() as tasks:
                self._tasks = tasks
                reading = tasks.create_task(self._read(), name="outbox")
                await self._context.stopping.wait()
                reading.cancel()
                for worker in self._workers.values():
                    worker.stop_waiting()
        finally:
            self._tasks = None

    async def drain(self, grace: timedelta) -> None:
        """Deliver what waits, for *grace* at most, then begin nothing more; `run` ends by itself.

        A chat that has to wait for its platform is not waited for: its rows go out at the next start.
        """
        await asyncio.sleep(0)  # what was just committed is on its way to `run`
        await self._wait_while(self._is_busy, grace)
        self._context.stopping.set()
        await self._wait_while(lambda: bool(self._workers), _LAST_MOMENT)

    async def _wait_while(self, goes_on: Callable[[], bool], at_most: timedelta) -> None:
        with suppress(TimeoutError):
            async with asyncio.timeout(at_most.total_seconds()):
                while goes_on():
                    self._context.quieter.clear()
                    await self._context.quieter.wait()

    def _is_busy(self) -> bool:
        return any(not worker.is_resting for worker in self._workers.values())

    def delayed(self) -> tuple[DelayedDelivery, ...]:
        """Return the chats whose next attempt is a minute or more after their first wait, oldest first."""
        waits = [each.delayed for each in self._workers.values() if each.delayed is not None]
        long = [each for each in waits if each.until - each.since >= DELAYED_AFTER]
        return tuple(sorted(long, key=lambda each: each.since))

    # -- workers ------------------------------------------------------------------------------

    async def _read(self) -> None:
        while True:
            try:
                async for key in self._context.outbox.chats():
                    self._start_worker(key)
            except StoreUnavailable as error:
                log.warning("delivery.waits_for_store", reason=str(error), seconds=_STORE_PAUSE)
                await self._context.backoff_sleep(_STORE_PAUSE)
            else:
                return  # the store is closed

    def _start_worker(self, key: SessionKey) -> None:
        to = self._channels.get(key.channel)
        if to is None:
            if key.channel not in self._missing:
                self._missing.add(key.channel)
                log.warning("delivery.channel_missing", channel=key.channel, mend="configure it again; its rows wait")
        elif key in self._workers:
            self._workers[key].is_woken = True
        elif self._tasks is not None and not self._context.stopping.is_set():
            worker = self._workers[key] = ChatDeliveryWorker(key, to, self._context)
            self._context.working.add(key)
            self._tasks.create_task(self._work(key, worker), name=f"worker {key}")

    async def _work(self, key: SessionKey, worker: ChatDeliveryWorker) -> None:
        """Run *worker* until its chat has nothing left; an unexpected error delays only this chat."""
        failures = 0
        try:
            while not self._context.stopping.is_set():
                try:
                    await worker.run()
                except StoreUnavailable:
                    return  # only raised when we stop; the ledger knows the rest
                except Exception:  # the channel boundary: other chats go on
                    failures += 1
                    log.exception("delivery.worker_failed", chat=str(key))
                    await self._context.backoff_sleep(backoff(failures))
                    continue
                # Nothing awaits between the worker's last look and this one.
                if not worker.is_woken:
                    return
        finally:
            self._workers.pop(key, None)
            self._context.working.discard(key)
            self._context.quieter.set()

    # -- previews ------------------------------------------------------------------------------

    def open(self, lease: TurnLease, language: str) -> Preview:
        """Start typing in the chat; stores nothing before the first words."""
        to = self._channels.get(lease.key.channel)
        # A preview has no mark; the answer is looked up first, or marked.
        if to is None or self._tasks is None or self._context.stopping.is_set() or lease.is_uncertain:
            return NullPreview()
        if not to.channel.capabilities.shows_activity and not _shows_text(to.channel):
            return NullPreview()
        return TurnPreview(lease, language, to.channel, self._context, self._tasks)

    def plan_parts(self, message: OutboundMessage) -> Sequence[MessagePart] | None:
        """Return the parts that *message* would be sent as, without a preview; None if its channel is not open."""
        to = self._channels.get(message.key.channel)
        return None if to is None else to.planner.plan_parts(message, None)

    def plan_at_once(self, message: OutboundMessage) -> tuple[MessagePart, ...]:
        """Return the parts of *message*, whose channel has given it a turn; none if it has to wait, or has a preview.

        The commit then stores them, which spares a look at the outbox and a transaction.
        """
        key, context = message.key, self._context
        to = self._channels.get(key.channel)
        if to is None or self._tasks is None or context.stopping.is_set() or key in self._workers:
            return ()
        if message.turn in context.previews or message.turn in context.previewed or not is_cheap(message.text):
            return ()
        if context.pauses.remaining(key)[0] or not (to.send_turns is None or to.send_turns.try_turn(key)):
            return ()
        try:
            return tuple(to.planner.plan_parts(message, None))
        except Exception:  # the channel boundary: the turn is stored, and its worker tries again
            log.exception("delivery.plan_failed", channel=key.channel, message=message.id)
            return ()

    def is_watched(self, key: SessionKey) -> bool:
        """Return True if a stream in this chat would be seen now."""
        to = self._channels.get(key.channel)
        if to is None or self._tasks is None:
            return False
        return _shows_text(to.channel) and to.channel.is_watched(key)


def _shows_text(channel: Channel) -> bool:
    capabilities = channel.capabilities
    return capabilities.preview_every is not None and capabilities.edits
