"""Events that cannot be read, or that killed us: set aside as files, and passed over from then on.

FORMATS.md, Numbers: 64 KB of each, the newest 1,000. One file an event, 0600, in ``<home>/quarantine``; while
we are cautious (two unclean stops in a row) the event that is being worked on stands there as ``working-…``.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import os
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

import structlog

from gateway.errors import ParlourError, StoreDown, Unreadable
from gateway.ports import Meter, PlatformEvent

log = structlog.get_logger(__name__)

LONGEST = 64 * 1024  # characters of an event that are kept
MOST = 1_000  # events that are kept
ATTEMPTS = 3  # of an event that something of ours breaks down on
UNCLEAN_STOPS = 2  # in a row, and intake is cautious (FORMATS.md, Lanes)
_WORKING = "working-"
_KILLED = "it was being handled when the process was killed"


@dataclass(frozen=True, slots=True)
class SetAside:
    """One line for the operator: what is in quarantine. No word of the event."""

    file: Path
    channel: str
    reason: str
    at: str


class Quarantine:
    """The folder, and the events in our keeping. One process owns it, like the home."""

    def __init__(self, folder: Path, *, unclean_stops: int, meter: Meter, now: Callable[[], datetime]) -> None:
        self._folder = folder
        self._meter = meter
        self._now = now
        self._broken: dict[str, int] = {}  # events that broke us, and how often
        self._passed_over = self._settle_the_last_run()
        self.is_cautious = unclean_stops >= UNCLEAN_STOPS

    async def handle(self, event: PlatformEvent, work: Callable[[], Awaitable[None]]) -> None:
        """Run *work* on *event*; see `gateway.ports.Intake.handle`."""
        name = _name(event)
        if name in self._passed_over:
            log.warning("quarantine.passed_over", channel=event.channel, event=name)
            return
        if not self.is_cautious:
            await self._run(event, name, work)
            return
        await asyncio.to_thread(self._write, f"{_WORKING}{name}", event, _KILLED)
        try:
            await self._run(event, name, work)
        finally:
            await asyncio.to_thread(self._remove, f"{_WORKING}{name}")

    async def _run(self, event: PlatformEvent, name: str, work: Callable[[], Awaitable[None]]) -> None:
        try:
            await work()
        except Unreadable as error:
            await self._put(event, name, str(error))
        except ParlourError:
            raise
        except Exception as error:
            times = self._broken.pop(name, 0) + 1
            if times < ATTEMPTS:
                self._broken[name] = times
                raise
            log.exception("quarantine.broke_us", channel=event.channel, event=name)
            await self._put(event, name, f"it broke us {times} times: {type(error).__name__}")
        else:
            self._broken.pop(name, None)

    async def _put(self, event: PlatformEvent, name: str, reason: str) -> None:
        """Set *event* aside; raises StoreDown when the disk will not have it, so that it comes again."""
        await asyncio.to_thread(self._write, name, event, reason)
        await asyncio.to_thread(self._thin_out)
        self._passed_over.add(name)
        self._meter.count("quarantined", channel=event.channel)
        log.error("quarantine.set_aside", channel=event.channel, event=name, reason=reason)

    # -- files (blocking) --------------------------------------------------------------------------

    def _settle_the_last_run(self) -> set[str]:
        """What was being worked on when the last run ended without a word is what ended it."""
        if not self._folder.is_dir():
            return set()
        for file in sorted(self._folder.glob(f"{_WORKING}*.json")):
            file.replace(file.with_name(file.name.removeprefix(_WORKING)))
            log.error("quarantine.killed_us", event=file.stem.removeprefix(_WORKING))
        return {file.stem for file in self._folder.glob("*.json")}

    def _write(self, name: str, event: PlatformEvent, reason: str) -> None:
        kept = {
            "channel": event.channel,
            "id": event.id,
            "at": self._now().isoformat(),
            "reason": reason,
            "raw": event.raw[:LONGEST],
        }
        file = self._folder / f"{name}.json"
        part = file.with_suffix(".part")
        try:
            self._folder.mkdir(mode=0o700, exist_ok=True)
            with os.fdopen(os.open(part, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w", encoding="utf-8") as out:
                json.dump(kept, out)  # ASCII only, so that half a surrogate pair is no trouble
                out.flush()
                os.fsync(out.fileno())
            part.replace(file)
        except OSError as wrong:
            raise StoreDown(f"the quarantine cannot be written: {wrong.strerror}") from wrong

    def _remove(self, name: str) -> None:
        with suppress(FileNotFoundError):
            (self._folder / f"{name}.json").unlink()

    def _thin_out(self) -> None:
        kept = sorted(self._folder.glob("*.json"), key=lambda file: file.stat().st_mtime)
        for file in kept[:-MOST]:
            file.unlink()


def look(folder: Path) -> tuple[SetAside, ...]:
    """Return what is set aside, the newest first; for doctor. Reads every file: blocking."""
    found: list[SetAside] = []
    for file in folder.glob("*.json"):
        try:
            kept = json.loads(file.read_text(encoding="utf-8"))
            found.append(SetAside(file, str(kept["channel"]), str(kept["reason"]), str(kept["at"])))
        except (OSError, ValueError, KeyError, TypeError):
            found.append(SetAside(file, "?", "the file itself cannot be read", ""))
    return tuple(sorted(found, key=lambda each: each.at, reverse=True))


def _name(event: PlatformEvent) -> str:
    """Return a file's name that is the same when the platform brings the event again."""
    return f"{event.channel}-{hashlib.sha256(event.id.encode('utf-8', 'surrogatepass')).hexdigest()[:24]}"
