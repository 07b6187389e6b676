"""The whole gateway behind a SOCKS5 proxy: platforms that can be reached no other way, and a proxy that goes away.

`microsocks` is a real server. The platforms stand where only who comes by way of it is let in; whoever goes around it
meets a closed door.
"""

from __future__ import annotations

import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from gateway.delivery import part_planner
from gateway.events import Attachment, MessagePart, SessionKey
from gateway.health.doctor import collect_findings
from gateway.health.network_checks import probe_proxy
from gateway.ports.memory import FileKind
from gateway.ports.setup import FindingLevel
from tests.fakes.discord_records import ANN as DISCORD_ANN
from tests.fakes.discord_records import TOKEN as DISCORD_TOKEN
from tests.fakes.discord_server import open_discord
from tests.fakes.gateway import free_port
from tests.fakes.inprocess_gateway import InstantModel, gateway
from tests.fakes.proxies import FAR_NAME, far_away, microsocks, open_socks
from tests.fakes.slack_gateway import open_gateway as open_slack_gateway
from tests.fakes.slack_server import ANN, APP_TOKEN, BOT_TOKEN, BOT_USER, DM, slack_server
from tests.fakes.stored_files import stored_files
from tests.fakes.telegram_gateway import EchoModel
from tests.fakes.telegram_gateway import open_gateway as open_telegram_gateway
from tests.fakes.telegram_server import open_telegram

PASSWORD = "the-password-of-the-proxy"
WORDS = b"the cellar key hangs behind the clock"


@pytest.fixture(autouse=True)
def _in_a_hurry(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(part_planner, "FIRST_DELAY", 0.05)
    runtime = tmp_path / "runtime"
    runtime.mkdir(mode=0o700)
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(runtime))


@asynccontextmanager
async def open_behind_proxy(base: str, folder: Path) -> AsyncIterator[tuple[str, dict[str, str]]]:
    """Show what stands at *base* beyond a real proxy: its name and port there, and the setting that leads to it."""
    port = urlsplit(base if "//" in base else f"//{base}").port or 0
    async with microsocks(folder, free_port(), user="ann", password=PASSWORD) as proxy, far_away(port) as far:
        yield f"{FAR_NAME}:{far}", {"PARLOUR_PROXY": proxy}


async def test_telegram_by_polling_with_a_file(tmp_path: Path) -> None:
    """Updates, answers and a download, each through the proxy."""
    async with open_telegram() as server:
        server.now = lambda: int(time.time())
        async with open_behind_proxy(server.base, tmp_path) as (place, settings):
            server.base = f"http://{place}"
            model = EchoModel(lambda _: "Read.")
            async with open_telegram_gateway(server, model, None, **settings) as up:
                ident = server.files.keep(WORDS)
                fields = {"file_id": ident, "file_name": "a.txt", "mime_type": "text/plain", "file_size": len(WORDS)}
                server.say(None, caption="what is in it?", document=fields)
                await server.until(lambda: len(server.posts) == 1)
                await up.idle()
        assert "cellar key" in model.heard[-1]


async def test_slack_by_socket_mode_with_files_both_ways(tmp_path: Path) -> None:
    """The WebSocket, the Web API, a download and an upload, each through the proxy."""
    async with slack_server() as server, open_behind_proxy(server.base, tmp_path) as (place, settings):
        server.base = f"http://{place}"
        async with open_slack_gateway(server, environment=settings) as up:
            server.say(DM, ANN, "look", subtype="file_share", files=[server.attach("a.txt", WORDS, "text/plain")])
            answers = server.places[DM].messages
            await server.until(lambda: any(each["user"] == BOT_USER for each in answers))
            await up.idle()
            assert len(server.downloads) == 1
            file = Attachment(kind="document", name="answer.md", size=5)
            part = MessagePart(id="t1234567.1.1", key=SessionKey("slack", DM), payload="", plain="words", file=file)
            sent = await up.app.channels["slack"].send(part)
            assert server.files[sent.message_id].data == b"words"


async def test_discord_by_its_gateway_with_a_file(tmp_path: Path) -> None:
    """Gateway, REST and a download from where files lie, each through the proxy."""
    async with open_discord() as discord, open_behind_proxy(discord.base, tmp_path) as (place, settings):
        discord.base = place
        environment = settings | {
            "PARLOUR_CHANNELS__DISCORD__TOKEN": DISCORD_TOKEN,
            "PARLOUR_CHANNELS__DISCORD__API_URL": f"http://{place}/api/v10",
            "PARLOUR_CHANNELS__DISCORD__GATEWAY_URL": f"ws://{place}/gateway",
            "PARLOUR_CHANNELS__DISCORD__ALLOW_FROM": DISCORD_ANN,
        }
        before = discord.gateway.identified
        async with gateway(model=InstantModel(), environment=environment) as up:
            await discord.until(lambda: discord.gateway.identified > before)
            chat = discord.direct(DISCORD_ANN)
            discord.say(chat, DISCORD_ANN, "look", attachments=[discord.cdn.keep("a.txt", WORDS)])
            await discord.until(lambda: discord.chat(chat))
            await up.idle()
            assert list(stored_files(up.home, FileKind.ATTACHMENT).values()) == [WORDS]


