"""The search engines that come with Parlour: SearXNG, Brave, Tavily, and ddgs without a key."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final
from urllib.parse import urlencode

from agent.web.web_search import SearchAccess, SearchAge, SearchEngine, WebHit, call_engine
from gateway.errors import SettingsError, ToolFailed
from gateway.installation import HOW_TO_INSTALL

BRAVE: Final = "https://api.search.brave.com/res/v1/web/search"
TAVILY: Final = "https://api.tavily.com/search"
_BRAVE_AGES = {"day": "pd", "week": "pw", "month": "pm", "year": "py"}


def open_searxng(access: SearchAccess) -> SearchEngine:
    """Return a SearXNG instance; its address may be private, since the operator configured it."""
    if not access.url:
        raise SettingsError("tools.web.search is searxng: set tools.web.search_url to its address")
    return _SearxngSearch(access)


def open_brave(access: SearchAccess) -> SearchEngine:
    """Return Brave's search API."""
    return _BraveSearch(_with_key(access, "brave"))


def open_tavily(access: SearchAccess) -> SearchEngine:
    """Return Tavily's search API."""
    return _TavilySearch(_with_key(access, "tavily"))


def open_ddgs(access: SearchAccess) -> SearchEngine:
    """Return the library `ddgs`, which reads pages of search engines: it may stop working at any time."""
    from importlib.util import find_spec

    if find_spec("ddgs") is None:
        raise SettingsError(f"tools.web.search is ddgs, which needs the package ddgs; {HOW_TO_INSTALL}")
    return _DdgsSearch(access.proxy)


def _with_key(access: SearchAccess, name: str) -> SearchAccess:
    if not access.key:
        raise SettingsError(f"tools.web.search is {name}: set tools.web.search_key to its API key")
    return access


class _SearxngSearch:
    def __init__(self, access: SearchAccess) -> None:
        self._access = access

    async def search(self, query: str, *, count: int, language: str, since: SearchAge) -> Sequence[WebHit]:  # noqa: ARG002
        # The JSON format must be enabled in its settings.yml (`search.formats`).
        parameters = {"q": query, "format": "json", "language": language or "auto"}
        if since:
            parameters["time_range"] = since
        found = await call_engine(self._access, "GET", f"{self._access.url.rstrip('/')}/search?{urlencode(parameters)}")
        return _hits(found.get("results"), snippet="content", at="publishedDate")


class _BraveSearch:
    def __init__(self, access: SearchAccess) -> None:
        self._access = access

    async def search(self, query: str, *, count: int, language: str, since: SearchAge) -> Sequence[WebHit]:
        parameters = {"q": query, "count": str(count), "text_decorations": "false"}
        if language:
            parameters["search_lang"] = {"zh": "zh-hans", "ja": "jp", "pt": "pt-pt"}.get(language, language)
        if since:
            parameters["freshness"] = _BRAVE_AGES[since]
        headers = {"X-Subscription-Token": self._access.key, "Accept": "application/json"}
        url = f"{self._access.url or BRAVE}?{urlencode(parameters)}"
        found = await call_engine(self._access, "GET", url, headers=headers)
        web = found.get("web")
        return _hits(web.get("results") if isinstance(web, dict) else (), snippet="description", at="page_age")


class _TavilySearch:
    def __init__(self, access: SearchAccess) -> None:
        self._access = access

    async def search(self, query: str, *, count: int, language: str, since: SearchAge) -> Sequence[WebHit]:  # noqa: ARG002
        parameters: dict[str, Any] = {"query": query, "max_results": count, "search_depth": "basic"}
        if since:
            parameters["time_range"] = since
        headers = {"Authorization": f"Bearer {self._access.key}"}
        found = await call_engine(self._access, "POST", self._access.url or TAVILY, headers=headers, json=parameters)
        return _hits(found.get("results"), snippet="content", at="published_date")


class _DdgsSearch:
    def __init__(self, proxy: str) -> None:
        self._proxy = proxy

    async def search(self, query: str, *, count: int, language: str, since: SearchAge) -> Sequence[WebHit]:  # noqa: ARG002
        try:
            found = await asyncio.to_thread(self._search, query, count, since)
        except Exception as error:  # noqa: BLE001 - the library's boundary: it reads pages that change
            raise ToolFailed(f"the search engine cannot be used now ({type(error).__name__})") from None
        return _hits(found, url="href", snippet="body", at="date")

    def _search(self, query: str, count: int, since: SearchAge) -> Sequence[Mapping[str, Any]]:
        from ddgs import DDGS

        with DDGS(proxy=self._proxy or None, timeout=15) as session:
            return list(session.text(query, timelimit=since[:1] or None, max_results=count))


def _hits(results: object, *, snippet: str, at: str, url: str = "url") -> Sequence[WebHit]:
    """Return the hits among *results*, whatever shape they have."""
    found = [each for each in results if isinstance(each, dict)] if isinstance(results, Iterable) else []
    return [
        WebHit(
            title=_text(each.get("title")),
            url=_text(each.get(url)),
            snippet=_text(each.get(snippet)),
            at=_text(each.get(at)),
        )
        for each in found[:100]
    ]


def _text(value: object) -> str:
    return value if isinstance(value, str) else ""
