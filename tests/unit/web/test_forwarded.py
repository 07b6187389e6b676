"""Whose a request is, and below which path: what proxies say counts from those alone that the operator named."""

from __future__ import annotations

from typing import Any

import aiohttp
import pytest

from gateway.errors import UserError
from gateway.web.origin_guard import ResolvedRequest, TrustedProxies
from gateway.web.server import WebServer
from tests.fakes.web_services import FakePageServices, serve_page

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
