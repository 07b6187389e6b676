"""Quarantine of events that crash the process or cannot be parsed.

In cautious mode (after two unclean stops in a row, until ten minutes have passed without another) events of all
channels are handled one at a time, and the current one is kept on disk. An event found there at the next start is
*struck*: it, or something else, ended the run. It is handled once more, from the file or when the platform delivers it
again; after the second strike it is quarantined, and its sender is notified.

Each event is a file, 0600, in ``<home>/quarantine``: at most 64 KB of it, and the newest 1,000 of them. ``….json`` is
quarantined, ``….working`` is being handled in cautious mode, ``….struck`` was being handled at one crash and will be
handled once more, ``….untold`` is an empty mark of a quarantined event whose sender was not notified, ``….part`` is
being written.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import os
import time
import traceback
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any, TypeVar

import structlog

from gateway.durable_files import sync_folder
from gateway.errors import ParlourError, StoreUnavailable, UnreadableEvent, UserError
from gateway.ports.channel import EventOrigin, PlatformEvent
from gateway.ports.metrics import MetricsRecorder

log = structlog.get_logger(__name__)

LONGEST = 64 * 1024  # bytes of an event that are kept, as they stand in the file
MOST = 1_000  # events that are kept
KEPT, WORKING, STRUCK, UNTOLD = ".json", ".working", ".struck", ".untold"
KILLED = "it was being handled when the process was killed"
_PART = ".part"
_LONGEST_ID = 512
_FORGOTTEN = "[forgotten]"
ATTEMPTS = 3  # of an event whose handling fails
UNCLEAN_STOPS = 2  # in a row, and intake is cautious (docs/formats.md, Session queues)
CALM = timedelta(minutes=10)  # without being killed, and caution ends
KEEP = timedelta(days=90)  # as dead letters are

_Result = TypeVar("_Result")


@dataclass(frozen=True, slots=True)
class QuarantinedEvent:
    """One line for the operator: an event in quarantine. No word of it."""

    file: Path
    channel: str
    reason: str
    at: str


@dataclass(frozen=True, slots=True)
class LastWork:
    """The event that the previous process was handling when it was killed, by name."""

    struck: tuple[str, ...] = ()  # for the first time: to be handled once more
    convicted: tuple[str, ...] = ()  # for the second time, or at a replay: set aside


class QuarantineFolder:
    """The folder, as its one writer sees it. Its methods block."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def judge_last_work(self) -> LastWork:
        """Judge what a killed process was working on, and return it; remove what is left over."""
        if not self.path.is_dir():
            return LastWork()
        self.path.chmod(0o700)
        for part in self.path.glob(f"*{_PART}"):
            part.unlink()
        struck, convicted = [], []
        for file in sorted(self.path.glob(f"*{WORKING}")):
            if file.with_suffix(STRUCK).exists() or file.with_suffix(KEPT).exists():
                self.mark_unnotified(file.stem)
                file.replace(file.with_suffix(KEPT))
                self.remove(f"{file.stem}{STRUCK}")
                convicted.append(file.stem)
            else:
                file.replace(file.with_suffix(STRUCK))
                struck.append(file.stem)
        if struck or convicted:
            sync_folder(self.path)
        for name in self.names()[:-MOST]:
            self.forget(name)
        return LastWork(tuple(struck), tuple(convicted))

    def list_struck(self) -> list[str]:
        """Return the names of the events that one crash has struck."""
        return sorted(file.stem for file in self.path.glob(f"*{STRUCK}"))

    def list_unnotified(self) -> list[str]:
        """Return the names of quarantined events whose senders were not notified."""
        return sorted(file.stem for file in self.path.glob(f"*{UNTOLD}"))

    def mark_unnotified(self, name: str) -> None:
        """Record that the sender of an event has to be notified; raises OSError."""
        (self.path / f"{name}{UNTOLD}").touch(mode=0o600)
        sync_folder(self.path)

    def forget(self, name: str) -> None:
        """Remove an event and every mark of it."""
        for ending in (KEPT, STRUCK, UNTOLD):
            self.remove(f"{name}{ending}")

    def read(self, name: str, ending: str = KEPT) -> PlatformEvent | None:
        """Return an event as it came; None when it is not here, not whole or its words were forgotten."""
        try:
            kept = json.loads((self.path / f"{name}{ending}").read_bytes())
            if not kept["is_whole"] or kept["raw"] == _FORGOTTEN:
                return None
            origin = EventOrigin(**kept["origin"]) if kept["origin"] else None
            return PlatformEvent(channel=str(kept["channel"]), id=str(kept["id"]), raw=str(kept["raw"]), origin=origin)
        except (OSError, ValueError, KeyError, TypeError):
            return None

    def origin(self, name: str) -> tuple[str, EventOrigin] | None:
        """Return the channel and the origin of an event set aside; None where they are not known."""
        try:
            kept = json.loads((self.path / f"{name}{KEPT}").read_bytes())
            return str(kept["channel"]), EventOrigin(**kept["origin"])
        except (OSError, ValueError, KeyError, TypeError):
            return None

    def names(self) -> list[str]:
        """Return the names of the events set aside, the oldest first."""
        return _names(self.path)

    def age(self, name: str) -> float:
        """Return when an event was set aside, or struck, as a timestamp."""
        return _age(self.path / f"{name}{KEPT}") or _age(self.path / f"{name}{STRUCK}")

    def write(self, name: str, event: PlatformEvent, reason: str, at: datetime) -> None:
        """Write one file, durable and whole or not at all; raises StoreUnavailable."""
        kept = {
            "channel": event.channel,
            "id": event.id[:_LONGEST_ID],
            "at": at.isoformat(),
            "reason": reason,
            "raw": _cut(event.raw),
            "is_whole": _cut(event.raw) == event.raw and len(event.id) <= _LONGEST_ID,
            "origin": asdict(event.origin) if event.origin is not None else None,
        }
        self._put(name, kept)

    def _put(self, name: str, content: Mapping[str, object]) -> None:
        part = self.path / f"{name}{_PART}"
        try:
            self.path.mkdir(mode=0o700, exist_ok=True)
            with os.fdopen(os.open(part, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w", encoding="ascii") as out:
                json.dump(content, out)
                out.flush()
                os.fsync(out.fileno())
            part.replace(self.path / name)
            sync_folder(self.path)
        except OSError as wrong:
            with suppress(OSError):
                part.unlink()
            raise StoreUnavailable(f"the quarantine cannot be written: {wrong.strerror}") from wrong

    def blank(self, is_meant: Callable[[str, bytes], bool]) -> int:
        """Blank the contents of the events that match *is_meant*, so that they are still skipped; return their number.

        Raises StoreUnavailable.
        """
        blanked = 0
        for file in sorted(each for ending in (KEPT, WORKING, STRUCK) for each in self.path.glob(f"*{ending}")):
            try:
                data = file.read_bytes()
                kept = json.loads(data)
                channel, raw = str(kept["channel"]), str(kept["raw"]) + str(kept["reason"])
            except (OSError, ValueError, KeyError, TypeError):
                # Not a file of ours, or half of one: it contains nothing usable.
                channel, raw, kept = file.stem.rpartition("-")[0], "", None
                data = data if file.exists() else b""
            if not is_meant(channel, raw.encode("utf-8", "replace") if kept is not None else data):
                continue
            if kept is None:
                self.remove(file.name)
            else:
                self._put(file.name, {**kept, "raw": _FORGOTTEN, "reason": _FORGOTTEN, "origin": None})
            blanked += 1
        return blanked

    def remove(self, name: str) -> None:
        """Remove a file; one that cannot be removed is said, and stays."""
        try:
            (self.path / name).unlink(missing_ok=True)
        except OSError as wrong:
            log.warning("quarantine.left", file=name, error=wrong.strerror)


def count_events(folder: Path) -> int:
    """Return the number of quarantined events."""
    return len(_names(folder))


def list_events(folder: Path, most: int = MOST) -> tuple[QuarantinedEvent, ...]:
    """Return the newest quarantined events, newest first, at most *most*."""
    return tuple(_look(folder / f"{name}{KEPT}") for name in reversed(_names(folder)[-most:]))


def _look(file: Path) -> QuarantinedEvent:
    try:
        kept = json.loads(file.read_text(encoding="utf-8"))
        return QuarantinedEvent(file, str(kept["channel"]), str(kept["reason"]), str(kept["at"]))
    except (OSError, ValueError, KeyError, TypeError):
        return QuarantinedEvent(file, file.stem.rpartition("-")[0], "the file itself cannot be read", "")


def _names(folder: Path) -> list[str]:
    try:
        with os.scandir(folder) as entries:
            files = [Path(entry.path) for entry in entries if entry.name.endswith(KEPT)]
    except (FileNotFoundError, NotADirectoryError):
        return []
    return [file.stem for file in sorted(files, key=lambda file: (_age(file), file.name))]


def _age(file: Path) -> float:
    try:
        return file.stat().st_mtime
    except OSError:  # deleted in the meantime
        return 0.0


def _cut(raw: str) -> str:
    """Return the beginning of *raw* that takes at most LONGEST bytes as JSON in ASCII."""
    kept = raw[:LONGEST]
    while (size := len(json.dumps(kept)) - 2) > LONGEST:  # the quotes do not count
        kept = kept[: len(kept) * LONGEST // size]
    return kept


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
            self._last_work = self._folder.judge_last_work()
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
        if self._folder.list_unnotified():
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

    async def list_unnotified(self) -> Sequence[tuple[str, str, EventOrigin | None]]:
        """Return quarantined events whose senders were not notified: name, channel and origin."""
        return await asyncio.to_thread(self._read_unnotified)

    def _read_unnotified(self) -> list[tuple[str, str, EventOrigin | None]]:
        found = [(name, self._folder.origin(name)) for name in self._folder.list_unnotified()]
        return [(name, *(origin or ("", None))) for name, origin in found]

    async def mark_notified(self, name: str) -> None:
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
            await _to_the_end(self._folder.mark_unnotified, name)
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
