"""A skill is listed and used, and promises are listed, on each platform through its real library and on the page."""

from __future__ import annotations

import time
from pathlib import Path

import pytest
from playwright.async_api import Browser

from tests.e2e.browser import open_chat, take_pictures
from tests.e2e.discord.test_gateway_discord import open_gateway as discord_gateway
from tests.e2e.platform_talks import DiscordTalk, PageTalk, PlatformTalk, SlackTalk, TelegramTalk
from tests.fakes.discord_server import open_discord
from tests.fakes.held_model import HeldScriptModel, results
from tests.fakes.inprocess_gateway import InProcessGateway, gateway
from tests.fakes.skill_folders import write_skill
from tests.fakes.slack_gateway import open_gateway as slack_gateway
from tests.fakes.slack_server import slack_server
from tests.fakes.telegram_gateway import settings_for
from tests.fakes.telegram_server import open_telegram

ANSWER = "Invoice 7 for Bob: 270 euros."


async def live(talk: PlatformTalk, parlour: InProcessGateway, model: HeldScriptModel, prefix: str = "/") -> None:
    """List, use, and be told of a name that does not exist."""
    write_skill(parlour.app.settings.skills_folder, "invoices")
    await parlour.app.profiles.skills.reload()
    await talk.say(f"{prefix}skills")
    assert "Writes invoices." in await talk.wait_shown("To use one")
    await talk.say(f"{prefix}skill invoices for Bob, 3 hours")
    await talk.wait_shown(ANSWER)
    assert "Do it well." in results(model.asked[0])[0]
    await talk.say(f"{prefix}skill orders")
    await talk.wait_shown("know the skill")
    await talk.say(f"{prefix}promises")
    await talk.wait_shown("Nothing is due to you.")
    assert len(model.asked) == 1


async def test_on_telegram() -> None:
    """As a command of the menu."""
    model = HeldScriptModel(ANSWER, in_turns=True)
    async with open_telegram() as server, gateway(model=model, environment=settings_for(server)) as parlour:
        server.now = lambda: int(time.time())
        await live(TelegramTalk(server), parlour, model)


async def test_in_slack() -> None:
    """With the sign that Slack leaves to bots."""
    model = HeldScriptModel(ANSWER, in_turns=True)
    async with slack_server() as server, slack_gateway(server, model=model) as parlour:
        await live(SlackTalk(server), parlour, model, "!")


async def test_on_discord() -> None:
    """In a direct chat."""
    model = HeldScriptModel(ANSWER, in_turns=True)
    async with open_discord() as server, discord_gateway(server, model=model) as parlour:
        await live(DiscordTalk(server), parlour, model, "!")


@pytest.mark.asyncio(loop_scope="session")
async def test_on_the_page(chromium: Browser, tmp_path: Path) -> None:
    """Typed as a command."""
    model = HeldScriptModel(ANSWER, in_turns=True)
    async with gateway(home=tmp_path, model=model) as parlour:
        page = await open_chat(chromium, parlour.app.web.url)
        await live(PageTalk(page), parlour, model)
        await take_pictures(page, "page-skills")
