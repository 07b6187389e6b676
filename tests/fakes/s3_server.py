"""A server that speaks S3's objects: put, get and delete in one bucket, with signatures of version 4."""

from __future__ import annotations

import asyncio
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

    async def answer(self, request: web.Request) -> web.StreamResponse:
        """Answer one request."""
        self.requests.append(f"{request.method} {request.path}")
        body = await request.read()
        if self.is_away:
            return _error(503, "SlowDown")
        if not _is_signed(request, body):
            return _error(403, "SignatureDoesNotMatch")
        bucket, _, name = request.path.lstrip("/").partition("/")
        if bucket != BUCKET:
            return _error(404, "NoSuchBucket")
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
        headers = {"ETag": '"1"', "Last-Modified": "Tue, 24 Nov 2026 12:00:00 GMT"}
        return web.Response(body=self.objects[name], headers=headers)


def _is_signed(request: web.Request, body: bytes) -> bool:
    """Compute the signature as Amazon's own library does, over the headers that the request says it has signed."""
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
