"""Quarantine of events that crash the process or cannot be parsed.

In cautious mode (after two unclean stops in a row, until ten minutes have passed without another) events of all
channels are handled one at a time, and the current one is kept on disk. An event found there at the next start is
*struck*: it, or something else, ended the run. It is handled once more, from the file or when the platform delivers it
again; after the second strike it is quarantined, and its sender is notified.
"""

from __future__ import annotations

import asyncio
import hashlib
import time
import traceback
from collections.abc import Awaitable, Callable, Iterable, Sequence
from contextlib import suppress
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any, TypeVar

import structlog

from gateway.errors import ParlourError, UnreadableEvent, UserError
from gateway.ports.channel import EventOrigin, PlatformEvent
from gateway.ports.metrics import MetricsRecorder
from gateway.quarantine.quarantine_folder import KEPT, KILLED, MOST, STRUCK, UNTOLD, WORKING, LastWork, QuarantineFolder

log = structlog.get_logger(__name__)

ATTEMPTS = 3  # of an event whose handling fails
UNCLEAN_STOPS = 2  # in a row, and intake is cautious (docs/formats.md, Session queues)
CALM = timedelta(minutes=10)  # without being killed, and caution ends
KEEP = timedelta(days=90)  # as dead letters are

_Result = TypeVar("_Result")


class Quarantine:
    """The events in our keeping. One process owns the folder, like the home. Raises UserError when it cannot."""

    def __init__(
        self,
        folder: Path,
        *,
        unclean_stops: int,
        meter: MetricsRecorder,
        now: Callable[[], datetime],
        clock: Callable[[], float] = time.monotonic,
        keep: timedelta = KEEP,
        on_quarantined: Callable[[str, str], object] = lambda *_: None,
    ) -> None:
        """*on_quarantined* is called with the channel of an event that is set aside, and the reason."""
        self._folder = QuarantineFolder(folder)
        self._meter = meter
        self._now = now
        self._clock = clock
        self._keep = keep
        self.news = asyncio.Event()  # set when senders of quarantined events must be notified
        self._on_set_aside = on_quarantined
        self._one_at_a_time = asyncio.Lock()
        self._broken: dict[str, int] = {}  # events whose handling failed, and how often; the oldest first
        try:
            self._last_work = self._folder.settle()
            self._kept = dict.fromkeys(self._folder.names())  # the oldest first
            self._struck = set(self._folder.list_struck())
        except OSError as wrong:
            line = f"{folder} cannot be used ({wrong.strerror}); make the user who runs Parlour its owner"
            raise UserError(line) from None
        for name in self._last_work.struck:
            log.warning("quarantine.struck", name=name)
        for name in self._last_work.convicted:
            self._meter.count("quarantined", channel=name.rpartition("-")[0])
            log.error("quarantine.killed_us", name=name)
        if self._folder.list_untold():
            self.news.set()
        is_warned = unclean_stops >= UNCLEAN_STOPS or self.had_event_in_hand
        self._cautious_until = clock() + (CALM.total_seconds() if is_warned else 0.0)
        if is_warned:
            log.warning("quarantine.cautious", unclean_stops=unclean_stops, seconds=CALM.total_seconds())

    @property
    def had_event_in_hand(self) -> bool:
        """Return True if the process before was killed while it handled an event on record."""
        return self._last_work != LastWork()

    @property
    def is_cautious(self) -> bool:
        """Return True in cautious mode: events are handled one at a time, each kept on disk."""
        return self._clock() < self._cautious_until

    async def handle(self, event: PlatformEvent, work: Callable[[], Awaitable[None]]) -> None:
        """Run *work* on *event*; see `gateway.intake.Intake.handle`."""
        name = _name(event)
        if self._passes_over(event, name):
            return
        if not self.is_cautious and name not in self._struck:
            await self._run(event, name, work)
            return
        async with self._one_at_a_time:
            # The same event may have been set aside while this one waited.
            if not self._passes_over(event, name):
                await self._run_on_record(event, name, work)

    @property
    def struck_names(self) -> Sequence[str]:
        """Return the events that are to be handled once more."""
        return sorted(self._struck)

    async def replay(self, name: str, work: Callable[[PlatformEvent], Awaitable[None]]) -> bool:
        """Run *work* on a struck or quarantined event and delete it on success; return False if it does not exist.

        A kill during *work* quarantines it. Raises *work*'s errors, and UserError for an incomplete event.
        """
        async with self._one_at_a_time:
            if name not in self._kept and name not in self._struck:
                return False
            event = await _to_the_end(self._folder.read, name, KEPT if name in self._kept else STRUCK)
            if event is None:
                raise UserError(f"{name} is incomplete: it was too long to keep, or its text was erased")
            if await self._run_on_record(event, name, lambda: work(event)):
                await self._forget([name])
        return True

    async def list_untold(self) -> Sequence[tuple[str, str, EventOrigin | None]]:
        """Return quarantined events whose senders were not notified: name, channel and origin."""
        return await asyncio.to_thread(self._read_untold)

    def _read_untold(self) -> list[tuple[str, str, EventOrigin | None]]:
        found = [(name, self._folder.origin(name)) for name in self._folder.list_untold()]
        return [(name, *(origin or ("", None))) for name, origin in found]

    async def mark_told(self, name: str) -> None:
        """Record that the sender of an event was notified, or cannot be."""
        await _to_the_end(self._folder.remove, f"{name}{UNTOLD}")

    def _passes_over(self, event: PlatformEvent, name: str) -> bool:
        if name not in self._kept:
            return False
        log.warning("quarantine.passed_over", channel=event.channel, name=name)
        return True

    async def _run_on_record(self, event: PlatformEvent, name: str, work: Callable[[], Awaitable[None]]) -> bool:
        record = f"{name}{WORKING}"
        try:
            await _to_the_end(self._folder.write, record, event, KILLED, self._now())
            is_handled = await self._run(event, name, work)
            if name in self._struck:
                self._struck.discard(name)
                await _to_the_end(self._folder.remove, f"{name}{STRUCK}")
            return is_handled
        finally:
            # Here and now, not in a thread: whatever ends this must not leave a file behind that accuses the innocent.
            self._folder.remove(record)

    async def _run(self, event: PlatformEvent, name: str, work: Callable[[], Awaitable[None]]) -> bool:
        """Run *work*; False when the event was set aside over it."""
        is_handled = False
        try:
            await work()
            is_handled = True
        except Exception as error:
            unreadable = _unreadable(error)
            if unreadable is None and (_is_on_purpose(error) or self._count(name) < ATTEMPTS):
                raise
            if unreadable is None:
                # A bug's text may quote the event: its class and its place have to do.
                kind = type(error).__name__
                place = _place(error)
                log.error("quarantine.broke_us", channel=event.channel, name=name, error=kind, at=place)  # noqa: TRY400 - see above
                await self._put(event, name, f"it failed {ATTEMPTS} times: {kind}", tells_sender=True)
            else:
                await self._put(event, name, str(unreadable))
        self._broken.pop(name, None)
        return is_handled

    def _count(self, name: str) -> int:
        times = self._broken.pop(name, 0) + 1
        self._broken[name] = times
        if len(self._broken) > MOST:
            del self._broken[next(iter(self._broken))]
        return times

    async def _put(self, event: PlatformEvent, name: str, reason: str, *, tells_sender: bool = False) -> None:
        """Quarantine *event* and have its sender notified; raises StoreUnavailable if it cannot be written."""
        await _to_the_end(self._folder.write, f"{name}{KEPT}", event, reason, self._now())
        if tells_sender and event.origin is not None:
            await _to_the_end(self._folder.mark_untold, name)
            self.news.set()
        self._kept[name] = None
        if len(self._kept) > MOST:
            await self._forget(list(self._kept)[:-MOST])
        self._meter.count("quarantined", channel=event.channel)
        self._on_set_aside(event.channel, reason)
        log.error("quarantine.set_aside", channel=event.channel, name=name, reason=reason)

    async def prune(self) -> int:
        """Delete events quarantined longer ago than the retention; return their number."""
        names, oldest = [*self._kept, *self._struck], (self._now() - self._keep).timestamp()
        old = await asyncio.to_thread(lambda: [name for name in names if self._folder.age(name) < oldest])
        await self._forget(old)
        return len(old)

    async def blank(self, is_meant: Callable[[str, bytes], bool]) -> int:
        """Take out what the events say that are meant (a channel, its bytes); they are passed over as before."""
        return await _to_the_end(self._folder.blank, is_meant)

    async def drop(self, name: str) -> bool:
        """Remove one event, so that it is handled if it comes again; False when it is not here."""
        is_here = name in self._kept or name in self._struck
        if is_here:
            await self._forget([name])
        return is_here

    async def _forget(self, names: Iterable[str]) -> None:
        for name in names:
            self._kept.pop(name, None)
            self._struck.discard(name)
            await _to_the_end(self._folder.forget, name)


