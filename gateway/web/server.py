"""The web server as a service: uvicorn inside our own loop, without its signal handlers."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import Callable, Generator, Mapping, Sequence
from typing import Any

import structlog
import uvicorn
from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import JSONResponse, PlainTextResponse, Response
from starlette.routing import BaseRoute, Route

from gateway.errors import UserError
from gateway.net.addresses import cannot_listen, is_loopback
from gateway.web.connections import (
    ConnectionLimiter,
    ConnectionLimits,
    LimitedHttpProtocol,
    LimitedServerState,
    connection_limit,
)
from gateway.web.origin_guard import OriginGuardMiddleware, OriginPolicy, TrustedProxies, is_known_host

log = structlog.get_logger(__name__)

GRACE_SECONDS = 3  # for requests under way; windows come back by themselves
# Above the frame codec's own limit, so that a frame somewhat too long gets a sentence, not a cut line.
LONGEST_MESSAGE = 2_000_000
_BACKLOG = 512  # connections that the kernel holds for us
_ACCEPTED_AT_ONCE = 16  # before the loop looks at anything else
_LOOK_AGAIN = 0.005  # seconds until a stop looks again whether its connections are closed


def open_websocket(**facts: Any) -> asyncio.Protocol:
    """Return uvicorn's protocol for a WebSocket, from what uvicorn passes to its class.

    A gateway that only serves chats of other platforms never loads the library for it.
    """
    from gateway.web.websocket_protocol import LimitedWebSocketProtocol

    return LimitedWebSocketProtocol(**facts)


class EmbeddedServer(uvicorn.Server):
    """Uvicorn that calls *on_started*, leaves signals to the gateway, and ends at `stop` without a pause.

    uvicorn itself looks ten times a second whether it should end, and waits a tenth of a second for its connections
    even where it has none.
    """

    def __init__(self, config: uvicorn.Config, limiter: ConnectionLimiter, on_started: Callable[[], None]) -> None:
        super().__init__(config)
        self.server_state = LimitedServerState(limiter)
        self._on_started = on_started
        self._stopped = asyncio.Event()

    def stop(self) -> None:
        """Have `serve` finish open requests, within the grace of the configuration, and return."""
        self.should_exit = True
        self._stopped.set()

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Start as uvicorn does, with a backlog of our own."""
        await super().startup(sockets)
        for listener in sockets or ():
            # asyncio has one number for both: what it accepts at once, and what the kernel holds.
            listener.listen(_BACKLOG)
        self._on_started()

    async def main_loop(self) -> None:
        """Renew the date of the headers once a second until `stop`."""
        while not await self.on_tick(0):
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(1):
                    await self._stopped.wait()

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Take no more connections, and cancel the requests that do not end within the grace."""
        for listener in (*self.servers, *(sockets or ())):
            listener.close()
        state = self.server_state
        for connection in list(state.connections):
            connection.shutdown()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(self.config.timeout_graceful_shutdown):
                while state.connections or state.tasks:  # noqa: ASYNC110 - uvicorn's sets announce nothing
                    await asyncio.sleep(_LOOK_AGAIN)
        if state.tasks:
            log.warning("web.requests_cancelled", requests=len(state.tasks))
        for task in state.tasks:
            task.cancel()

    @contextlib.contextmanager
    def capture_signals(self) -> Generator[None, None, None]:
        """Handle no signal."""
        yield


def build_server(
    app: Starlette, limiter: ConnectionLimiter, on_started: Callable[[], None], **options: Any
) -> EmbeddedServer:
    """Return a server of *app* whose connections *limiter* bounds; *options* are uvicorn's."""
    config = uvicorn.Config(
        app,
        http=LimitedHttpProtocol,
        ws=open_websocket,  # type: ignore[arg-type]  # uvicorn only calls it
        ws_per_message_deflate=False,  # a small compressed frame can be a very large one
        lifespan="off",
        log_config=None,
        log_level="warning",  # addresses and queries of requests stay out of the logs
        access_log=False,
        proxy_headers=False,
        server_header=False,
        **options,
    )
    return EmbeddedServer(config, limiter, on_started)


def browser_address(host: str, port: int) -> str:
    """Return the address to type into a browser on the machine of a server that listens on *host*."""
    name = host if host not in ("0.0.0.0", "::", "") else "127.0.0.1"  # noqa: S104 - compared with
    return f"http://[{name}]:{port}/" if ":" in name else f"http://{name}:{port}/"


