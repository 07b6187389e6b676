"""The web server as a service: it says when it is up, names what stands in its way, and ends cleanly."""

from __future__ import annotations

import asyncio
import signal
import socket

import aiohttp
import pytest
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Route

from gateway.errors import UserError
from gateway.web.server import GRACE_SECONDS, WebServer
from tests.fakes.clock import VirtualClock


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
