"""`/healthz`: the process is alive. `/readyz`: the store can be written and every channel was tried.

Load balancers and probes ask by an address or a service name, so both answer to every Host header, with a bare word:
a foreign page whose name was pointed at this server reads no more. Requests by a known name get the particulars.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from starlette.requests import Request
from starlette.responses import JSONResponse, PlainTextResponse, Response
from starlette.routing import Route

from gateway.web.origin_guard import is_known_host


class HealthEndpoints:
    """The endpoints /healthz and /readyz. They do not wait for the store."""

    def __init__(self, readiness: Callable[[], tuple[bool, Mapping[str, object]]]) -> None:
        """*readiness* returns whether traffic may come, and the body of /readyz."""
        self._readiness = readiness

    def routes(self) -> list[Route]:
        """Return both routes."""
        return [Route("/healthz", self._alive, methods=["GET"]), Route("/readyz", self._ready, methods=["GET"])]

    async def _alive(self, request: Request) -> Response:
        return JSONResponse({"alive": True}) if is_known_host(request) else PlainTextResponse("alive\n")

    async def _ready(self, request: Request) -> Response:
        ready, body = self._readiness()
        status = 200 if ready else 503
        if not is_known_host(request):
            return PlainTextResponse("ready\n" if ready else "not ready\n", status)
        return JSONResponse(body, status)
