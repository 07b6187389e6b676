"""The client for addresses that a model or a page named: address rules, limits and rates, over real connections."""

from __future__ import annotations

import asyncio
import gzip
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer

from gateway.net import public_http
from gateway.net.public_http import NOT_PUBLIC, FetchFailed, HostRates, PublicHttpClient, is_public, parse_public_url
from tests.fakes.public_site import LoopbackResolver

NOT_PUBLIC_FORMS = {
    "loopback": ("127.0.0.1", "127.255.255.254", "::1", "::ffff:127.0.0.1"),
    "unspecified": ("0.0.0.0", "0.1.2.3", "::", "::ffff:0.0.0.0"),  # noqa: S104
    "private": ("10.1.2.3", "172.16.0.1", "192.168.1.1", "fd00::1", "::ffff:10.1.2.3"),
    "shared": ("100.64.0.1",),
    "link-local": ("169.254.169.254", "::ffff:169.254.169.254", "fe80::1"),
    "site-local": ("fec0::1",),
    "documentation": ("192.0.2.1", "198.51.100.1", "203.0.113.1", "2001:db8::1", "3fff::1"),
    "benchmarks": ("198.18.0.1",),
    "relays": ("192.88.99.1",),
    "multicast": ("224.0.0.1", "239.255.255.250", "ff02::1", "ff0e::1"),
    "reserved": ("240.0.0.1", "255.255.255.255", "5f00::1", "100::1", "4000::1"),
    "translated": ("64:ff9b::7f00:1", "64:ff9b::10.1.2.3", "64:ff9b:1::1", "2002:7f00:1::", "2001::1", "::127.0.0.1"),
    "no address": ("", "localhost", "127.1", "fe80::1%eth0"),
}


@pytest.mark.parametrize("address", [each for group in NOT_PUBLIC_FORMS.values() for each in group])
def test_an_address_that_is_not_public(address: str) -> None:
    """No class of special address counts as public, in no form that carries another."""
    assert not is_public(address)


@pytest.mark.parametrize("address", ["1.1.1.1", "93.184.216.34", "2606:4700::1", "64:ff9b::1.1.1.1", "::ffff:1.1.1.1"])
def test_an_address_that_is_public(address: str) -> None:
    """Ordinary addresses are public, and so are their mapped and translated forms."""
    assert is_public(address)


@pytest.mark.parametrize(
    "url",
    [
        *(
            "file:///etc/passwd",
            "ftp://example.org/",
            "gopher://example.org/",
            "data:text/html,x",
            "javascript:alert(1)",
        ),
        *("http://user@example.org/", "http://example.org:pw@127.0.0.1/", "http:///x", "", "x"),
        *("http://example.org:22/", "http://example.org:6379/", "http://example.org:99999/", "http://[::1", "//x.org/"),
        *(
            "http://example.org/\r\nHost: x",
            "http://exam\tple.org/",
            "http://example.org\\@127.0.0.1/",
            "http://a b.org/",
        ),
        *("http://[fe80::1%25lo]/", "http://127.0.0.1%2f@example.org/", "http+unix://%2Fvar%2Frun%2Fdocker.sock/"),
        *("http://exam\u202eple.org/", "http://example.org/" + "a" * 2_000),
    ],
)
def test_an_address_that_is_not_opened(url: str) -> None:
    """Other schemes and ports, user names, separators of other parsers and hidden characters are refused unread."""
    with pytest.raises(FetchFailed):
        parse_public_url(url)


def test_an_address_is_read_once() -> None:
    """The host is in ASCII as it is dialled, and nothing behind # is sent."""
    assert str(parse_public_url("http://example.org#@127.0.0.1/")) == "http://example.org"
    assert parse_public_url("https://bücher.example/a?b=ü#c").raw_host == "xn--bcher-kva.example"
    assert parse_public_url("http://①②⑦.⓪.⓪.①/").raw_host == "127.0.0.1"


@asynccontextmanager
async def serve(monkeypatch: pytest.MonkeyPatch, **pages: Any) -> AsyncIterator[tuple[PublicHttpClient, str]]:
    """Serve *pages* at a public name; the rule itself is tried elsewhere, in a namespace."""
    app = web.Application()
    for name, page in pages.items():
        app.router.add_get(f"/{name}", page)
    server = TestServer(app)
    await server.start_server()
    assert server.port is not None
    monkeypatch.setattr(public_http, "is_public", lambda address: address == "127.0.0.1")
    try:
        yield (
            PublicHttpClient(ports=[server.port], resolver=LoopbackResolver),
            f"http://site.example:{server.port}",
        )
    finally:
        await server.close()


