"""Read a transcript's segment files as one file; paths of segments and archives."""

from __future__ import annotations

import glob
import re
from pathlib import Path

from agent.memory.storage.disk import Disk
from agent.memory.storage.transcript_lines import decode, kind_of
from gateway.ports import Line

_ARCHIVE = re.compile(r"([a-z2-7]{16})\.t[a-z0-9]*\.jsonl\Z")
LINE_BYTES = 512  # usually enough for a head
LONGEST_LINE = 8 * 1024


class SegmentChain:
    """The bytes of one transcript across its segments; missing files read as empty."""

    def __init__(self, disk: Disk, path: Path, transcript: str = "") -> None:
        self._disk = disk
        self._path = path
        self._parts: list[tuple[Path, int, int]] = []  # path, base, end; the newest first
        self.head: Line | None = None
        self.is_rolled = False  # the newest segment is full, and the next one does not exist yet
        self._open(path)
        if not self._parts and transcript:
            self._open_rolled(transcript)

    @property
    def transcript(self) -> str:
        """The id in the head, or an empty string."""
        return str(self.head.get("transcript", "")) if self.head else ""

    @property
    def base(self) -> int:
        """Number of bytes before the newest segment."""
        return self._parts[0][1] if self._parts else 0

    @property
    def end(self) -> int:
        """Number of bytes in all segments."""
        return self._parts[0][2] if self._parts else 0

    @property
    def segment(self) -> int:
        """The number of the newest segment, from 0."""
        return _positive_int(self.head, "segment")

    def read(self, start: int, end: int) -> bytes:
        """Return the bytes from *start* up to *end*."""
        pieces: list[bytes] = []
        n = 0
        while end > start:
            if n == len(self._parts) and not self._open_earlier():
                break
            path, base, part_end = self._parts[n]
            n += 1
            if base < end and start < part_end:
                low = max(start, base)
                pieces.append(self._disk.read(path, low - base, min(end, part_end) - low))
                end = low
        return b"".join(reversed(pieces))

    def _open(self, path: Path) -> bool:
        size = self._disk.size(path)
        if not size:
            return False
        first = self._disk.read(path, 0, min(LINE_BYTES, size))
        if b"\n" not in first and size > LINE_BYTES:
            first = self._disk.read(path, 0, LONGEST_LINE)
        head = _parse_head(first)
        base = _positive_int(head, "base")
        if not self._parts:
            self.head = head
        self._parts.append((path, base, base + size))
        return True

    def _open_rolled(self, transcript: str) -> None:
        number = 0
        while self._disk.size(segment_path(self._path, transcript, number + 1)) is not None:
            number += 1
        if number:
            self.is_rolled = self._open(segment_path(self._path, transcript, number))

    def _open_earlier(self) -> bool:
        """Open the segment before the oldest open one; return False if none exists."""
        number = self.segment - len(self._parts) + 1
        if number < 1 or self._parts[-1][1] == 0:
            return False
        return self._open(segment_path(self._path, self.transcript, number))


def segment_path(path: Path, transcript: str, number: int) -> Path:
    """Return the path of a transcript's full segment *number* (from 1)."""
    return path.with_name(f"{transcript}.{number:04d}.jsonl")


def archive_path(path: Path, transcript: str, turn: str) -> Path:
    """Return the path of a transcript that *turn* has ended."""
    return path.with_name(f"{transcript}.{turn}.jsonl")


def archive_of(path: Path, transcript: str) -> Path | None:
    """Return the archive of *transcript* in the folder of *path*, None if it does not exist."""
    return next(path.parent.glob(f"{glob.escape(transcript)}.t*.jsonl"), None)


def transcript_of_archive(path: Path) -> str:
    """Return the id of the transcript whose archive is at *path*, "" for any other file."""
    found = _ARCHIVE.match(path.name)
    return found[1] if found else ""


def read_head(disk: Disk, path: Path) -> Line:
    """Return the head line of a transcript file, an empty line if it has none."""
    return _parse_head(disk.read(path, 0, LINE_BYTES * 8)) or {}


def _parse_head(data: bytes) -> Line | None:
    first, newline, _ = data.partition(b"\n")
    line = decode(first) if newline else None
    return line if line is not None and kind_of(line) == "head" else None


def _positive_int(line: Line | None, name: str) -> int:
    value = line.get(name, 0) if line else 0
    return value if isinstance(value, int) and value > 0 else 0
