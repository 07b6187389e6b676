"""The search engines against recorded answers over HTTP, and hits that mean harm."""

from __future__ import annotations

import sys
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from types import ModuleType
from typing import Any

import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer

from agent.web.search_engines import (
    SearchAccess,
    WebHit,
    clean_hits,
    load_engine,
    open_brave,
    open_ddgs,
    open_searxng,
    open_tavily,
)
from gateway.errors import SettingsError, ToolFailed
from gateway.net.public_http import PublicHttpClient

SEARXNG = {
    "query": "ferry",
    "number_of_results": 2,
    "results": [
        {
            "url": "https://ferry.example/",
            "title": "Ferry",
            "content": "It crosses in 40 minutes.",
            "engine": "brave",
            "publishedDate": "2026-11-01T00:00:00",
            "score": 1.0,
        },
        {"url": "https://b.example/", "title": None, "content": None, "publishedDate": None},
    ],
    "answers": [],
    "unresponsive_engines": [],
}
BRAVE = {
    "type": "search",
    "web": {
        "results": [
            {
                "title": "Ferry",
                "url": "https://ferry.example/",
                "description": "It crosses in 40 minutes.",
                "page_age": "2026-11-01T10:00:00",
            }
        ]
    },
}
TAVILY = {
    "query": "ferry",
    "results": [
        {"title": "Ferry", "url": "https://ferry.example/", "content": "It crosses in 40 minutes.", "score": 0.9}
    ],
    "response_time": 1.2,
}
FERRY = ("Ferry", "https://ferry.example/", "It crosses in 40 minutes.")


@asynccontextmanager
async def api(
    answer: Any, status: int = 200
) -> AsyncIterator[tuple[Callable[..., SearchAccess], list[web.Request], list[Any]]]:
    """Serve *answer*; yield what builds the access, and the requests with their bodies."""
    seen: list[web.Request] = []
    bodies: list[Any] = []

    async def page(request: web.Request) -> web.Response:
        seen.append(request)
        bodies.append(await request.json() if request.can_read_body else None)
        if isinstance(answer, str):
            return web.Response(text=answer, status=status)
        return web.json_response(answer, status=status)

    app = web.Application()
    app.router.add_route("*", "/{path:.*}", page)
    server = TestServer(app)
    await server.start_server()
    client = PublicHttpClient()

    async def shared() -> PublicHttpClient:
        return client

    def access(path: str = "") -> SearchAccess:
        return SearchAccess(url=f"http://127.0.0.1:{server.port}{path}", key="secret-key", proxy="", client=shared)

    try:
        yield access, seen, bodies
    finally:
        await server.close()


async def test_searxng_at_a_private_address() -> None:
    """The operator's instance is asked for JSON; fields that are missing are empty."""
    async with api(SEARXNG) as (access, seen, _):
        hits = await open_searxng(access("/searxng/")).search("ferry & co", count=8, language="", since="month")
    assert seen[0].path == "/searxng/search"
    assert dict(seen[0].query) == {"q": "ferry & co", "format": "json", "language": "auto", "time_range": "month"}
    assert [(hit.title, hit.url, hit.snippet) for hit in hits] == [FERRY, ("", "https://b.example/", "")]
    assert hits[0].at == "2026-11-01T00:00:00"


async def test_brave() -> None:
    """The key is a header, the age is in Brave's own words."""
    async with api(BRAVE) as (access, seen, _):
        hits = await open_brave(access()).search("ferry", count=8, language="de", since="week")
    assert seen[0].headers["X-Subscription-Token"] == "secret-key"
    assert dict(seen[0].query) == {
        "q": "ferry",
        "count": "8",
        "text_decorations": "false",
        "search_lang": "de",
        "freshness": "pw",
    }
    assert [(hit.title, hit.url, hit.snippet) for hit in hits] == [FERRY]


async def test_tavily() -> None:
    """The query is posted, the key is a header."""
    async with api(TAVILY) as (access, seen, bodies):
        hits = await open_tavily(access()).search("ferry", count=8, language="", since="day")
    assert seen[0].headers["Authorization"] == "Bearer secret-key"
    assert bodies == [{"query": "ferry", "max_results": 8, "search_depth": "basic", "time_range": "day"}]
    assert [(hit.title, hit.url, hit.snippet) for hit in hits] == [FERRY]


