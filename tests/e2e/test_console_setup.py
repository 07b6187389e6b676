"""The path of a new user in a real browser: an empty home, a model, Telegram, answers; no file is edited."""

from __future__ import annotations

import asyncio
import re
import sys
import time
from pathlib import Path

import pytest
from playwright.async_api import Browser, expect

from tests.e2e.browser import open_chat, open_page, take_pictures
from tests.e2e.test_console import RUN_AXE, WIDE
from tests.e2e.test_page_axe import AXE, TAGS
from tests.fakes.gateway import GatewayProcess, free_port
from tests.fakes.openai_server import FakeOpenAI, ScriptedAnswer, open_server
from tests.fakes.telegram_server import TelegramServer, open_telegram

pytestmark = pytest.mark.asyncio(loop_scope="session")

KEY = "sk-canary-of-the-setup-page-0123456789"
# `parlour run`, where Telegram is the tests' own server.
PROGRAM = """
import os, parlour
from channels.telegram import TelegramSettings
for name, path in (("base_url", "/bot"), ("file_url", "/file/bot")):
    TelegramSettings.model_fields[name].default = os.environ["TELEGRAM_SERVER"] + path
TelegramSettings.model_rebuild(force=True)
parlour.main()
"""
SOON = 60_000  # milliseconds; a start on a busy machine


async def test_from_an_empty_home_to_answers_on_the_page_and_in_telegram(chromium: Browser, tmp_path: Path) -> None:
    """What does not work is said and not saved; what works is used, after a restart; no secret comes back."""
    async with open_server(lambda *_: ScriptedAnswer(text="Here I am.")) as model, open_telegram() as telegram:
        process = GatewayProcess(tmp_path / "home", free_port(), TELEGRAM_SERVER=telegram.base)
        process.program = (sys.executable, "-c", PROGRAM)
        try:
            await _walk(chromium, process, model, telegram)
        finally:
            await process.close()


async def _walk(chromium: Browser, process: GatewayProcess, model: FakeOpenAI, telegram: TelegramServer) -> None:
    began = time.monotonic()
    path: list[str] = []

    def reached(what: str) -> None:
        path.append(f"{what} after {time.monotonic() - began:.1f} s")

    await process.start()
    pid = process.pid
    reached("running")
    page = await open_page(chromium, script=AXE, viewport=WIDE)
    await page.goto(f"{process.url}console#setup")
    form = page.get_by_role("form", name="The model")
    await form.get_by_label("Model", exact=True).fill("scripted")
    await form.get_by_label("Address").fill(f"http://127.0.0.1:{free_port()}/v1")
    await form.get_by_label("Key").fill(KEY)
    await form.get_by_role("button").press("Enter")
    await expect(page.get_by_role("alert").filter(has_text="Nothing was saved")).to_contain_text("nothing answers")
    assert not (process.home / "secrets").exists()
    await form.get_by_label("Address").fill(model.base)
    await form.get_by_role("button").press("Enter")
    done = page.locator("#setup-done")
    await expect(done).to_contain_text("The gateway runs with it", timeout=SOON)
    reached("model connected")
    await expect(page.locator("#view code").first).to_have_text("openai/scripted")

    asked = len(model.bodies)
    await form.get_by_label("Address").fill(model.base.replace("127.0.0.1", "localhost"))
    await form.get_by_role("button").press("Enter")
    await expect(page.get_by_role("alert").filter(has_text="another address")).to_be_visible()
    assert len(model.bodies) == asked, "a key was sent to an address that it was not entered for"

    form = page.get_by_role("form", name="Telegram")
    await form.get_by_label("The bot's token").fill("123456789:AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA")
    await form.get_by_role("button").press("Enter")
    await expect(page.get_by_role("alert").filter(has_text="Nothing was saved")).to_contain_text("rejects the token")
    await form.get_by_label("The bot's token").fill(telegram.token)
    await form.get_by_label("Your own Telegram id").fill("42")
    await form.get_by_role("button").press("Enter")
    await expect(done).to_contain_text("The gateway runs with it", timeout=SOON)
    await expect(page.get_by_text("telegram is connected")).to_be_visible(timeout=SOON)
    reached("Telegram connected")
    await take_pictures(page, "console-setup")
    assert await page.evaluate(RUN_AXE, TAGS) == []
    seen = await page.content() + await page.evaluate(
        "[...document.querySelectorAll('input')].map((each) => each.value)+''"
    )

    chat = await open_chat(chromium, process.url)
    await chat.get_by_role("textbox").fill("Hello?")
    await chat.keyboard.press("Enter")
    await expect(chat.get_by_role("list", name="Conversation").get_by_text("Here I am.")).to_be_visible(timeout=SOON)
    reached("answered on the page")
    telegram.say("Hello?", date=int(time.time()))
    async with asyncio.timeout(SOON / 1000):
        await telegram.until(lambda: "Here I am." in telegram.shown(42))
    reached("answered in Telegram")
    print("; ".join(path))

    assert process.pid == pid
    assert await process.stop() == 0, "a gateway that has restarted itself stops as before"
    assert model.headers[-1]["Authorization"] == f"Bearer {KEY}"
    settings = (process.home / "parlour.yaml").read_text(encoding="utf-8")
    for secret in (KEY, telegram.token):
        assert secret not in seen + settings + "\n".join(process.log)
    files = sorted((process.home / "secrets").iterdir())
    assert [(each.name, each.stat().st_mode & 0o777) for each in files] == [
        ("channels__telegram__token", 0o600),
        ("llm__api_key", 0o600),
    ]
    assert re.search(r"^llm:\n  model: openai/scripted\n  api_base: http://127", settings, re.MULTILINE)