class WebServer:
    """Serves *routes* on one address.

    `app.state.is_private` is True if every visitor is this machine's owner: bound to loopback,
    `web.login: auto`, and neither a public address nor a proxy in front. Each request's `state` has
    `address` (the client's), `base` (the path below which the browser sees us) and `is_secure`.
    """

    def __init__(
        self,
        host: str,
        port: int,
        routes: Sequence[BaseRoute],
        *,
        published_port: int | None = None,
        login: str = "auto",
        public_url: str | None = None,
        trusted_proxies: Sequence[str] = (),
        limits: ConnectionLimits | None = None,
    ) -> None:
        """Serve within *limits* (None = the defaults).

        Raises UserError if the public address's path is one of our own routes.
        """
        self.host = host
        self.port = port  # the real one once bound, when it was 0
        self._published_port = published_port
        way = _way(public_url, trusted_proxies, routes)
        self.app = Starlette(
            routes=list(routes),
            middleware=[Middleware(OriginGuardMiddleware, policy=OriginPolicy.of(host, public_url), way=way)],
            max_body_size=1_000_000,
        )
        self.is_private = login == "auto" and is_loopback(host) and not (public_url or trusted_proxies)
        self.app.state.is_private = self.is_private
        self._way = way
        self._limits = limits
        self._socket: socket.socket | None = None
        self._started = asyncio.Event()

    @property
    def url(self) -> str:
        """The address to type into a browser on this machine."""
        return browser_address(self.host, self._published_port or self.port)

    async def bind(self) -> None:
        """Take the address, so that a wrong one is known before anything else starts; raises UserError."""
        if self._socket is None:
            self._socket = await self._listen()
            self.port = self._socket.getsockname()[1]

    async def serve(self) -> None:
        """Serve until cancelled, then finish open requests. Raises UserError if the address cannot be bound."""
        await self.bind()
        sockets = [self._socket] if self._socket is not None else []
        limits = self._limits or ConnectionLimits(connections=connection_limit())
        server = build_server(
            self.app,
            ConnectionLimiter(limits, is_proxy=self._way.is_proxy),
            self._say_started,
            backlog=_ACCEPTED_AT_ONCE,
            ws_max_size=LONGEST_MESSAGE,
            timeout_graceful_shutdown=GRACE_SECONDS,
        )
        serving = asyncio.create_task(server.serve(sockets=sockets), name="web server")
        try:
            await asyncio.shield(serving)
        finally:
            server.stop()
            await serving
            self._socket = None
            self._started.clear()

    async def wait_started(self) -> None:
        """Return when connections are answered."""
        await self._started.wait()

    def _say_started(self) -> None:
        self._started.set()
        log.info("web.started", host=self.host, port=self.port)

    async def _listen(self) -> socket.socket:
        try:
            found = await asyncio.get_running_loop().getaddrinfo(
                self.host or None, self.port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
            )
            family, _, _, _, address = min(found, key=lambda entry: entry[0] != socket.AF_INET)
            return _bound(family, address)
        except OSError as error:
            raise UserError(cannot_listen(self.host, self.port, error)) from error


def _way(public_url: str | None, trusted_proxies: Sequence[str], routes: Sequence[BaseRoute]) -> TrustedProxies:
    way = TrustedProxies.resolve(public_url, trusted_proxies)
    first = way.base.split("/")[1:2]
    taken = {str(getattr(route, "path", "")).split("/")[1] for route in routes}
    if first and first[0] in taken:
        raise UserError(
            f"the path of web.public_url begins with /{first[0]}, as an address of the page's own does;"
            " choose another path, such as /chat"
        )
    return way


def _bound(family: int, address: object) -> socket.socket:
    listener = socket.socket(family, socket.SOCK_STREAM)
    try:
        # A restart must not wait for the kernel to forget the last run's connections.
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(address)  # type: ignore[arg-type]  # getaddrinfo's own tuple
        listener.listen(_BACKLOG)
        listener.setblocking(False)
    except OSError:
        listener.close()
        raise
    return listener


class HealthEndpoints:
    """`/healthz`: the process is alive. `/readyz`: the store can be written and every channel was tried.

    Load balancers and probes ask by an address or a service name, so both answer to every Host header, with a bare
    word: a foreign page whose name was pointed at this server reads no more. Requests by a known name get the
    particulars. Neither waits for the store.
    """

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
