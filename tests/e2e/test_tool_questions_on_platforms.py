"""A tool that acts asks with the buttons of each platform; a press runs the call, and the message loses its buttons."""

from __future__ import annotations

import json
import re
import time

import pytest
from playwright.async_api import Browser, expect

from agent.tools.tool_questions import LONGEST_SHOWN, TOOL_QUESTION
from tests.e2e.agent.test_tool_questions import OutsideWorld
from tests.e2e.browser import open_chat, send_text
from tests.fakes.held_model import HeldScriptModel, calls
from tests.fakes.inprocess_gateway import gateway
from tests.fakes.slack_buttons import buttons as slack_buttons
from tests.fakes.slack_gateway import open_gateway as slack_gateway
from tests.fakes.slack_server import ANN as SLACK_ANN
from tests.fakes.slack_server import BOT_USER, DM, slack_server
from tests.fakes.slack_workspace import SlackFault
from tests.fakes.telegram_gateway import settings_for
from tests.fakes.telegram_server import TelegramFault, open_telegram

ROW = [["Yes", "30 days", "No", "Never"]]
NOT_SHOWN = "The call does not run, because its arguments could not be shown."
ASKED = "May I run send_letter with exactly these arguments?"


def asking_model() -> HeldScriptModel:
    """Return a model that wants to write to Bob."""
    call = ("send_letter", '{"to": "bob", "subject": "*hello* <!channel> @everyone"}')
    return HeldScriptModel(calls(call), "I have asked.", "Sent.")


async def test_in_slack() -> None:
    """Blocks with buttons; the arguments mention nobody."""
    world = OutsideWorld()
    async with slack_server() as server, slack_gateway(server, model=asking_model(), tools=[world.tool]):
        server.say(DM, SLACK_ANN, "write to bob")
        await server.until(
            lambda: any(each["user"] == BOT_USER and slack_buttons(each) for each in server.places[DM].messages)
        )
        (asked,) = [each for each in server.places[DM].messages if each["user"] == BOT_USER and slack_buttons(each)]
        assert slack_buttons(asked) == ROW
        assert "<!channel>" not in asked["text"]
        server.press(DM, SLACK_ANN, asked, "30 days")
        await server.until(lambda: any("Sent." in text for text in server.shown(DM)))
    assert len(world.sent) == 1


def long_model() -> HeldScriptModel:
    """Return a model that wants to write Bob a letter whose text is shown as a file."""
    call = ("send_letter", json.dumps({"to": "bob", "subject": "x" * LONGEST_SHOWN}))
    return HeldScriptModel(calls(call), "I have asked.", "Sent.")


async def test_telegram_takes_no_file() -> None:
    """The arguments cannot be read, so the question ends; its buttons run nothing and go."""
    world = OutsideWorld()
    async with (
        open_telegram() as server,
        gateway(model=long_model(), tools=[world.tool], environment=settings_for(server)) as parlour,
    ):
        server.now = lambda: int(time.time())
        server.fail("sendDocument", TelegramFault("status", 400, description="Bad Request: file is not allowed"))
        server.say("write to bob")
        await server.until(lambda: any(NOT_SHOWN in text for text in server.shown(42)))
        assert await parlour.app.store.jobs.pending_of(TOOL_QUESTION) == ()
        (question,) = [post for post in server.posts if post.buttons]
        (attached,) = re.findall(r"(q[a-z2-7]{10})\.json", question.text)
        server.buttons.press(question, f"/tools allow {attached}")
        await server.until(lambda: not question.buttons)
    assert world.sent == []


async def test_slack_takes_no_file() -> None:
    """The same, at the last of the three steps of an upload."""
    world = OutsideWorld()
    async with slack_server() as server, slack_gateway(server, model=long_model(), tools=[world.tool]):
        server.faults["files.completeUploadExternal"] = [SlackFault(error="channel_not_found")]
        server.say(DM, SLACK_ANN, "write to bob")
        await server.until(lambda: any(NOT_SHOWN in text for text in server.shown(DM)))
        (asked,) = [each for each in server.places[DM].messages if each["user"] == BOT_USER and slack_buttons(each)]
        server.press(DM, SLACK_ANN, asked, "Yes")
        await server.until(lambda: not slack_buttons(asked))
    assert world.sent == []


@pytest.mark.asyncio(loop_scope="session")
async def test_on_the_page(chromium: Browser) -> None:
    """In a real browser: the whole call as code, and a button that is clicked."""
    world = OutsideWorld()
    async with gateway(model=asking_model(), tools=[world.tool]) as parlour:
        page = await open_chat(chromium, parlour.app.web.url)
        answers = page.locator(".line:not(.user) .body")
        await send_text(page, "write to bob")
        await expect(answers.nth(0)).to_contain_text(ASKED)
        await expect(answers.nth(0).locator("pre")).to_contain_text('"subject": "*hello* <!channel> @everyone"')
        await expect(page.get_by_role("button")).to_contain_text(ROW[0])
        await page.get_by_role("button", name="30 days").click()
        await expect(answers.filter(has_text="Sent.")).to_have_count(1)
        await expect(page.locator(".buttons")).to_have_count(0)
    assert len(world.sent) == 1
