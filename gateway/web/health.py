"""`/healthz`: the process is alive. `/readyz`: the store can be written and every channel was tried.

Load balancers and probes ask by an address or a service name, so both answer to every Host header, with a bare word:
a foreign page whose name was pointed at this server reads no more. Requests by a known name get the particulars.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from starlette.requests import Request
from starlette.responses import JSONResponse, PlainTextResponse, Response
from starlette.routing import Route

from gateway.store_watcher import StoreState
from gateway.web.origin_guard import is_known_host

Channels = Callable[[], Mapping[str, bool | None]]  # None = not tried yet, False = degraded


class HealthEndpoints:
    """The endpoints /healthz and /readyz, from plain callables. They do not wait for the store."""

    def __init__(self, *, store: Callable[[], StoreState | None], channels: Channels) -> None:
        """*store* returns the last measurement of the store; None before the first."""
        self._store = store
        self._channels = channels

    def routes(self) -> list[Route]:
        """Return both routes."""
        return [Route("/healthz", self._alive, methods=["GET"]), Route("/readyz", self._ready, methods=["GET"])]

    def readiness(self) -> tuple[bool, Mapping[str, object]]:
        """Return whether traffic may come, and the body; a degraded channel is named and does not count."""
        state, channels = self._store(), self._channels()
        is_writable = state is not None and state.is_writable
        untried = sorted(name for name, state in channels.items() if state is None)
        degraded = sorted(name for name, state in channels.items() if state is False)
        ready = is_writable and not untried
        return ready, {"ready": ready, "journal": is_writable, "untried": untried, "degraded": degraded}

    async def _alive(self, request: Request) -> Response:
        return JSONResponse({"alive": True}) if is_known_host(request) else PlainTextResponse("alive\n")

    async def _ready(self, request: Request) -> Response:
        ready, body = self.readiness()
        status = 200 if ready else 503
        if not is_known_host(request):
            return PlainTextResponse("ready\n" if ready else "not ready\n", status)
        return JSONResponse(body, status)
