"""A profile is chosen by a button or a command on each platform through its real library, on the page, and left."""

from __future__ import annotations

import json
import time

import pytest
from playwright.async_api import Browser, expect

from gateway.i18n import translate
from tests.e2e.browser import open_chat, send_text, take_pictures
from tests.e2e.discord.test_gateway_discord import open_gateway as discord_gateway
from tests.e2e.platform_talks import DiscordTalk, PlatformTalk, SlackTalk, TelegramTalk
from tests.fakes.discord_server import open_discord
from tests.fakes.held_model import HeldScriptModel
from tests.fakes.inprocess_gateway import gateway
from tests.fakes.slack_gateway import open_gateway as slack_gateway
from tests.fakes.slack_server import slack_server
from tests.fakes.telegram_gateway import settings_for
from tests.fakes.telegram_server import open_telegram

COOK = "You are a cook."
PROFILES = {"PARLOUR_PROFILES": json.dumps({"cook": {"soul": COOK}, "tutor": {"soul": "You teach."}})}


class OpenTelegramTalk(TelegramTalk):
    """A keyboard that stays: it offers the other profiles, too."""

    async def press(self, words: str, label: str, command: str) -> None:
        """Press."""
        self._server.buttons.press(await self._wait(words), command)


def personas(model: HeldScriptModel) -> list[bool]:
    """Return for each answer whether the cook gave it."""
    return [COOK in str(each.messages[0]["content"]) for each in model.asked]


async def live(talk: PlatformTalk, model: HeldScriptModel, prefix: str = "/") -> None:
    """List, press, ask, and go back."""
    await talk.say(f"{prefix}as")
    listed = translate("profile.none")
    assert list(await talk.wait_buttons(listed)) == ["cook", "tutor"]
    await talk.press(listed, "cook", "/as cook")
    await talk.wait_shown("from the next message on")
    await talk.say("what is for dinner?")
    await talk.wait_shown("answer 1")
    await talk.say(f"{prefix}as default")
    await talk.wait_shown(translate("profile.back"))
    await talk.say("and what else?")
    await talk.wait_shown("answer 2")
    assert personas(model) == [True, False]


async def test_on_telegram() -> None:
    """An inline keyboard."""
    model = HeldScriptModel(in_turns=True)
    async with open_telegram() as server, gateway(model=model, environment=settings_for(server, **PROFILES)):
        server.now = lambda: int(time.time())
        await live(OpenTelegramTalk(server), model)


async def test_in_slack() -> None:
    """Blocks, and the sign that Slack leaves to bots."""
    model = HeldScriptModel(in_turns=True)
    async with slack_server() as server, slack_gateway(server, model=model, environment=PROFILES):
        await live(SlackTalk(server), model, "!")


async def test_on_discord() -> None:
    """Components."""
    model = HeldScriptModel(in_turns=True)
    async with open_discord() as server, discord_gateway(server, model=model, more=PROFILES):
        await live(DiscordTalk(server), model, "!")


@pytest.mark.asyncio(loop_scope="session")
async def test_on_the_page(chromium: Browser) -> None:
    """Chosen below the message; a typed command shows there, too; the settings of `chats` are the way back."""
    model = HeldScriptModel(in_turns=True)
    async with gateway(model=model) as up:
        page = await open_chat(chromium, up.app.web.url)
        await expect(page.locator("#effort-choice")).to_be_visible()
        await expect(page.locator("#as-choice")).to_be_hidden()
    async with gateway(model=model, environment=PROFILES) as up:
        page = await open_chat(chromium, up.app.web.url)
        choice = page.locator("#as-choice select")
        await expect(choice.locator("option")).to_have_text([translate("web.profile_default"), "cook", "tutor"])
        await expect(choice).to_have_value("default")
        await choice.select_option("cook")
        await expect(page.locator(".line.notice")).to_contain_text("cook")
        await send_text(page, "what is for dinner?")
        await expect(page.locator(".line.assistant .body")).to_have_text("answer 1")
        await take_pictures(page, "page-profile")
        await send_text(page, "/as tutor")
        await expect(choice).to_have_value("tutor")
        await choice.select_option("default")
        await expect(page.locator(".line.notice").last).to_contain_text(translate("profile.back"))
        await expect(choice).to_have_value("default")
    assert personas(model) == [True]
    decided = {**PROFILES, "PARLOUR_CHATS": json.dumps({"web:*": {"profile": "cook"}})}
    async with gateway(model=model, environment=decided) as up:
        page = await open_chat(chromium, up.app.web.url)
        choice = page.locator("#as-choice select")
        await expect(choice.locator("option")).to_have_text(["cook", "tutor"])
        await expect(choice).to_have_value("cook")
