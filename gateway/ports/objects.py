"""Large contents beside a database: named bytes in a directory or in a bucket."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Protocol


class ObjectStore(Protocol):
    """Bytes by name. Each method raises ObjectsUnavailable for whatever goes wrong."""

    async def put(self, name: str, data: bytes) -> None:
        """Store *data* durably, whole or not at all; safe to repeat."""

    def read(self, name: str) -> AsyncIterator[bytes]:
        """Yield the bytes of an object, a piece at a time."""

    async def delete(self, name: str) -> None:
        """Remove an object; has no effect if it does not exist."""
