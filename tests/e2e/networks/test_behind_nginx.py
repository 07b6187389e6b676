"""Page and webhook behind a real nginx on a path of its host, with TLS, and the model beyond a real SOCKS5 server."""

from __future__ import annotations

import asyncio
import io
import os
import time
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import aiohttp
import pytest
from playwright.async_api import Browser, FilePayload, Page, expect

from tests.e2e.browser import open_browser, send_text
from tests.fakes.gateway import GatewayProcess, free_port
from tests.fakes.openai_server import ScriptedAnswer, open_server
from tests.fakes.proxies import FAR_NAME, PUBLIC, NginxFront, far_away, microsocks, nginx
from tests.fakes.telegram_server import TelegramServer, open_telegram
from tests.fakes.web_services import FakePageServices, ServedPage, serve_page
from tests.faults.process_pool import ForkServer

WORDS = " ".join(f"word{number}" for number in range(60))
PASSWORD = "the-password-of-the-proxy"
HOOK = "a-secret-that-is-hard-to-guess"


@pytest.fixture(autouse=True)
def _patient() -> Iterator[None]:
    """Wait longer than usual: a gateway, a browser and three servers start on a machine that does other things."""
    expect.set_options(timeout=20_000)
    yield
    expect.set_options(timeout=5_000)


@asynccontextmanager
async def beyond(folder: Path, telegram: TelegramServer, script: Any) -> AsyncIterator[dict[str, str]]:
    """Show a model and Telegram beyond a real SOCKS5 server; yield the settings that lead there."""
    async with (
        open_server(script) as model,
        microsocks(folder, free_port(), user="ann", password=PASSWORD) as proxy,
        far_away(urlsplit(model.base).port or 0) as far_model,
        far_away(urlsplit(telegram.base).port or 0) as far_telegram,
    ):
        yield {
            "PARLOUR_PROXY": proxy,
            "PARLOUR_LLM__MODEL": "openai/test",
            "PARLOUR_LLM__API_BASE": f"http://{FAR_NAME}:{far_model}/v1",
            "PARLOUR_LLM__API_KEY": "k",
            "PARLOUR_CHANNELS__TELEGRAM__TOKEN": telegram.token,
            "PARLOUR_CHANNELS__TELEGRAM__BASE_URL": f"http://{FAR_NAME}:{far_telegram}/bot",
            "PARLOUR_CHANNELS__TELEGRAM__FILE_URL": f"http://{FAR_NAME}:{far_telegram}/file/bot",
            "PARLOUR_CHANNELS__TELEGRAM__ALLOW_FROM": "42",
            "PARLOUR_CHANNELS__TELEGRAM__MODE": "webhook",
            "PARLOUR_CHANNELS__TELEGRAM__WEBHOOK_SECRET": HOOK,
        }


def answer(body: Mapping[str, Any], n: int) -> ScriptedAnswer:
    """Say something long, slowly enough to be seen growing."""
    said = str(body["messages"][-1]["content"])
    is_slow = "slowly" in said
    return ScriptedAnswer(text=WORDS if is_slow else f"Answer {n}.", gap=0.03 if is_slow else 0.0)


async def enter(browser: Browser, link: str, code: str = "") -> Page:
    """Open the page with a link, or its address and a code to type; it is online when this returns."""
    context = await browser.new_context(ignore_https_errors=True)
    page = await context.new_page()
    await page.goto(link)
    await expect(page.locator("#login")).to_be_visible()
    if code:
        await page.locator("#code").fill(code)
    await page.locator("#code").press("Enter")
    await expect(page.locator("#state")).to_have_attribute("data-state", "online")
    assert page.url == link.partition("#")[0]
    return page


