"""The first start with a token that is refused, an intent that is off, or an address where something else answers."""

from __future__ import annotations

import json
import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from aiohttp import web

from gateway.health.network_checks import verify
from gateway.i18n import translate
from gateway.installation import load_entry_points
from gateway.ports.setup import FindingLevel
from gateway.settings import load_settings
from tests.fakes.discord_records import TOKEN
from tests.fakes.discord_server import open_discord
from tests.fakes.gateway import GatewayProcess, gateway
from tests.fakes.loopback import serve_app
from tests.fakes.slack_server import APP_TOKEN, BOT_TOKEN, slack_server
from tests.fakes.telegram_server import open_telegram
from tests.faults.process_pool import ForkServer

DOCS = Path(__file__).parents[2] / "docs"
OTHER = {"telegram": "123456:" + "x" * 35, "discord": "MTA0MjAwMDAwMDAwMDAwMDAwMg.GcanaR." + "z" * 38}


def telegram(base: str, token: str) -> dict[str, str]:
    """Return a block for a Bot API at *base*."""
    block = "PARLOUR_CHANNELS__TELEGRAM__"
    return {
        f"{block}TOKEN": token, f"{block}BASE_URL": f"{base}/bot", f"{block}FILE_URL": f"{base}/file/bot",
        f"{block}ALLOW_FROM": "42",
    }  # fmt: skip


def discord(base: str, token: str) -> dict[str, str]:
    """Return a block for a Discord at *base*."""
    block = "PARLOUR_CHANNELS__DISCORD__"
    return {
        f"{block}TOKEN": token, f"{block}API_URL": f"{base}/api/v10", f"{block}ALLOW_FROM": "2001",
        f"{block}GATEWAY_URL": f"{base.replace('http', 'ws', 1)}/gateway", f"{block}COMMANDS": "off",
    }  # fmt: skip


def slack(base: str, token: str, app_token: str = APP_TOKEN) -> dict[str, str]:
    """Return a block for a Slack at *base*."""
    block = "PARLOUR_CHANNELS__SLACK__"
    return {
        f"{block}BOT_TOKEN": token, f"{block}APP_TOKEN": app_token, f"{block}BASE_URL": f"{base}/api/",
        f"{block}ALLOW_FROM": "U0ANN",
    }  # fmt: skip


@asynccontextmanager
async def elsewhere(status: int, body: str, kind: str) -> AsyncIterator[str]:
    """Serve a page that is no platform, whatever is asked; yield its address."""

    async def answer(_: web.Request) -> web.Response:
        return web.Response(status=status, text=body, content_type=kind)

    async with serve_app(answer) as place:
        yield f"http://{place}"


def lines_of(process: GatewayProcess) -> dict[str, str]:
    """Return the line of each channel that was refused; there is one, and no other trouble with a traceback."""
    found = [json.loads(line) for line in process.log if "channel.refused" in line or "channel.failed" in line]
    assert len(found) == 3, found
    assert not [line for line in process.log if "Traceback" in line]
    return {line["channel"]: line["mend"] for line in found}


async def test_a_refused_token_at_the_first_start_is_one_line(tmp_path: Path, zygote: ForkServer) -> None:
    """The gateway runs and says for each channel what to do; not that something was once well."""
    async with open_telegram() as bot_api, open_discord() as there, slack_server() as workspace:
        environment = {
            **telegram(bot_api.base, OTHER["telegram"]),
            **discord(f"http://{there.base}", OTHER["discord"]),
            **slack(workspace.base, "xoxb-9999999999-9999999999-wrongwrong"),
        }
        async with gateway(tmp_path / "home", zygote, **environment) as process:
            await process.wait_logged("channel.refused", times=3)
            assert await process.stop() == 0
        lines = lines_of(process)
    assert "Telegram rejects the token" in lines["telegram"]
    assert "Discord rejects the token" in lines["discord"]
    assert "Slack rejects the token" in lines["slack"]
    assert not [line for line in process.log if "no longer" in line]


