"""The outbox loop: a worker for each chat that has something, and the previews of the turns that run."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from datetime import timedelta

import structlog

from gateway.channel import Channel, SupportsReactions, SupportsSendTurns
from gateway.delivery.chat_delivery import ChatDeliveryWorker
from gateway.delivery.delivery_context import DeliveryContext, backoff, is_cheap
from gateway.delivery.part_planner import PartPlanner
from gateway.delivery.turn_preview import TurnPreview
from gateway.errors import StoreUnavailable
from gateway.events import MessagePart, OutboundMessage, SessionKey
from gateway.ports.journal import DelayedDelivery, NullPreview, Preview, TurnLease

log = structlog.get_logger(__name__)

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
        self._channels = channels
        self._context = context
        # Asked once: for each message it would be 2 % of what a turn costs.
        self._send_turns = {name: each for name, each in channels.items() if isinstance(each, SupportsSendTurns)}
        self._reactions = {name: each for name, each in channels.items() if isinstance(each, SupportsReactions)}
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
        channel = self._channels.get(key.channel)
        if channel is None:
            if key.channel not in self._missing:
                self._missing.add(key.channel)
                log.warning("delivery.channel_missing", channel=key.channel, mend="configure it again; its rows wait")
        elif key in self._workers:
            self._workers[key].is_woken = True
        elif self._tasks is not None and not self._context.stopping.is_set():
            worker = self._workers[key] = ChatDeliveryWorker(
                key, channel, self._send_turns.get(key.channel), self._reactions.get(key.channel), self._context
            )
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
        channel = self._channels.get(lease.key.channel)
        # A preview has no mark; the answer is looked up first, or marked.
        if channel is None or self._tasks is None or self._context.stopping.is_set() or lease.is_uncertain:
            return NullPreview()
        if not channel.capabilities.shows_activity and not _shows_text(channel):
            return NullPreview()
        preview = TurnPreview(lease, language, channel, self._context)
        preview.start(self._tasks)
        return preview

    def plan_parts(self, message: OutboundMessage) -> Sequence[MessagePart] | None:
        """Return the parts that *message* would be sent as, without a preview; None if its channel is not open."""
        channel = self._channels.get(message.key.channel)
        return None if channel is None else PartPlanner(channel, self._context).plan_parts(message, None)

    def plan_at_once(self, message: OutboundMessage) -> tuple[MessagePart, ...]:
        """Return the parts of *message*, whose channel has given it a turn; none if it has to wait, or has a preview.

        The commit then stores them, which spares a look at the outbox and a transaction.
        """
        key, context = message.key, self._context
        channel, send_turns = self._channels.get(key.channel), self._send_turns.get(key.channel)
        if channel is None or self._tasks is None or context.stopping.is_set() or key in self._workers:
            return ()
        if message.turn in context.previews or message.turn in context.previewed or not is_cheap(message.text):
            return ()
        if context.pauses.remaining(key)[0] or not (send_turns is None or send_turns.try_turn(key)):
            return ()
        try:
            return tuple(PartPlanner(channel, context).plan_parts(message, None))
        except Exception:  # the channel boundary: the turn is stored, and its worker tries again
            log.exception("delivery.plan_failed", channel=channel.name, message=message.id)
            return ()

    def is_watched(self, key: SessionKey) -> bool:
        """Return True if a stream in this chat would be seen now."""
        channel = self._channels.get(key.channel)
        if channel is None or self._tasks is None:
            return False
        return _shows_text(channel) and channel.is_watched(key)


def _shows_text(channel: Channel) -> bool:
    capabilities = channel.capabilities
    return capabilities.preview_every is not None and capabilities.edits
