"""Webhook mode over the wire: a strict Telegram calls the real web server, and what it is told is true."""

from __future__ import annotations

import asyncio
import io
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from typing import Any

import aiohttp
import pytest

from channels.telegram import TelegramSettings, plugin
from gateway.logs import configure_logs
from gateway.web.server import WebServer
from tests.fakes.gateway import free_port
from tests.fakes.telegram_channel import TelegramConnection, open_line
from tests.fakes.telegram_server import TelegramFault, TelegramServer, open_telegram
from tests.fakes.web_services import FakePageServices

SECRET = "a-secret-that-is-hard-to-guess"
HEADER = "X-Telegram-Bot-Api-Secret-Token"


@pytest.fixture
async def server() -> AsyncIterator[TelegramServer]:
    """Give a Telegram."""
    async with open_telegram() as server:
        yield server


@asynccontextmanager
async def called(
    server: TelegramServer, services: FakePageServices | None = None
) -> AsyncIterator[tuple[TelegramConnection, str]]:
    """Run the channel in webhook mode behind the real web server; give it and the address."""
    port = free_port()
    url = f"http://127.0.0.1:{port}/hooks/telegram"
    fields: dict[str, Any] = {"mode": "webhook", "webhook_url": url, "webhook_secret": SECRET}
    async with open_line(server, services, first="getWebhookInfo", **fields) as line:
        web = WebServer("127.0.0.1", port, plugin.routes(line.channel))
        serving = asyncio.create_task(web.serve(), name="web server")
        await web.wait_started()
        try:
            yield line, url
        finally:
            serving.cancel()
            await asyncio.wait({serving})


async def post(url: str, *, secret: str | None = SECRET, body: bytes = b"{}", **headers: str) -> int:
    """Call us as anybody could; return the status."""
    if secret is not None:
        headers[HEADER] = secret
    async with aiohttp.ClientSession() as session, session.post(url, data=body, headers=headers) as response:
        return response.status


async def test_what_telegram_brings_is_stored_before_it_is_told(server: TelegramServer) -> None:
    """Messages come in order and once, those that waited too; setWebhook names what we take and drops nothing."""
    server.say("said before")
    async with called(server) as (line, _):
        server.say("hello")
        await server.until(lambda: not server.updates)
        await server.until(line.channel.is_ready)
        assert [heard.text for heard in line.services.accepted] == ["said before", "hello"]
    (asked,) = [fields for name, fields in server.calls if name == "setWebhook"]
    assert asked["secret_token"] == SECRET
    assert asked["max_connections"] == 1
    assert "edited_message" in asked["allowed_updates"]
    assert not asked.get("drop_pending_updates")
    assert server.hooks.url  # it stays: Telegram keeps calling until we are back
    assert "getUpdates" not in [name for name, _ in server.calls]


async def test_a_journal_that_is_down_lets_telegram_keep_it(server: TelegramServer) -> None:
    """503 until it can be stored; then it is, and the ones behind it in their order."""
    async with called(server) as (line, _):
        line.services.is_down = True
        server.say("one")
        server.say("two")
        await server.until(lambda: server.hooks.answers.count(503) >= 2)
        assert line.services.accepted == []
        line.services.is_down = False
        await server.until(lambda: not server.updates)
    assert [heard.text for heard in line.services.accepted] == ["one", "two"]


@pytest.mark.parametrize("secret", [None, "", "wrong", SECRET[:-1], f"{SECRET}x", SECRET.upper()])
async def test_a_forger_is_refused(server: TelegramServer, secret: str | None) -> None:
    """Attack 14: without the secret, or with a wrong one, 401 and nothing heard."""
    async with called(server) as (line, url):
        body = b'{"update_id":1,"message":{"message_id":1,"chat":{"id":42,"type":"private"},"date":1,"text":"x"}}'
        assert await post(url, secret=secret, body=body) == 401
        assert line.services.deliveries == []


@pytest.mark.parametrize(
    ("secret", "announced", "status"),
    [
        ("wrong", "Transfer-Encoding: chunked", b"401"),
        ("wrong", "Content-Length: 900000", b"401"),
        ("wrong", "Content-Length: 50000000", b"413"),  # the whole server takes nothing of that size
        (SECRET, "Content-Length: 50000000", b"413"),
    ],
)
async def test_the_secret_is_looked_at_before_the_body(
    server: TelegramServer, secret: str, announced: str, status: bytes
) -> None:
    """Attack 14: what is announced with a wrong secret, or is too large, is refused before a byte of it has come."""
    async with called(server) as (_, url):
        reader, writer = await asyncio.open_connection("127.0.0.1", int(url.split(":")[2].partition("/")[0]))
        try:
            lines = ("POST /hooks/telegram HTTP/1.1", "Host: 127.0.0.1", f"{HEADER}: {secret}", announced, "", "")
            writer.write("\r\n".join(lines).encode())
            assert status in await reader.readline()
        finally:
            writer.close()
            await writer.wait_closed()


