"""Background services: channels that are restarted when they fail, the periodic prune, and the journal stamp."""

from __future__ import annotations

import asyncio
import math
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import KW_ONLY, dataclass, field
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import structlog

from gateway.channel import Channel, ChannelShard, SupportsOneConnection, SupportsShards
from gateway.errors import ParlourError, StoreUnavailable, UserError
from gateway.ports.metrics import MetricsRecorder

if TYPE_CHECKING:
    from gateway.store.claims import WorkerConnections
    from gateway.store.sql_store import SqlStore


log = structlog.get_logger(__name__)

_FIRST_PAUSE = timedelta(seconds=1)
_LONGEST_PAUSE = timedelta(minutes=1)
_CHECK_INTERVAL = timedelta(seconds=15)
STALLED_AFTER = timedelta(minutes=5)  # longer than a platform library takes to reconnect
_STABLE_AFTER = timedelta(minutes=5)  # connected; a later failure starts with the first pause again
_END_TIMEOUT = timedelta(seconds=30)
_FIRST_TRY = timedelta(seconds=10)  # then a channel that is not connected is degraded, also if it still tries
_PRUNE_INTERVAL = timedelta(hours=6)
_STAMP_INTERVAL = timedelta(seconds=30)


@dataclass(frozen=True, slots=True)
class _Receiver:
    """The receiver of a channel: the channel itself, or one of its shards."""

    name: str  # the channel's name, with the number of a shard: "discord/1"
    channel: str  # the channel's name
    runs: Channel | ChannelShard


