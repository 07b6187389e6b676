"""Connections: a slow client is closed at its deadline, and the longest silent makes room for the next."""

from __future__ import annotations

import asyncio
import resource
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

import aiohttp
import pytest
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import BaseRoute, Route, WebSocketRoute
from starlette.websockets import WebSocket

from gateway.web.connections import ConnectionLimits, connection_limit, raise_open_file_limit
from gateway.web.server import WebServer
from tests.fakes.clock import VirtualClock

GET = b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n"
OWN = b"Host: localhost:%d\r\nOrigin: http://localhost:%d\r\n"
POST = b"POST / HTTP/1.1\r\n" + OWN + b"Content-Length: %d\r\n\r\n"
UPGRADE = (
    b"GET /ws HTTP/1.1\r\n" + OWN + b"Connection: upgrade\r\nUpgrade: websocket\r\n"
    b"Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==\r\n\r\n"
)
LARGE = 60_000_000  # bytes, more than the kernel holds for a reader that does not read


async def read_all(request: Request) -> Response:
    """Answer with the size of the body."""
    return PlainTextResponse(str(len(await request.body())))


async def unread(_: Request) -> Response:
    """Answer at once, whatever is still to come."""
    return PlainTextResponse("unread")


async def large(_: Request) -> Response:
    """Answer with more than fits in any buffer."""
    return Response(bytes(LARGE))


async def never(socket: WebSocket) -> None:
    """Neither accept nor refuse."""
    await socket.receive()
    await socket.receive()


ROUTES = [
    Route("/", unread, methods=["GET"]),
    Route("/", read_all, methods=["POST"], max_body_size=1_000_000),
    Route("/unread", unread, methods=["POST"]),
    Route("/large", large),
    WebSocketRoute("/ws", never),
]


@asynccontextmanager
async def serving(
    limits: ConnectionLimits | None = None, *, routes: Sequence[BaseRoute] = ROUTES, proxies: Sequence[str] = ()
) -> AsyncIterator[WebServer]:
    """Serve *routes* within *limits*."""
    server = WebServer("127.0.0.1", 0, routes, limits=limits, trusted_proxies=proxies)
    running = asyncio.create_task(server.serve())
    await server.wait_started()
    try:
        yield server
    finally:
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)


async def ask(server: WebServer, request: bytes) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    """Send the bytes of *request*, and nothing more."""
    reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
    writer.write(request)
    await writer.drain()
    return reader, writer


async def rest_of(reader: asyncio.StreamReader) -> bytes:
    """Return what comes until the server closes; a reset is a close."""
    try:
        return await reader.read()
    except ConnectionResetError:
        return b""


@pytest.mark.parametrize("request_", [b"", b"GET / HT", GET[:-2]], ids=["nothing", "half a line", "half a header"])
async def test_a_header_that_does_not_come_closes_the_connection(request_: bytes, clock: VirtualClock) -> None:
    """An idle connection and a header without an end are closed without an answer."""
    async with serving() as server:
        reader, writer = await ask(server, request_)
        assert await rest_of(reader) == b""
        assert clock.seconds == pytest.approx(10, abs=1)
        writer.close()


async def test_a_second_header_has_a_deadline_too(clock: VirtualClock) -> None:
    """What a kept connection begins to ask must be asked in time; uvicorn's own timer ends with its first byte."""
    async with serving() as server:
        reader, writer = await ask(server, GET)
        await reader.readuntil(b"unread")
        writer.write(b"G")
        assert await rest_of(reader) == b""
        writer.close()


@pytest.mark.parametrize("path", [b"/", b"/unread"])
async def test_a_body_that_does_not_come_closes_the_connection(
    path: bytes, caplog: pytest.LogCaptureFixture, clock: VirtualClock
) -> None:
    """One byte of a body holds nothing, whether anybody reads it or the answer is out already; no traceback either."""
    async with serving() as server:
        request = (POST % (server.port, server.port, 4_000)).replace(b"POST / ", b"POST %s " % path)
        reader, writer = await ask(server, request + b"x")
        assert (await rest_of(reader)).endswith(b"unread") is (path == b"/unread")
        assert clock.seconds < 21
        writer.close()
    assert "Traceback" not in caplog.text


async def test_a_body_that_keeps_coming_is_taken(clock: VirtualClock) -> None:
    """The deadline of a body starts again while it comes fast enough."""
    async with serving() as server:
        reader, writer = await ask(server, POST % (server.port, server.port, 1_000_000))
        for _ in range(10):
            writer.write(bytes(100_000))
            await writer.drain()
            await asyncio.sleep(15)
        assert (await reader.readuntil(b"1000000")).startswith(b"HTTP/1.1 200")
        writer.close()


async def test_a_client_that_does_not_read_is_closed(clock: VirtualClock) -> None:
    """An answer that nobody takes is not kept for ever."""
    async with serving() as server:
        reader, writer = await ask(server, GET.replace(b"/ ", b"/large ", 1))
        await asyncio.sleep(100)
        assert len(await rest_of(reader)) < LARGE
        writer.close()


async def test_a_socket_that_is_not_accepted_is_closed(clock: VirtualClock) -> None:
    """Until somebody is known to sit before it, a WebSocket has a deadline."""
    async with serving() as server:
        reader, writer = await ask(server, UPGRADE % (server.port, server.port))
        assert await rest_of(reader) == b""
        writer.close()


@pytest.mark.parametrize(("proxies", "left"), [((), 10), (("127.0.0.1",), 40)], ids=["one address", "a proxy"])
async def test_the_longest_silent_make_room(proxies: Sequence[str], left: int) -> None:
    """Of idle connections the newest stay, a quarter of all for one address; a request is answered beside them."""
    async with serving(ConnectionLimits(connections=40), proxies=proxies) as server, aiohttp.ClientSession() as session:
        idle = [await ask(server, b"") for _ in range(60)]
        async with session.get(server.url) as answer:
            assert await answer.text() == "unread"
        for reader, _ in idle[: 60 - left]:
            assert await rest_of(reader) == b""
        reader, writer = idle[-1]
        writer.write(GET)
        await reader.readuntil(b"unread")
        for _, writer in idle:
            writer.close()


async def test_a_proxy_is_not_one_visitor() -> None:
    """Who comes through a proxy that the operator named shares its address with everybody else."""
    async with serving(ConnectionLimits(connections=40), proxies=["127.0.0.1"]) as server:
        asking = [await ask(server, GET[:-2]) for _ in range(20)]
        for reader, writer in asking:
            writer.write(b"\r\n")
            await reader.readuntil(b"unread")
            writer.close()


def test_half_of_the_descriptors_stay_for_the_house() -> None:
    """The soft limit is raised to the hard one, and the web server takes at most half of it."""
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (1_000, before[1]))
        assert connection_limit() == 500
        assert raise_open_file_limit() == before[1]
        assert connection_limit() <= before[1] // 2
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, before)
