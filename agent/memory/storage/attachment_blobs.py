"""Store the files that users sent and received, by the sha256 of their bytes. Implements `gateway.ports.BlobStore`."""

from __future__ import annotations

import asyncio
import hashlib
from pathlib import Path

from agent.memory.scopes import attachment_path
from agent.memory.storage.disk import Disk
from gateway.errors import FileUnavailable

_CHUNK_BYTES = 1 << 20


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
                self._disk.touch(path)  # a file that is sent again is kept as long as a new one
            return digest

        return f"{scope}/{await asyncio.to_thread(write)}"

    async def get(self, reference: str) -> bytes | None:
        """Return the bytes; None if the file is missing or damaged. Raises ValueError for an invalid reference."""
        scope, _, digest = reference.rpartition("/")

        def read() -> bytes | None:
            data = self._disk.load(attachment_path(self._home, scope, digest))
            return data if data is not None and hashlib.sha256(data).hexdigest() == digest else None

        return await asyncio.to_thread(read)

    async def measure(self, reference: str) -> int | None:
        """Return the verified size in bytes, None where `get` returns None. Reads the file in chunks."""
        scope, _, digest = reference.rpartition("/")

        def check() -> int | None:
            path, checksum, size = attachment_path(self._home, scope, digest), hashlib.sha256(), 0
            try:
                while chunk := self._disk.read(path, size, _CHUNK_BYTES):
                    checksum.update(chunk)
                    size += len(chunk)
            except (FileNotFoundError, NotADirectoryError):
                return None
            return size if checksum.hexdigest() == digest else None

        return await asyncio.to_thread(check)

    async def read_at(self, reference: str, start: int, length: int) -> bytes:
        """Return *length* bytes from *start*. Raises FileUnavailable if the file is missing or shorter."""
        scope, _, digest = reference.rpartition("/")
        try:
            data = await asyncio.to_thread(self._disk.read, attachment_path(self._home, scope, digest), start, length)
        except OSError as error:
            raise FileUnavailable("it is lost") from error
        if len(data) != length:
            raise FileUnavailable("it is lost")
        return data
