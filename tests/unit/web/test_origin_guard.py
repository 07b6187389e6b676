"""Requests that the web server admits (docs/attacks.md, attacks 16 to 18), over real connections."""

from __future__ import annotations

import json
import re
from collections.abc import AsyncIterator, Mapping
from typing import Any

import aiohttp
import pytest
import yarl

from gateway.web.origin_guard import OriginPolicy
from tests.fakes.web_services import FakePageServices, ServedPage, serve_page

Session = aiohttp.ClientSession
EVERYWHERE = "0.0.0.0"  # noqa: S104 - what a container binds to


@pytest.fixture
async def session() -> AsyncIterator[Session]:
    """Give a client that sends only what it is told to, and keeps no cookies."""
    async with aiohttp.ClientSession(cookie_jar=aiohttp.DummyCookieJar()) as session:
        yield session


@pytest.fixture
async def open_page() -> AsyncIterator[ServedPage]:
    """Serve the page as on a person's own machine: no login."""
    async with serve_page(FakePageServices()) as served:
        yield served


@pytest.fixture
async def closed_page() -> AsyncIterator[ServedPage]:
    """Serve the page with a login."""
    async with serve_page(FakePageServices(), login="always") as served:
        yield served


def origin(served: ServedPage) -> str:
    """Return our own page's origin."""
    return served.url.rstrip("/")


async def handshake(session: Session, served: ServedPage, **headers: str) -> int:
    """Try to open the WebSocket; return the status."""
    given = {"Origin": origin(served), **headers}
    try:
        async with session.ws_connect(f"{served.url}ws", headers={k: v for k, v in given.items() if v}):
            return 101
    except aiohttp.WSServerHandshakeError as error:
        return error.status


async def get(session: Session, served: ServedPage, path: str = "", **headers: str) -> int:
    """Get *path*; return the status."""
    async with session.get(f"{served.url}{path}", headers=headers) as answer:
        return answer.status


HOSTS = [
    "evil.example",
    "evil.example:8787",
    "localhost.evil.example",
    "127.0.0.1.nip.io",
    "user@localhost",
    "[::ffff]",
]


@pytest.mark.parametrize("host", HOSTS)
async def test_a_name_that_is_not_ours_is_misdirected(session: Session, open_page: ServedPage, host: str) -> None:
    """DNS rebinding shares our origin only under its own name; every path and the socket answer 421."""
    for path in ("", "session", "assets/app.js", "nothing"):
        assert await get(session, open_page, path, Host=host) == 421
    assert await handshake(session, open_page, Host=host, Origin=f"http://{host}") == 421


@pytest.mark.parametrize("name", ["localhost", "LOCALHOST", "127.0.0.1", "[::1]"])
async def test_every_name_of_loopback_is_ours(session: Session, open_page: ServedPage, name: str) -> None:
    """Whatever people type, and whatever port a container publishes."""
    assert await get(session, open_page, Host=f"{name}:{open_page.server.port}") == 200
    assert await get(session, open_page, Host=f"{name}:9000") == 200
    assert await handshake(session, open_page, Host=f"{name}:9000", Origin=f"http://{name.lower()}:9000") == 101


async def test_a_foreign_page_opens_no_socket_and_posts_nothing(session: Session, open_page: ServedPage) -> None:
    """Cross-site WebSockets, form posts and other programs' pages on this machine are refused."""
    origins = ["http://evil.example", "null", "http://localhost:3000", "https://127.0.0.1", "file://", "http://", ""]
    for foreign in origins:
        assert await handshake(session, open_page, Origin=foreign) == 403, foreign
        headers = {"Origin": foreign} if foreign else {}
        async with session.post(f"{open_page.url}login", data={"code": "x"}, headers=headers) as answer:
            assert answer.status == 403, foreign


async def test_the_page_on_this_machine_needs_no_code(session: Session, open_page: ServedPage) -> None:
    """`web.login: auto` on loopback: whoever opens it is the owner."""
    assert await handshake(session, open_page) == 101
    async with session.get(f"{open_page.url}session") as answer:
        found = await answer.json()
    assert (found["who"], found["can_leave"]) == ("owner", False)