async def test_the_whole_page_and_a_webhook_behind_nginx_with_the_model_beyond_a_proxy(
    tmp_path: Path, zygote: ForkServer
) -> None:
    """Login by link and code, a streaming answer, an upload, a reload, a reconnect, two people; Telegram calls in."""
    port, front_port, plain_port = free_port(), free_port(), free_port()
    async with (
        open_telegram() as telegram,
        beyond(tmp_path, telegram, answer) as settings,
        nginx(tmp_path, port, front_port, plain_port) as front,
        open_browser(f"--host-resolver-rules=MAP {PUBLIC} 127.0.0.1") as browser,
    ):
        telegram.now = lambda: int(time.time())
        process = GatewayProcess(
            tmp_path / "home",
            port,
            zygote,
            **settings,
            PARLOUR_WEB__PUBLIC_URL=front.url,
            PARLOUR_WEB__TRUSTED_PROXIES="127.0.0.1",
            PARLOUR_CHANNELS__TELEGRAM__WEBHOOK_URL=f"{front.plain}hooks/telegram",
        )
        try:
            await process.start()
            code, link = (await process.command("web", "login")).split()
            assert link == f"{front.url}#code={code}"
            mine = await enter(browser, link)
            await _is_a_cookie_of_ours_alone(mine, front)
            await _talk(mine, front)
            await _is_somebody_else(browser, front, process, mine)
            telegram.say("hello from Telegram")
            await telegram.until(lambda: len(telegram.posts) == 1)
            assert telegram.posts[0].text.startswith("Answer")
            assert set(telegram.hooks.answers) == {200}
            assert await _metrics(front.plain) == 401
            assert await _metrics(process.url) == 200
            assert await process.stop() == 0
        finally:
            await process.close()
        assert not [line for line in process.log if PASSWORD in line or code in line]


async def _metrics(url: str) -> int:
    async with aiohttp.ClientSession() as session, session.get(f"{url}metrics") as answer:
        return answer.status


async def _is_a_cookie_of_ours_alone(page: Page, front: NginxFront) -> None:
    (cookie,) = await page.context.cookies(front.url)
    assert (cookie["path"], cookie["secure"], cookie["httpOnly"], cookie["sameSite"]) == (
        "/chat/",
        True,
        True,
        "Strict",
    )
    assert await page.context.cookies(f"https://{PUBLIC}/another/") == []


async def _talk(page: Page, front: NginxFront) -> None:
    await send_text(page, "say it slowly")
    await expect(page.locator(".line.streaming .body")).to_contain_text("word0", timeout=40_000)
    await expect(page.locator(".line.assistant:not(.streaming) .body")).to_have_text(WORDS)
    file = FilePayload(name="notes.txt", mimeType="text/plain", buffer=b"the door code is 4711" * 100_000)
    await page.locator("#files").set_input_files(file)
    await expect(page.locator('#attached [data-state="ready"]')).to_have_count(1)
    await send_text(page, "keep this")
    await expect(page.locator(".line.assistant")).to_have_count(2)
    await page.reload()
    await expect(page.locator(".line.user .body")).to_have_text(["say it slowly", "keep this"])
    async with page.expect_download() as download:
        await page.locator(".line.user a.file").click()
    assert (await (await download.value).path()).read_bytes() == file["buffer"]
    await front.process.stop()
    await expect(page.locator("#state")).to_have_attribute("data-state", "offline")
    await send_text(page, "meanwhile")
    await front.process.start()
    await expect(page.locator(".line.assistant")).to_have_count(3)


async def _is_somebody_else(browser: Browser, front: NginxFront, process: GatewayProcess, mine: Page) -> None:
    """Ann has a chat of her own, decides nothing for others, and is out at once when she is logged out."""
    code = (await process.command("web", "login", "--as", "ann")).split()[0]
    hers = await enter(browser, front.url, code)
    await expect(hers.locator("#welcome")).to_be_visible()
    await send_text(hers, "hello, I am Ann")
    await expect(hers.locator(".line.assistant")).to_have_count(1)
    await expect(mine.locator(".line.user")).to_have_count(3)
    await process.command("web", "logout", "ann")
    await expect(hers.locator("#login")).to_be_visible()
    await expect(mine.locator("#state")).to_have_attribute("data-state", "online")


@asynccontextmanager
async def served(folder: Path, *, is_cut: bool) -> AsyncIterator[tuple[NginxFront, ServedPage, aiohttp.ClientSession]]:
    """Serve the page behind nginx; the session knows the public name, and trusts what stands there."""
    port, front_port, plain_port = free_port(), free_port(), free_port()
    async with nginx(folder, port, front_port, plain_port, is_cut=is_cut) as front:
        services = FakePageServices(folder=folder / "uploads")
        async with serve_page(services, port=port, public_url=front.url, trusted_proxies=("127.0.0.1",)) as page:
            headers = {"Host": urlsplit(front.url).netloc}
            connector = aiohttp.TCPConnector(ssl=False)
            async with aiohttp.ClientSession(
                connector=connector, headers=headers, cookie_jar=aiohttp.DummyCookieJar()
            ) as session:
                yield replace(front, url=f"https://127.0.0.1:{front_port}/chat/"), page, session