async def test_a_refused_token_is_told_to_owners_as_what_it_is() -> None:
    """At the first start nothing was any other way before: no language says "no longer"."""
    told = {
        language: translate("alerts.channel_token", language, channel="telegram")
        for language in ("en", "de", "es", "zh")
    }
    assert not [each for each in told.values() if re.search("no longer|nicht mehr|ya no|不再", each)]


ELSEWHERE = [
    (404, "<html>no such page</html>", "text/html"),
    (404, '{"detail": "Not Found"}', "application/json"),
    (401, "<html>who are you?</html>", "text/html"),
    (200, "<html>welcome</html>", "text/html"),
]


@pytest.mark.parametrize(("status", "body", "kind"), ELSEWHERE[:1])
async def test_a_wrong_address_at_the_first_start_is_one_line(
    tmp_path: Path, zygote: ForkServer, status: int, body: str, kind: str
) -> None:
    """Something else answers there: the line names the setting, and not the token."""
    async with elsewhere(status, body, kind) as base:
        environment = {
            **telegram(base, OTHER["telegram"]), **discord(base, OTHER["discord"]), **slack(base, BOT_TOKEN)
        }  # fmt: skip
        async with gateway(tmp_path / "home", zygote, **environment) as process:
            await process.wait_logged("channel.refused", times=3)
            assert await process.stop() == 0
    lines = lines_of(process)
    assert {name: "correct `base_url`" in lines[name] for name in ("telegram", "slack")} == {
        "telegram": True,
        "slack": True,
    }
    assert "correct `api_url`" in lines["discord"]
    assert not [line for line in lines.values() if "rejects the token" in line]


@pytest.mark.parametrize(("status", "body", "kind"), ELSEWHERE)
@pytest.mark.parametrize("name", ["telegram", "discord", "slack"])
async def test_the_doctor_takes_a_wrong_address_for_no_bad_token(name: str, status: int, body: str, kind: str) -> None:
    """Whatever a page that is no platform answers, the doctor looks at the address."""
    async with elsewhere(status, body, kind) as base:
        blocks = {"telegram": telegram(base, OTHER["telegram"]), "discord": discord(base, OTHER["discord"])}
        (line,) = await verify_online(name, blocks.get(name) or slack(base, BOT_TOKEN))
    assert "correct `" in line or "cannot be reached" in line, line
    assert "token" not in line


async def test_the_doctor_still_knows_a_bad_token() -> None:
    """At addresses of one's own, too."""
    async with open_telegram() as bot_api, open_discord() as there, slack_server() as workspace:
        blocks = {
            "telegram": telegram(bot_api.base, OTHER["telegram"]),
            "discord": discord(f"http://{there.base}", OTHER["discord"]),
            "slack": slack(workspace.base, "xoxb-9999999999-9999999999-wrongwrong"),
        }
        for name, block in blocks.items():
            (line,) = await verify_online(name, block)
            assert "rejects the" in line
            assert "token" in line


async def verify_online(name: str, environment: dict[str, str]) -> list[str]:
    """Return what the doctor finds wrong with a block by asking."""
    (entry,) = [each for each in load_entry_points("parlour.channels") if each.name == name]
    block = load_settings(environment).channels[name]
    return [each.text for each in await verify(entry.load(), block, {}) if each.level is FindingLevel.FAIL]


async def test_a_missing_intent_is_what_the_page_says(tmp_path: Path, zygote: ForkServer) -> None:
    """The gateway goes on running, one line says what to click, and nothing ends."""
    page = (DOCS / "discord.md").read_text("utf-8")
    assert "Without it Discord rejects the bot: Parlour keeps running, the log and" in page
    assert (
        "| the token or the intent is rejected, at any start | the gateway and the other channels keep running;" in page
    )
    async with open_discord() as there:
        there.allows_content = False
        block = discord(f"http://{there.base}", TOKEN)
        async with gateway(tmp_path / "home", zygote, **block) as process:
            await process.wait_logged("channel.refused")
            assert "running" in await process.command("status")
            assert await process.stop() == 0
    (line,) = [line for line in process.log if "channel.refused" in line]
    assert "switch on Message Content Intent" in line
    assert not [line for line in process.log if "Traceback" in line]
