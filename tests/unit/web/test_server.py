"""The page's HTTP server: starts, stops, proxies, and connections that are slow or too many."""

from __future__ import annotations

import asyncio
import resource
import signal
import socket
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any

import aiohttp
import pytest
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import BaseRoute, Route, WebSocketRoute
from starlette.websockets import WebSocket

from gateway.errors import UserError
from gateway.web.connections import ConnectionLimits, connection_limit, raise_open_file_limit
from gateway.web.origin_guard import ResolvedRequest, TrustedProxies
from gateway.web.server import GRACE_SECONDS, WebServer
from tests.fakes.clock import VirtualClock
from tests.fakes.web_services import FakePageServices, serve_page


async def hello(_: Request) -> Response:
    """Answer."""
    return PlainTextResponse("hello")


async def test_it_serves_until_cancelled_and_frees_its_port() -> None:
    """Started means answering; ended means that the next run can have the port at once."""
    server = WebServer("127.0.0.1", 0, [Route("/", hello)])
    for _ in range(2):
        serving = asyncio.create_task(server.serve())
        await server.wait_started()
        async with aiohttp.ClientSession() as session, session.get(server.url) as answer:
            assert await answer.text() == "hello"
        serving.cancel()
        with pytest.raises(asyncio.CancelledError):
            await serving


async def test_a_request_under_way_is_finished_at_the_end() -> None:
    """Stopping takes no answer away from somebody who waits for it."""
    asked, answer_now = asyncio.Event(), asyncio.Event()

    async def slow(_: Request) -> Response:
        asked.set()
        await answer_now.wait()
        return PlainTextResponse("late")

    server = WebServer("127.0.0.1", 0, [Route("/", slow)])
    async with aiohttp.ClientSession() as session, asyncio.TaskGroup() as tasks:
        serving = tasks.create_task(server.serve())
        await server.wait_started()

        async def ask() -> str:
            async with session.get(server.url) as answer:
                return await answer.text()

        asking = tasks.create_task(ask())
        await asked.wait()
        serving.cancel()
        answer_now.set()
        assert await asking == "late"


async def test_an_end_is_not_waited_for_longer_than_it_takes(clock: VirtualClock) -> None:
    """A connection that asks nothing delays no stop; a request that does not end is cancelled after the grace."""
    is_cancelled = asyncio.Event()

    async def hang(_: Request) -> Response:
        try:
            await asyncio.Event().wait()
        finally:
            is_cancelled.set()
        return PlainTextResponse("never")

    server = WebServer("127.0.0.1", 0, [Route("/", hello), Route("/hang", hang)])
    async with aiohttp.ClientSession() as session:
        for path, seconds in (("", 0), ("hang", GRACE_SECONDS)):
            serving = asyncio.create_task(server.serve())
            await server.wait_started()
            async with session.get(server.url) as answer:
                await answer.text()
            asking = asyncio.create_task(session.get(server.url + path))
            await asyncio.sleep(10)
            before = clock.seconds
            serving.cancel()
            await asyncio.gather(serving, asking, return_exceptions=True)
            assert clock.seconds - before == pytest.approx(seconds, abs=0.05)
    assert is_cancelled.is_set()


async def test_a_taken_port_is_one_clear_line() -> None:
    """It names the port and the setting, before anything else is started."""
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        with pytest.raises(UserError) as mistake:
            await WebServer("127.0.0.1", port, []).bind()
    assert str(port) in str(mistake.value)
    assert "PARLOUR_WEB__PORT" in str(mistake.value)
    assert "\n" not in str(mistake.value)


@pytest.mark.parametrize("host", ["203.0.113.7", "no such name"])
async def test_an_address_that_is_not_here_names_its_setting(host: str) -> None:
    """Neither a foreign address nor a name that does not exist can be bound."""
    with pytest.raises(UserError, match="PARLOUR_WEB__HOST"):
        await WebServer(host, 0, []).bind()


