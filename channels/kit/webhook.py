"""Request bodies, read within a limit."""

from __future__ import annotations

import asyncio

from starlette.requests import Request


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
