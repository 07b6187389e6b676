"""Downloads: files are read and sent in pieces, so that none is whole in memory."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable
from dataclasses import dataclass
from urllib.parse import quote

import structlog
from starlette.responses import PlainTextResponse, Response, StreamingResponse
from starlette.types import Receive, Scope, Send

from channels.web.slots import PersonSlots, SlotsTaken
from gateway.errors import FileUnavailable
from gateway.ports import BlobStore

log = structlog.get_logger(__name__)

PIECE_BYTES = 1 << 18
DOWNLOAD_SECONDS = 3_600.0  # for one file; a browser that takes longer is cut off


@dataclass(frozen=True, slots=True)
class FileDownload:
    """A file for one visitor: stored bytes, or a text where nothing is stored."""

    name: str
    size: int  # bytes
    blobs: BlobStore
    blob: str = ""
    text: bytes = b""

    async def pieces(self) -> AsyncGenerator[bytes, None]:
        """Yield the bytes; raise FileUnavailable if they have been deleted."""
        for start in range(0, self.size, PIECE_BYTES):
            length = min(PIECE_BYTES, self.size - start)
            yield await self.blobs.read_at(self.blob, start, length) if self.blob else self.text[start : start + length]


class DownloadResponse(Response):
    """Sends a file as an attachment, never inline, because its content is untrusted; 404 if it does not exist.

    A person with too many running downloads gets 429 and the line *busy*.
    """

    def __init__(
        self, slots: PersonSlots, who: str, find: Callable[[], Awaitable[FileDownload | None]], busy: str
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
        except (FileUnavailable, TimeoutError) as error:
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
