"""The files that users sent and received, by the SHA-256 of their bytes."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from datetime import datetime
from typing import TYPE_CHECKING

from gateway.errors import FileUnavailable
from gateway.ports.memory import MEDIUM, FileKind, ScopeFile

if TYPE_CHECKING:
    from gateway.store.files import SqlFiles


class AttachmentStore:
    """Attachments by reference, for channels and tools. A reference is ``<scope>/<sha256>`` and names nothing else."""

    def __init__(self, files: SqlFiles, now: Callable[[], datetime]) -> None:
        self._files = files
        self._now = now

    async def put(self, scope: str, data: bytes, *, is_medium: bool = False) -> str:
        """Store *data* durably and return ``<scope>/<sha256>``; a file that is sent again is kept as long as a new one.

        *is_medium*: it has no text. Raises OSError when the disk is full.
        """
        original = MEDIUM if is_medium else ""
        file = await self._files.put(scope, FileKind.ATTACHMENT, data, at=self._now(), original=original)
        return f"{scope}/{file.name}"

    async def get(self, reference: str) -> bytes | None:
        """Return the bytes; None if the file is missing or damaged."""
        scope, file = await self._find(reference)
        return await self._files.load(scope, file) if file is not None else None

    async def measure(self, reference: str) -> int | None:
        """Return the size in bytes; None if the file is missing."""
        _, file = await self._find(reference)
        return file.size if file is not None else None

    async def stream(self, reference: str) -> AsyncIterator[bytes]:
        """Yield the bytes. Raises FileUnavailable if the file is missing or, at the end, if it is damaged."""
        scope, file = await self._find(reference)
        if file is None:
            raise FileUnavailable("it is lost")
        async for data in self._files.stream(scope, file):
            yield data

    async def _find(self, reference: str) -> tuple[str, ScopeFile | None]:
        scope, _, digest = reference.rpartition("/")
        return scope, await self._files.find(scope, FileKind.ATTACHMENT, digest)
