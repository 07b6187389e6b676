"""Watches the store: one durable write a second with a deadline, whose result is read by every status signal.

No signal asks the store itself: a database that hangs, or a lock that another session holds, would delay the signal
for as long.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, replace
from datetime import datetime, timedelta

import structlog

from gateway.errors import StoreUnavailable
from gateway.ports.metrics import MetricsRecorder

log = structlog.get_logger(__name__)

MEASURE_EVERY = timedelta(seconds=1)
DEADLINE = timedelta(seconds=5)  # a purge of a large database makes others wait for a second or two
CALM = timedelta(seconds=10)  # a store that can be written for less time between two failures has one outage
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
        self.state: StoreState | None = None  # the last measurement
        self._logged_at: datetime | None = None
        self._is_logged = False  # that it cannot be written, and not yet that it can
        self._measuring: asyncio.Task[str] | None = None
        self._began = 0.0  # when that write began, by the loop's time
        self._outage: StoreOutage | None = None  # until now; it may go on
        self.outages: list[StoreOutage] = []  # those that are over and not reported yet

    @property
    def trouble_since(self) -> datetime | None:
        """Return when the outage began that is there, or was there a moment ago; None without one."""
        return self._outage.since if self._outage is not None else None

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

        A write that has no result yet is waited for again: a store that hangs gets no second one. One that ends after
        the deadline does not show that the store can be written; the next one is waited for at once.
        """
        loop = asyncio.get_running_loop()
        while True:
            if self._measuring is None:
                self._measuring = asyncio.create_task(self._write(), name="store measurement")
                self._began = loop.time()
            # While it hangs, each second has a result.
            is_overdue = self.state is not None and not self.state.is_writable
            wait = MEASURE_EVERY if is_overdue else self._deadline
            await asyncio.wait({self._measuring}, timeout=wait.total_seconds())
            if not self._measuring.done():
                seconds = round(self._deadline.total_seconds())
                return self._record(f"it has not answered for {seconds} s: it hangs, or another session holds a lock")
            cause, self._measuring = self._measuring.result(), None
            if cause or loop.time() - self._began <= self._deadline.total_seconds():
                return self._record(cause)

    async def _write(self) -> str:
        """Return why the store cannot be written; "" if it can."""
        try:
            await self._check()
        except Exception as error:  # noqa: BLE001 - the boundary to the store: whatever it is, it is the cause
            return one_line(error)
        try:
            await self._record_gauges()
        except StoreUnavailable as error:
            return one_line(error)
        except Exception:  # the store can be written all the same
            log.exception("store.measurement_failed")
        return ""

    def _record(self, cause: str) -> StoreState:
        now, before = self._now(), self.state
        is_writable = not cause
        changed = before is None or before.is_writable is not is_writable
        since = now if before is None or changed else before.since
        if before is not None and not before.is_writable and self._measuring is not None:
            cause = before.cause  # what was known stays the cause while it merely does not answer any more
        state = self.state = StoreState(is_writable=is_writable, since=since, cause=cause)
        self._meter.gauge("store_writable", float(is_writable))
        if not is_writable:
            self._forget_gauges()
        self._record_outage(state, now)
        self._log(state, now)
        return state

    def _record_outage(self, state: StoreState, now: datetime) -> None:
        outage = self._outage
        if not state.is_writable:
            self._outage = StoreOutage(since=outage.since if outage else now, until=now, cause=state.cause)
        elif outage is not None and not timedelta() <= now - state.since < CALM:
            self.outages.append(replace(outage, until=state.since))
            self._outage = None

    def _log(self, state: StoreState, now: datetime) -> None:
        outage = self._outage
        if state.is_writable and self._is_logged and outage is not None:
            self._is_logged = False
            log.info("store.writable", seconds=round((now - outage.since).total_seconds()))
        if state.is_writable:
            return
        if self._logged_at is None or not timedelta() <= now - self._logged_at < _LOG_EVERY:
            self._logged_at, self._is_logged = now, True
            log.error("store.unwritable", cause=state.cause, seconds=round((now - state.since).total_seconds()))


def one_line(error: Exception) -> str:
    """Return the text of *error* as one line of bounded length, without the full stop."""
    text = " ".join(str(error).split()).rstrip(".") or type(error).__name__
    return text if len(text) <= _LONGEST_CAUSE else f"{text[: _LONGEST_CAUSE - 1]}…"
