"""Answers that end early, and commands of the page's own buttons, in a real browser before the whole gateway."""

from __future__ import annotations

import re

import pytest
from playwright.async_api import Browser, FilePayload, Locator, Page, expect

from agent.llm.chat_model import ChatReply, ChatRequest, Sink
from gateway.errors import ModelFailed
from gateway.i18n import translate
from tests.e2e.browser import open_chat, send_text
from tests.fakes.held_model import HeldScriptModel, users
from tests.fakes.inprocess_gateway import gateway

pytestmark = pytest.mark.asyncio(loop_scope="session")

BEGINNING = "Once upon a time"
AN_HOUR_BEHIND = """{
  const RealDate = Date;
  globalThis.Date = class extends RealDate {
    constructor(...given) { super(...(given.length ? given : [RealDate.now() - 3600000])); }
  };
}"""


class StoryModel(HeldScriptModel):
    """Shows the beginning of one answer, the first by default; then it is held, or its stream breaks."""

    is_broken = False
    shown_at = 0

    async def complete(self, request: ChatRequest, *, sink: Sink | None = None) -> ChatReply:
        """Stream, then wait or fail."""
        if (self.is_broken or len(self.asked) == self.shown_at) and sink is not None and request.purpose == "answer":
            sink(BEGINNING)
            if self.is_broken:
                raise ModelFailed("the stream broke")
        return await super().complete(request, sink=sink)


def bodies(page: Page) -> Locator:
    """Return what the shown lines say."""
    return page.locator(".line:not([hidden]) .body")


async def test_stop_ends_the_answer_and_gives_back_what_waits(chromium: Browser) -> None:
    """As `/stop` anywhere; what was not answered is in the composer again, with its files, and keeps no mark."""
    model = StoryModel(held=[1])
    async with gateway(model=model) as up:
        page = await open_chat(chromium, up.app.web.url)
        await send_text(page, "a story")
        await expect(page.locator(".line.streaming .body")).to_have_text(BEGINNING)
        notes: FilePayload = {"name": "sky.txt", "mimeType": "text/plain", "buffer": b"blue"}
        await page.locator("#files").set_input_files([notes])
        await expect(page.locator("#attached li[data-state=ready]")).to_have_count(1)
        await send_text(page, "and the weather?")
        await send_text(page, "in Rome")
        await expect(page.locator(".line.user .mark")).to_have_text(["✓", "✓", "✓"])
        text = page.locator("#text")
        await text.fill("tomorrow")
        await page.locator("#stop").click()
        await expect(text).to_have_value("and the weather?\n\nin Rome\n\ntomorrow")
        await expect(page.locator("#attached li")).to_contain_text(["sky.txt"])
        await expect(page.locator(".line.user .body")).to_have_text(["a story"])
        await expect(page.locator(".line.command .body")).to_have_text([translate("commands.stopped", queued=2)])
        await up.idle()
        assert len(model.asked) == 1
        await page.reload()
        await expect(text).to_have_value("and the weather?\n\nin Rome\n\ntomorrow")
        await text.press("Enter")
        await expect(page.locator(".line.assistant .body").last).to_have_text("answer 2")
        assert "sky.txt" in str(model.asked[1].messages)
        stopped = re.compile(f"{BEGINNING}\\s*{re.escape(translate('delivery.stopped_here'))}")
        await expect(page.locator(".line.assistant .body")).to_have_text([stopped, "answer 2"])


async def test_stop_gives_back_what_waits_alone(chromium: Browser) -> None:
    """Not what was taken into the running turn, nor what was answered before; the browser's clock may be wrong."""
    model = StoryModel(held=[2, 3])
    model.shown_at = 2
    async with gateway(model=model, environment={"PARLOUR_AGENT__MERGE": "burst"}) as up:
        page = await open_chat(chromium, up.app.web.url)
        await page.add_init_script(AN_HOUR_BEHIND)
        await page.reload()
        await expect(page.locator("#state")).to_have_attribute("data-state", "online")
        await send_text(page, "good evening")
        await expect(page.locator(".line.assistant .body")).to_have_text("answer 1")
        await send_text(page, "a story")
        await model.called(2)
        await send_text(page, "of a fox")  # soon enough to be a part of the question
        await expect(page.locator(".line.streaming .body")).to_have_text(BEGINNING)
        await send_text(page, "and the weather?")
        await expect(page.locator(".line.user .mark")).to_have_text(["✓"] * 4)
        await page.locator("#stop").click()
        await expect(page.locator("#text")).to_have_value("and the weather?")
        await expect(page.locator(".line.user .body")).to_have_text(["good evening", "a story", "of a fox"])


