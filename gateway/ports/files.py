"""Files of memory scopes: received and sent files, texts of prompt snapshots, long results, the workspace.

Every call names one scope, and no name of a file leads to another one.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Collection, Mapping
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from typing import Protocol

from gateway.errors import ParlourError
from gateway.events import Attachment, SessionKey

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