async def test_a_body_that_grows_too_long_is_cut_off(server: TelegramServer) -> None:
    """Two megabytes that nobody announced, with the right secret: refused as soon as it is too much."""

    async def drip() -> AsyncIterator[bytes]:
        for _ in range(20):
            yield b"x" * 100_000

    async with called(server) as (line, url), aiohttp.ClientSession() as session:
        with suppress(aiohttp.ClientOSError):  # hung up on while it still sends
            async with session.post(url, data=drip(), headers={HEADER: SECRET}) as response:
                assert response.status == 413
        assert line.services.deliveries == []
        assert line.services.quarantined == {}


async def test_only_posts_of_telegram_s_find_the_way(server: TelegramServer) -> None:
    """A page of another origin is refused even with the secret, and so is a foreign Host; GET is no call."""
    async with called(server) as (line, url):
        assert await post(url, Origin="https://evil.example") == 403
        assert await post(url, Host="evil.example") == 421
        async with aiohttp.ClientSession() as session, session.get(url, headers={HEADER: SECRET}) as response:
            assert response.status == 405
        assert await post(url.replace("/hooks/telegram", "/hooks/other")) == 404
        assert line.services.deliveries == []


async def test_what_cannot_be_read_is_set_aside(server: TelegramServer) -> None:
    """Garbage with the right secret is quarantined and answered with 200, or it would come for ever."""
    async with called(server) as (line, url):
        for body in (b"no json", b"[1]", b'{"update_id":1,"message":{"chat":"x"}}', b"[" * 100_000, b"\xff"):
            assert await post(url, body=body) == 200
        assert len(line.services.quarantined) == 5


async def test_a_bug_of_ours_lets_it_come_again(server: TelegramServer) -> None:
    """500 while something of ours breaks; how often it may is the intake's affair."""
    async with called(server) as (line, _):
        line.services.is_broken = True
        server.say("hello")
        await server.until(lambda: 500 in server.hooks.answers)
        line.services.is_broken = False
        await server.until(lambda: not server.updates)
    assert [heard.text for heard in line.services.accepted] == ["hello"]


async def test_deaf_is_told(server: TelegramServer) -> None:
    """When Telegram cannot reach us, or calls somebody else, we are not ready, and a line says why, once."""
    out = io.StringIO()
    configure_logs(form="json", stream=out)
    async with called(server) as (line, _):
        await server.until(line.channel.is_ready)
        server.hooks.last_error = (server.now(), "Connection timed out")
        server.updates.append({"update_id": 1, "poll": {}, "_at": server.now()})  # waits, and is of no kind we take
        await server.until(lambda: not line.channel.is_ready())
        server.updates.clear()
        await server.until(line.channel.is_ready)
        server.hooks.url = "https://elsewhere.example/"
        await server.until(lambda: not line.channel.is_ready())
    assert out.getvalue().count("telegram.webhook_fails") == 1
    assert "Connection timed out" in out.getvalue()
    assert out.getvalue().count("telegram.webhook_elsewhere") == 1
    assert SECRET not in out.getvalue()


async def test_before_it_is_ready_and_after_its_end_nothing_is_taken(server: TelegramServer) -> None:
    """503 until Telegram has said who we are, and again once we stop: it comes again."""
    server.fail("getMe", *(TelegramFault("status", 502) for _ in range(1000)))
    port = free_port()
    fields: dict[str, Any] = {"mode": "webhook", "webhook_url": f"http://127.0.0.1:{port}/hooks/telegram"}
    async with open_line(server, first="getMe", webhook_secret=SECRET, **fields) as line:
        web = WebServer("127.0.0.1", port, plugin.routes(line.channel))
        serving = asyncio.create_task(web.serve(), name="web server")
        await web.wait_started()
        assert await post(f"http://127.0.0.1:{port}/hooks/telegram") == 503
        serving.cancel()
        await asyncio.wait({serving})


async def test_polling_has_no_door(server: TelegramServer) -> None:
    """Who polls is called by nobody: there is no route."""
    async with open_line(server, runs=False) as line:
        assert plugin.routes(line.channel) == ()


@pytest.mark.parametrize("secret", ["", "short", "with blanks in the middle", "ümläute-sind-nicht-erlaubt", "x" * 257])
def test_a_weak_secret_is_refused_at_the_start(secret: str) -> None:
    """Attack 15: an empty secret, or one that can be guessed, does not start; the line says how to make one."""
    fields = {"enabled": False, "mode": "webhook", "webhook_url": "https://bot.example/hooks/telegram"}
    with pytest.raises(ValueError, match="token_urlsafe"):
        TelegramSettings.model_validate(fields | {"webhook_secret": secret})


def test_webhook_mode_needs_an_address_and_a_secret() -> None:
    """Half a webhook does not start."""
    token = {"token": "123456789:AAH-abcdefghijklmnopqrstuvwxyz012", "mode": "webhook"}
    for more in ({}, {"webhook_url": "https://bot.example/hooks/telegram"}, {"webhook_secret": SECRET}):
        with pytest.raises(ValueError, match="needs `webhook_url` and `webhook_secret`"):
            TelegramSettings.model_validate(token | more)
    with pytest.raises(ValueError, match="/hooks/"):
        TelegramSettings.model_validate({"enabled": False, "webhook_url": "bot.example"})
