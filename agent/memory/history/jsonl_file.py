"""An append-only file of JSON lines: one durable write per append; a torn last line is moved to another file first."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from agent.memory.storage.disk import Disk, rewrite_raw_lines, save_corrupt
from agent.memory.storage.transcript_lines import decode, encode
from gateway.ports import Line

_FIRST_LOOK = 8 * 1024
_CHUNK = 1024 * 1024


class JsonlFile:
    """One such file. Methods block; a caller that appends holds the folder's lock."""

    def __init__(self, path: Path, disk: Disk) -> None:
        self.path = path
        self._disk = disk

    @property
    def is_empty(self) -> bool:
        """True if the file is missing or empty."""
        return not self._disk.size(self.path)

    def append(self, data: bytes) -> None:
        """Append whole lines, all or none. Raises OSError and leaves the file unchanged."""
        size = self._cut_torn_line()
        with self._disk.open_briefly(self.path) as fd:
            try:
                self._disk.write(fd, data)
                self._disk.sync(fd)
            except OSError:
                # After a failed fsync the page cache may differ from the disk; the next append writes the lines again.
                with contextlib.suppress(OSError):  # the next append finds the torn line
                    self._disk.truncate(fd, size)
                raise

    def sync(self) -> None:
        """Flush the file to disk; a process that was killed may have left lines in the cache."""
        self._disk.append(self.path, b"")

    def backwards(self) -> Iterator[bytes]:
        """Yield whole lines, the newest first; reads only as far back as it is iterated."""
        low, width = self._disk.size(self.path) or 0, _FIRST_LOOK
        carried: bytes | None = None  # the end of a line that begins further back; None before the first newline
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
                rest.pop()  # text after the last newline is incomplete
            yield from (line for line in reversed(rest) if line.strip())
            carried = first
        if carried and carried.strip():
            yield carried

    def find(self, name: str, value: str) -> bytes | None:
        """Return the newest line whose field *name* is *value*, both without escapes, or None."""
        pattern = re.compile(rb'"%s"\s*:\s*"%s"' % (re.escape(name.encode()), re.escape(value.encode())))
        low, after = self._disk.size(self.path) or 0, b""
        while low > 0:
            start = max(low - _CHUNK, 0)
            data = self._disk.read(self.path, start, low - start) + after
            if pattern.search(data):
                return next((line for line in self.backwards() if pattern.search(line)), None)
            low, after = start, data[:256]
        return None

    def _cut_torn_line(self) -> int:
        """Move text after the last newline to another file; return the size."""
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
        with self._disk.open_briefly(self.path) as fd:
            self._disk.truncate(fd, size - len(torn))
            self._disk.sync(fd)
        return size - len(torn)


def rewrite_lines(path: Path, disk: Disk, change: Callable[[dict[str, Any]], Line]) -> int:
    """Apply *change* to every line that is a JSON object; return the number of changed ones. Blocks; raises OSError."""

    def change_raw(raw: bytes) -> bytes:
        line = decode(raw)
        new = change(dict(line)) if line is not None else None
        return raw if new is None or new == line else encode(new)

    return rewrite_raw_lines(disk, path, change_raw)
