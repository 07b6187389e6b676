"""Web servers on this machine, each on a free port or a given one."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from ssl import SSLContext
from typing import Any, TypeAlias

from aiohttp import web

RequestHandler: TypeAlias = Callable[[web.Request], Awaitable[web.StreamResponse]]


@asynccontextmanager
async def serve_app(
    app: web.Application | RequestHandler, *, port: int = 0, ssl_context: SSLContext | None = None, **options: Any
) -> AsyncIterator[str]:
    """Serve *app*, or a handler of every request, on loopback until the block ends; yield its host and port.

    What hangs is cut off then; *options* are aiohttp's for the runner.
    """
    if not isinstance(app, web.Application):
        handler, app = app, web.Application(client_max_size=1 << 27)
        app.router.add_route("*", "/{path:.*}", handler)
    runner = web.AppRunner(app, **{"access_log": None, "shutdown_timeout": 0.1, **options})
    await runner.setup()
    try:
        await web.TCPSite(runner, "127.0.0.1", port, ssl_context=ssl_context).start()
        yield f"127.0.0.1:{runner.addresses[0][1]}"
    finally:
        await runner.cleanup()