async def test_signals_stay_the_houses_own() -> None:
    """Uvicorn takes SIGTERM and SIGINT from whoever runs it; ours does not."""
    before = signal.getsignal(signal.SIGTERM), signal.getsignal(signal.SIGINT)
    server = WebServer("127.0.0.1", 0, [])
    serving = asyncio.create_task(server.serve())
    await server.wait_started()
    assert (signal.getsignal(signal.SIGTERM), signal.getsignal(signal.SIGINT)) == before
    serving.cancel()
    await asyncio.gather(serving, return_exceptions=True)


EVERYWHERE = "0.0.0.0"  # noqa: S104 - what a container binds to


PRIVATE: list[tuple[str, str, str | None, bool]] = [
    ("127.0.0.1", "auto", None, True),
    ("localhost", "auto", None, True),
    ("::1", "auto", None, True),
    ("127.0.0.1", "always", None, False),
    ("127.0.0.1", "auto", "https://chat.example.org", False),
    (EVERYWHERE, "auto", None, False),
    ("192.168.1.5", "auto", None, False),
    ("", "auto", None, False),
]


@pytest.mark.parametrize(("host", "login", "public", "private"), PRIVATE)
def test_only_this_machines_own_page_is_private(host: str, login: str, public: str | None, private: bool) -> None:
    """Loopback, `auto` and no public address, all three; anything else asks for a code."""
    assert WebServer(host, 8787, [], login=login, public_url=public).app.state.is_private is private


def test_the_address_to_type_is_one_that_works() -> None:
    """A wildcard is no address a browser can open; IPv6 needs its brackets."""
    assert WebServer(EVERYWHERE, 8787, []).url == "http://127.0.0.1:8787/"
    assert WebServer("::1", 8787, []).url == "http://[::1]:8787/"
    assert WebServer(EVERYWHERE, 8787, [], published_port=9000).url == "http://127.0.0.1:9000/"


URL = "https://chat.example.org/chat/"


def arrive(path: str = "/", *, way: TrustedProxies, peer: str = "127.0.0.1", **headers: str) -> ResolvedRequest:
    """Let a request come; a header's name is written with underscores."""
    given = [(name.replace("_", "-").encode(), value.encode()) for name, value in headers.items()]
    scope: dict[str, Any] = {"type": "http", "path": path, "headers": given, "client": (peer, 5), "scheme": "http"}
    return way.arrival(scope)


VISITORS = [
    ("nobody is trusted", (), "127.0.0.1", "203.0.113.9", "127.0.0.1"),
    ("a stranger forges", ("10.0.0.1",), "198.51.100.7", "127.0.0.1", "198.51.100.7"),
    ("one proxy", ("127.0.0.1",), "127.0.0.1", "203.0.113.9", "203.0.113.9"),
    ("forged through one that appends", ("127.0.0.1",), "127.0.0.1", "127.0.0.1, 203.0.113.9", "203.0.113.9"),
    ("two proxies", ("127.0.0.1", "10.0.0.0/8"), "127.0.0.1", "1.1.1.1, 203.0.113.9, 10.2.3.4", "203.0.113.9"),
    ("the second is not trusted", ("127.0.0.1",), "127.0.0.1", "203.0.113.9, 10.2.3.4", "10.2.3.4"),
    ("ports and brackets", ("::1",), "::1", "203.0.113.9:443, [::1]:80", "203.0.113.9"),
    ("no address", ("127.0.0.1",), "127.0.0.1", "unknown", "127.0.0.1"),
    ("rubbish before it", ("127.0.0.1",), "127.0.0.1", "'; drop, 203.0.113.9", "203.0.113.9"),
    ("IPv4 as IPv6", ("127.0.0.1",), "::ffff:127.0.0.1", "203.0.113.9", "203.0.113.9"),
    ("very many", ("127.0.0.1",), "127.0.0.1", ", ".join(["127.0.0.1"] * 5_000), "127.0.0.1"),
]


@pytest.mark.parametrize(("name", "trusted", "peer", "forwarded", "expected"), VISITORS)
def test_the_visitor_is_whom_trusted_proxies_vouch_for(
    name: str, trusted: tuple[str, ...], peer: str, forwarded: str, expected: str
) -> None:
    """Walked back from the connection, only as far as each who tells is trusted: what is forged stands before that."""
    assert arrive(way=TrustedProxies.resolve(URL, trusted), peer=peer, x_forwarded_for=forwarded).address == expected, (
        name
    )


