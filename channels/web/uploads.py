"""Files that visitors hand over, on disk before the page is told and until their message has long been answered.

One file each, named by a token: a line of JSON (whose it is, its name and type), then the bytes. A stored message
names the token, so that a restart between the two loses nothing.
"""

from __future__ import annotations

import asyncio
import json
import os
import re
import secrets
from collections.abc import AsyncGenerator, AsyncIterator
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from time import time
from typing import BinaryIO

from gateway.errors import FileUnavailable, ParlourError
from gateway.events import Attachment

LARGEST = 50_000_000  # bytes of one file; the house may take less
MOST = 500_000_000  # bytes of all that are kept
_KEPT_FOR = 2 * 86_400.0  # seconds: a message waits for a day at most
_AT_ONCE = 4
_PATIENCE = 600.0  # seconds for one file
_BLOCK = 1 << 18
_LONGEST_HEAD = 4_096
_TOKEN = re.compile(r"[A-Za-z0-9_-]{24}\Z")
_TYPE = re.compile(r"[a-z0-9.+-]{1,40}/[a-z0-9.+-]{1,80}\Z")
_SCHEME = "upload:"
_KINDS = {"image": "image", "audio": "audio", "video": "video"}


class Why(StrEnum):
    """Why a file is not taken."""

    LARGE = "large"
    EMPTY = "empty"
    FULL = "full"


class UploadRefused(ParlourError):
    """A file is not taken."""

    def __init__(self, why: Why) -> None:
        super().__init__(why.value)
        self.why = why


@dataclass(frozen=True, slots=True)
class Head:
    """What is known of a file that was handed over."""

    who: str
    name: str
    media_type: str


class Uploads:
    """One channel's folder."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._slots = asyncio.Semaphore(_AT_ONCE)

    async def take(self, head: Head, pieces: AsyncIterator[bytes]) -> tuple[str, int]:
        """Keep a file durably; return its token and size. Raises UploadRefused; OSError when disk or time is short."""
        async with self._slots, asyncio.timeout(_PATIENCE):
            if await asyncio.to_thread(self._tidy) > MOST:
                raise UploadRefused(Why.FULL)
            token = secrets.token_urlsafe(18)
            unfinished = self._folder / f".{token}"
            out = await asyncio.to_thread(_create, unfinished)
            try:
                size = await _write(out, head, pieces)
                await asyncio.to_thread(_finish, out, unfinished, self._folder / token)
            except BaseException:
                out.close()
                unfinished.unlink(missing_ok=True)
                raise
        return token, size

    async def tidy(self) -> None:
        """Remove what is past its time."""
        if self._folder.exists():
            await asyncio.to_thread(self._tidy)

    async def named(self, who: str, token: str) -> Attachment | None:
        """Return the file that *who* handed over as *token*; None when there is none (any more)."""
        found = await asyncio.to_thread(self._head, token)
        if found is None or found[0].who != who:
            return None
        head, start, size = found
        kind = _KINDS.get(head.media_type.partition("/")[0], "document")
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

    def _head(self, token: str) -> tuple[Head, int, int] | None:
        """Return the head, where the bytes begin, and where they end."""
        if not _TOKEN.match(token):
            return None
        try:
            with (self._folder / token).open("rb") as file:
                line = file.readline(_LONGEST_HEAD)
                fields = json.loads(line)
                return Head(fields["who"], fields["name"], fields["type"]), len(line), os.fstat(file.fileno()).st_size
        except (OSError, ValueError, KeyError):
            return None

    def _tidy(self) -> int:
        """Remove what is past its time; return how many bytes are left."""
        self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        left = 0
        for path in self._folder.iterdir():
            facts = path.stat()
            if time() - facts.st_mtime > _KEPT_FOR:
                path.unlink(missing_ok=True)
            else:
                left += facts.st_size
        return left


def type_of(said: str) -> str:
    """Return a media type as a browser said it, or nothing for what is none."""
    plain = said.partition(";")[0].strip().lower()
    return plain if _TYPE.match(plain) else ""


def _create(path: Path) -> BinaryIO:
    return os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600), "wb")


async def _write(out: BinaryIO, head: Head, pieces: AsyncIterator[bytes]) -> int:
    fields = {"who": head.who, "name": head.name, "type": head.media_type}
    out.write(json.dumps(fields).encode() + b"\n")
    size = 0
    async for piece in pieces:
        size += len(piece)
        if size > LARGEST:
            raise UploadRefused(Why.LARGE)
        await asyncio.to_thread(out.write, piece)
    if not size:
        raise UploadRefused(Why.EMPTY)
    return size


def _finish(out: BinaryIO, unfinished: Path, path: Path) -> None:
    out.flush()
    os.fsync(out.fileno())
    out.close()
    unfinished.rename(path)
    folder = os.open(path.parent, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)
