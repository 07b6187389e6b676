"""HISTORY.md: the history for people and grep, written from the same record; a blank line between two entries."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Sequence
from pathlib import Path

from agent.memory.storage.disk import Disk

HISTORY_MD = "HISTORY.md"
STAMP = re.compile(
    r"\[?(\d{4}-\d{2}-\d{2})[ T](\d{2}:\d{2})(?::\d{2}(?:[.,]\d+)?)?(?:Z|[+-]\d{2}:?\d{2})?\]?:?(?=\s|$)"
)
_BLANK = re.compile(r"\n\s*\n")

Shown = tuple[str, str]  # timestamp and content


def format_entry(entry: Shown) -> str:
    """Return an entry as it stands there: its time first, unless it begins with one; no blank line inside."""
    timestamp, content = entry
    flat = _BLANK.sub("\n", content.strip().replace("\r\n", "\n").replace("\r", "\n"))
    stamped = flat if STAMP.match(flat) and flat.startswith("[") else f"[{timestamp}] {flat}".rstrip()
    return f"{stamped}\n\n"


class HistoryMarkdown:
    """Keeps the file in step. What a person wrote into it stays, or is kept in a copy."""

    def __init__(self, folder: Path, disk: Disk) -> None:
        self._path = folder / HISTORY_MD
        self._disk = disk

    def follow(self, last: Shown, new: Sequence[Shown], everything: Callable[[], Sequence[Shown]]) -> None:
        """Add *new*, if the file ends with *last* as it should; else mend it. Raises OSError."""
        size = self._disk.size(self._path) or 0
        tail = _bytes([last]) if last != ("", "") else b""
        is_in_step = size >= len(tail) and (
            not tail or self._disk.read(self._path, size - len(tail), len(tail)) == tail
        )
        if is_in_step and bool(tail) == bool(size):
            self._append(_bytes(new))
        else:
            self._mend(new, _bytes(everything()))

    def rebuild(self, everything: Sequence[Shown]) -> None:
        """Write the whole file anew; what it said is gone."""
        self._disk.replace(self._path, _bytes(everything))

    def repair(self, everything: Sequence[Shown]) -> None:
        """Write the whole file anew; one that says something else is kept in a copy."""
        derived = _bytes(everything)
        self._keep_aside(derived)
        self._disk.replace(self._path, derived)

    def _keep_aside(self, derived: bytes) -> None:
        current = self._disk.load(self._path) or b""
        if not derived.startswith(current):
            digest = hashlib.sha256(current).hexdigest()[:8]
            self._disk.replace(self._path.with_name(f"{HISTORY_MD}.edited-{digest}"), current)

    def _mend(self, new: Sequence[Shown], derived: bytes) -> None:
        current = self._disk.load(self._path) or b""
        behind = _bytes(new)
        if derived.startswith(current):
            self._append(derived[len(current) :])
        elif not current.startswith(derived.removesuffix(behind)) and len(current) < len(derived):
            self._keep_aside(derived)
            self._disk.replace(self._path, derived)
        elif not current.endswith(behind):
            self._append((b"" if current.endswith(b"\n\n") else b"\n" if current.endswith(b"\n") else b"\n\n") + behind)

    def _append(self, data: bytes) -> None:
        if not data:
            return
        fd = self._disk.open_append(self._path)
        try:
            self._disk.write(fd, data)
            self._disk.sync(fd)
        finally:
            self._disk.close(fd)


def _bytes(entries: Sequence[Shown]) -> bytes:
    return "".join(map(format_entry, entries)).encode("utf-8", "replace")
