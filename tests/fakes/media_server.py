"""The routes of an OpenAI-compatible server for speech and pictures, as bad as real ones get."""

from __future__ import annotations

import asyncio
import base64
import gzip
from dataclasses import dataclass, field
from enum import Enum
from typing import Any

from aiohttp import web


class MediaFault(Enum):
    """What goes wrong with an answer."""

    ERROR = "500"
    BUSY = "429"
    HANG = "never answers"
    EMPTY = "no body"
    PAGE = "a web page with status 200"
    WRONG_TYPE = "JSON in place of bytes, and bytes in place of JSON"
    HUGE = "a body without an end"
    PACKED = "a compressed body that was not asked for"
    CUT = "less than its length says"
    POLICY = "the content is refused"
    UNAUTHORISED = "401"


def ogg(seconds: float = 2.0, words: bytes = b"") -> bytes:
    """Return an Ogg stream with the pages that say it is Opus and how long it lasts; *words* make its bytes its own."""
    last = b"OggS\0\4" + int(48_000 * seconds).to_bytes(8, "little") + b"\0" * 20
    return b"OggS\0\2" + b"\0" * 22 + b"OpusHead" + words + b"\0" * 40 + last


_PAGE = "<html><head><title>nginx</title></head><body></body></html>"
_STATUS = {
    MediaFault.ERROR: (500, "server_error", "The server had an error"),
    MediaFault.BUSY: (429, "rate_limit_exceeded", "Rate limit reached"),
    MediaFault.POLICY: (400, "content_policy_violation", "Your request was rejected by our safety system: SECRET"),
    MediaFault.UNAUTHORISED: (401, "invalid_api_key", "Incorrect API key provided: sk-SECRET"),
}


@dataclass(slots=True)
class FakeMedia:
    """The state of both routes."""

    sound: bytes | None = None  # None = one of its own for each text
    picture: bytes = b"\x89PNG\r\n\x1a\n" + b"\0" * 64
    picture_url: str = ""  # answered in place of bytes
    usage: tuple[int, int] | None = None  # tokens of a picture
    faults: list[MediaFault | None] = field(default_factory=list)  # of the next calls, in order; none after them
    spoken: list[dict[str, Any]] = field(default_factory=list)
    drawn: list[dict[str, Any]] = field(default_factory=list)
    arrived: asyncio.Event = field(default_factory=asyncio.Event)
    gate: asyncio.Event | None = None  # answers wait for it
    sent: int = 0  # bytes of endless bodies that were taken

    async def speak(self, request: web.Request) -> web.StreamResponse:
        """Answer /v1/audio/speech."""
        body = await request.json()
        self.spoken.append(body)
        sound = ogg(words=body["input"].encode()) if self.sound is None else self.sound
        return await self._answer(request, web.Response(body=sound, content_type="audio/ogg"), b'{"a": 1}')

    async def draw(self, request: web.Request) -> web.StreamResponse:
        """Answer /v1/images/generations."""
        self.drawn.append(await request.json())
        data = {"url": self.picture_url} if self.picture_url else {"b64_json": base64.b64encode(self.picture).decode()}
        answer: dict[str, Any] = {"created": 1_700_000_000, "data": [data]}
        if self.usage is not None:
            tokens_in, tokens_out = self.usage
            details = {"text_tokens": tokens_in, "image_tokens": 0}
            total = tokens_in + tokens_out
            answer["usage"] = {
                "input_tokens": tokens_in, "output_tokens": tokens_out, "total_tokens": total,
                "input_tokens_details": details,
            }  # fmt: skip
        return await self._answer(request, web.json_response(answer), self.picture)

    async def _answer(self, request: web.Request, good: web.Response, other: bytes) -> web.StreamResponse:
        self.arrived.set()
        fault = self.faults.pop(0) if self.faults else None
        if self.gate is not None:
            await self.gate.wait()
        if fault is None:
            return good
        if fault in _STATUS:
            status, code, message = _STATUS[fault]
            return web.json_response({"error": {"message": message, "code": code, "type": code}}, status=status)
        if fault is MediaFault.HANG:
            await asyncio.Event().wait()
        if fault is MediaFault.EMPTY:
            return web.Response(body=b"", content_type=good.content_type)
        if fault is MediaFault.PAGE:
            return web.Response(text=_PAGE, content_type="text/html")
        if fault is MediaFault.WRONG_TYPE:
            return web.Response(body=other, content_type="application/octet-stream")
        if fault is MediaFault.PACKED:
            assert isinstance(good.body, bytes)
            packed = {"Content-Encoding": "gzip", "Content-Type": good.content_type}
            return web.Response(body=gzip.compress(good.body), headers=packed)
        return await self._broken(request, good, fault)

    async def _broken(self, request: web.Request, good: web.Response, fault: MediaFault) -> web.StreamResponse:
        body = good.body
        assert isinstance(body, bytes)
        headers = {"Content-Type": good.content_type}
        if fault is MediaFault.CUT:
            headers["Content-Length"] = str(2 * len(body))
        response = web.StreamResponse(headers=headers)
        await response.prepare(request)
        await response.write(body[: len(body) // 2])
        if fault is MediaFault.HUGE:
            piece = b"\0" * 1_000_000
            for _ in range(200):
                await response.write(piece)
                self.sent += len(piece)
        if request.transport is not None:
            request.transport.abort()
        return response