def _name(event: PlatformEvent) -> str:
    """Return a file's name that is the same when the platform brings the event again.

    An event that has no id is known by its own text, or one of them would silence all that follow.
    """
    known_by = f"id {event.id}" if event.id else f"text {event.raw}"
    return f"{event.channel}-{hashlib.sha256(known_by.encode('utf-8', 'surrogatepass')).hexdigest()[:24]}"


def _unreadable(error: BaseException) -> UnreadableEvent | None:
    """Return *error* if it is an UnreadableEvent, or the first of a group of only such; else None."""
    if not isinstance(error, BaseExceptionGroup):
        return error if isinstance(error, UnreadableEvent) else None
    found = [_unreadable(each) for each in error.exceptions]
    return found[0] if all(found) else None


def _is_on_purpose(error: BaseException) -> bool:
    """Return True for a ParlourError; a group counts if each of its errors is."""
    if isinstance(error, BaseExceptionGroup):
        return all(_is_on_purpose(each) for each in error.exceptions)
    return isinstance(error, ParlourError)


def _place(error: BaseException) -> str:
    frames = traceback.extract_tb(error.__traceback__)
    return f"{Path(frames[-1].filename).name}:{frames[-1].lineno}" if frames else "?"


async def _to_the_end(function: Callable[..., _Result], *arguments: Any) -> _Result:
    """Run *function* in a thread and wait for its end even if cancelled, so that its effect is known."""
    running = asyncio.get_running_loop().run_in_executor(None, lambda: function(*arguments))
    try:
        return await asyncio.shield(running)
    except asyncio.CancelledError:
        while not running.done():
            with suppress(asyncio.CancelledError):
                await asyncio.wait([running])
        with suppress(ParlourError):
            running.result()
        raise
