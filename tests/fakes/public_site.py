"""A web site at public names, served on loopback: the client resolves every name to it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import pytest
from aiohttp import web
from aiohttp.abc import AbstractResolver, ResolveResult
from aiohttp.test_utils import TestServer

from gateway.net import public_http
from gateway.net.public_http import PublicHttpClient


class LoopbackResolver(AbstractResolver):
    """Resolves every name to loopback."""

    async def resolve(self, host: str, port: int = 0, family: Any = 0) -> list[ResolveResult]:
        return [ResolveResult(hostname=host, host="127.0.0.1", port=port, family=2, proto=6, flags=0)]

    async def close(self) -> None:
        pass


@dataclass
class PublicSite:
    """The site: its pages by path, and what was requested."""

    pages: Mapping[str, web.Response | str | bytes]
    port: int = 0
    requests: list[str] = field(default_factory=list)  # host and path
    client: PublicHttpClient = field(default_factory=PublicHttpClient)

    def url(self, path: str, host: str = "site.example") -> str:
        """Return the address of a page."""
        return f"http://{host}:{self.port}{path}"

    async def serve(self, request: web.Request) -> web.Response:
        self.requests.append(f"{request.url.host}{request.rel_url}")
        page = self.pages.get(request.path)
        if page is None:
            return web.Response(status=404, text="no such page")
        if isinstance(page, web.Response):
            return web.Response(body=page.body, status=page.status, headers=page.headers)
        if isinstance(page, str):
            return web.Response(text=page.replace("PORT", str(self.port)), content_type="text/html")
        return web.Response(body=page)


@asynccontextmanager
async def open_site(
    monkeypatch: pytest.MonkeyPatch, pages: Mapping[str, web.Response | str | bytes]
) -> AsyncIterator[PublicSite]:
    """Serve *pages*; loopback counts as public, and a host is not paced."""
    site = PublicSite(pages)
    app = web.Application()
    app.router.add_route("*", "/{path:.*}", site.serve)
    server = TestServer(app)
    await server.start_server()
    assert server.port is not None
    site.port = server.port
    monkeypatch.setattr(public_http, "is_public", lambda address: address == "127.0.0.1")
    monkeypatch.setattr(public_http, "_INTERVAL", 0.0)
    site.client = PublicHttpClient(ports=[server.port], resolver=LoopbackResolver)
    try:
        yield site
    finally:
        await server.close()
        await asyncio.sleep(0)
