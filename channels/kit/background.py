"""Work beside turns (reactions, typing, lines to a sender) that never raises, and the rate limits of calls."""

from __future__ import annotations

import asyncio
import math
from collections.abc import AsyncIterator, Awaitable, Callable, Hashable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from typing import TypeAlias

import structlog

from gateway.errors import ParlourError, RetryLater, SendFailed, SendRefused, StoreUnavailable

log = structlog.get_logger(__name__)

Work: TypeAlias = Callable[[], Awaitable[object]]

_LONGEST_ACTIVITY = 3_600.0  # seconds; a turn that takes longer has died


class BackgroundTasks:
    """The background work of one channel; `close` cancels it."""

    def __init__(self, channel: str) -> None:
        self._channel = channel
        self._tasks: set[asyncio.Task[None]] = set()

    def start(self, work: Work, name: str) -> asyncio.Task[None]:
        """Run *work* in a separate task and log its failure. *name* names the kind of work in logs."""
        task = asyncio.create_task(self._run(work, name), name=f"{self._channel} {name}")
        self._tasks.add(task)  # the loop itself holds tasks only weakly
        task.add_done_callback(self._tasks.discard)
        return task

    async def close(self) -> None:
        """Cancel everything and return when it has ended."""
        for task in self._tasks:
            task.cancel()
        if self._tasks:
            await asyncio.wait(self._tasks)

    async def _run(self, work: Work, name: str) -> None:
        try:
            await work()
        except (SendFailed, StoreUnavailable) as error:
            log.info("channel.background_failed", channel=self._channel, work=name, reason=str(error))
        except Exception:  # the channel boundary: a typing indicator is never worth a turn
            log.exception("channel.background_crashed", channel=self._channel, work=name)


class RepeatedActivity:
    """Typing indicators or statuses, shown again every *interval* seconds because platforms let them fade."""

    def __init__(self, tasks: BackgroundTasks, interval: float) -> None:
        self._tasks = tasks
        self._interval = interval
        self._shown: dict[Hashable, asyncio.Task[None]] = {}

    def start(self, key: Hashable, show: Work) -> None:
        """Call *show* now and again until `stop`; has no effect while *key* is shown. SendRefused ends it."""
        task = self._shown.get(key)
        if task is None or task.done():  # the platform may have refused
            self._shown[key] = self._tasks.start(partial(self._repeat, show), "activity")

    async def stop(self, key: Hashable) -> bool:
        """Stop showing *key* and return True if it was shown; no call is in flight any more."""
        task = self._shown.pop(key, None)
        if task is None:
            return False
        task.cancel()
        await asyncio.wait({task})
        return True

    async def _repeat(self, show: Work) -> None:
        loop = asyncio.get_running_loop()
        end = loop.time() + _LONGEST_ACTIVITY
        while loop.time() < end:
            pause = self._interval
            try:
                await show()
            except SendRefused:
                raise
            except RetryLater as error:
                pause = max(pause, error.delay.total_seconds())
            except SendFailed as error:
                log.debug("channel.activity_failed", reason=str(error))
            await asyncio.sleep(pause)


Clock: TypeAlias = Callable[[], float]  # seconds

_ROUNDING = 1e-9  # seconds that are none: sums of floats
_PRUNE_ABOVE = 1_000  # buckets of chats; full ones are dropped, since a new one is full too


def utc_now() -> datetime:
    """Return the current time, aware."""
    return datetime.now(UTC)


def loop_time() -> float:
    """Return the time of the running event loop, in seconds."""
    return asyncio.get_running_loop().time()


class TokenBucket:
    """Allow *burst* calls at once, then one every *interval* seconds."""

    __slots__ = ("_burst", "_clock", "_full_at", "_interval")

    def __init__(self, burst: int, interval: float, *, clock: Clock = loop_time) -> None:
        self._burst = burst
        self._interval = interval
        self._clock = clock
        self._full_at = 0.0

    @property
    def is_full(self) -> bool:
        """Return True if no call counts any more."""
        return self._full_at <= self._clock()

    def delay(self, *, reserve: int = 0) -> float:
        """Return the seconds until a call may go that leaves *reserve* others; 0 if it may go now."""
        delay = self._full_at - self._clock() - self._interval * (self._burst - 1 - reserve)
        return delay if delay > _ROUNDING else 0.0

    def try_acquire(self, *, reserve: int = 0) -> float:
        """Count one call and return 0 if it may go now; else count nothing and return `delay`."""
        delay = self.delay(reserve=reserve)
        if not delay:
            self._full_at = max(self._full_at, self._clock()) + self._interval
        return delay

    def take(self, cost: float = 1.0) -> float:
        """Count *cost* calls and return the seconds to wait before they may go."""
        now = self._clock()
        self._full_at = max(self._full_at, now) + self._interval * cost
        delay = self._full_at - now - self._interval * self._burst
        return delay if delay > _ROUNDING else 0.0

    async def acquire(self) -> None:
        """Count one call and wait until it may go; callers are served in order."""
        if delay := self.take():
            await asyncio.sleep(delay)


class ChatRateLimits:
    """One token bucket for each chat. *interval* returns a chat's seconds for each call."""

    def __init__(self, burst: int, interval: Callable[[str], float], *, clock: Clock = loop_time) -> None:
        self._burst = burst
        self._interval = interval
        self._clock = clock
        self._buckets: dict[str, TokenBucket] = {}

    def of(self, chat: str) -> TokenBucket:
        """Return the bucket of *chat*."""
        if chat not in self._buckets:
            if len(self._buckets) > _PRUNE_ABOVE:
                self._buckets = {name: bucket for name, bucket in self._buckets.items() if not bucket.is_full}
            self._buckets[chat] = TokenBucket(self._burst, self._interval(chat), clock=self._clock)
        return self._buckets[chat]


# -- slots -----------------------------------------------------------------------------------------
# Slots of people and chats: limits on what runs for one of them at once, and on what waits.


class SlotsTaken(ParlourError):
    """As much runs and waits for a key as may."""


@dataclass(slots=True)
class _Slot:
    free: asyncio.Semaphore
    users: int = 0  # at work and waiting


class KeyedSlots:
    """Slots of each key, a person or a chat, independent of other keys'; served in order, and dropped when unused."""

    def __init__(self, at_once: int, waiting_limit: float = math.inf) -> None:
        self._at_once = at_once
        self._most = at_once + waiting_limit
        self._slots: dict[str, _Slot] = {}

    def busy(self, key: str) -> int:
        """Return the number of holders of a slot of *key*, and of those who wait for one."""
        return self._slots[key].users if key in self._slots else 0

    @asynccontextmanager
    async def hold(self, key: str) -> AsyncIterator[None]:
        """Wait for a slot of *key* and hold it; raise SlotsTaken when too many wait already."""
        slot = self._slots.setdefault(key, _Slot(asyncio.Semaphore(self._at_once)))
        if slot.users >= self._most:
            raise SlotsTaken(key)
        slot.users += 1
        try:
            async with slot.free:
                yield
        finally:
            slot.users -= 1
            if not slot.users:
                del self._slots[key]
