"""Each library through real proxies that alone know the names asked for, and past them to what is near."""

from __future__ import annotations

import asyncio
import os
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
import pytest
import requests
import structlog
from aiohttp import web
from aiohttp.test_utils import TestServer

from gateway.errors import SettingsError
from gateway.health.network_checks import probe_proxy
from gateway.net.addresses import ProxyAddress, is_direct
from gateway.net.connector import connector
from gateway.settings import load_settings
from gateway.web.otlp_recorder import open_session
from tests.fakes import proxies
from tests.fakes.proxies import HostCertificate, open_http_proxy, open_socks

NAME = "platform.example"
SECRET = "p@ss:w0rd/%"
QUOTED = "p%40ss%3Aw0rd%2F%25"
KINDS = pytest.mark.parametrize("scheme", ["http", "socks5", "socks5h"])


@asynccontextmanager
async def platform(tls: ssl.SSLContext | None = None) -> AsyncIterator[int]:
    """Serve a page that says hello, and a WebSocket that does so too."""

    async def hello(request: web.Request) -> web.StreamResponse:
        if request.headers.get("upgrade", "").lower() != "websocket":
            return web.Response(text="hello")
        socket = web.WebSocketResponse()
        await socket.prepare(request)
        await socket.send_str("hello")
        await socket.close()
        return socket

    app = web.Application()
    app.router.add_get("/", hello)
    server = TestServer(app)
    await server.start_server(ssl=tls)
    try:
        assert server.port is not None
        yield server.port
    finally:
        await server.close()


@asynccontextmanager
async def through(scheme: str, **who: str) -> AsyncIterator[tuple[proxies.FakeProxy, int]]:
    """Serve the platform and a proxy that knows it as NAME."""
    opened: Any = open_http_proxy if scheme.startswith("http") else open_socks
    async with platform() as port, opened({NAME: ("127.0.0.1", port)}, **who) as proxy:
        yield proxy, port


async def by_aiohttp(proxy: str, url: str, trusted: ssl.SSLContext | bool = True) -> str:
    """Ask once."""
    async with aiohttp.ClientSession(connector=connector(proxy, ssl=trusted)) as session, session.get(url) as answer:
        return await answer.text()


async def by_websocket(proxy: str, url: str, trusted: ssl.SSLContext | bool = True) -> str:
    """Listen once."""
    async with (
        aiohttp.ClientSession(connector=connector(proxy, ssl=trusted)) as session,
        session.ws_connect(url) as socket,
    ):
        return await socket.receive_str()


async def by_requests(proxy: str, url: str, trusted: ssl.SSLContext | bool = True) -> str:
    """Ask once; what is trusted is told to this library as a file."""
    with open_session(proxy) as session:
        verify = trusted if isinstance(trusted, bool) else os.environ["SSL_CERT_FILE"]
        return (await asyncio.to_thread(session.get, url, verify=verify)).text


WAYS = pytest.mark.parametrize("ask", [by_aiohttp, by_websocket, by_requests])
NEVER_SENT = (aiohttp.ClientConnectorError, requests.ConnectionError)


@KINDS
@WAYS
async def test_a_name_is_asked_of_the_proxy_with_user_and_password(scheme: str, ask: Any) -> None:
    """Requests and WebSockets arrive through every kind of proxy, names unresolved, odd passwords and all."""
    async with through(scheme, user="ann", password=SECRET) as (proxy, _):
        assert await ask(proxy.url(scheme, password=QUOTED), f"http://{NAME}/") == "hello"
        assert proxy.asked == [(NAME, 80)]
        assert proxy.refused == 0


@WAYS
async def test_a_user_without_a_password_is_one(ask: Any) -> None:
    """Some HTTP proxies take a key as the user alone: the probe and what goes through say it alike."""
    async with through("http", user="key") as (proxy, _):
        address = f"http://key@127.0.0.1:{proxy.port}"
        assert await probe_proxy(address) == ""
        assert await ask(address, f"http://{NAME}/") == "hello"


@KINDS
@WAYS
async def test_what_is_near_is_reached_without_it(scheme: str, ask: Any) -> None:
    """A server on this machine is never asked of the proxy, by number or by name."""
    async with through(scheme) as (proxy, port):
        for host in ("127.0.0.1", "localhost"):
            assert await ask(proxy.url(scheme), f"http://{host}:{port}/") == "hello"
        assert proxy.asked == []


@KINDS
@WAYS
async def test_no_way_through_is_known_as_never_sent(scheme: str, ask: Any) -> None:
    """A proxy that is down, that refuses us, or that knows no such name: an error that says nothing was sent."""
    async with through(scheme, user="ann", password="right") as (proxy, _):
        for url in (proxy.url(scheme, password="wrong"), proxy.url(scheme).replace("ann:right@", "")):
            with pytest.raises(NEVER_SENT):
                await ask(url, f"ws://{NAME}/" if ask is by_websocket else f"https://{NAME}/")
        with pytest.raises(NEVER_SENT):
            await ask(proxy.url(scheme), "https://nowhere.example/")
        gone = proxy.url(scheme)
    with pytest.raises(NEVER_SENT):
        await ask(gone, f"https://{NAME}/")