@pytest.mark.parametrize("is_cut", [False, True], ids=["path-kept", "path-cut-off"])
async def test_every_address_works_whether_nginx_keeps_the_path_or_cuts_it_off(tmp_path: Path, is_cut: bool) -> None:
    """Page, files, health, login, upload, WebSocket and hooks; and nobody is the owner for being next to nginx."""
    async with served(tmp_path, is_cut=is_cut) as (front, page, session):
        origin = {"Origin": f"https://{PUBLIC}:{urlsplit(front.url).port}"}
        for path, status in (("", 200), ("assets/app.js", 200), ("session", 401), ("hooks/nobody", 404), ("no", 404)):
            async with session.get(f"{front.url}{path}") as got:
                assert got.status == status, path
        async with session.get(front.url.rstrip("/"), allow_redirects=False) as got:
            assert urlsplit(got.headers["Location"]).path == "/chat/"
        code = await page.channel.issue_code("ann")
        async with session.post(f"{front.url}login", json={"code": code}, headers=origin) as got:
            assert got.status == 204
            cookie = got.headers["Set-Cookie"]
        assert "Path=/chat/" in cookie
        assert "Secure" in cookie
        known = {**origin, "Cookie": cookie.split(";")[0]}
        async with session.get(f"{front.url}session", headers=known) as got:
            found = await got.json()
        assert (found["who"], found["can_leave"]) == ("ann", True)
        async with session.post(f"{front.url}files", data=io.BytesIO(b"x" * 3_000_000), headers=known) as got:
            assert (await got.json())["size"] == 3_000_000
        async with session.ws_connect(f"{front.url}ws", headers=known) as socket:
            assert (await socket.receive_json())["type"] == "history"
        for forged in ({"X-Forwarded-For": "127.0.0.1"}, {"Forwarded": "for=127.0.0.1"}, {"X-Real-IP": "127.0.0.1"}):
            async with session.get(f"{front.url}session", headers=forged) as got:
                assert got.status == 401


async def test_a_slow_body_waits_at_nginx(tmp_path: Path) -> None:
    """A body that does not come holds a connection of nginx's and none of ours; an upload goes through as it comes."""
    async with served(tmp_path, is_cut=False) as (front, page, session):
        head = (
            f"Host: {PUBLIC}\r\nOrigin: https://{PUBLIC}:{urlsplit(front.url).port}\r\nContent-Length: 4000\r\n\r\n{{"
        )
        slow = []
        for path in ("login", "hooks/telegram", "files"):
            reader, writer = await asyncio.open_connection("127.0.0.1", urlsplit(front.plain).port)
            writer.write(f"POST /chat/{path} HTTP/1.1\r\n{head}".encode())
            await writer.drain()
            slow.append((reader, writer))
        async with session.get(f"{front.url}session") as got:  # nginx has read what came before
            assert got.status == 401
        # The upload is refused before its body: nobody is logged in.
        assert (await slow[2][0].readline()).split()[1] == b"401"
        assert await _connections_to(page.server.port) == 0
        for _, writer in slow:
            writer.close()


async def _connections_to(port: int) -> int:
    """Return how many connections to *port* of this machine are established, as the kernel has it."""
    lines = await asyncio.to_thread(Path("/proc/net/tcp").read_text, "ascii")
    rows = [line.split() for line in lines.splitlines()[1:]]
    return sum(local.endswith(f":{port:04X}") and state == "01" for _, local, _, state, *_ in rows)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can run nginx under another account")
async def test_a_proxy_that_says_nothing_makes_nobody_the_owner(tmp_path: Path) -> None:
    """No public address, no header, Host and Origin forged to be this machine's: its account tells what it is."""
    port, front_port, plain_port = free_port(), free_port(), free_port()
    async with (
        nginx(tmp_path, port, front_port, plain_port, is_cut=True, is_bare=True) as front,
        serve_page(FakePageServices(), port=port) as page,
        aiohttp.ClientSession() as session,
    ):
        here = {"Origin": page.url.rstrip("/")}
        async with session.get(f"{page.url}session", headers=here) as got:
            assert (await got.json())["who"] == "owner"
        async with session.get(f"{front.plain}session", headers=here) as got:
            assert got.status == 401
        with pytest.raises(aiohttp.WSServerHandshakeError) as refused:
            await session.ws_connect(f"{front.plain}ws", headers=here)
        assert refused.value.status == 401
