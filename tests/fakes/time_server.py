"""A server that says what time it is, right or wrong."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import datetime
from email.utils import format_datetime

from aiohttp import web


class TimeServer:
    """Answers everything with a Date of its own."""

    def __init__(self, at: datetime | str) -> None:
        self.date = at if isinstance(at, str) else format_datetime(at, usegmt=True)
        self.base = ""
        self.paths: list[str] = []

    async def handle(self, request: web.Request) -> web.Response:
        """Say the time."""
        self.paths.append(request.path_qs)
        return web.Response(headers={"Date": self.date})


@asynccontextmanager
async def open_time_server(at: datetime | str) -> AsyncIterator[TimeServer]:
    """Serve until the block ends; a text is said as it stands."""
    server = TimeServer(at)
    app = web.Application()
    app.router.add_route("*", "/{rest:.*}", server.handle)
    runner = web.AppRunner(app)
    await runner.setup()
    try:
        site = web.TCPSite(runner, "127.0.0.1", 0)
        await site.start()
        server.base = f"http://127.0.0.1:{runner.addresses[0][1]}"
        yield server
    finally:
        await runner.cleanup()