@KINDS
async def test_the_probe_says_what_is_wrong_and_how_to_mend_it(scheme: str) -> None:
    """Right, wrong password, none at all, nobody there, something else there: a line each, and no secret in any."""
    async with through(scheme, user="ann", password="right") as (proxy, port):
        assert await probe_proxy(proxy.url(scheme)) == ""
        said = [
            await probe_proxy(proxy.url(scheme, password="wrong")),
            await probe_proxy(f"{scheme}://127.0.0.1:{proxy.port}"),
            await probe_proxy(f"{scheme}://ann:right@127.0.0.1:{port}"),
        ]
        gone = proxy.url(scheme)
    said.append(await probe_proxy(gone))
    for line, words in zip(
        said, ("rejects the user or password", "requires user", "is not a", "cannot be reached"), strict=True
    ):
        assert words in line
        assert "PARLOUR_PROXY" in line or "user:password@" in line
        assert "right" not in line
        assert "wrong" not in line


@pytest.mark.parametrize("scheme", ["http", "https", "socks5h"])
@WAYS
async def test_tls_is_ours_from_end_to_end(
    scheme: str, ask: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Behind any proxy, one that itself speaks TLS included, the platform's own certificate is what we look at."""
    far, near = HostCertificate.of(NAME, tmp_path), HostCertificate.of("127.0.0.1", tmp_path)
    opened: Any = open_socks if scheme == "socks5h" else open_http_proxy
    tls = {"tls": near.shown()} if scheme == "https" else {}
    (tmp_path / "all.pem").write_bytes(far.file.read_bytes() + near.file.read_bytes())
    url = f"wss://{NAME}/" if ask is by_websocket else f"https://{NAME}/"
    async with platform(far.shown()) as port, opened({NAME: ("127.0.0.1", port)}, **tls) as proxy:
        monkeypatch.setenv("SSL_CERT_FILE", str(near.file))
        if scheme != "https":  # Python 3.11 itself breaks down on a handshake that fails inside another
            with pytest.raises(NEVER_SENT):
                await ask(proxy.url(scheme), url)  # nobody vouches for the platform
        monkeypatch.setenv("SSL_CERT_FILE", str(tmp_path / "all.pem"))
        trusting = ssl.create_default_context()
        assert await ask(proxy.url(scheme), url, trusting) == "hello"
        assert proxy.hosts() == {NAME}


async def test_trouble_is_logged_once_a_minute_and_without_the_password() -> None:
    """Ten failures in a row are one line that names the proxy, and nobody's secret."""
    with structlog.testing.capture_logs() as logs:
        for _ in range(10):
            with pytest.raises(aiohttp.ClientConnectorError):
                await by_aiohttp("socks5h://ann:hidden@127.0.0.1:9", f"https://{NAME}/")
    (line,) = [each for each in logs if each["event"] == "proxy.failed"]
    assert line["proxy"] == "socks5h://127.0.0.1:9"
    assert "hidden" not in str(logs)


def test_a_proxy_shows_no_secret() -> None:
    """Neither its text nor its repr has user or password; ports are the usual ones."""
    proxy = ProxyAddress.parse(f"socks5h://ann:{QUOTED}@[2001:db8::1]")
    assert (proxy.user, proxy.password, proxy.port) == ("ann", SECRET, 1080)
    assert str(proxy) == "socks5h://[2001:db8::1]:1080"
    assert SECRET not in repr(proxy)
    assert "ann" not in repr(proxy)


@pytest.mark.parametrize(
    "address",
    [
        "http://ann:hid/den@proxy.example:8080",
        "http://ann:123/hidden@proxy.example",
        "http://ann:12#hidden@proxy.example",
        "socks5://ann:1?hidden@proxy.example:1080",
        "http://ann:hidden@proxy.example:port",
        "http://ann:hidden@[::1",
        "http://ann:hidden@proxy.example:0",
        "http://ann:hidden@proxy.example/way",
        "ftp://ann:hidden@proxy.example",
        f"socks5://ann:{'hidden' * 50}@proxy.example",
        "socks5://ann:hidd%C3%A4n@proxy.example",  # what the library would break on at each connection
        "socks5://ann@proxy.example",
        "http://:hidden@proxy.example",
    ],
)
def test_no_part_of_a_password_is_taken_for_anything_else(address: str) -> None:
    """An address that can be read wrongly is refused, in words that quote none of it; a setting says it the same."""
    for read in (ProxyAddress.parse, lambda text: load_settings({"PARLOUR_PROXY": text})):
        with pytest.raises((ValueError, SettingsError)) as refused:
            read(address)
        assert not any(part in str(refused.value) for part in ("hid", "den", "ann", "123"))


@pytest.mark.parametrize(
    ("host", "expected"),
    [
        ("127.0.0.1", True),
        ("[::1]", True),
        ("localhost", True),
        ("api.localhost", True),
        ("host.docker.internal", True),
        ("nas.local", True),
        ("local", True),
        ("internal.example.org", False),
        ("10.1.2.3", True),
        ("192.168.0.9", True),
        ("fe80::1%eth0", True),
        ("::ffff:10.0.0.1", True),
        ("ollama", True),
        ("api.openai.com", False),
        ("api.openai.com.", False),
        ("8.8.8.8", False),
        ("2606:4700::1111", False),
        ("127.2", False),
    ],
)
def test_what_is_near(host: str, expected: bool) -> None:
    """Near are this machine, private addresses and names without a dot; everything else goes through the proxy."""
    assert is_direct(host) is expected
