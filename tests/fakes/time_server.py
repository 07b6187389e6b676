"""A server that says what time it is, right or wrong."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import datetime
from email.utils import format_datetime

from aiohttp import web

from tests.fakes.loopback import serve_app


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
    async with serve_app(server.handle) as place:
        server.base = f"http://{place}"
        yield server