async def test_ddgs(monkeypatch: pytest.MonkeyPatch) -> None:
    """The library is asked in a thread; whatever it raises is a plain error."""
    asked: list[Any] = []

    class DDGS:
        def __init__(self, **options: Any) -> None:
            asked.append(options)

        def __enter__(self) -> DDGS:
            return self

        def __exit__(self, *_: object) -> None:
            pass

        def text(self, query: str, **options: Any) -> list[dict[str, str]]:
            asked.append((query, options))
            if query == "broken":
                raise RuntimeError("secret-key")
            return [{"title": "Ferry", "href": "https://ferry.example/", "body": "It crosses in 40 minutes."}]

    module = ModuleType("ddgs")
    module.DDGS = DDGS  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "ddgs", module)
    monkeypatch.setattr("importlib.util.find_spec", lambda name: name)
    engine = open_ddgs(SearchAccess(url="", key="", proxy="socks5://proxy.example", client=lambda: None))
    hits = await engine.search("ferry", count=8, language="", since="year")
    assert [(hit.title, hit.url, hit.snippet) for hit in hits] == [FERRY]
    assert asked[:2] == [
        {"proxy": "socks5://proxy.example", "timeout": 15},
        ("ferry", {"timelimit": "y", "max_results": 8}),
    ]
    with pytest.raises(ToolFailed, match=r"cannot be used now \(RuntimeError\)"):
        await engine.search("broken", count=8, language="", since="")


@pytest.mark.parametrize(
    ("answer", "status", "text"),
    [
        ({"error": "secret"}, 401, "refuses our key"),
        ({"error": "secret"}, 429, "no more searches now"),
        ("<html>secret</html>", 200, "not answer as expected"),
        ("[]", 200, "not answer as expected"),
        ("[" * 100_000, 200, "not answer as expected"),
        ({"error": "secret"}, 500, "status 500"),
    ],
)
async def test_an_engine_that_fails_is_a_plain_error(answer: Any, status: int, text: str) -> None:
    """A wrong key, a limit, and an answer of another shape are told without the engine's own words."""
    async with api(answer, status) as (access, _, _bodies):
        with pytest.raises(ToolFailed, match=text) as failed:
            await open_searxng(access()).search("ferry", count=8, language="", since="")
    assert "secret" not in str(failed.value)


@pytest.mark.parametrize("answer", [{"results": None}, {"results": "text"}, {"results": [1, None, "x", {}]}, {}])
async def test_an_odd_answer_has_no_hits(answer: Any) -> None:
    """Results that are no list of objects with addresses are none."""
    async with api(answer) as (access, _, _bodies):
        hits = await open_searxng(access()).search("ferry", count=8, language="", since="")
    assert not clean_hits(hits, 8)


def test_hits_that_mean_harm_are_left_out_or_made_plain() -> None:
    """Private hosts, other schemes and repeated addresses go; titles are one bounded line without hidden characters."""
    private = ("127.0.0.1", "localhost", "10.1.2.3", "[::1]", "2130706433", "router.local", "169.254.169.254", "nas")
    hits = [WebHit(title="x", url=f"http://{host}/") for host in private]
    hits += [
        WebHit(title="x", url=url) for url in ("javascript:alert(1)", "file:///etc/passwd", "", "http://u:p@a.example/")
    ]
    hits += [
        WebHit(
            title="line\nbreak \x1b[31m" + "x" * 999,
            url="https://a.example/?utm_source=x",
            snippet="y" * 9_999,
            at="z" * 99,
        ),
        WebHit(title="again", url="https://a.example/"),
        WebHit(title="", url="https://b.example/"),
    ]
    found = clean_hits(hits, 8)
    assert [hit.url for hit in found] == ["https://a.example/", "https://b.example/"]
    assert found[0].title.startswith("line break ")
    assert "\x1b" not in found[0].title
    assert (len(found[0].title), len(found[0].snippet), len(found[0].at)) == (150, 400, 10)
    assert found[1].title == "https://b.example/"
    assert len(clean_hits([WebHit(title="t", url=f"https://a.example/{n}") for n in range(50)], 8)) == 8


@pytest.mark.parametrize("name", ["searxng", "brave", "tavily", "no-such-engine"])
def test_an_engine_without_what_it_needs_is_off(name: str) -> None:
    """Without its address or key an engine does not start, and says which setting is missing."""
    with pytest.raises(SettingsError, match=r"tools\.web\.search"):
        load_engine(name, SearchAccess(url="", key="", proxy="", client=lambda: None))
