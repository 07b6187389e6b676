"""Owners are told over the wire: in their own direct chat on each platform, also where they never wrote."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from aiohttp import ClientSession, web

from gateway.health.doctor import fetch_status
from gateway.health.gateway_checks import fetch_alerts, status_findings
from gateway.home import Home
from tests.fakes.discord_records import ANN as DISCORD_ANN
from tests.fakes.discord_server import DiscordServer, open_discord
from tests.fakes.inprocess_gateway import InProcessGateway, InstantModel, gateway
from tests.fakes.loopback import serve_app
from tests.fakes.slack_gateway import variables
from tests.fakes.slack_server import ANN, DM, SlackServer, slack_server
from tests.fakes.telegram_server import TelegramServer, open_telegram

NAMES = ("slack", "telegram", "discord")
KILLED = "The bot was terminated without a clean shutdown, most recently before"
REFUSED = "rejects the bot's token"


class AlertPlatforms:
    """Three platforms, and the gateway's settings for them."""

    def __init__(self, slack: SlackServer, telegram: TelegramServer, discord: DiscordServer) -> None:
        self.slack, self.telegram, self.discord = slack, telegram, discord
        telegram.chat(42, "private")  # until a person has said something to a bot, it cannot write to them
        self.environment = variables(slack) | {
            "PARLOUR_CHANNELS__TELEGRAM__TOKEN": telegram.token,
            "PARLOUR_CHANNELS__TELEGRAM__BASE_URL": f"{telegram.base}/bot",
            "PARLOUR_CHANNELS__TELEGRAM__FILE_URL": f"{telegram.base}/file/bot",
            "PARLOUR_CHANNELS__DISCORD__TOKEN": discord.token,
            "PARLOUR_CHANNELS__DISCORD__API_URL": f"http://{discord.base}/api/v10",
            "PARLOUR_CHANNELS__DISCORD__GATEWAY_URL": f"ws://{discord.base}/gateway",
            "PARLOUR_OWNERS": f"telegram:42,slack:{ANN},discord:{DISCORD_ANN}",
        }

    @asynccontextmanager
    async def open_gateway(self, home: Path) -> AsyncIterator[InProcessGateway]:
        """Run the gateway until every platform is heard."""
        async with gateway(home=home, model=InstantModel(), environment=self.environment) as parlour:
            self.telegram.say("nobody's", chat=99, sender=99)  # the poll that hangs says that it is heard
            await within(20, lambda: all(parlour.app.supervisor.states().get(name) for name in NAMES))
            yield parlour

    def told(self) -> dict[str, list[str]]:
        """Return what stands in Ann's direct chats."""
        return {
            "slack": self.slack.shown(DM),
            "telegram": self.telegram.shown(42),
            "discord": list(self.discord.chat(self.discord.direct(DISCORD_ANN))),
        }


@pytest.fixture
async def world() -> AsyncIterator[AlertPlatforms]:
    """Open all three."""
    async with slack_server() as slack, open_telegram() as telegram, open_discord() as discord:
        yield AlertPlatforms(slack, telegram, discord)


async def within(seconds: float, holds: Callable[[], bool]) -> None:
    """Return when *holds* holds."""
    async with asyncio.timeout(seconds):
        while True:
            if holds():
                return
            await asyncio.sleep(0.01)


async def until(world: AlertPlatforms, sentence: str, *names: str) -> None:
    """Return when the platforms named show *sentence*."""
    await within(20, lambda: all(any(sentence in line for line in world.told()[name]) for name in names))


async def test_an_owner_who_never_wrote_is_told_of_a_kill_on_each_platform_once(
    world: AlertPlatforms, tmp_path: Path
) -> None:
    """Telegram by the person's id, Discord by opening a direct chat, Slack by posting to the person; never twice."""
    async with world.open_gateway(tmp_path / "home") as parlour:
        parlour.kill(tmp_path / "killed")
    async with world.open_gateway(tmp_path / "killed") as parlour:
        await until(world, KILLED, "slack", "telegram", "discord")
        await parlour.app.alerts.watch.check_once()
        await parlour.idle()
        assert {name: len(lines) for name, lines in world.told().items()} == {"slack": 1, "telegram": 1, "discord": 1}
        (line,) = await fetch_alerts(parlour.app)
        assert (line["cause"], line["told"], line["untold"]) == ("killed", 3, False)


