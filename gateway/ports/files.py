"""Bytes that people send and are sent: fetched after admission, kept in their scope, named by reference."""

from __future__ import annotations

from typing import Protocol

from gateway.events import Attachment, SessionKey


class BlobStore(Protocol):
    """Bytes of a scope, content-addressed. A reference is ``<scope>/<sha256>`` and names nothing else."""

    async def put(self, scope: str, data: bytes) -> str:
        """Store *data* durably and return its reference; the same bytes again change nothing."""

    async def get(self, reference: str) -> bytes | None:
        """Return the bytes; None when they are lost, or are not what their name says."""

    async def measure(self, reference: str) -> int | None:
        """Verify the bytes without loading them all and return their number; None if `get` would return None."""

    async def read_at(self, reference: str, start: int, length: int) -> bytes:
        """Return *length* bytes from *start* of what `measure` checked; raise FileUnavailable when they are lost."""


class AttachmentFetcher(Protocol):
    """Fetches the bytes of attachments of admitted messages."""

    async def fetch(self, key: SessionKey, attachment: Attachment) -> bytes:
        """Return the whole file, within the size limit of the settings.

        Raises FileUnavailable with a short phrase for users ("larger than 20 MB").
        """
