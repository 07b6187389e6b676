"""Search engines: one port, and what comes back, cleaned."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Literal, Protocol

from agent.attachments.page_links import clean_link
from agent.base.file_facts import clean
from agent.base.transcript_lines import decode
from gateway.errors import SettingsError, ToolFailed
from gateway.installation import load_entry_points

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