async def test_messages_wait_while_the_proxy_is_away_and_nothing_is_lost_or_said_twice() -> None:
    """Gone with a message waiting at Telegram and an answer on its way; back: each said once, in order."""
    async with open_telegram() as server:
        server.now = lambda: int(time.time())
        port = urlsplit(server.base).port or 0
        async with open_socks({"telegram.example": ("127.0.0.1", port)}) as proxy:
            server.base = "http://telegram.example"
            model = EchoModel()
            async with open_telegram_gateway(server, model, PARLOUR_PROXY=proxy.url("socks5h")) as up:
                server.say("one")
                await server.until(lambda: len(server.posts) == 1)
                model.go_on.clear()
                model.thinks.clear()
                server.say("two")
                await model.thinks.wait()
                before = len(proxy.asked)
                proxy.is_down = True
                proxy.drop()
                server.say("three")
                model.go_on.set()
                await proxy.knocked()
                assert len(server.posts) == 1
                assert len(proxy.asked) == before
                proxy.is_down = False
                await server.until(lambda: len(server.posts) == 3)
                await up.idle()
            assert [post.text for post in server.posts] == ["You said: one", "You said: two", "You said: three"]
            assert proxy.hosts() == {"telegram.example"}


async def test_init_and_doctor_ask_through_the_proxy(monkeypatch: pytest.MonkeyPatch) -> None:
    """What a platform says of a token is asked where the gateway will ask; the environment's own proxy is no matter."""
    from channels.discord import plugin as discord_kind
    from channels.slack import plugin as slack_kind
    from channels.telegram import plugin as telegram_kind
    from gateway.settings import load_settings

    for name in ("HTTPS_PROXY", "HTTP_PROXY", "https_proxy", "http_proxy"):
        monkeypatch.setenv(name, "http://127.0.0.1:9")
    async with open_telegram() as telegram, slack_server() as slack, open_discord() as discord:
        ports = {"t": telegram.base, "s": slack.base, "d": f"http://{discord.base}"}
        known = {f"{name}.example": ("127.0.0.1", urlsplit(base).port or 0) for name, base in ports.items()}
        async with open_socks(known) as proxy:
            slack.base, discord.base = "http://s.example", "d.example"
            settings = load_settings(
                {
                    "PARLOUR_CHANNELS__TELEGRAM__TOKEN": telegram.token,
                    "PARLOUR_CHANNELS__TELEGRAM__BASE_URL": "http://t.example/bot",
                    "PARLOUR_CHANNELS__SLACK__BOT_TOKEN": BOT_TOKEN,
                    "PARLOUR_CHANNELS__SLACK__APP_TOKEN": APP_TOKEN,
                    "PARLOUR_CHANNELS__SLACK__BASE_URL": "http://s.example/api/",
                    "PARLOUR_CHANNELS__DISCORD__TOKEN": DISCORD_TOKEN,
                    "PARLOUR_CHANNELS__DISCORD__API_URL": "http://d.example/api/v10",
                    "PARLOUR_HOME": "/nowhere",
                }
            )
            address = proxy.url("socks5h")
            for kind in (telegram_kind, slack_kind, discord_kind):
                found = await kind.verify(settings.channels[kind.name], {"PARLOUR_PROXY": address})
                assert found[0].level is FindingLevel.OK, found
            assert proxy.hosts() == set(known)
            assert await probe_proxy(address) == ""


async def test_the_doctor_says_that_it_is_the_proxy(tmp_path: Path) -> None:
    """Missing, refusing, or well: one line about the proxy itself, and its password in none."""
    async with open_socks(user="ann", password=PASSWORD) as proxy:
        told = {}
        for name, address in {
            "well": proxy.url("socks5h"),
            "refused": proxy.url("socks5h", password="no"),
            "missing": f"socks5h://ann:{PASSWORD}@127.0.0.1:9",
        }.items():
            environment = {"PARLOUR_HOME": str(tmp_path), "PARLOUR_WEB__PORT": "0", "PARLOUR_PROXY": address}
            lines = [line async for line in collect_findings(environment, is_offline=False, asks_model=False)]
            (told[name],) = [line for line in lines if line.id == "proxy"]
            assert PASSWORD not in str(lines)
    expected = {
        "well": FindingLevel.OK,
        "refused": FindingLevel.FAIL,
        "missing": FindingLevel.FAIL,
    }
    assert {name: line.level for name, line in told.items()} == expected
    assert "rejects the user or password" in told["refused"].text
    assert "cannot be reached" in told["missing"].text
