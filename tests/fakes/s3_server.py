"""A server that speaks S3's objects: put, get and delete in one bucket, with signatures of version 4."""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from urllib.parse import quote

from aiohttp import web
from botocore.auth import S3SigV4Auth
from botocore.awsrequest import AWSRequest
from botocore.credentials import Credentials

from tests.fakes.loopback import serve_app

ACCESS_KEY, SECRET_KEY, REGION, BUCKET = "parlour-key", "parlour-secret", "eu-test-1", "parlour-files"


class S3Server:
    """One bucket in memory. A request whose signature botocore does not compute as well is refused."""

    def __init__(self) -> None:
        self.objects: dict[str, bytes] = {}
        self.is_away = False  # answers 503
        self.may_delete = True
        self.requests: list[str] = []
        self.address = ""
        self.hold: asyncio.Event | None = None  # uploads wait for it
        self.refusal: tuple[int, str] | None = None  # status and body of every answer
        self.cut_after: int | None = None  # bytes of the next body, sent or received, at which the connection is closed

    async def answer(self, request: web.Request) -> web.StreamResponse:
        """Answer one request."""
        self.requests.append(f"{request.method} {request.path}")
        if request.method == "PUT" and self.cut_after is not None:
            await request.content.readexactly(self._take_cut())
            return _close(request)
        body = await request.read()
        refused = self._refuse(request, body)
        if refused is not None:
            return refused
        name = request.path.partition(f"/{BUCKET}/")[2]
        if request.method == "PUT":
            if self.hold is not None:
                await self.hold.wait()
            self.objects[name] = body
            return web.Response(headers={"ETag": '"1"'})
        if request.method == "DELETE":
            if not self.may_delete:
                return _error(403, "AccessDenied")
            self.objects.pop(name, None)
            return web.Response(status=204)
        if name not in self.objects:
            return _error(404, "NoSuchKey")
        return await self._send(request, self.objects[name])

    def _refuse(self, request: web.Request, body: bytes) -> web.Response | None:
        if self.refusal is not None:
            return web.Response(status=self.refusal[0], text=self.refusal[1], content_type="application/xml")
        if self.is_away:
            return _error(503, "SlowDown")
        if not _is_signed(request, body):
            return _error(403, "SignatureDoesNotMatch")
        return None if request.path.startswith(f"/{BUCKET}/") else _error(404, "NoSuchBucket")

    async def _send(self, request: web.Request, data: bytes) -> web.StreamResponse:
        """Send an object, or the range of it that is asked for."""
        headers = {"ETag": '"1"', "Last-Modified": "Tue, 24 Nov 2026 12:00:00 GMT"}
        part = request.http_range
        if part.start is not None:
            first, last = part.start, min(part.stop or len(data), len(data))
            headers["Content-Range"] = f"bytes {first}-{last - 1}/{len(data)}"
            return web.Response(status=206, body=data[first:last], headers=headers)
        if self.cut_after is None:
            return web.Response(body=data, headers=headers)
        answer = web.StreamResponse(headers=headers | {"Content-Length": str(len(data))})
        await answer.prepare(request)
        await answer.write(data[: self._take_cut()])
        return _close(request, answer)

    def _take_cut(self) -> int:
        cut, self.cut_after = self.cut_after, None
        return cut or 0


def _close(request: web.Request, answer: web.StreamResponse | None = None) -> web.StreamResponse:
    """Close the connection where it is."""
    if request.transport is not None:
        request.transport.close()
    return answer or web.Response()


def _is_signed(request: web.Request, body: bytes) -> bool:
    """Compute the signature as Amazon's own library does, over the headers that the request says it has signed."""
    if request.headers.get("x-amz-content-sha256") != hashlib.sha256(body).hexdigest():
        return False
    given = request.headers.get("Authorization", "")
    fields = dict(part.strip().split("=", 1) for part in given.partition(" ")[2].split(",") if "=" in part)
    names = fields.get("SignedHeaders", "").split(";")
    signer = S3SigV4Auth(Credentials(ACCESS_KEY, SECRET_KEY), "s3", REGION)
    url = f"{request.scheme}://{request.host}{quote(request.path)}"
    signed = AWSRequest(request.method, url, data=body)
    for name in names:
        signed.headers[name] = request.headers.get(name, "")
    signed.context["timestamp"] = request.headers.get("x-amz-date", "")
    canonical = signer.canonical_request(signed)
    signature = signer.signature(signer.string_to_sign(signed, canonical), signed)
    return fields.get("Signature") == signature and fields.get("Credential", "").startswith(f"{ACCESS_KEY}/")


def _error(status: int, code: str) -> web.Response:
    return web.Response(
        status=status,
        text=f"<Error><Code>{code}</Code><Message>{code}</Message></Error>",
        content_type="application/xml",
    )


@asynccontextmanager
async def open_s3_server() -> AsyncIterator[S3Server]:
    """Serve on a free port of this machine."""
    server = S3Server()
    async with serve_app(server.answer) as place:
        server.address = f"http://{place}"
        try:
            yield server
        finally:
            if server.hold is not None:
                server.hold.set()
