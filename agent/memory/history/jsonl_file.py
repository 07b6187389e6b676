"""A file of JSON lines that only grows: one write per append, durable on return, a torn tail set aside first."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator
from pathlib import Path

from agent.memory.storage.disk import Disk, save_corrupt

_FIRST_LOOK = 8 * 1024
_CHUNK = 1024 * 1024


class JsonlFile:
    """One such file. Blocks; whoever appends holds the folder's lock."""

    def __init__(self, path: Path, disk: Disk) -> None:
        self.path = path
        self._disk = disk

    @property
    def is_empty(self) -> bool:
        """Whether there is no file, or nothing in it."""
        return not self._disk.size(self.path)

    def append(self, data: bytes) -> None:
        """Add whole lines, all of them or none. Raises OSError, and then the file is as it was."""
        size = self._mend()
        fd = self._disk.open_append(self.path)
        try:
            try:
                self._disk.write(fd, data)
                self._disk.sync(fd)
            except OSError:
                # What the cache shows after a failed fsync need not be on the disk: it is written anew next time.
                with contextlib.suppress(OSError):  # else the next append finds the torn tail
                    self._disk.truncate(fd, size)
                raise
        finally:
            self._disk.close(fd)

    def sync(self) -> None:
        """Return when what stands in the file is on the disk: it may be from a process that was killed before."""
        fd = self._disk.open_append(self.path)
        try:
            self._disk.sync(fd)
        finally:
            self._disk.close(fd)

    def backwards(self) -> Iterator[bytes]:
        """Yield whole lines, the newest first; reads no further back than it is asked for."""
        low, width = self._disk.size(self.path) or 0, _FIRST_LOOK
        carried: bytes | None = None  # the rest of a line whose beginning is further back; None before any newline
        while low > 0:
            start = max(low - width, 0)
            data = self._disk.read(self.path, start, low - start)
            low, width = start, min(width * 2, _CHUNK)
            first, *rest = data.split(b"\n")
            if not rest:  # no newline in it
                carried = first + carried if carried is not None else None
                continue
            if carried is not None:
                rest[-1] += carried
            else:
                rest.pop()  # what stands behind the last newline is no line
            yield from (line for line in reversed(rest) if line.strip())
            carried = first
        if carried and carried.strip():
            yield carried

    def find(self, name: str, value: str) -> bytes | None:
        """Return the newest line in which the field *name* is *value*, both plain; None when there is none."""
        wanted = re.compile(rb'"%s"\s*:\s*"%s"' % (re.escape(name.encode()), re.escape(value.encode())))
        low, after = self._disk.size(self.path) or 0, b""
        while low > 0:
            start = max(low - _CHUNK, 0)
            data = self._disk.read(self.path, start, low - start) + after
            if wanted.search(data):
                return next((line for line in self.backwards() if wanted.search(line)), None)
            low, after = start, data[:256]
        return None

    def _mend(self) -> int:
        """Set aside what follows the last newline; return the size."""
        size = self._disk.size(self.path) or 0
        if not size or self._disk.read(self.path, size - 1, 1) == b"\n":
            return size
        low, torn = size, b""
        while low > 0 and b"\n" not in torn:
            start = max(low - _FIRST_LOOK, 0)
            torn = self._disk.read(self.path, start, low - start) + torn
            low = start
        torn = torn.rpartition(b"\n")[2]
        save_corrupt(self._disk, self.path, [torn])
        fd = self._disk.open_append(self.path)
        try:
            self._disk.truncate(fd, size - len(torn))
            self._disk.sync(fd)
        finally:
            self._disk.close(fd)
        return size - len(torn)