FORWARDED = [
    {"X-Forwarded-For": "127.0.0.1"},
    {"Forwarded": "for=127.0.0.1"},
    {"X-Real-IP": "127.0.0.1"},
    {"Via": "1.1 proxy"},
]


@pytest.mark.parametrize("headers", FORWARDED, ids=lambda headers: next(iter(headers)))
async def test_forwarding_headers_open_nothing(
    session: Session, open_page: ServedPage, closed_page: ServedPage, headers: Mapping[str, str]
) -> None:
    """They cannot make a stranger local; on this machine they are a sign of strangers behind a proxy."""
    assert await handshake(session, open_page, **headers) == 401
    assert await handshake(session, closed_page, **headers) == 401


@pytest.mark.parametrize("query", ["", "?token=x", "?gatewayUrl=ws://evil.example", "?code=AAAAAAAA"])
async def test_without_a_login_there_is_no_socket(session: Session, closed_page: ServedPage, query: str) -> None:
    """No cookie, a wrong cookie, and anything in the address: 401."""
    with pytest.raises(aiohttp.WSServerHandshakeError) as refused:
        await session.ws_connect(f"{closed_page.url}ws{query}", headers={"Origin": origin(closed_page)})
    assert refused.value.status == 401
    assert await handshake(session, closed_page, Cookie="parlour-web=guess") == 401
    assert await get(session, closed_page, f"session{query}") == 401


async def enter(session: Session, served: ServedPage, code: str, **headers: str) -> tuple[int, str]:
    """Type a code; return the status and the cookie's header."""
    async with session.post(
        f"{served.url}login", json={"code": code}, headers={"Origin": origin(served), **headers}
    ) as answer:
        return answer.status, answer.headers.get("Set-Cookie", "")


async def test_a_login_is_a_cookie_no_script_and_no_other_site_can_use(
    session: Session, closed_page: ServedPage
) -> None:
    """HttpOnly, SameSite=Strict, the whole site, thirty days; it opens the socket until it leaves."""
    status, cookie = await enter(session, closed_page, await closed_page.channel.issue_code())
    assert status == 204
    attributes = {part.strip().lower() for part in cookie.split(";")[1:]}
    assert {"httponly", "samesite=strict", "path=/", "max-age=2592000"} <= attributes
    pair = cookie.split(";")[0]
    assert await handshake(session, closed_page, Cookie=pair) == 101
    headers = {"Cookie": pair, "Origin": origin(closed_page)}
    async with session.ws_connect(f"{closed_page.url}ws", headers=headers) as socket:
        await socket.receive()
        async with session.post(f"{closed_page.url}logout", headers=headers) as answer:
            assert answer.status == 204
        # Leaving closes what is open, and closes the door for the old token.
        assert (await socket.receive()).type is aiohttp.WSMsgType.CLOSE
    assert await handshake(session, closed_page, Cookie=pair) == 401


async def test_the_cookie_is_secure_where_the_browser_came_by_https(session: Session) -> None:
    """Behind a proxy that ends TLS, the browser's own Origin says so; the public name is ours then."""
    async with serve_page(FakePageServices(), public_url="https://chat.example.org") as served:
        public = {"Host": "chat.example.org", "Origin": "https://chat.example.org"}
        assert await handshake(session, served, **public) == 401
        status, cookie = await enter(session, served, await served.channel.issue_code(), **public)
        assert status == 204
        assert "secure" in cookie.lower()
        assert await handshake(session, served, Cookie=cookie.split(";")[0], **public) == 101
        # A proxy that rewrites Host leaves Origin as the browser sent it.
        public["Host"] = "127.0.0.1"
        assert await handshake(session, served, Cookie=cookie.split(";")[0], **public) == 101


