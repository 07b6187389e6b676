"""Bytes of messages: request bodies, files of outgoing parts, the receipts of parts, and uploaded files.

Uploads are on disk before their sender is notified, and kept until after their message is answered. Each is one file
named by a token: a line of JSON (owner, name and type), then the bytes. A stored message names the token, so that a
restart between the two loses nothing.
"""

from __future__ import annotations

import asyncio
import json
import os
import re
import secrets
from collections import defaultdict
from collections.abc import AsyncGenerator, AsyncIterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from enum import StrEnum
from pathlib import Path
from time import time
from typing import TYPE_CHECKING, BinaryIO

from starlette.requests import Request

from channels.kit.background import KeyedSlots
from gateway.durable_files import sync_folder
from gateway.errors import FileUnavailable, ParlourError, RetryLater, SendRefused, StoreUnavailable
from gateway.events import Attachment, DeliveryReceipt, MessagePart

if TYPE_CHECKING:
    from gateway.store.attachment_store import AttachmentStore

STORE_PAUSE = timedelta(seconds=5)  # before a file that could not be read is sent again


def build_receipt(part: MessagePart, message_id: str) -> DeliveryReceipt:
    """Return the receipt of a part that was delivered just now as *message_id*."""
    return DeliveryReceipt(part=part.id, message_id=message_id, at=datetime.now(UTC))


async def read_file(part: MessagePart, blobs: AttachmentStore) -> bytes:
    """Return the bytes of a part that is a file; without a blob they are its plain text.

    Raises FileUnavailable, and RetryLater while the store or its bucket is away: nothing was sent.
    """
    blob = part.file.blob if part.file is not None else ""
    try:
        data = await blobs.get(blob) if blob else part.plain.encode("utf-8", "replace")
    except StoreUnavailable as error:
        raise RetryLater(STORE_PAUSE, str(error)) from error
    if data is None:
        raise FileUnavailable("its bytes are lost")
    return data


async def require_file(blob: str, blobs: AttachmentStore) -> None:
    """Raise FileUnavailable if nothing is stored under *blob*, and RetryLater as `read_file` does."""
    try:
        size = await blobs.measure(blob)
    except StoreUnavailable as error:
        raise RetryLater(STORE_PAUSE, str(error)) from error
    if size is None:
        raise FileUnavailable("it is lost")


async def load_file(part: MessagePart, blobs: AttachmentStore, *, limit: int) -> bytes:
    """Like `read_file`, and raise SendRefused for a file without bytes or with more than *limit*."""
    data = await read_file(part, blobs)
    if not data:
        raise SendRefused("the file is empty")
    if len(data) > limit:
        raise SendRefused(f"the file is larger than {limit // 1_000_000} MB")
    return data


# -- webhook ---------------------------------------------------------------------------------------
# Request bodies, read within a limit.


async def read_body(request: Request, *, limit: int, timeout: float | None = None) -> bytes | None:  # noqa: ASYNC109 - a request's, not the caller's
    """Return the body, or None if it is longer than *limit* bytes.

    Raises TimeoutError after *timeout* seconds, and starlette's ClientDisconnect.
    """
    length = request.headers.get("Content-Length", "0")
    if not length.isdigit() or int(length) > limit:
        return None
    body = bytearray()
    async with asyncio.timeout(timeout):
        async for chunk in request.stream():
            body += chunk
            if len(body) > limit:
                return None
    return bytes(body)


LARGEST = 50_000_000  # bytes of one file; the settings may allow less
MOST = 500_000_000  # bytes of all that are kept
MOST_OF_ONE = 200_000_000  # bytes of one person
MOST_FILES = 5_000
MOST_FILES_OF_ONE = 500
AT_ONCE = 2  # of one person; a person's others wait for them
MOST_WAITING = 20  # of one person
_KEPT_FOR = 2 * 86_400.0  # seconds: a message waits for a day at most
_PATIENCE = 600.0  # seconds for one file; the web server bounds the silence between two pieces of it
_BLOCK = 1 << 18
_LONGEST_HEAD = 4_096
_TOKEN = re.compile(r"[A-Za-z0-9_-]{24}\Z")
_TYPE = re.compile(r"[a-z0-9.+-]{1,40}/[a-z0-9.+-]{1,80}\Z")
_SCHEME = "upload:"
_KINDS = {"image": "image", "audio": "audio", "video": "video"}


class UploadRefusalReason(StrEnum):
    """Why a file is not taken."""

    LARGE = "large"
    EMPTY = "empty"
    FULL = "full"  # of everybody's
    YOURS = "yours"  # as much as one person may have here
    BUSY = "busy"  # too many of the person's wait already


class UploadRefused(ParlourError):
    """A file is not taken."""

    def __init__(self, why: UploadRefusalReason) -> None:
        super().__init__(why.value)
        self.why = why


@dataclass(frozen=True, slots=True)
class UploadHeader:
    """Metadata of an uploaded file."""

    who: str
    name: str
    media_type: str
    is_recording: bool = False  # the person spoke it just now, on the page; claimed by the browser


@dataclass(slots=True)
class _UploadUse:
    """Number and bytes of stored files, in all or of one person."""

    files: int = 0
    size: int = 0  # bytes

    def add(self, size: int) -> None:
        self.files += 1
        self.size += size


