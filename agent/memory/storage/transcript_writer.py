"""Append turns to the transcript of a folder without a gateway: one write a turn; a torn tail is saved and cut off."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

from agent.memory.storage import transcript_lines as build
from agent.memory.storage.disk import Disk, save_corrupt
from agent.memory.storage.segments import SegmentChain, archive_path
from agent.memory.storage.transcript_lines import encode
from agent.memory.storage.transcript_reader import read_all
from gateway.ports import Line


@dataclass(frozen=True, slots=True, kw_only=True)
class TranscriptEntry:
    """The lines of one turn, its `end` last, which are appended in one write."""

    lines: Sequence[Line]
    at: datetime


class TranscriptWriter:
    """One transcript, open for appending. Blocks; not thread-safe; one process may write a folder's transcripts.

    After an OSError, discard the object and create another, which reads the file again.
    """

    def __init__(self, disk: Disk, path: Path, transcript: str, key: str) -> None:
        """Open *path*, which is *transcript* unless it has another one; raises OSError."""
        self.path = path
        self._key = key
        self._disk = disk
        self._fd: int | None = None
        self._size = self._synced = 0
        self._load(transcript)

    @property
    def size(self) -> int:
        """The file's length in bytes."""
        return self._size

    def append(self, entry: TranscriptEntry) -> None:
        """Write *entry*. Durable after `sync`."""
        head = b"" if self._size else self._head(entry.at)
        data = head + b"".join(map(encode, entry.lines))
        try:
            self._disk.write(self._open(), data)
        except OSError:
            self._roll_back(self._size)
            raise
        self._size += len(data)

    def sync(self) -> None:
        """Flush the appended turns to the disk."""
        if self._synced == self._size:
            return
        try:
            self._disk.sync(self._open())
        except OSError:
            # After a failed fsync, cached data may not be on the disk: it must be written again.
            self._roll_back(self._synced)
            raise
        self._synced = self._size

    def close(self) -> None:
        """Close the file descriptor; appending opens it again."""
        if self._fd is not None:
            fd, self._fd = self._fd, None
            self._disk.close(fd)

    def archive(self, turn: str) -> None:
        """Flush, then rename the file to its archive, which *turn* names. Idempotent."""
        self.sync()
        self.close()
        if self._disk.size(self.path) is not None:
            self._disk.rename(self.path, archive_path(self.path, self.transcript, turn))

    # -- inside ------------------------------------------------------------------------------------

    def _head(self, created: datetime) -> bytes:
        return encode(build.head_line(self.transcript, self._key, created, segment=self._segment, base=self._base))

    def _open(self) -> int:
        if self._fd is None:
            self._fd = self._disk.open_append(self.path)
        return self._fd

    def _load(self, transcript: str) -> None:
        """Read the length; save corrupt bytes and cut off a torn tail."""
        chain = SegmentChain(self._disk, self.path, transcript)
        parsed = read_all(chain)
        torn = b"" if chain.is_rolled else chain.read(parsed.complete, chain.end)
        if parsed.bad or torn:
            save_corrupt(self._disk, self.path, [*parsed.bad, torn])
        if torn:
            self._disk.truncate(self._open(), parsed.complete - chain.base)
            self._disk.sync(self._open())
        self.transcript = chain.transcript or transcript
        # An earlier release divided a long transcript into segments.
        self._segment = chain.segment + (1 if chain.is_rolled else 0)
        self._base = chain.end if chain.is_rolled else chain.base
        self._size = self._synced = 0 if chain.is_rolled else parsed.complete - chain.base

    def _roll_back(self, size: int) -> None:
        with contextlib.suppress(OSError):  # the next `_load` finds the torn tail
            if self._fd is not None:
                self._disk.truncate(self._fd, size)
        with contextlib.suppress(OSError):
            self.close()
