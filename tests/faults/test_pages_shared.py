"""The page at two real gateways on one PostgreSQL: one login, one conversation, whoever serves it."""

from __future__ import annotations

import asyncio
import json
import secrets
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from tests.fakes.gateway import GatewayProcess
from tests.fakes.openai_server import ScriptedAnswer, open_server
from tests.fakes.postgres_server import PostgresServer
from tests.faults.process_pool import ForkServer
from tests.faults.test_gateways_shared import team


class PageBrowser:
    """A browser that keeps its cookie for every gateway, as it does for one address with all of them behind it."""

    def __init__(self, session: aiohttp.ClientSession) -> None:
        self._session = session
        self.cookie = ""
        self.history: dict[str, Any] = {}  # as the last window was shown it

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
            self.history = await frame(socket)
            assert self.history["type"] == "history"
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


async def until_answered(socket: aiohttp.ClientWebSocketResponse) -> list[dict[str, Any]]:
    """Return the frames up to the last part of the next answer."""
    frames = []
    while True:
        frames.append(await frame(socket))
        if frames[-1]["type"] == "message" and frames[-1]["last"]:
            return frames


async def say(socket: aiohttp.ClientWebSocketResponse, text: str, **more: str) -> str:
    """Send a message; return its id."""
    ident = secrets.token_hex(8)
    await socket.send_json({"type": "say", "id": ident, "text": text, **more})
    return ident


def shown(frames: list[dict[str, Any]]) -> list[str]:
    """Return what a window shows of them: messages of the person and parts of answers."""
    return [str(each["text"]) for each in frames if each["type"] in ("said", "message")]


async def test_windows_at_both_gateways_show_one_turn_as_it_happens(
    tmp_path: Path, postgres: PostgresServer, zygote: ForkServer
) -> None:
    """Message, typing, growing text and answer come in this order, each once, also where the chat is not.

    A window of another person shows nothing. /stop at the other gateway ends the turn. After a kill of the gateway that
    has the chat, its answer comes to the window at the other one.
    """
    postgres.empty()
    asked, latency = asyncio.Event(), 0.0

    def script(_: object, n: int) -> ScriptedAnswer:
        asked.set()
        return ScriptedAnswer(text=f"answer {n}: {'and so on ' * 7}", gap=0.05, latency=latency)

    async with (
        open_server(script) as model,
        team(tmp_path, postgres, zygote, model, PARLOUR_WEB__LOGIN="always") as gateways,
        browsers(2) as (ann, ben),
    ):
        workers = [name for (name,) in postgres.query("SELECT name FROM worker ORDER BY started_at")]
        assert await ann.log_in(gateways[0], await issue_code(gateways[1], "ann")) == 204
        assert await ben.log_in(gateways[1], await issue_code(gateways[0], "ben")) == 204
        async with AsyncExitStack() as stack:
            windows = [await stack.enter_async_context(ann.window(each)) for each in gateways]
            foreign = [await stack.enter_async_context(ben.window(each)) for each in gateways]
            for speaker, other in (windows, windows[::-1]):
                await say(speaker, "question")
                spoken, seen = await asyncio.gather(until_answered(speaker), until_answered(other))
                assert shown(seen) == ["question", *shown(spoken)]
                for frames in (spoken, seen):
                    kinds = [each["type"] for each in frames]
                    assert kinds.index("activity") < kinds.index("preview") < kinds.index("message")
                    texts = [each["text"] for each in frames if each["type"] == "preview"]
                    assert len(texts) >= 2
                    assert texts == sorted(texts, key=len)
            for is_taken_over in (False, True):
                latency = 30.0
                asked.clear()
                await say(windows[0], "held")
                await asked.wait()
                latency = 0.0
                ((holder,),) = postgres.query("SELECT worker FROM claim WHERE name LIKE 'chat:%'")
                place = workers.index(holder)
                if is_taken_over:
                    await gateways[place].kill()
                else:
                    await say(windows[1 - place], "/stop")
                frames = await until_answered(windows[1 - place])
                assert ("answer" in shown(frames)[-1]) is is_taken_over
            for window in foreign:
                with pytest.raises((TimeoutError, TypeError)):  # nothing came; or its gateway was killed
                    print(await window.receive_json(timeout=0.2))