class WebUploads:
    """One channel's folder. Each person has their own slots and their own share of it."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._slots = KeyedSlots(AT_ONCE, MOST_WAITING)
        self._owners: dict[str, str] = {}  # who handed a file over, by its token; read once a process
        self._coming: dict[str, tuple[str, int]] = {}  # who hands it over, and the most bytes it may have, by token

    def busy(self, who: str) -> int:
        """Return the number of uploads of *who* that run or wait."""
        return self._slots.busy(who)

    async def take(
        self, head: UploadHeader, pieces: AsyncIterator[bytes], *, announced: int = LARGEST
    ) -> tuple[str, int]:
        """Keep a file of at most *announced* bytes durably; return its token and size.

        Raises UploadRefused, SlotsTaken when the person has too many waiting, OSError when disk or time is short.
        """
        async with self._slots.hold(head.who), asyncio.timeout(_PATIENCE):
            token = secrets.token_urlsafe(18)
            self._coming[token] = head.who, announced
            try:
                if (why := _refusal(head.who, *await asyncio.to_thread(self._tidy))) is not None:
                    raise UploadRefused(why)
                size = await self._keep(token, head, pieces)
            finally:
                del self._coming[token]
        return token, size

    async def _keep(self, token: str, head: UploadHeader, pieces: AsyncIterator[bytes]) -> int:
        unfinished = self._folder / f".{token}"
        out = await asyncio.to_thread(_create, unfinished)
        try:
            size = await _write(out, head, pieces)
            await asyncio.to_thread(_finish, out, unfinished, self._folder / token)
        except BaseException:
            out.close()
            unfinished.unlink(missing_ok=True)
            raise
        return size

    async def tidy(self) -> None:
        """Remove what is past its time."""
        if self._folder.exists():
            await asyncio.to_thread(self._tidy)

    async def find_file(self, who: str, token: str) -> Attachment | None:
        """Return the file that *who* uploaded as *token*, or None if it does not exist."""
        found = await asyncio.to_thread(self._head, token)
        if found is None or found[0].who != who:
            return None
        head, start, size = found
        kind = _KINDS.get(head.media_type.partition("/")[0], "document")
        if kind == "audio" and head.is_recording:
            kind = "voice"  # its words count as the person's own; they could as well type them
        return Attachment(
            kind=kind, name=head.name, size=size - start, media_type=head.media_type, url=f"{_SCHEME}{token}"
        )

    async def fetch(self, url: str) -> AsyncGenerator[bytes, None]:
        """Yield a file's bytes; raise FileUnavailable."""
        token = url.removeprefix(_SCHEME)
        found = await asyncio.to_thread(self._head, token) if url.startswith(_SCHEME) else None
        if found is None:
            raise FileUnavailable("it is not kept here any more")
        file = await asyncio.to_thread((self._folder / token).open, "rb")
        try:
            file.seek(found[1])
            while piece := await asyncio.to_thread(file.read, _BLOCK):
                yield piece
        finally:
            file.close()

    def _head(self, token: str) -> tuple[UploadHeader, int, int] | None:
        """Return the head, where the bytes begin, and where they end."""
        if not _TOKEN.match(token):
            return None
        try:
            with (self._folder / token).open("rb") as file:
                line = file.readline(_LONGEST_HEAD)
                fields = json.loads(line)
                return (
                    UploadHeader(fields["who"], fields["name"], fields["type"], fields.get("recording", False)),
                    len(line),
                    os.fstat(file.fileno()).st_size,
                )
        except (OSError, ValueError, KeyError):
            return None

    def _tidy(self) -> tuple[_UploadUse, dict[str, _UploadUse]]:
        """Delete expired files; return the use of stored and running uploads, in all and of each person."""
        self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        every, people = _UploadUse(), defaultdict[str, _UploadUse](_UploadUse)
        coming, owners = dict(self._coming), dict[str, str]()
        for who, announced in coming.values():
            every.add(announced)
            people[who].add(announced)
        for path in self._folder.iterdir():
            try:
                facts = path.stat()
            except FileNotFoundError:  # finished or refused just now
                continue
            if time() - facts.st_mtime > _KEPT_FOR:
                path.unlink(missing_ok=True)
            elif path.name.removeprefix(".") not in coming:
                owners[path.name] = who = self._owners.get(path.name) or self._owner(path.name)
                every.add(facts.st_size)
                people[who].add(facts.st_size)
        self._owners = owners
        return every, people

    def _owner(self, token: str) -> str:
        found = self._head(token)
        return found[0].who if found else ""


def _refusal(who: str, every: _UploadUse, people: Mapping[str, _UploadUse]) -> UploadRefusalReason | None:
    """Return why *who* may not hand over what is counted as coming already; None = they may."""
    if people[who].size > MOST_OF_ONE or people[who].files > MOST_FILES_OF_ONE:
        return UploadRefusalReason.YOURS
    return UploadRefusalReason.FULL if every.size > MOST or every.files > MOST_FILES else None


def type_of(header: str) -> str:
    """Return the browser's media type if it is valid, else ""."""
    plain = header.partition(";")[0].strip().lower()
    return plain if _TYPE.match(plain) else ""


def _create(path: Path) -> BinaryIO:
    return os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600), "wb")


async def _write(out: BinaryIO, head: UploadHeader, pieces: AsyncIterator[bytes]) -> int:
    fields = {"who": head.who, "name": head.name, "type": head.media_type, "recording": head.is_recording}
    out.write(json.dumps(fields).encode() + b"\n")
    size = 0
    async for piece in pieces:
        size += len(piece)
        if size > LARGEST:
            raise UploadRefused(UploadRefusalReason.LARGE)
        await asyncio.to_thread(out.write, piece)
    if not size:
        raise UploadRefused(UploadRefusalReason.EMPTY)
    return size


def _finish(out: BinaryIO, unfinished: Path, path: Path) -> None:
    out.flush()
    os.fsync(out.fileno())
    out.close()
    unfinished.rename(path)
    sync_folder(path.parent)
