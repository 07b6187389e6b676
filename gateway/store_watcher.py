"""Watches the store: one durable write a second with a deadline, whose result is read by every status signal.

No signal asks the store itself: a database that hangs, or a lock that another session holds, would delay the signal
for as long.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from datetime import datetime, timedelta

import structlog

from gateway.errors import ParlourError, StoreUnavailable
from gateway.ports import MetricsRecorder

log = structlog.get_logger(__name__)

MEASURE_EVERY = timedelta(seconds=1)
DEADLINE = timedelta(seconds=5)  # a purge of a large database makes others wait for a second or two
_LOG_EVERY = timedelta(minutes=1)
_LONGEST_CAUSE = 300  # characters


@dataclass(frozen=True, slots=True, kw_only=True)
class StoreState:
    """The last measurement of the store."""

    is_writable: bool
    since: datetime  # of `is_writable`
    cause: str = ""  # one line; "" while it is writable


@dataclass(frozen=True, slots=True, kw_only=True)
class StoreOutage:
    """A time in which the store could not be written, which is over."""

    since: datetime
    until: datetime
    cause: str


class StoreWatcher:
    """Measures the store once a second and keeps the result."""

    def __init__(
        self,
        check: Callable[[], Awaitable[None]],
        record_gauges: Callable[[], Awaitable[object]],
        *,
        meter: MetricsRecorder,
        now: Callable[[], datetime],
        forget_gauges: Callable[[], object] = lambda: None,
        deadline: timedelta = DEADLINE,
    ) -> None:
        """*check* does one durable write, and *record_gauges* sets the gauges of what is stored.

        Both raise StoreUnavailable. *forget_gauges* is called while the store does not answer, so that no gauge
        reports 0 for an unknown count.
        """
        self._check = check
        self._record_gauges = record_gauges
        self._forget_gauges = forget_gauges
        self._meter = meter
        self._now = now
        self._deadline = deadline
        self._state: StoreState | None = None
        self._logged_at: datetime | None = None
        self._measuring: asyncio.Task[str] | None = None
        self.outages: list[StoreOutage] = []  # those that nobody has taken yet

    @property
    def state(self) -> StoreState | None:
        """Return the last measurement; None before the first."""
        return self._state

    async def run(self) -> None:
        """Measure until cancelled."""
        try:
            while True:
                await self.measure()
                await asyncio.sleep(MEASURE_EVERY.total_seconds())
        finally:
            if self._measuring is not None:
                self._measuring.cancel()

    async def measure(self) -> StoreState:
        """Measure once, within the deadline, and return the result.

        A write that has no result yet is waited for again: a store that hangs gets no second one.
        """
        task = self._measuring or asyncio.create_task(self._write(), name="store measurement")
        self._measuring = task
        # While it hangs, each second has a result.
        is_overdue = self._state is not None and not self._state.is_writable
        wait = MEASURE_EVERY if is_overdue else self._deadline
        await asyncio.wait({task}, timeout=wait.total_seconds())
        if task.done():
            self._measuring = None
            return self._note(task.result())
        seconds = round(self._deadline.total_seconds())
        return self._note(f"it has not answered for {seconds} s: it hangs, or another session holds a lock")

    async def _write(self) -> str:
        """Return why the store cannot be written; "" if it can."""
        try:
            await self._check()
            await self._record_gauges()
        except StoreUnavailable as error:
            return one_line(error)
        except ParlourError as error:
            log.warning("store.measurement_failed", error=one_line(error))
        return ""

    def _note(self, cause: str) -> StoreState:
        now, before = self._now(), self._state
        is_writable = not cause
        changed = before is None or before.is_writable is not is_writable
        since = now if before is None or changed else before.since
        if before is not None and not before.is_writable and self._measuring is not None:
            cause = before.cause  # what was known stays the cause while it merely does not answer any more
        state = self._state = StoreState(is_writable=is_writable, since=since, cause=cause)
        self._meter.gauge("store_writable", float(is_writable))
        if is_writable:
            if before is not None and changed:
                self.outages.append(StoreOutage(since=before.since, until=now, cause=before.cause))
                log.info("store.writable", seconds=round((now - before.since).total_seconds()))
            self._logged_at = None
            return state
        self._forget_gauges()
        if self._logged_at is None or not timedelta() <= now - self._logged_at < _LOG_EVERY:
            self._logged_at = now
            log.error("store.unwritable", cause=cause, seconds=round((now - since).total_seconds()))
        return state


def one_line(error: Exception) -> str:
    """Return the text of *error* as one line of bounded length."""
    text = " ".join(str(error).split()) or type(error).__name__
    return text if len(text) <= _LONGEST_CAUSE else f"{text[: _LONGEST_CAUSE - 1]}…"
