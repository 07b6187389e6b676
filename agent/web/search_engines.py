"""Search engines: what a plugin implements, its results, cleaned, and those that come with Parlour.

These are SearXNG, Brave, Tavily, and ddgs without a key.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final, Literal, Protocol
from urllib.parse import urlencode

from agent.attachments.page_reader import clean_link
from agent.base.file_facts import clean
from agent.base.transcript_lines import decode
from gateway.errors import SettingsError, ToolFailed
from gateway.installation import HOW_TO_INSTALL, load_entry_points

if TYPE_CHECKING:
    from gateway.net.public_http import PublicHttpClient


SEARCH_GROUP = "parlour.search"
SearchAge = Literal["", "day", "week", "month", "year"]

_TITLE, _SNIPPET, _DAY = 150, 400, 10  # characters


@dataclass(frozen=True, slots=True, kw_only=True)
class WebHit:
    """A search result, in its page's words."""

    title: str
    url: str
    snippet: str = ""
    at: str = ""  # the day that the engine names, as it writes it


class SearchEngine(Protocol):
    """Searches the web."""

    async def search(self, query: str, *, count: int, language: str, since: SearchAge) -> Sequence[WebHit]:
        """Return at most *count* results, best first. Raises ToolFailed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SearchAccess:
    """The address and key that the operator configured for an engine, and the shared client."""

    url: str  # "" = the engine's own address
    key: str
    proxy: str
    client: Callable[[], Any]  # async; imports the client with the first search


SearchEngineFactory = Callable[[SearchAccess], SearchEngine]


def load_engine(name: str, access: SearchAccess) -> SearchEngine:
    """Return the installed engine *name*. Raises SettingsError for one that is not installed or not configured."""
    found = {each.name: each for each in load_entry_points(SEARCH_GROUP)}
    if name not in found:
        raise SettingsError(
            f"tools.web.search: there is no search engine {name!r}; there are {', '.join(sorted(found))}"
        )
    factory: SearchEngineFactory = found[name].load()
    return factory(access)


async def call_engine(access: SearchAccess, method: str, url: str, **options: Any) -> Mapping[str, Any]:
    """Return the JSON object that the engine's API answers with. Raises ToolFailed without any of its words."""
    client: PublicHttpClient = await access.client()
    from gateway.net.public_http import FetchFailed

    try:
        response = await client.call_api(method, url, **options)
    except FetchFailed as error:
        raise ToolFailed(f"the search engine cannot be used: {error}") from None
    if response.status in (401, 403):
        raise ToolFailed("the search engine refuses our key; its operator has to correct it")
    if response.status == 429:
        raise ToolFailed("the search engine allows no more searches now; try again later")
    found = decode(response.body) if response.status < 300 else None
    if found is None:
        raise ToolFailed(f"the search engine does not answer as expected (status {response.status})")
    return found


def clean_hits(hits: Sequence[WebHit], count: int) -> Sequence[WebHit]:
    """Return at most *count* of *hits* whose addresses can be opened, each field one line of bounded length."""
    from gateway.net.public_http import is_public_name

    kept: dict[str, WebHit] = {}
    for hit in hits:
        url = clean_link(hit.url[:2_000])
        if url and url not in kept and is_public_name(url):
            title = _one_line(hit.title, _TITLE) or url
            kept[url] = replace(
                hit, title=title, url=url, snippet=_one_line(hit.snippet, _SNIPPET), at=_one_line(hit.at, _DAY)
            )
    return list(kept.values())[:count]


def _one_line(text: str, most: int) -> str:
    return " ".join(clean(text[:5_000]).split())[:most]


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