@pytest.mark.parametrize("host", ["chat.example.org", "127.0.0.1", "chat.example.org:8787"])
async def test_another_service_of_that_machine_is_not_our_page(session: Session, host: str) -> None:
    """Cookies know no ports, and to the browser it is the same site: only the port says that it is somebody else."""
    async with serve_page(FakePageServices(), public_url="https://chat.example.org") as served:
        ours = {"Host": "chat.example.org", "Origin": "https://chat.example.org"}
        _, cookie = await enter(session, served, await served.channel.issue_code(), **ours)
        pair = cookie.split(";")[0]
        for foreign in ("https://chat.example.org:8443", "http://chat.example.org:3000"):
            assert await handshake(session, served, Cookie=pair, Host=host, Origin=foreign) == 403, foreign
            status, _ = await enter(session, served, "AAAAAAAA", Host=host, Origin=foreign)
            assert status == 403, foreign


async def test_who_comes_in_again_has_left(session: Session, closed_page: ServedPage) -> None:
    """One browser is one person: a second code takes the place of the first, whose cookie opens nothing any more."""
    _, first = await enter(session, closed_page, await closed_page.channel.issue_code("ann"))
    before = first.split(";")[0]
    headers = {"Cookie": before, "Origin": origin(closed_page)}
    async with session.ws_connect(f"{closed_page.url}ws", headers=headers) as socket:
        await socket.receive()
        assert (await enter(session, closed_page, "AAAAAAAA", Cookie=before))[0] == 401  # a wrong one changes nothing
        code = await closed_page.channel.issue_code("ben")
        status, second = await enter(session, closed_page, code, Cookie=before)
        assert status == 204
        assert (await socket.receive()).type is aiohttp.WSMsgType.CLOSE
    assert await handshake(session, closed_page, Cookie=before) == 401
    assert await handshake(session, closed_page, Cookie=second.split(";")[0]) == 101
    assert [each["who"] for each in await closed_page.channel.users() if each["browsers"]] == ["ben"]


async def test_a_server_beyond_loopback_asks_for_a_code(session: Session) -> None:
    """As in a container: every address, and nobody is the owner by being there."""
    async with serve_page(FakePageServices(), host=EVERYWHERE) as served:
        assert await handshake(session, served) == 401
        assert await get(session, served, "session") == 401
        assert await get(session, served) == 200


async def test_wrong_codes_are_told_and_then_locked(session: Session, closed_page: ServedPage) -> None:
    """401 five times, then 429; bodies that are no login are 400, and too large ones are not read."""
    for body in (b"", b"{", b"[]", b'{"code": 5}', b"[" * 4_000, json.dumps({"code": "A" * 9_000}).encode()):
        async with session.post(
            f"{closed_page.url}login", data=body, headers={"Origin": origin(closed_page)}
        ) as answer:
            assert answer.status == 400
    statuses = [(await enter(session, closed_page, "AAAAAAAA"))[0] for _ in range(6)]
    assert statuses == [401] * 5 + [429]


PATHS = [
    "assets/../adapter.py",
    "assets/%2e%2e/adapter.py",
    "assets/..%2fadapter.py",
    "assets/%00",
    "assets/",
    "ws/../x",
    "%2e%2e/",
]


@pytest.mark.parametrize("path", PATHS)
async def test_only_the_pages_own_files_can_be_asked_for(session: Session, open_page: ServedPage, path: str) -> None:
    """Names are looked up, not opened."""
    async with session.get(yarl.URL(f"{open_page.url}{path}", encoded=True)) as answer:
        assert answer.status == 404


async def test_every_answer_carries_its_armour(session: Session, open_page: ServedPage) -> None:
    """Nothing from elsewhere, nothing inline, no frame around it, no type guessed, no referrer."""
    for path in ("", "assets/app.js", "session", "nothing"):
        async with session.get(f"{open_page.url}{path}") as answer:
            headers = answer.headers
            assert headers["X-Content-Type-Options"] == "nosniff"
            assert headers["X-Frame-Options"] == "DENY"
            assert headers["Referrer-Policy"] == "no-referrer"
            assert "frame-ancestors 'none'" in headers["Content-Security-Policy"]
            assert "unsafe" not in headers["Content-Security-Policy"]
            assert "server" not in {name.lower() for name in headers}
    async with session.get(open_page.url) as answer:
        assert "default-src 'self'" in answer.headers["Content-Security-Policy"]
        page = await answer.text()
    assert "{{" not in page
    for outside in ("http://", "https://", "style=", "onclick"):
        assert outside not in page