async def test_stop_in_another_window_gives_back_the_words(chromium: Browser) -> None:
    """A file that another window handed over cannot be sent again from here, which is said; the message can."""
    model = StoryModel(held=[1])
    async with gateway(model=model) as up:
        there = await open_chat(chromium, up.app.web.url)
        page = await open_chat(chromium, up.app.web.url)
        await send_text(there, "a story")
        await expect(page.locator(".line.streaming .body")).to_have_text(BEGINNING)
        notes: FilePayload = {"name": "sky.txt", "mimeType": "text/plain", "buffer": b"blue"}
        await there.locator("#files").set_input_files([notes])
        await expect(there.locator("#attached li[data-state=ready]")).to_have_count(1)
        await send_text(there, "and the weather?")
        await expect(page.locator(".line.user .mark")).to_have_text(["✓", "✓"])
        await page.locator("#stop").click()
        await expect(page.locator("#text")).to_have_value("and the weather?")
        await expect(page.locator("#trouble")).to_have_text(translate("web.upload_gone"))
        await expect(page.locator("#attached li")).to_have_count(0)
        await page.locator("#text").press("Enter")
        await expect(page.locator(".line.assistant .body").last).to_have_text("answer 2")


async def test_stop_of_an_answer_alone_leaves_no_command(chromium: Browser) -> None:
    """Neither at once nor after a reload: the answer's own line says that it was stopped."""
    model = StoryModel(held=[1])
    async with gateway(model=model) as up:
        page = await open_chat(chromium, up.app.web.url)
        await send_text(page, "a story")
        await expect(page.locator(".line.streaming .body")).to_have_text(BEGINNING)
        await page.locator("#stop").click()
        stopped = re.compile(f"{BEGINNING}\\s*{re.escape(translate('delivery.stopped_here'))}")
        for _ in range(2):
            await expect(page.locator(".line.user .body")).to_have_text(["a story"])
            await expect(page.locator(".line.assistant .body")).to_have_text([stopped])
            await expect(page.locator(".line.notice, .line.command")).to_have_count(0)
            await page.reload()


async def test_a_stopped_answer_can_be_continued(chromium: Browser) -> None:
    """Before and after a reload, as long as it is the last; the model reads what it had written."""
    model = StoryModel(held=[1])
    async with gateway(model=model) as up:
        page = await open_chat(chromium, up.app.web.url)
        await send_text(page, "a story")
        await expect(page.locator(".line.streaming .body")).to_have_text(BEGINNING)
        await send_text(page, "/stop")
        go_on = page.get_by_role("button", name=translate("web.continue"))
        await expect(go_on).to_be_visible()
        await expect(page.locator(".line.user")).to_have_count(1)
        await page.reload()
        await go_on.click()
        await expect(page.locator(".line.assistant .body").last).to_have_text("answer 2")
        await expect(go_on).to_be_hidden()
        assert users(model.asked[1]) == ["a story", translate("web.continue")]
        assert BEGINNING in str(model.asked[1].messages)


async def test_a_choice_in_the_settings_leaves_no_command_in_the_conversation(chromium: Browser) -> None:
    """Neither at once nor after a reload; the page is in the chosen language."""
    async with gateway(model=HeldScriptModel()) as up:
        page = await open_chat(chromium, up.app.web.url)
        await send_text(page, "good evening")
        await expect(page.locator(".line.assistant .body")).to_have_text("answer 1")
        await page.locator("#effort-choice select").select_option("high")
        await expect(page.locator(".line.command, .line.notice")).to_have_count(1)
        await page.locator("#settings-open").click()
        await page.locator("#settings-language").select_option("de")
        await expect(page.locator("html")).to_have_attribute("lang", "de")
        await expect(page.locator(".line.user .body")).to_have_text(["good evening"])


async def test_a_broken_stream_keeps_what_was_read(chromium: Browser) -> None:
    """The text stays as an answer, the error stands below it as a notice, over a reload too; it can be continued."""
    model = StoryModel()
    model.is_broken = True
    async with gateway(model=model) as up:
        page = await open_chat(chromium, up.app.web.url)
        await send_text(page, "a story")
        notice = page.locator(".line.notice .body")
        for _ in range(2):
            await expect(notice).to_have_count(1)
            await expect(page.locator(".line.assistant:not(.streaming) .body")).to_have_text([BEGINNING])
            await page.reload()
        model.is_broken = False
        await page.get_by_role("button", name=translate("web.continue")).click()
        await expect(page.locator(".line.assistant .body").last).to_have_text("answer 1")
        assert f"{BEGINNING}\n[it broke off here]" in [each["content"] for each in model.asked[0].messages]
