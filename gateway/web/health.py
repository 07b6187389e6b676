"""`/healthz`: the process is alive. `/readyz`: the journal can be written and every channel was tried."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Mapping

from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from gateway.errors import StoreUnavailable

CHECK_EVERY = 1.0  # seconds; asking more often gets the last answer, since each check is a durable write

Check = Callable[[], Awaitable[None]]  # one durable write; raises StoreUnavailable
Channels = Callable[[], Mapping[str, bool | None]]  # None = not tried yet, False = degraded


class HealthEndpoints:
    """The endpoints /healthz and /readyz, from plain callables."""

    def __init__(self, *, check: Check, channels: Channels, clock: Callable[[], float] = time.monotonic) -> None:
        self._check = check
        self._channels = channels
        self._clock = clock
        self._lock = asyncio.Lock()
        self._checked_at = -CHECK_EVERY
        self._writable = False

    def routes(self) -> list[Route]:
        """Return both routes."""
        return [Route("/healthz", self._alive, methods=["GET"]), Route("/readyz", self._ready, methods=["GET"])]

    async def readiness(self) -> tuple[bool, Mapping[str, object]]:
        """Return whether traffic may come, and the body; a degraded channel is named and does not count."""
        writable = await self._is_writable()
        channels = self._channels()
        untried = sorted(name for name, state in channels.items() if state is None)
        degraded = sorted(name for name, state in channels.items() if state is False)
        ready = writable and not untried
        return ready, {"ready": ready, "journal": writable, "untried": untried, "degraded": degraded}

    async def _is_writable(self) -> bool:
        async with self._lock:
            if self._clock() - self._checked_at >= CHECK_EVERY:
                try:
                    await self._check()
                except StoreUnavailable:
                    self._writable = False
                else:
                    self._writable = True
                self._checked_at = self._clock()
            return self._writable

    async def _alive(self, _: Request) -> Response:
        return JSONResponse({"alive": True})

    async def _ready(self, _: Request) -> Response:
        ready, body = await self.readiness()
        return JSONResponse(body, 200 if ready else 503)
