"""Files of the page: downloads under addresses that cannot be guessed."""

from __future__ import annotations

import asyncio
import secrets
from collections import OrderedDict
from collections.abc import AsyncGenerator, Awaitable, Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING
from urllib.parse import quote

import structlog
from cachetools import LRUCache
from starlette.responses import PlainTextResponse, Response, StreamingResponse
from starlette.types import Receive, Scope, Send

from channels.kit.background import KeyedSlots, SlotsTaken
from gateway.errors import FileUnavailable, StoreUnavailable
from gateway.events import Attachment

if TYPE_CHECKING:
    from gateway.store.attachment_store import AttachmentStore


log = structlog.get_logger(__name__)

MOST_ADDRESSES = 2_000  # addresses of one person; an older one is given anew when its line is shown again
_MOST_CHARACTERS = 8_000_000  # of one person's texts
_MOST_PEOPLE = 100
DOWNLOAD_SECONDS = 3_600.0  # for one file; a browser that takes longer is cut off


@dataclass(frozen=True, slots=True)
class ServedFile:
    """A file for one visitor: the stored bytes, or a text."""

    who: str
    file: Attachment
    text: str


class ServedFiles:
    """The valid addresses. They end with the process; a page that reconnects gets new ones with its history.

    One person's addresses do not evict another's, unless there are very many people.
    """

    def __init__(self) -> None:
        self._people: LRUCache[str, _PersonFiles] = LRUCache(_MOST_PEOPLE)

    def add(self, who: str, file: Attachment, text: str = "") -> str:
        """Return the address of *file* for *who*; the same file keeps its address."""
        person = self._people.get(who)
        if person is None:
            person = self._people[who] = _PersonFiles()
        return person.add(ServedFile(who, file, text))

    def get(self, who: str, token: str) -> ServedFile | None:
        """Return the file that *who* was shown under *token*, or None; another person's tokens are unknown."""
        person = self._people.get(who)
        return person.kept.get(token) if person else None


class _PersonFiles:
    """The addresses of one person."""

    def __init__(self) -> None:
        self.kept: OrderedDict[str, ServedFile] = OrderedDict()
        self._tokens: dict[ServedFile, str] = {}
        self._characters = 0

    def add(self, file: ServedFile) -> str:
        token = self._tokens.get(file)
        if token is None:
            token = self._tokens[file] = secrets.token_urlsafe(18)
            self.kept[token] = file
            self._characters += len(file.text)
            while len(self.kept) > 1 and (len(self.kept) > MOST_ADDRESSES or self._characters > _MOST_CHARACTERS):
                oldest = self.kept.popitem(last=False)[1]
                self._characters -= len(oldest.text)
                del self._tokens[oldest]
        self.kept.move_to_end(token)
        return token


@dataclass(frozen=True, slots=True)
class FileDownload:
    """A file for one visitor: stored bytes, or a text where nothing is stored."""

    name: str
    size: int  # bytes
    blobs: AttachmentStore
    blob: str = ""
    text: bytes = b""

    async def pieces(self) -> AsyncGenerator[bytes, None]:
        """Yield the bytes; raise FileUnavailable if they have been deleted, or are damaged."""
        if not self.blob:
            yield self.text
            return
        async for piece in self.blobs.stream(self.blob):
            yield piece


class DownloadResponse(Response):
    """Sends a file as an attachment, never inline, because its content is untrusted; 404 if it does not exist.

    A person with too many running downloads gets 429 and the line *busy*.
    """

    def __init__(
        self, slots: KeyedSlots, who: str, find: Callable[[], Awaitable[FileDownload | None]], busy: str
    ) -> None:
        """*find* is called once *who* has a slot, since it reads the file to check it."""
        super().__init__()
        self._slots = slots
        self._who = who
        self._find = find
        self._busy = busy

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer; a file that is lost on the way breaks the connection off, so that none looks whole that is not."""
        try:
            async with self._slots.hold(self._who), asyncio.timeout(DOWNLOAD_SECONDS):
                download = await self._find()
                answer = Response(status_code=404) if download is None else _streamed(download, scope["method"])
                await answer(scope, receive, send)
        except SlotsTaken:
            await PlainTextResponse(self._busy, 429)(scope, receive, send)
        except (FileUnavailable, StoreUnavailable, TimeoutError) as error:
            log.warning("web.download_failed", error=type(error).__name__)


def _streamed(download: FileDownload, method: str) -> Response:
    headers = {
        "Content-Disposition": f"attachment; filename*=UTF-8''{quote(download.name, safe='')}",
        "Content-Length": str(download.size),
        "Content-Security-Policy": "default-src 'none'; frame-ancestors 'none'; sandbox",
    }
    if method == "HEAD":
        return Response(media_type="application/octet-stream", headers=headers)
    return StreamingResponse(download.pieces(), media_type="application/octet-stream", headers=headers)
