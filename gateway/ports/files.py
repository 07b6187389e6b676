"""Files of memory scopes: received and sent files, texts of prompt snapshots, long results, the workspace.

Every call names one scope, and no name of a file leads to another one.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Collection, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from pathlib import Path
from typing import Protocol

from gateway.errors import ParlourError
from gateway.events import Attachment, SessionKey
from gateway.ports.objects import ObjectStore

BYTES = "bytes"  # the folder of a scope that has the bytes of its large files, where they are in the home


class FileKind(StrEnum):
    """The use of a file. Names are unique within a scope and a kind."""

    ATTACHMENT = "attachment"  # received or sent; the name is the SHA-256 of its bytes, and so with the next two
    TEXT = "text"  # of a prompt snapshot
    RESULT = "result"  # of a tool, longer than a page
    WORKSPACE = "workspace"
    DELETED = "deleted"  # replaced or deleted in the workspace; the name is the id that restores it
    CALL = "call"  # a finished call that changed the workspace, by its id; it has no bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class ScopeFile:
    """A file of a scope. The store sets *digest*, *size* and *place* from the bytes."""

    kind: FileKind
    name: str
    at: datetime  # of its last change, or of its last use for kinds that are named by their bytes
    is_untrusted: bool = False  # a call wrote it that untrusted text may have caused
    original: str = ""  # what a DELETED file was called; a CALL may name a file
    digest: str = ""  # SHA-256, hexadecimal
    size: int = 0  # bytes
    place: str = ""  # of the bytes; another one whenever they are written


@dataclass(frozen=True, slots=True, kw_only=True)
class ScopeFileChange:
    """A change of one file.

    *was* is the file as it was read; None = no file has the name of *now*. *now* is the file after the change, which
    may have another kind and name; None = it is removed. *data* are its new bytes; None = those of *was*.
    """

    was: ScopeFile | None = None
    now: ScopeFile | None = None
    data: bytes | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class FileTotal:
    """Number and size of files."""

    count: int = 0
    size: int = 0  # bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class FileLimit:
    """Limit of the files of *kinds* after a change: *count* for each kind, *size* for all together."""

    kinds: Collection[FileKind]
    count: int
    size: int  # bytes


class FilesFull(ParlourError):
    """A change would exceed a limit. *totals* are those of its kinds before the change."""

    def __init__(self, totals: Mapping[FileKind, FileTotal]) -> None:
        super().__init__("the files of this scope have reached their limit")
        self.totals = totals


class FileStore(Protocol):
    """Files of scopes. A change is one transaction, and its bytes are durable before it.

    Raises StoreUnavailable as the journal does, OSError where the disk of the home fails.
    """

    async def files(self, scope: str, *kinds: FileKind) -> Sequence[ScopeFile]:
        """Return the files of *kinds*, by kind and name; without kinds all files."""

    async def find(self, scope: str, kind: FileKind, name: str) -> ScopeFile | None:
        """Return one file; None if it does not exist."""

    async def load(self, scope: str, file: ScopeFile) -> bytes | None:
        """Return the bytes of a file as it was read; None if they are gone, or are not what was stored."""

    async def load_small(self, scope: str, kind: FileKind, names: Collection[str]) -> Mapping[str, bytes]:
        """Return the verified bytes of those of *names* that exist, which fit in memory together, in one query."""

    def stream(self, scope: str, file: ScopeFile) -> AsyncIterator[bytes]:
        """Yield the bytes of a file; raise FileUnavailable before the last of them if they are not what was stored."""

    async def change(self, scope: str, *changes: ScopeFileChange, limit: FileLimit | None = None) -> bool:
        """Make all *changes* in their order, or none and return False if a file is not as it was read.

        Raises FilesFull if that would exceed *limit*.
        """

    async def put(self, scope: str, kind: FileKind, data: bytes, *, at: datetime, most: int = 0) -> ScopeFile:
        """Store a file that is named by its digest; one that is stored gets the later time.

        With *most*, the oldest files of the kind beyond that number are removed.
        """

    async def remove(
        self,
        scope: str,
        *kinds: FileKind,
        names: Collection[str] | None = None,
        before: datetime | None = None,
    ) -> int:
        """Remove the files of *kinds*, without kinds of all; return their number.

        With *names* only those, and with *before* only those that are older. Their bytes are gone then, too. Those in
        an object store are removed before a purge ends, otherwise by `collect_garbage`.
        """

    async def expire(self, *kinds: FileKind, before: datetime) -> int:
        """Remove the older files of *kinds* in every scope; return their number."""

    async def move(self, source: str, target: str, files: Mapping[ScopeFile, str] | None = None) -> None:
        """Give *files* of *source* to *target*, under these names; None = all, under their names.

        A file that another one of the kind and name is in the place of is removed. Idempotent: those that *source*
        has no more are skipped. Files move in several transactions: hold the exclusive locks of both scopes.
        """

    async def totals(self, scope: str) -> Mapping[FileKind, FileTotal]:
        """Return number and size of the scope's files by kind."""

    async def scopes(self, *kinds: FileKind) -> Sequence[str]:
        """Return the scopes with files of *kinds*; without kinds those with any."""

    def keep_bytes(self) -> AbstractAsyncContextManager[None]:
        """Remove no bytes while the context is open: a backup reads them. Those who remove files do not wait.

        No gateway that shares the database removes objects then, for at most an hour.
        """

    async def copy_objects(self, home: Path) -> Sequence[str]:
        """Write the bytes that are in an object store into the folders of a home; return a line for each lost file."""

    async def collect_garbage(self) -> int:
        """Remove bytes that interrupted changes have left; return their number. Call it now and then.

        Has no effect during a backup.
        """

    def use_objects(self, objects: ObjectStore) -> None:
        """Keep the bytes of large files in *objects* from now on, where they are not in the home."""

    async def is_adopted(self) -> bool:
        """Return True if the files of the folders of an earlier release are stored."""

    async def mark_adopted(self) -> None:
        """Note that they are stored."""


class BlobStore(Protocol):
    """Attachments by reference, for channels and tools. A reference is ``<scope>/<sha256>`` and names nothing else."""

    async def put(self, scope: str, data: bytes) -> str:
        """Store *data* durably and return its reference; the same bytes again change nothing."""

    async def get(self, reference: str) -> bytes | None:
        """Return the bytes; None when they are lost, or are not what their name says."""

    async def measure(self, reference: str) -> int | None:
        """Return the number of bytes; None if nothing is stored."""

    def stream(self, reference: str) -> AsyncIterator[bytes]:
        """Yield the bytes. Raise FileUnavailable when they are lost, or before the last of them if they are damaged."""


class AttachmentFetcher(Protocol):
    """Fetches the bytes of attachments of admitted messages."""

    async def fetch(self, key: SessionKey, attachment: Attachment) -> bytes:
        """Return the whole file, within the size limit of the settings.

        Raises FileUnavailable with a short phrase for users ("larger than 20 MB").
        """
