"""The files of memory scopes in a store that several machines reach. A store in the home itself has no such port.

The database is authoritative; a home is a cache of it. Each change of a scope gets a new version, a random
text, and is made only to the version that its author has seen.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol, TypeAlias

from gateway.ports.objects import ObjectStore

# Returns when all changes in files of scopes are durable; None = in every scope in use. Raises StoreUnavailable.
SaveScopes: TypeAlias = Callable[[Collection[str] | None], Awaitable[None]]


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredFile:
    """A file of a scope."""

    path: str  # within the scope's folder
    size: int  # bytes
    replaced: str  # the scope's version in which its content was last written as a whole; it has only grown since
    modified: int  # nanoseconds since 1970
    object: str = ""  # the object that has the content; empty = the database has it


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredFileChange:
    """A new or changed file."""

    file: StoredFile  # after the change
    start: int = 0  # where *data* begins; more than 0 for a file that has grown
    data: bytes | None = None  # None = only the time has changed, or an object has it
    is_standalone: bool = False  # it never grows and no document needs it: an object store may have the content


@dataclass(frozen=True, slots=True, kw_only=True)
class ScopeChange:
    """Changes of a scope from the version *was* ("" = the scope is not stored) to *version*."""

    scope: str
    was: str
    version: str
    changes: Sequence[StoredFileChange] = ()
    removed: Collection[str] = ()  # paths


@dataclass(frozen=True, slots=True)
class ScopeLook:
    """A scope, as a gateway has to know it before it is in use."""

    version: str  # "" if it is not stored
    has_jobs: bool  # that are not finished


@dataclass(frozen=True, slots=True, kw_only=True)
class ScopeDelta:
    """Changes of a scope since an earlier version of it."""

    version: str
    files: Sequence[StoredFile]  # new and changed ones
    removed: Collection[str]  # paths


class ScopeFileStore(Protocol):
    """Files of scopes, changed by compare-and-set. Raises StoreUnavailable as the journal does."""

    async def versions(self) -> Mapping[str, str]:
        """Return the version of every stored scope."""

    async def look(self, *scopes: str) -> Mapping[str, ScopeLook]:
        """Return what is known of each of *scopes* now, in one statement."""

    async def files(self, scope: str) -> tuple[str, Sequence[StoredFile]]:
        """Return the scope's version, "" if it is not stored, and its files."""

    async def changes(self, scope: str, since: str, paths: Collection[str]) -> ScopeDelta | None:
        """Return the changes since the version *since*, which had *paths*; None = list all `files`.

        Only rows of changed files are read. The store knows the last versions, and no paths of removed files.
        """

    def read(self, scope: str, file: StoredFile, start: int = 0) -> AsyncIterator[bytes]:
        """Yield the bytes of a file from *start*, which is where a change began; too few of a replaced file."""

    async def read_small(self, scope: str, files: Sequence[StoredFile]) -> Mapping[str, bytes]:
        """Return the whole contents of files that fit in memory together; b"" of one that was replaced since listed."""

    async def save(self, changes: Sequence[ScopeChange]) -> str | None:
        """Make all *changes*, in one transaction; or none, and return a scope that has another version."""

    async def state(self) -> tuple[str, bool]:
        """Return the state that was set, "" at first, and True if turns have been answered with this database."""

    async def begin_state(self, state: str) -> str:
        """Store *state* unless one is stored; return the stored one, which may be of another gateway."""

    async def set_state(self, state: str) -> None:
        """Store whether the database is authoritative yet."""

    def use_objects(self, objects: ObjectStore) -> None:
        """Keep the contents of large files in *objects* from now on."""

    async def remove_unused(self) -> None:
        """Remove objects that no file refers to any more; StoreUnavailable if some remain. Call it now and then."""

    def save_first(self, save: SaveScopes) -> None:
        """Await *save* before every commit that promises what may depend on the files of a scope."""