async def test_an_owner_whom_telegram_does_not_let_us_write_to_is_told_when_they_write(
    world: AlertPlatforms, tmp_path: Path
) -> None:
    """Until then nobody was told, as `status` and the doctor say, with what to do; the next line is the notice."""
    world.environment |= {"PARLOUR_OWNERS": "telegram:77"}
    async with world.open_gateway(tmp_path / "home") as parlour:
        parlour.kill(tmp_path / "killed")
    async with world.open_gateway(tmp_path / "killed") as parlour:
        watch = parlour.app.alerts.watch
        while not (line := (await fetch_alerts(parlour.app))[0])["lost"]:
            watch.check_now.set()
            await asyncio.sleep(0.02)
        assert (line["cause"], line["told"], line["untold"]) == ("killed", 0, True)
        home = Home(tmp_path / "killed")
        (found,) = [each for each in status_findings(await fetch_status(home)) if each.id == "alerts.untold"]
        assert "did not arrive); write to the bot once (Telegram requires it), or" in found.text
        world.telegram.say("here I am", chat=77, sender=77)
        await within(20, lambda: bool(world.telegram.shown(77)))
        watch.check_now.set()
        await within(20, lambda: any(KILLED in each for each in world.telegram.shown(77)))
        (line,) = await fetch_alerts(parlour.app)
        assert (line["told"], line["untold"]) == (1, False)


@pytest.mark.parametrize("name", ["slack", "telegram", "discord"])
async def test_a_token_that_is_revoked_is_told_at_once_over_the_others(
    world: AlertPlatforms, tmp_path: Path, name: str
) -> None:
    """The platform whose token is refused while the bot runs is named on both others."""
    async with world.open_gateway(tmp_path / "home"):
        await revoke(world, name)
        others = set(NAMES) - {name}
        await until(world, f"{name} {REFUSED}", *others)
        assert not any(REFUSED in line for line in world.told()[name])


async def revoke(world: AlertPlatforms, name: str) -> None:
    """Make a platform refuse the token from now on, and let the bot notice."""
    match name:
        case "telegram":
            world.telegram.token = "1:other"
            world.telegram.say("stranger", chat=99, sender=99)
        case "slack":
            world.slack.bot_token = "xoxb-other"
            world.slack.say(DM, ANN, "are you there?")
        case "discord":
            world.discord.token = "other"
            await world.discord.gateway.drop(4004)


async def test_the_webhook_and_a_page_that_opens_get_the_same(tmp_path: Path) -> None:
    """Without any owner in reach the monitoring and `parlour status` know; who opens the page is told there, once."""
    bodies: list[dict[str, Any]] = []

    async def take(request: web.Request) -> web.Response:
        bodies.append(await request.json())
        return web.Response()

    async with serve_app(take) as place:
        async with gateway(home=tmp_path / "home", model=InstantModel()) as parlour:
            parlour.kill(tmp_path / "killed")
        environment = {"PARLOUR_ALERT_URL": f"http://{place}/secret"}
        async with gateway(home=tmp_path / "killed", model=InstantModel(), environment=environment) as parlour:
            await within(20, lambda: {each["kind"] for each in bodies} == {"ping", "event"})
            (line,) = await fetch_alerts(parlour.app)
            assert (line["cause"], line["untold"]) == ("killed", True)
            url = parlour.app.web.url
            async with (
                ClientSession() as session,
                session.ws_connect(f"{url}ws", headers={"Origin": url.rstrip("/")}) as page,
            ):
                assert (await page.receive_json(timeout=60))["type"] == "history"
                parlour.app.alerts.watch.check_now.set()
                shown = await page.receive_json(timeout=60)
            (line,) = await fetch_alerts(parlour.app)
    (event,) = [each for each in bodies if each["kind"] == "event"]
    assert (event["cause"], event["level"], event["state"]) == ("killed", "critical", "firing")
    assert event["text"].startswith("The bot was terminated without a clean shutdown")
    assert (shown["type"], shown["kind"]) == ("message", "notice")
    assert shown["text"].startswith("The bot was terminated without a clean shutdown")
    assert (line["told"], line["untold"]) == (1, False)
