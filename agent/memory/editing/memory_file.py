"""A scope's MEMORY.md, changed by compare-and-set: nobody who saved it meanwhile is overwritten."""

from __future__ import annotations

import hashlib
import time
from pathlib import Path

import structlog

from agent.memory.editing.three_way_merge import MergeConflict
from agent.memory.storage.disk import Disk, read_text

log = structlog.get_logger(__name__)

MEMORY_MD = "MEMORY.md"
_SETTLED = 0.02  # seconds without a change: some editors empty a file before they write it
_LOOKS = 10
_LOCK = ".lock"  # the scope's, which every writer of ours takes


class MemoryFile:
    """MEMORY.md with compare-and-set, under the scope's lock; an editor's save shows in the rev. Blocks."""

    def __init__(self, folder: Path, disk: Disk) -> None:
        self._path = folder / MEMORY_MD
        self._disk = disk
        self._written = ""  # the rev of what we wrote last

    def read_settled(self) -> tuple[str, str]:
        """Return text and rev, once nobody else is in the middle of saving; waits a moment for that, and no longer."""
        text, rev = self.read()
        for _ in range(_LOOKS):
            if rev == self._written or not 0 <= self._age() < _SETTLED:
                break
            time.sleep(_SETTLED / 2)
            text, rev = self.read()
        return text, rev

    def _age(self) -> float:
        try:
            return time.time() - self._path.stat().st_mtime
        except OSError:
            return _SETTLED

    def read(self) -> tuple[str, str]:
        """Return text and rev, as `Documents` has them."""
        data = self._disk.load(self._path)
        return ("", "") if data is None else (read_text(data), _rev(data))

    def write(self, text: str, *, was: str) -> str | None:
        """Replace the text if its rev is still *was*; return the new rev, or None when somebody was quicker."""
        data = text.encode("utf-8", "replace")
        with self._disk.lock(self._path.with_name(_LOCK)):
            now = self._disk.load(self._path)
            if ("" if now is None else _rev(now)) != was:
                return None
            if now != data and not self._disk.swap(self._path, data, was=now):
                return None
        self._written = _rev(data)
        return self._written

    def keep_conflicts(self, conflicts: tuple[MergeConflict, ...], name: str = MEMORY_MD) -> None:
        """Keep what we would have written into the document *name*, where a person wrote something else."""
        if conflicts:
            data = conflict_copy(conflicts).encode("utf-8", "replace")
            path = self._path.with_name(f"{name.removesuffix('.md')}.conflict-{_rev(data)[:8]}.md")
            self._disk.replace(path, data)
            log.warning("memory.conflict", file=path.name, entries=len(conflicts))


def _rev(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def conflict_copy(conflicts: tuple[MergeConflict, ...]) -> str:
    """Return the text of a conflict copy: what we would have written where a person wrote something else."""
    return "\n\n".join(conflict.mine for conflict in conflicts) + "\n"