async def test_loopback_is_not_dialled_by_any_name() -> None:
    """Every spelling of loopback is refused, though a server listens there on the port that is allowed."""
    hits: list[str] = []

    async def page(request: web.Request) -> web.Response:
        hits.append(request.host)
        return web.Response(text="secret")

    app = web.Application()
    app.router.add_get("/", page)
    server = TestServer(app)
    await server.start_server()
    try:
        client = PublicHttpClient(ports=[server.port or 0], resolver=LoopbackResolver)
        for host in ("127.0.0.1", "localhost", "127.1", "2130706433", "0x7f.1", "0177.1", "0", "a.example", "[::1]"):
            with pytest.raises(FetchFailed, match=NOT_PUBLIC):
                await client.fetch(f"http://{host}:{server.port}/")
    finally:
        await server.close()
    assert hits == []


async def test_nothing_of_us_is_sent(monkeypatch: pytest.MonkeyPatch) -> None:
    """A request has our name and version; no cookie, no referrer and no password from a file of the system."""
    seen: list[dict[str, str]] = []

    async def page(request: web.Request) -> web.Response:
        seen.append({name.lower(): value for name, value in request.headers.items()})
        is_first = request.path == "/first"
        response = web.Response(status=302 if is_first else 200, headers={"Location": "/again"} if is_first else {})
        response.set_cookie("track", "1")
        return response

    monkeypatch.setenv("HTTP_PROXY", "http://127.0.0.1:9")
    async with serve(monkeypatch, first=page, again=page) as (client, base):
        assert (await client.fetch(f"{base}/first")).url == f"{base}/again"
    assert len(seen) == 2
    for headers in seen:
        assert headers["user-agent"].startswith("Parlour/")
        assert not headers.keys() & {"cookie", "referer", "authorization", "proxy-authorization"}


async def test_a_body_is_unpacked_within_its_ratio(monkeypatch: pytest.MonkeyPatch) -> None:
    """Packed text arrives unpacked; what unpacks to a hundred times its size, or is no packed data, does not."""

    def packed(body: bytes) -> Any:
        async def page(request: web.Request) -> web.Response:
            return web.Response(body=body, headers={"Content-Encoding": "gzip"})

        return page

    bomb, words = gzip.compress(bytes(4_000_000), 9), gzip.compress(b"words " * 100)
    async with serve(monkeypatch, bomb=packed(bomb), words=packed(words), junk=packed(b"no gzip")) as (client, base):
        assert (await client.fetch(f"{base}/words")).body == b"words " * 100
        with pytest.raises(FetchFailed, match="100 times"):
            await client.fetch(f"{base}/bomb")
        with pytest.raises(FetchFailed, match="packed wrongly"):
            await client.fetch(f"{base}/junk")


async def test_an_api_of_the_operator_may_be_private(monkeypatch: pytest.MonkeyPatch) -> None:
    """The operator's own service is called where it is; a redirect of it is not followed."""

    async def api(request: web.Request) -> web.Response:
        return web.json_response({"ok": request.headers["X-Key"]})

    async def moved(request: web.Request) -> web.Response:
        raise web.HTTPFound("/api")

    async with serve(monkeypatch, api=api, moved=moved) as (client, base):
        port = base.rpartition(":")[2]
        monkeypatch.undo()
        found = await client.call_api("GET", f"http://127.0.0.1:{port}/api", headers={"X-Key": "k"})
        assert (found.status, found.body) == (200, b'{"ok": "k"}')
        with pytest.raises(FetchFailed, match="redirects"):
            await client.call_api("GET", f"http://127.0.0.1:{port}/moved")


async def test_a_host_is_asked_once_a_second_and_twice_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of five fetches from a host, two run at once, each a second after the one before; others do not wait."""
    slept: list[float] = []

    async def sleep(seconds: float) -> None:
        slept.append(round(seconds))

    monkeypatch.setattr("gateway.net.public_http.asyncio.sleep", sleep)
    rates, running, most, release = HostRates(), 0, 0, asyncio.Event()

    async def hold(host: str) -> None:
        nonlocal running, most
        async with rates.open_slot(host):
            running += 1
            most = max(most, running)
            await release.wait()
            running -= 1

    async with asyncio.TaskGroup() as tasks:
        for host in ("a.example",) * 5 + tuple(f"{n}.example" for n in range(9)):
            tasks.create_task(hold(host))
        tasks.create_task(_set(release))
    assert most == 8
    assert sorted(slept) == [0] * 10 + [1, 2, 3, 4]
    assert not rates._hosts
    assert not rates._users


async def _set(event: asyncio.Event) -> None:
    for _ in range(20):
        await asyncio.tasks.__sleep0()  # type: ignore[attr-defined]
    event.set()