@dataclass(slots=True, eq=False)
class Supervisor:
    """Runs channels; one that ends or stalls is restarted on its own, with exponential backoff.

    A channel stalls when it runs and is not connected to its platform for `STALLED_AFTER`. A connection that exists
    once runs in one of the workers that share a database; the others send without it, and wait. The shards of a channel
    are run each on its own.
    """

    channels: Mapping[str, Channel]
    _: KW_ONLY
    meter: MetricsRecorder
    connections: WorkerConnections | None = None
    on_refusal: Callable[[], object] = lambda: None  # called when a platform refuses us for good
    on_stall: Callable[[str], object] = lambda _: None  # called with the name of a stalled channel
    _receivers: dict[str, list[_Receiver]] = field(default_factory=dict, init=False)
    _waiting: set[str] = field(default_factory=set, init=False)  # receivers whose connection another worker has
    _tried: set[str] = field(default_factory=set, init=False)
    _refused: dict[str, UserError] = field(default_factory=dict, init=False)  # by receiver
    _tried_at: float = field(default=math.inf, init=False)  # by the loop's time; from then on each receiver was tried

    def __post_init__(self) -> None:
        self._receivers = {name: [_Receiver(name, name, channel)] for name, channel in self.channels.items()}

    async def run(self) -> None:
        """Run every channel until cancelled."""
        self._tried_at = asyncio.get_running_loop().time() + _FIRST_TRY.total_seconds()
        async with asyncio.TaskGroup() as tasks:
            for name, channel in self.channels.items():
                tasks.create_task(self._run_channel(name, channel), name=f"channel {name}")

    def states(self) -> Mapping[str, bool | None]:
        """Return the state of each channel: None = not tried yet, False = degraded, True = connected, or not needed.

        A channel is not needed here while another worker has its connection. One of several shards that is degraded
        makes its channel degraded.
        """
        shards, states = self.shard_states(), dict[str, bool | None]()
        for channel, receivers in self._receivers.items():
            found = {shards[each.name] for each in receivers}
            states[channel] = next(state for state in (False, None, True) if state in found)
        return states

    def shard_states(self) -> Mapping[str, bool | None]:
        """Return `states` with those of each shard, as "discord/1", in place of a channel that has several."""
        states: dict[str, bool | None] = {}
        is_late = asyncio.get_running_loop().time() >= self._tried_at
        for each in (receiver for receivers in self._receivers.values() for receiver in receivers):
            is_ready = each.name in self._waiting or _is_ready(each)
            states[each.name] = is_ready if is_ready or is_late or each.name in self._tried else None
            self.meter.gauge("channel_ready", float(is_ready), channel=each.name)
        return states

    def refusals(self) -> Mapping[str, UserError]:
        """Return the errors of channels that only the operator can fix, until they are connected again."""
        refused: dict[str, UserError] = {}
        for each in (receiver for receivers in self._receivers.values() for receiver in receivers):
            if each.name in self._refused and _is_ready(each):
                del self._refused[each.name]
            elif each.name in self._refused:
                refused.setdefault(each.channel, self._refused[each.name])
        return refused

    async def _run_channel(self, name: str, channel: Channel) -> None:
        if isinstance(channel, SupportsShards):
            shards = await self._open_shards(name, channel)
            names = [f"{name}/{number}" for number in range(len(shards))] if len(shards) > 1 else [name]
            self._receivers[name] = [_Receiver(each, name, shard) for each, shard in zip(names, shards, strict=True)]
        async with asyncio.TaskGroup() as tasks:
            for receiver in self._receivers[name]:
                tasks.create_task(self._keep(receiver), name=f"channel {receiver.name}")

    async def _open_shards(self, name: str, channel: SupportsShards) -> Sequence[ChannelShard]:
        """Return the shards of *channel*; a failure is retried with backoff."""
        pause = _FIRST_PAUSE
        while True:
            try:
                return await channel.shards()
            except Exception as error:  # noqa: BLE001 - the channel boundary, as of a run
                self._note_error(self._receivers[name][0], error)
            await asyncio.sleep(pause.total_seconds())
            pause = min(pause * 2, _LONGEST_PAUSE)

    async def _keep(self, receiver: _Receiver) -> None:
        pause, name = _FIRST_PAUSE, receiver.name
        while True:
            async with self._connection(receiver) as claim_end:
                run = asyncio.create_task(receiver.runs.run(), name=f"channel {name} runs")
                try:
                    was_stable = await self._listen(receiver, run, claim_end)
                finally:
                    # Two runs of one channel would take each other's events.
                    await _end(name, run)
            self._note_end(receiver, run)
            self.meter.count("channel_restarts", channel=receiver.channel)
            pause = _FIRST_PAUSE if was_stable else pause
            await asyncio.sleep(pause.total_seconds())
            pause = min(pause * 2, _LONGEST_PAUSE)

    @asynccontextmanager
    async def _connection(self, receiver: _Receiver) -> AsyncIterator[asyncio.Task[bool] | None]:
        """Wait until the connection of *receiver* is ours, and give it back at the end; yield what ends if it is lost.

        After a failure another worker gets its turn. Without others there is nothing to wait for.
        """
        runs, claims = receiver.runs, self.connections
        if claims is None or not isinstance(runs, SupportsOneConnection) or not runs.connection:
            yield None
            return
        claim = f"{receiver.channel}:{runs.connection}"
        try:
            await self._wait_turn(receiver, runs, claims.acquire(claim))
            log.info("channel.connection_claimed", channel=receiver.name)
            lost = asyncio.create_task(claims.wait_lost(claim), name=f"claim of {receiver.name}")
            try:
                yield lost
            finally:
                lost.cancel()
        finally:
            claims.release(claim)

    async def _wait_turn(
        self, receiver: _Receiver, channel: SupportsOneConnection, turn: Coroutine[Any, Any, None]
    ) -> None:
        """Send without the connection until *turn* has ended."""
        name = receiver.name
        waiting = asyncio.create_task(turn, name=f"claim of {name}")
        pause = _FIRST_PAUSE
        try:
            while not waiting.done():
                self._waiting.add(name)
                sender = asyncio.create_task(channel.run_sender(), name=f"channel {name} sends")
                try:
                    await asyncio.wait({waiting, sender}, return_when=asyncio.FIRST_COMPLETED)
                finally:
                    await _end(name, sender)
                self._waiting.discard(name)
                if not waiting.done():
                    self._note_end(receiver, sender)
                    await asyncio.wait({waiting}, timeout=pause.total_seconds())
                    pause = min(pause * 2, _LONGEST_PAUSE)
            await waiting
        finally:
            self._waiting.discard(name)
            waiting.cancel()

    def _note_end(self, receiver: _Receiver, run: asyncio.Task[None]) -> None:
        """Log and keep why a run has ended by itself."""
        if run.cancelled():
            self._tried.add(receiver.name)
            self._note_refusal(receiver.name, None)
        else:
            self._note_error(receiver, run.exception())

    def _note_error(self, receiver: _Receiver, error: BaseException | None) -> None:
        self._tried.add(receiver.name)
        self._log_end(receiver, error)
        self._note_refusal(receiver.name, error)

    def _log_end(self, receiver: _Receiver, error: BaseException | None) -> None:
        """Log the end of a channel: our own errors as one line, and a repeated UserError once."""
        name = receiver.name
        if isinstance(error, UserError):
            if str(error) != str(self.refusals().get(receiver.channel, "")):
                log.error("channel.refused", channel=name, mend=str(error))
        elif isinstance(error, ParlourError):
            log.error("channel.failed", channel=name, error=type(error).__name__, reason=str(error))
        elif error is not None:
            log.error("channel.failed", channel=name, exc_info=error)
        else:
            log.warning("channel.ended", channel=name)

    def _note_refusal(self, name: str, error: BaseException | None) -> None:
        if isinstance(error, UserError):
            self._refused[name] = error
            self.on_refusal()
        else:
            self._refused.pop(name, None)

    async def _listen(self, receiver: _Receiver, run: asyncio.Task[None], claim_end: asyncio.Task[bool] | None) -> bool:
        """Return when *run* has ended, it has stalled or lost its claim: True if it was connected for long."""
        loop, name = asyncio.get_running_loop(), receiver.name
        changed, was_ready, was_stable = loop.time(), False, False
        ends = {run} if claim_end is None else {run, claim_end}
        while not run.done():
            await asyncio.wait(ends, timeout=_CHECK_INTERVAL.total_seconds(), return_when=asyncio.FIRST_COMPLETED)
            if claim_end is not None and claim_end.done():
                if claim_end.result():
                    log.info("channel.connection_moves", channel=name)
                else:
                    log.warning("channel.connection_lost", channel=name, mend="it is taken up again when it is free")
                break
            is_ready = _is_ready(receiver)
            if is_ready:
                self._refused.pop(name, None)
            if is_ready is not was_ready:
                changed, was_ready = loop.time(), is_ready
            since = timedelta(seconds=loop.time() - changed)
            was_stable = was_stable or (is_ready and since >= _STABLE_AFTER)
            if not is_ready and since >= STALLED_AFTER and not run.done():
                self.meter.count("channel_stalls", channel=receiver.channel)
                self.on_stall(receiver.channel)
                log.error("channel.stalled", channel=name, seconds=round(since.total_seconds()), mend="it is restarted")
                break
        return was_stable


