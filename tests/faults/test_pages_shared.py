"""The page at two real gateways on one PostgreSQL: one login, one conversation, whoever serves it."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp

from tests.fakes.gateway import GatewayProcess
from tests.fakes.openai_server import open_server
from tests.fakes.postgres_server import PostgresServer
from tests.faults.process_pool import ForkServer
from tests.faults.test_gateways_shared import team


class PageBrowser:
    """A browser that keeps its cookie for every gateway, as it does for one address with all of them behind it."""

    def __init__(self, session: aiohttp.ClientSession) -> None:
        self._session = session
        self.cookie = ""

    async def log_in(self, gateway: GatewayProcess, code: str) -> int:
        """Give a login code; return the status."""
        headers = self._headers(gateway)
        async with self._session.post(f"{gateway.url}login", json={"code": code}, headers=headers) as got:
            self.cookie = got.headers.get("Set-Cookie", self.cookie).split(";")[0]
            return got.status

    async def visitor(self, gateway: GatewayProcess) -> str:
        """Return who it is at a gateway, "" for nobody."""
        async with self._session.get(f"{gateway.url}session", headers=self._headers(gateway)) as got:
            return str((await got.json()).get("who", ""))

    @asynccontextmanager
    async def window(self, gateway: GatewayProcess) -> AsyncIterator[aiohttp.ClientWebSocketResponse]:
        """Open the person's first conversation, and read its history."""
        async with self._session.ws_connect(f"{gateway.url}ws", headers=self._headers(gateway)) as socket:
            assert (await frame(socket))["type"] == "history"
            yield socket

    def _headers(self, gateway: GatewayProcess) -> dict[str, str]:
        return {"Cookie": self.cookie, "Origin": gateway.url.rstrip("/")}


@asynccontextmanager
async def browsers(count: int = 1) -> AsyncIterator[list[PageBrowser]]:
    """Open browsers that know nothing of each other."""
    async with aiohttp.ClientSession(cookie_jar=aiohttp.DummyCookieJar()) as session:
        yield [PageBrowser(session) for _ in range(count)]


async def frame(socket: aiohttp.ClientWebSocketResponse) -> dict[str, Any]:
    """Return the next frame."""
    found: dict[str, Any] = await socket.receive_json(timeout=60)
    return found


async def issue_code(gateway: GatewayProcess, who: str) -> str:
    """Return a login code of `parlour web login`."""
    return str(json.loads(await gateway.command("web", "login", "--as", who, "--json"))["code"])


async def until_closed(socket: aiohttp.ClientWebSocketResponse) -> None:
    """Return when the server has closed a window."""
    while (await socket.receive(timeout=60)).type is not aiohttp.WSMsgType.CLOSE:
        pass


async def test_a_login_counts_at_every_gateway(tmp_path: Path, postgres: PostgresServer, zygote: ForkServer) -> None:
    """A code of one is good at the other, once; the login holds at both, and a logout at one ends it at both."""
    postgres.empty()
    async with (
        open_server() as model,
        team(tmp_path, postgres, zygote, model, PARLOUR_WEB__LOGIN="always") as (first, second),
        browsers(2) as (browser, thief),
    ):
        code = await issue_code(first, "ann")
        assert await browser.log_in(second, code) == 204
        assert await thief.log_in(first, code) == 401
        assert [await browser.visitor(gateway) for gateway in (first, second)] == ["ann", "ann"]
        async with browser.window(first) as one, browser.window(second) as other:
            await second.command("web", "logout", "ann")
            await until_closed(one)
            await until_closed(other)
        assert [await browser.visitor(gateway) for gateway in (first, second)] == ["", ""]
