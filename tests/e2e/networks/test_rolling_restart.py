"""The topology of deploy/compose.scale.yml: nginx with its file, three gateways, PostgreSQL; replaced one by one."""

from __future__ import annotations

import asyncio
import os
import re
import time
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from playwright.async_api import Browser, Page, expect

from tests.e2e.browser import open_page, send_text
from tests.fakes.gateway import GatewayProcess, free_port
from tests.fakes.openai_server import ScriptedAnswer, open_server
from tests.fakes.postgres_server import PostgresServer
from tests.fakes.proxies import needed, running
from tests.fakes.telegram_gateway import settings_for
from tests.fakes.telegram_server import TelegramServer, open_telegram
from tests.faults.process_pool import ForkServer
from tests.faults.test_gateways_shared import team
from tests.faults.test_pages_shared import issue_code

_CONF = Path(__file__).resolve().parents[3] / "deploy" / "nginx.scale.conf"
_CHATS = range(100, 108)
_PAGE_CHAT = 900
_ANSWERS = ".line:not(.user) .body"
_SAID = re.compile(r"\bm\d+-\d+\b")
_SECRET = "a-secret-that-is-hard-to-guess"


@asynccontextmanager
async def nginx_before(folder: Path, port: int, gateways: Sequence[GatewayProcess]) -> AsyncIterator[str]:
    """Run nginx with the file that the compose file mounts, addresses replaced; give its address."""
    conf = _CONF.read_text("utf-8").replace("listen 8080;", f"listen 127.0.0.1:{port};")
    for number, gateway in enumerate(gateways, 1):
        assert f"parlour-{number}:8787" in conf
        conf = conf.replace(f"parlour-{number}:8787", f"127.0.0.1:{gateway.port}")
    places = ("client_body", "proxy", "fastcgi", "uwsgi", "scgi")
    temporary = "".join(f"{each}_temp_path {folder}/{each};" for each in places)
    user = "" if os.geteuid() else "user root;"
    head = f"{user} pid {folder}/nginx.pid; error_log {folder}/error.log; worker_processes 1; daemon off; events {{}}"
    file = folder / "nginx.conf"
    file.write_text(f"{head} http {{ access_log off; {temporary} {conf} }}", "utf-8")
    async with running(needed("nginx"), "-p", str(folder), "-c", str(file), "-e", "stderr", port=port):
        yield f"http://127.0.0.1:{port}/"


def repeat(body: Mapping[str, Any], _: int) -> ScriptedAnswer:
    """Answer with the names of the messages since the last answer."""
    said: list[str] = []
    for message in body["messages"]:
        found = _SAID.findall(str(message["content"])) if message["role"] != "system" else []
        said = [] if message["role"] == "assistant" else [*said, *found]
    return ScriptedAnswer(text=" ".join(dict.fromkeys(said)))


async def write(server: TelegramServer, chat: int, is_over: asyncio.Event) -> int:
    """Write, each message after the answer to the one before, until it *is_over*; return how many."""
    number = 0
    while number == 0 or not is_over.is_set():
        name = f"m{chat}-{number}"
        server.say(name, chat=chat, sender=chat)
        await server.until(lambda name=name: any(name in text for text in server.shown(chat)))  # type: ignore[misc]
        number += 1
    return number


async def look_at_page(url: str, is_over: asyncio.Event) -> list[int]:
    """Ask for the page until it *is_over*; return what it was answered with."""
    statuses = []
    async with aiohttp.ClientSession() as session:
        while not is_over.is_set():
            async with session.get(url) as answer:
                statuses.append(answer.status)
                await answer.read()
            await asyncio.sleep(0.05)
    return statuses


async def type_on_page(page: Page, is_over: asyncio.Event) -> int:
    """Type two messages at a time and wait for the answers to both, until it *is_over*; return how many."""
    number = 0
    while number == 0 or not is_over.is_set():
        for name in (f"m{_PAGE_CHAT}-{number}", f"m{_PAGE_CHAT}-{number + 1}"):
            await send_text(page, name)
        await expect(page.locator(_ANSWERS).last).to_contain_text(re.compile(rf"{name}\b"), timeout=60_000)
        number += 2
    return number


async def texts_on_page(page: Page) -> list[list[str]]:
    """Return the messages that the page shows as typed, and those that its answers name, in their order."""
    typed = await page.locator(".line.user .body").all_text_contents()
    return [_SAID.findall(" ".join(texts)) for texts in (typed, await page.locator(_ANSWERS).all_text_contents())]


@pytest.mark.asyncio(loop_scope="session")
async def test_a_rolling_restart_loses_no_webhook_and_no_page(
    tmp_path: Path, postgres: PostgresServer, zygote: ForkServer, chromium: Browser
) -> None:
    """Three gateways are restarted in turn while people write: each message is answered once, in order.

    So is each that is typed on the page, in one window whose gateway ends; loaded again, it shows the same.
    """
    postgres.empty()
    port, is_over = free_port(), asyncio.Event()
    async with open_server(repeat) as model, open_telegram() as server:
        server.now = lambda: int(time.time())
        front = settings_for(
            server,
            MODE="webhook",
            WEBHOOK_SECRET=_SECRET,
            WEBHOOK_URL=f"http://127.0.0.1:{port}/hooks/telegram",
            ALLOW_FROM="*",
            PARLOUR_ALLOW_EVERYONE="true",
            PARLOUR_WEB__PUBLIC_URL=f"http://127.0.0.1:{port}",
            PARLOUR_WEB__TRUSTED_PROXIES="127.0.0.1",
            PARLOUR_CAPS__PERSON_TURNS_PER_10_MIN="0",
        )
        async with (
            asyncio.timeout(110),
            team(tmp_path, postgres, zygote, model, 3, **front) as gateways,
            nginx_before(tmp_path, port, gateways) as url,
            asyncio.TaskGroup() as tasks,
        ):
            writing = [tasks.create_task(write(server, chat, is_over)) for chat in _CHATS]
            page = await open_page(chromium)
            await page.goto(url)
            await page.locator("#code").fill(await issue_code(gateways[0], "ann"))
            await page.locator("#code").press("Enter")
            await expect(page.locator("#state")).to_have_attribute("data-state", "online")
            typing = tasks.create_task(type_on_page(page, is_over))
            looking = tasks.create_task(look_at_page(url, is_over))
            for gateway in gateways:
                before = len(server.posts)
                await server.until(lambda before=before: len(server.posts) > before + 10)  # type: ignore[misc]
                assert await gateway.stop() == 0
                await gateway.start()
            is_over.set()
            counts = [await each for each in writing]
            assert set(await looking) == {200}, (tmp_path / "error.log").read_text()
            names = [f"m{_PAGE_CHAT}-{number}" for number in range(await typing)]
            assert await texts_on_page(page) == [names, names]
            await page.reload()
            await expect(page.locator(".line.user .body").last).to_contain_text(names[-1])
            assert await texts_on_page(page) == [names, names]
    for chat, count in zip(_CHATS, counts, strict=True):
        assert _SAID.findall(" ".join(server.shown(chat))) == [f"m{chat}-{number}" for number in range(count)]
    ((turns, distinct),) = postgres.query("SELECT count(*), count(DISTINCT turn) FROM record")
    assert sum(counts) < turns == distinct
    assert postgres.query("SELECT count(*) FROM inbox WHERE state != 'answered'") == [(0,)]