def _is_ready(receiver: _Receiver) -> bool:
    try:
        return receiver.runs.is_ready()
    except Exception as error:  # noqa: BLE001 - the channel boundary: a channel whose check fails is not ready
        log.error("channel.readiness_failed", channel=receiver.name, error=type(error).__name__)  # noqa: TRY400 - asked every few seconds, too often for a traceback
        return False


async def _end(name: str, run: asyncio.Task[None]) -> None:
    while not run.done():
        run.cancel()
        await asyncio.wait({run}, timeout=_END_TIMEOUT.total_seconds())
        if not run.done():
            log.error("channel.end_timed_out", channel=name, seconds=_END_TIMEOUT.total_seconds())


async def run_prune_loop(store: SqlStore, *others: Callable[[], Awaitable[int]]) -> None:
    """Remove expired rows, and what *others* remove, at start and every few hours."""
    while True:
        try:
            removed = await store.prune() + sum([await each() for each in others])
        except StoreUnavailable:
            log.warning("prune.store_unavailable")
        else:
            log.info("prune.done", rows=removed)
        await asyncio.sleep(_PRUNE_INTERVAL.total_seconds())


async def run_stamp_loop(store: SqlStore) -> None:
    """Stamp the store every 30 seconds in which something was committed."""
    while True:
        await asyncio.sleep(_STAMP_INTERVAL.total_seconds())
        with suppress(StoreUnavailable):  # the store's writer logs it
            await store.stamp()