def test_name_and_scheme_are_believed_of_a_trusted_proxy_alone() -> None:
    """X-Forwarded-Host and -Proto of anybody else change nothing; our own page's origin tells TLS as well."""
    way = TrustedProxies.resolve(URL, ("10.0.0.1",))
    said = {"host": "127.0.0.1:8787", "x_forwarded_host": "chat.example.org", "x_forwarded_proto": "https"}
    believed, forged = arrive(way=way, peer="10.0.0.1", **said), arrive(way=way, peer="10.0.0.2", **said)
    assert (believed.host, believed.is_secure, believed.base) == ("chat.example.org", True, "/chat")
    assert (forged.host, forged.is_secure, forged.base) == ("127.0.0.1:8787", False, "")
    assert arrive(way=way, host="x", origin="https://chat.example.org").is_secure
    assert arrive(way=way, peer="10.0.0.1", **{**said, "x_forwarded_host": "a, b"}).host == ""


PATHS = [
    ("/chat/assets/app.js", "127.0.0.1:8787", "/assets/app.js", "/chat"),
    ("/assets/app.js", "chat.example.org", "/assets/app.js", "/chat"),
    ("/assets/app.js", "127.0.0.1:8787", "/assets/app.js", ""),
    ("/chat/", "chat.example.org", "/", "/chat"),
    ("/chatter/", "127.0.0.1:8787", "/chatter/", ""),
    ("/chat/hooks/telegram", "127.0.0.1", "/hooks/telegram", "/chat"),
]


@pytest.mark.parametrize(("asked", "host", "path", "base"), PATHS)
def test_the_path_is_ours_whether_it_was_cut_off_or_not(asked: str, host: str, path: str, base: str) -> None:
    """`base` is what the browser sees before our paths; past the proxy, on this machine, that is nothing."""
    arrival = arrive(asked, way=TrustedProxies.resolve(URL), host=host)
    assert (arrival.path, arrival.base, arrival.is_bare) == (path, base, False)
    assert arrive("/chat", way=TrustedProxies.resolve(URL), host=host).is_bare


@pytest.mark.parametrize("path", ["/files/", "/login", "/hooks/x"])
def test_a_public_path_that_is_one_of_ours_is_refused(path: str) -> None:
    """Nobody could tell whether the proxy had cut it off."""
    channel = FakePageServices().context("web")
    from channels.web import plugin

    routes = [*plugin.routes(plugin.open(channel)), *_hook()]
    with pytest.raises(UserError, match="choose another path"):
        WebServer("127.0.0.1", 0, routes, public_url=f"https://chat.example.org{path}")


def _hook() -> list[Any]:
    from starlette.routing import Route

    return [Route("/hooks/telegram", lambda request: None)]


@pytest.mark.parametrize("trusted", [("127.0.0.1",), ("10.0.0.0/8",)])
async def test_behind_a_proxy_nobody_is_the_owner_by_being_on_this_machine(trusted: tuple[str, ...]) -> None:
    """Naming a proxy is as good as a public address: the page asks for a code, of a local browser too."""
    async with serve_page(FakePageServices(), trusted_proxies=trusted) as served:
        assert not served.server.app.state.is_private


async def test_wrong_codes_from_many_addresses_shut_nobody_out() -> None:
    """Behind a proxy, seventy addresses that guess are refused, and the right code logs its browser in."""
    services = FakePageServices()
    async with (
        serve_page(services, public_url=URL, trusted_proxies=("127.0.0.1",)) as page,
        aiohttp.ClientSession() as session,
    ):

        async def enter(code: str, address: str) -> int:
            headers = {"Host": "chat.example.org", "Origin": "https://chat.example.org", "X-Forwarded-For": address}
            async with session.post(f"{page.url}login", json={"code": code}, headers=headers) as answer:
                return answer.status

        assert {await enter("AAAA-AAAA", f"198.51.100.{n}") for n in range(70)} == {401}
        assert await enter(await page.channel.issue_code("ann"), "203.0.113.9") == 204


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
