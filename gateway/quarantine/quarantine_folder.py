"""The files of the quarantine: one an event, 0600, in ``<home>/quarantine``. Everything here blocks.

At most 64 KB of each event and the newest 1,000 are kept. ``….json`` is quarantined, ``….working`` is being handled
in cautious mode, ``….struck`` was being handled at one crash and will be handled once more, ``….untold`` is an empty
mark of a quarantined event whose sender was not notified, ``….part`` is being written.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass
from datetime import datetime
from pathlib import Path

import structlog

from gateway.durable_files import sync_folder
from gateway.errors import StoreUnavailable
from gateway.ports.channel import EventOrigin, PlatformEvent

log = structlog.get_logger(__name__)

LONGEST = 64 * 1024  # bytes of an event that are kept, as they stand in the file
MOST = 1_000  # events that are kept
KEPT, WORKING, STRUCK, UNTOLD = ".json", ".working", ".struck", ".untold"
KILLED = "it was being handled when the process was killed"
_PART = ".part"
_LONGEST_ID = 512
_FORGOTTEN = "[forgotten]"


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
    """The folder, as its one writer sees it."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def settle(self) -> LastWork:
        """Judge what a killed process was working on, and return it; remove what is left over."""
        if not self.path.is_dir():
            return LastWork()
        self.path.chmod(0o700)
        for part in self.path.glob(f"*{_PART}"):
            part.unlink()
        struck, convicted = [], []
        for file in sorted(self.path.glob(f"*{WORKING}")):
            if file.with_suffix(STRUCK).exists() or file.with_suffix(KEPT).exists():
                self.mark_untold(file.stem)
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

    def list_untold(self) -> list[str]:
        """Return the names of quarantined events whose senders were not notified."""
        return sorted(file.stem for file in self.path.glob(f"*{UNTOLD}"))

    def mark_untold(self, name: str) -> None:
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


def count(folder: Path) -> int:
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
