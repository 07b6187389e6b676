"""Homes, stores and starts that are refused, each in one line, and a crash that writes no core dump."""

from __future__ import annotations

import asyncio
import io
import json
import os
import re
import resource
import tarfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from aiohttp import web

from gateway.backup import MANIFEST
from gateway.health.network_checks import verify
from gateway.i18n import translate
from gateway.installation import load_entry_points
from gateway.ports.setup import FindingLevel
from gateway.settings import load_settings
from tests.e2e.test_postgres_gateway import KEY, settings, until_answered
from tests.fakes.discord_records import TOKEN
from tests.fakes.discord_server import open_discord
from tests.fakes.gateway import GatewayProcess, free_port, gateway
from tests.fakes.loopback import serve_app
from tests.fakes.postgres_server import PostgresServer
from tests.fakes.slack_server import APP_TOKEN, BOT_TOKEN, slack_server
from tests.fakes.telegram_server import open_telegram
from tests.faults.process_pool import ForkServer

READING = [
    ("backup", "out.tar.gz"),
    ("status",),
    ("sessions", "list"),
    ("turn", "tabc"),
    ("usage",),
    ("tools",),
    ("memory",),
    ("search", "oolong"),
    ("people", "list"),
    ("people", "audit"),
    ("owner", "list"),
    ("why", "web"),
    ("quarantine", "list"),
    ("web", "logins"),
    ("prune",),
]


@pytest.mark.parametrize("words", READING, ids=lambda words: " ".join(words[:2]))
async def test_a_command_refuses_a_home_that_is_not_there(
    tmp_path: Path, zygote: ForkServer, words: tuple[str, ...]
) -> None:
    """One line, exit code 2, and neither a home nor an archive: the shell's `&&` deletes no older one."""
    gateway = GatewayProcess(tmp_path / "home", free_port(), zygote)
    words = tuple(str(tmp_path / word) if word.endswith(".gz") else word for word in words)
    code, printed = await gateway.run_to_its_end(*words)
    assert (code, printed.count("\n")) == (2, 1)
    assert f"no Parlour home exists at {tmp_path / 'home'}" in printed
    assert not await asyncio.to_thread(os.listdir, tmp_path)


async def test_an_empty_directory_is_no_home_to_back_up(tmp_path: Path, zygote: ForkServer) -> None:
    """A directory that someone has made, or that only has settings, has nothing to back up."""
    (tmp_path / "home").mkdir()
    (tmp_path / "home" / "parlour.yaml").write_text("language: en\n")
    gateway = GatewayProcess(tmp_path / "home", free_port(), zygote)
    code, printed = await gateway.run_to_its_end("backup", str(tmp_path / "out.tar.gz"))
    assert (code, "no Parlour home exists" in printed) == (2, True)
    assert not (tmp_path / "out.tar.gz").exists()
    assert [each.name for each in (tmp_path / "home").iterdir()] == ["parlour.yaml"]


async def test_a_backup_says_how_much_it_has(tmp_path: Path, zygote: ForkServer) -> None:
    """The command prints the number of turns and people, and the manifest has them."""
    gateway = GatewayProcess(tmp_path / "home", free_port(), zygote)
    try:
        await gateway.start()
        for n in range(1, 3):
            await gateway.command("send", KEY, f"message {n}")
            await until_answered(gateway, n)
        printed = await gateway.command("backup", str(tmp_path / "out.tar.gz"))
        assert "2 turns, memories of 1 person" in printed
    finally:
        await gateway.close()
    with tarfile.open(tmp_path / "out.tar.gz") as archive:
        member = archive.extractfile(MANIFEST)
        assert member is not None
        manifest = json.load(io.BytesIO(member.read()))
    assert (manifest["turns"], manifest["people"]) == (2, 1)


@pytest.fixture
def server(postgres: PostgresServer) -> PostgresServer:
    """Return a server with empty tables."""
    postgres.empty()
    return postgres


async def test_a_home_on_postgresql_does_not_start_on_a_file(
    tmp_path: Path, server: PostgresServer, zygote: ForkServer
) -> None:
    """Started without its address, it is refused with the line that names the database and the variable.

    No journal is made, also by no command, and the way back stays open. So it is for a home of before this note.
    """
    on_server = GatewayProcess(tmp_path / "home", free_port(), zygote, **settings(server))
    on_file = GatewayProcess(tmp_path / "home", free_port(), zygote)
    try:
        await on_server.start()
        await on_server.command("send", KEY, "hello")
        await until_answered(on_server, 1)
        await on_server.stop()
        for words in (("run",), ("doctor", "--offline"), ("status",), ("backup", str(tmp_path / "b.tar.gz"))):
            code, printed = await on_file.run_to_its_end(*words)
            assert (code, "set PARLOUR_STORE__URL to its address" in printed) == (2, True), printed
        assert not list((tmp_path / "home").glob("journal.db*"))
        assert not (tmp_path / "b.tar.gz").exists()
        (tmp_path / "home" / "journal.moved").unlink()
        code, printed = await on_file.run_to_its_end("run")
        assert (code, "are in a PostgreSQL database: set PARLOUR_STORE__URL" in printed) == (2, True), printed
        await on_server.start()
        await on_server.stop()
        assert "rows are in" in await on_server.command("store", "migrate", "sqlite")
        await on_file.start()
        await on_file.stop()
    finally:
        await on_server.close()
        await on_file.close()


async def test_a_home_starts_on_no_other_database(tmp_path: Path, server: PostgresServer, zygote: ForkServer) -> None:
    """A database with another home's messages, or with none, is refused by name until the loss is accepted."""
    first = GatewayProcess(tmp_path / "home", free_port(), zygote, **settings(server))
    try:
        await first.start()
        await first.stop()
        server.empty()
        for command in ("run", "doctor"):
            code, printed = await first.run_to_its_end(command)
            assert (code, "has no messages of a Parlour" in printed) == (2, True), printed
        other = GatewayProcess(tmp_path / "other", free_port(), zygote, **settings(server))
        await other.start()
        await other.stop()
        code, printed = await first.run_to_its_end("run")
        assert (code, "belongs to another home" in printed) == (2, True), printed
        assert "names it in the home" in await first.command("accept-loss", "--yes")
        await first.start()
        await first.stop()
    finally:
        await first.close()


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


async def test_a_crash_writes_no_core_dump(tmp_path: Path) -> None:
    """Where core dumps are on, the gateway switches them off for itself: one would hold keys and conversations."""
    before = resource.getrlimit(resource.RLIMIT_CORE)
    resource.setrlimit(resource.RLIMIT_CORE, (before[1], before[1]))
    try:
        async with gateway(tmp_path / "home") as process:
            assert resource.prlimit(process.pid, resource.RLIMIT_CORE)[0] == 0
    finally:
        resource.setrlimit(resource.RLIMIT_CORE, before)
