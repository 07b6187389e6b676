"""Files of scopes in a database, as releases before files were rows have kept them. They are read once, and dropped."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from typing import Protocol

CACHE = "memory-cache.db"  # begins the names of the files that said how a home's copy compared with the database


@dataclass(frozen=True, slots=True, kw_only=True)
class EarlierFile:
    """A file of a scope."""

    path: str  # within the scope's folder
    size: int  # bytes
    modified: int  # nanoseconds since 1970
    object: str = ""  # the object that has the content; empty = the database has it


class EarlierFileStore(Protocol):
    """The files of every scope. Raises StoreUnavailable as the journal does."""

    async def exists(self) -> bool:
        """Return False when they were dropped, or the database never had them."""

    async def state(self) -> tuple[str, bool]:
        """Return what was noted of the files, and True if turns have been answered with this database.

        It is "" without files, `adopting:<id>` while the home with this id has more than the database, and then
        `stored:<id>`.
        """

    async def scopes(self) -> Sequence[str]:
        """Return the scopes that have files."""

    async def files(self, scope: str) -> Sequence[EarlierFile]:
        """Return the files of a scope."""

    def read(self, scope: str, file: EarlierFile) -> AsyncIterator[bytes]:
        """Yield the bytes of a file that the database has."""

    async def drop(self) -> None:
        """Drop the tables; the objects that they name become unused."""
