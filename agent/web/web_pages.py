"""Pages of the web as text: fetched, read in the reader process, kept for a quarter of an hour."""

from __future__ import annotations

import asyncio
import re
import sys
import time
from collections.abc import Callable, Collection
from dataclasses import dataclass, field
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from cachetools import TTLCache

from agent.attachments.document_reader import SandboxedReader, detect_kind
from agent.base.file_facts import format_size
from gateway.errors import FileUnavailable, ToolFailed

if TYPE_CHECKING:
    from gateway.net.public_http import HttpResponse, PublicHttpClient

TEXT_CHARS = 1_000_000  # of one page
_CACHED_SECONDS = 15 * 60
_CACHED_BYTES = 32_000_000  # of texts and pictures, all scopes together
_ACCEPT = "text/html,application/xhtml+xml,text/plain;q=0.9,application/pdf;q=0.9,*/*;q=0.5"
_PLAIN = {"application/json", "application/xml", "application/yaml", "application/rss+xml", "application/atom+xml"}
_UNREAD = {"sound": "a recording", "film": "a film", "svg": "a drawing"}
_PASSAGES, _PASSAGE_CHARS = 8, 700
_WORDS = 10  # of a search in a page


@dataclass(frozen=True, slots=True, kw_only=True)
class WebPage:
    """A page as text; title, language and date are what it claims."""

    url: str  # after redirects
    text: str
    title: str = ""
    language: str = ""
    date: str = ""
    is_main: bool = False  # the main part alone
    is_cut: bool = False
    picture: bytes = field(default=b"", repr=False)  # as it came, if it is one


class WebPages:
    """Loads pages for all turns. Nothing is imported, and no connection is made, before the first call."""

    def __init__(
        self,
        *,
        proxy: str = "",
        ports: Collection[int] = (),
        client: PublicHttpClient | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._proxy = proxy
        self._ports = ports
        self._reader = SandboxedReader()
        self._client = client
        # A scope sees only what it fetched itself: how fast a page comes would tell what others read.
        self._cache: TTLCache[tuple[str, str, bool], WebPage] = TTLCache(
            _CACHED_BYTES, _CACHED_SECONDS, timer=clock, getsizeof=_size_of
        )

    async def load(self, scope: str, url: str, *, is_whole: bool) -> WebPage:
        """Return the page at *url*, from the cache of *scope* if it was read recently. Raises ToolFailed."""
        key = (scope, url, is_whole)
        found = self._cache.get(key)
        if found is None:
            found = await self._read(await self._fetch(url), is_whole=is_whole)
            if _size_of(found) < _CACHED_BYTES // 4:
                self._cache[key] = found
        return found

    async def fetch_bytes(self, url: str, most: int) -> bytes:
        """Return the at most *most* bytes at *url*, which a server named. Raises ToolFailed."""
        return (await self._fetch(url, most)).body

    async def client(self) -> PublicHttpClient:
        """Return the client that all fetches and searches share."""
        if self._client is None:
            self._client = await asyncio.to_thread(self._build_client)
        return self._client

    def _build_client(self) -> PublicHttpClient:
        from gateway.net.public_http import PublicHttpClient

        return PublicHttpClient(proxy=self._proxy, ports=self._ports)

    async def _fetch(self, url: str, most: int | None = None) -> HttpResponse:
        client = await self.client()
        from gateway.net.public_http import MOST_BYTES, FetchFailed

        try:
            response = await client.fetch(url, accept=_ACCEPT, most=most or MOST_BYTES)
        except FetchFailed as error:
            raise ToolFailed(str(error)) from None
        if response.status >= 300:
            raise ToolFailed(f"the server answered with status {response.status}")
        if not response.body.strip():
            raise ToolFailed("the page is empty")
        return response

    async def _read(self, response: HttpResponse, *, is_whole: bool) -> WebPage:
        name = urlsplit(response.url).path.rpartition("/")[2][:200]
        kind = detect_kind(response.body, kind="document", name=name, media_type=response.media_type)
        if kind == "picture":
            return await self._describe_picture(response.url, response.body, name)
        if kind in _UNREAD:
            raise ToolFailed(f"this is {_UNREAD[kind]} ({format_size(len(response.body))}), not a page with text")
        try:
            if kind == "html" and response.media_type != "text/plain" and response.media_type not in _PLAIN:
                page = await self._reader.page(
                    response.body,
                    charset=response.charset,
                    address=response.url,
                    is_whole=is_whole,
                    chars=TEXT_CHARS,
                )
                return WebPage(
                    url=response.url,
                    text=page.text,
                    title=page.title,
                    language=page.language,
                    date=page.date,
                    is_main=page.is_main,
                    is_cut=page.is_cut,
                )
            found = await self._reader.read_text(response.body, "text" if kind == "html" else kind, TEXT_CHARS)
        except FileUnavailable as error:
            size = format_size(len(response.body))
            raise ToolFailed(f"{response.media_type[:100]}, {size}: {error}") from None
        return WebPage(url=response.url, text=found.text, title=name, is_cut=found.is_cut)

    async def _describe_picture(self, url: str, data: bytes, name: str) -> WebPage:
        size = format_size(len(data))
        try:
            found = await self._reader.measure_picture(data)
        except FileUnavailable as error:
            return WebPage(url=url, text=f"(a picture: {error}, {size})", title=name)
        return WebPage(url=url, text=f"(a picture: {found}, {size})", title=name, picture=data)


def _size_of(page: WebPage) -> int:
    return sys.getsizeof(page.text) + len(page.picture) + 1_000


def find_passages(text: str, query: str) -> str:
    """Return the passages of *text* with the most words of *query*, in the text's order; "" for none."""
    words = list(dict.fromkeys(re.findall(r"\w+", query.casefold())))[:_WORDS]
    ranked: list[tuple[int, int, str]] = []
    for n, line in enumerate(text.splitlines()):
        folded = line.casefold()
        found = [folded.find(word) for word in words if word in folded]
        if found:
            start = max(0, min(found) - _PASSAGE_CHARS // 3)
            ranked.append((-len(found), n, line[start : start + _PASSAGE_CHARS]))
    best = sorted(sorted(ranked)[:_PASSAGES], key=lambda each: each[1])
    return "\n…\n".join(passage for _, _, passage in best)
