"""The small Telegram's files: getFile and what it leads to, photos and documents with their rules."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from aiohttp import web

from tests.fakes.telegram_rules import ApiError, checked_caption

if TYPE_CHECKING:
    from tests.fakes.telegram_server import TelegramServer

_MOST_IN = 20_000_000
_MOST_OUT = 50_000_000
_MOST_PHOTO = 10_000_000
_PIECE = 32 * 1024


@dataclass(slots=True)
class TelegramSentFile:
    """A file of the bot as people have it."""

    kind: str  # photo, voice or document
    name: str
    data: bytes


class TelegramServerFiles:
    """What lies on the server, and how it is got and put there."""

    def __init__(self, server: TelegramServer) -> None:
        self._server = server
        self.kept: dict[str, bytes] = {}  # file id -> bytes
        self.faults: deque[str] = deque()  # of the next downloads: "gone", "status", "cut", "elsewhere"
        self.downloads: list[str] = []
        self.without_voices: set[str] = set()  # chats of people who take no voice messages
        self.root = "documents"  # where the paths begin; "/var/lib" for a server that runs with --local

    def keep(self, data: bytes, ident: str = "") -> str:
        """Let somebody upload *data*; return its file id."""
        ident = ident or f"file-{len(self.kept)}"
        self.kept[ident] = data
        return ident

    async def do_get_file(self, fields: Mapping[str, Any]) -> Any:
        """Say where a file lies."""
        ident = str(fields["file_id"])
        if ident not in self.kept:
            raise ApiError(400, "Bad Request: wrong file_id or the file is temporarily unavailable")
        if len(self.kept[ident]) > _MOST_IN:
            raise ApiError(400, "Bad Request: file is too big")
        return {"file_id": ident, "file_unique_id": f"u{ident}", "file_path": f"{self.root}/{ident}"}

    async def serve(self, request: web.Request) -> web.StreamResponse:
        """Hand a file out, in pieces; an address without the token leads nowhere."""
        ident = request.match_info["path"].rpartition("/")[2]
        self.downloads.append(ident)
        self._server.on_call("download", "before")
        fault = self.faults.popleft() if self.faults else ""
        if request.match_info["token"] != self._server.token or ident not in self.kept or fault == "gone":
            return web.Response(status=404, text="Not Found")
        if fault == "status":
            return web.Response(status=502, text="Bad Gateway")
        if fault == "elsewhere":
            return web.Response(status=302, headers={"Location": "http://127.0.0.1:9/"})
        data = self.kept[ident]
        response = web.StreamResponse(headers={"Content-Length": str(len(data))})
        await response.prepare(request)
        for start in range(0, len(data), _PIECE):
            await response.write(data[start : start + _PIECE])
            if fault == "cut":
                assert request.transport is not None
                request.transport.abort()
                break
            await asyncio.sleep(0)
        self._server.on_call("download", "after")
        self._server.changed()
        return response

    async def do_send_photo(self, fields: Mapping[str, Any]) -> Any:
        """Take a photo, within what is one."""
        sent = _sent("photo", fields)
        if len(sent.data) > _MOST_PHOTO:
            raise ApiError(400, "Bad Request: file is too big for a photo; the maximum size is 10 MB")
        width, height = _sides(sent.data)
        if width + height > 10_000 or max(width, height) > 20 * min(width, height):
            raise ApiError(400, "Bad Request: PHOTO_INVALID_DIMENSIONS")
        return self._server.post(fields, *checked_caption(fields), file=sent)

    async def do_send_voice(self, fields: Mapping[str, Any]) -> Any:
        """Take a voice message from those whom it may be sent to."""
        if str(fields["chat_id"]) in self.without_voices:
            raise ApiError(400, "Bad Request: VOICE_MESSAGES_FORBIDDEN")
        return self._server.post(fields, *checked_caption(fields), file=_sent("voice", fields))

    async def do_send_document(self, fields: Mapping[str, Any]) -> Any:
        """Take any file."""
        sent = _sent("document", fields)
        if len(sent.data) > _MOST_OUT:
            raise ApiError(413, "Request Entity Too Large")
        return self._server.post(fields, *checked_caption(fields), file=sent)


def _sent(kind: str, fields: Mapping[str, Any]) -> TelegramSentFile:
    name, data = fields[kind]
    if not data:
        raise ApiError(400, "Bad Request: file must be non-empty")
    return TelegramSentFile(kind, name, data)


def _sides(data: bytes) -> tuple[int, int]:
    """Return width and height of a PNG; other images are none here."""
    if data[:8] != b"\x89PNG\r\n\x1a\n" or len(data) < 24:
        raise ApiError(400, "Bad Request: IMAGE_PROCESS_FAILED")
    return int.from_bytes(data[16:20], "big"), int.from_bytes(data[20:24], "big")


def png(width: int, height: int, size: int = 100) -> bytes:
    """Return the beginning of a PNG of so many points, filled up to *size* bytes."""
    head = b"\x89PNG\r\n\x1a\n" + (13).to_bytes(4, "big") + b"IHDR"
    return (head + width.to_bytes(4, "big") + height.to_bytes(4, "big")).ljust(size, b"\0")
