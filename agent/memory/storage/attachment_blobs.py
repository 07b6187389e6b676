"""Files of a scope: what people sent and were sent, by the sha256 of their bytes. Implements `gateway.ports.Blobs`."""

from __future__ import annotations

import asyncio
import hashlib
from pathlib import Path

from agent.memory.scopes import attachment_path
from agent.memory.storage.disk import Disk
from gateway.errors import FileUnavailable

_PIECE = 1 << 20  # bytes


class AttachmentBlobStore:
    """One folder ``attachments`` in each scope."""

    def __init__(self, home: Path, disk: Disk | None = None) -> None:
        self._home = home
        self._disk = disk or Disk()

    async def put(self, scope: str, data: bytes) -> str:
        """Store *data* durably and return ``<scope>/<sha256>``. Raises OSError when the disk is full."""

        def write() -> str:
            digest = hashlib.sha256(data).hexdigest()
            path = attachment_path(self._home, scope, digest)
            if self._disk.size(path) != len(data):
                self._disk.replace(path, data)
            else:
                path.touch()  # what is sent again is as old as that
            return digest

        return f"{scope}/{await asyncio.to_thread(write)}"

    async def get(self, reference: str) -> bytes | None:
        """Return the bytes; None when they are lost or are not what their name says. Raises ValueError for no name."""
        scope, _, digest = reference.rpartition("/")

        def read() -> bytes | None:
            data = self._disk.load(attachment_path(self._home, scope, digest))
            return data if data is not None and hashlib.sha256(data).hexdigest() == digest else None

        return await asyncio.to_thread(read)

    async def measure(self, reference: str) -> int | None:
        """Check the bytes piece by piece; return how many there are, None where `get` gives None."""
        scope, _, digest = reference.rpartition("/")

        def check() -> int | None:
            path, found, size = attachment_path(self._home, scope, digest), hashlib.sha256(), 0
            try:
                while piece := self._disk.read(path, size, _PIECE):
                    found.update(piece)
                    size += len(piece)
            except (FileNotFoundError, NotADirectoryError):
                return None
            return size if found.hexdigest() == digest else None

        return await asyncio.to_thread(check)

    async def read_at(self, reference: str, start: int, length: int) -> bytes:
        """Return *length* bytes from *start*; raise FileUnavailable when they are lost."""
        scope, _, digest = reference.rpartition("/")
        try:
            data = await asyncio.to_thread(self._disk.read, attachment_path(self._home, scope, digest), start, length)
        except OSError as error:
            raise FileUnavailable("it is lost") from error
        if len(data) != length:
            raise FileUnavailable("it is lost")
        return data