async def test_a_page_that_is_known_is_not_sent_again(session: Session, open_page: ServedPage) -> None:
    """The page is asked for each time, and names its files by their version: an upgrade is seen at once."""
    async with session.get(open_page.url) as answer:
        assert answer.headers["Cache-Control"] == "no-cache"
        name = re.search(r'src="(assets/[0-9a-f]{16}/app\.js)"', await answer.text())
    assert name is not None
    async with session.get(f"{open_page.url}{name[1]}") as answer:
        assert (answer.status, "immutable" in answer.headers["Cache-Control"]) == (200, True)
    async with session.get(f"{open_page.url}assets/{'0' * 16}/app.js") as answer:  # of a page from before an upgrade
        assert (answer.status, answer.headers["Cache-Control"]) == (200, "no-cache")
    async with session.get(f"{open_page.url}assets/app.js") as answer:
        tag = answer.headers["ETag"]
        assert answer.headers["Cache-Control"] == "no-cache"
    assert await get(session, open_page, "assets/app.js", **{"If-None-Match": tag}) == 304


async def test_a_frame_too_long_is_told_and_a_huge_one_ends_the_socket(session: Session, open_page: ServedPage) -> None:
    """Beyond the codec's limit a line; beyond the protocol's the connection, before it is in memory."""
    async with session.ws_connect(f"{open_page.url}ws", headers={"Origin": origin(open_page)}) as socket:
        await socket.receive()
        await socket.send_str("x" * 1_500_000)
        assert (await socket.receive_json())["type"] == "trouble"
        await socket.send_bytes(b"\xff\xfe")
        assert (await socket.receive_json())["type"] == "trouble"
        await socket.send_str("x" * 3_000_000)
        assert (await socket.receive()).type is aiohttp.WSMsgType.CLOSE


async def test_nothing_secret_reaches_a_log(
    session: Session, closed_page: ServedPage, caplog: pytest.LogCaptureFixture, capsys: pytest.CaptureFixture[str]
) -> None:
    """Code, token, address and text of a login and a message are in no line, at any level."""
    caplog.set_level(0)
    code = await closed_page.channel.issue_code()
    _, cookie = await enter(session, closed_page, code)
    pair = cookie.split(";")[0]
    headers = {"Cookie": pair, "Origin": origin(closed_page)}
    async with session.ws_connect(f"{closed_page.url}ws?token=in-the-query", headers=headers) as socket:
        await socket.receive()
        await socket.send_json({"type": "say", "id": "message-0001", "text": "my private words"})
        await socket.receive()
    written = caplog.text + "".join(capsys.readouterr())
    for secret in (code, pair.split("=")[1], "in-the-query", "my private words"):
        assert secret not in written


DOORS: list[tuple[str, str | None, str, bool]] = [
    ("127.0.0.1", None, "localhost", True),
    ("192.168.1.5", None, "192.168.1.5:8787", True),
    ("192.168.1.5", None, "192.168.1.6:8787", False),
    (EVERYWHERE, None, EVERYWHERE, False),
    (EVERYWHERE, "https://chat.example.org/", "chat.example.org", True),
    (EVERYWHERE, "https://chat.example.org:8443", "CHAT.example.org:8443", True),
    (EVERYWHERE, None, "", False),
    (EVERYWHERE, None, "localhost:port", False),
    ("::1", None, "[::1]:8787", True),
]


@pytest.mark.parametrize(("bound", "public", "host", "known"), DOORS)
def test_the_door_knows_its_names(bound: str, public: str | None, host: str, known: bool) -> None:
    """Loopback, the address we are bound to, and the public one; a wildcard is no name."""
    assert OriginPolicy.of(bound, public).knows(host) is known


def test_a_request_without_a_host_is_refused() -> None:
    """HTTP/1.0 has no Host, and so no origin of ours."""
    scene: Any = OriginPolicy.of("127.0.0.1")
    assert not scene.knows("")
