"""The steps of a turn on the page: folded above its answer while they happen, after a reload, and without one."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
from playwright.async_api import Browser, Page, expect

from agent.llm.chat_model import ChatReply, ChatRequest, Sink
from agent.llm.scripted_model import ScriptEntry
from gateway.i18n import translate
from tests.e2e.browser import open_chat, send_text
from tests.e2e.test_page_axe import AXE, check
from tests.fakes.held_model import HeldScriptModel
from tests.fakes.inprocess_gateway import gateway

pytestmark = pytest.mark.asyncio(loop_scope="session")

MARKUP = "<img src=x onerror=alert(1)>"


LOOKS = ScriptEntry(
    calls=tuple(
        (name, json.dumps(arguments))
        for name, arguments in (
            ("memory_search", {"query": f"roses {MARKUP}"}),
            ("file_read", {"name": "none.pdf"}),
            ("files_list", {}),
        )
    )
)
ROWS = [
    translate("steps.memory_search", query=f"roses {MARKUP}"),
    translate("steps.file_read", name="none.pdf"),
    translate("steps.files_list"),
]


async def check_rows(page: Page) -> None:
    """Assert that the steps of `LOOKS` are folded above the answer, and how each ended."""
    steps = page.locator(".line .steps")
    await expect(steps.locator("li").first).to_be_hidden()
    await steps.locator("summary").first.press("Enter")
    await expect(steps.locator("li > span:not(.sign)")).to_have_text(ROWS)
    await expect(page.locator(".line img")).to_have_count(0)
    states = [await each.get_attribute("data-state") for each in await steps.locator("li").all()]
    assert states == ["done", "error", "done"]
    await expect(steps.locator("li p")).to_contain_text("no such file")
    sign = steps.get_by_role("img", name=translate("web.step_error"))
    await expect(sign).to_have_count(1)


async def test_steps_are_seen_while_they_happen_and_after_a_reload(chromium: Browser) -> None:
    """In words and as text, how each ended; a window that opens meanwhile has them; axe finds nothing."""
    model = HeldScriptModel(LOOKS, "Twice a week.", held=[2])
    found: list[str] = []
    async with gateway(model=model) as up:
        page = await open_chat(chromium, up.app.web.url, script=AXE, reduced_motion="reduce")
        await send_text(page, "How often do roses need water?")
        await model.called(2)
        late = await open_chat(chromium, up.app.web.url, reduced_motion="reduce")
        for each in (page, late):
            await expect(each.locator(".steps summary")).to_contain_text(translate("web.steps", count=3))
            await check_rows(each)
        model.go(2)
        for each in (page, late):
            await expect(each.locator(".line.assistant:not(.streaming) .body")).to_have_text("Twice a week.")
            await expect(each.locator(".line.assistant")).to_have_count(1)
            await expect(each.locator(".steps li")).to_have_count(3)
            await each.reload()
            await expect(each.locator(".steps summary")).to_have_text(translate("web.steps", count=3))
            await check_rows(each)
        await check(page, "steps", found)
    assert found == []


class ThinkingModel(HeldScriptModel):
    """Gives with its calls the reasoning that its provider wants back."""

    async def complete(self, request: ChatRequest, *, sink: Sink | None = None) -> ChatReply:
        """Answer as the script says."""
        reply = await super().complete(request, sink=sink)
        thinking = {"model": self.name, "message": {"reasoning_content": f"They ask about roses. {MARKUP}"}}
        return replace(reply, thinking=thinking) if reply.tool_calls else reply


async def test_stored_reasoning_is_folded_below_the_steps(chromium: Browser) -> None:
    """As text; an answer without any has no fold."""
    async with gateway(model=ThinkingModel(LOOKS, "Twice a week.", "Yes.")) as up:
        page = await open_chat(chromium, up.app.web.url)
        for text in ("How often do roses need water?", "Sure?"):
            await send_text(page, text)
            await expect(page.locator(".line.user .mark").last).to_have_text("✓")
        await expect(page.locator(".line.assistant:not(.streaming)")).to_have_count(2)
        for _ in range(2):
            await expect(page.locator(".steps")).to_have_count(1)
            await page.locator(".steps > summary").click()
            reasoning = page.locator(".reasoning div")
            await expect(reasoning).to_be_hidden()
            await page.get_by_text(translate("web.reasoning"), exact=True).click()
            await expect(reasoning).to_have_text(f"They ask about roses. {MARKUP}")
            await page.reload()


async def test_a_failed_answer_is_tried_again_by_a_button(chromium: Browser) -> None:
    """The notice stands in place of the answer, its steps above it; the button has the message answered, once."""
    model = HeldScriptModel(LOOKS, ScriptEntry(error="refused"), "Twice a week.")
    async with gateway(model=model) as up:
        page = await open_chat(chromium, up.app.web.url)
        await send_text(page, "How often do roses need water?")
        again = page.get_by_role("button", name=translate("web.try_again"), exact=True)
        for _ in range(2):
            await expect(page.locator(".line.notice .body")).to_have_count(1)
            await expect(page.locator(".line.assistant")).to_have_count(0)
            await expect(page.locator(".line.notice .steps summary")).to_contain_text(translate("web.steps", count=3))
            await expect(again).to_have_count(1)
            await page.reload()
        await again.click()
        await expect(page.locator(".line.assistant:not([hidden]) .body")).to_have_text("Twice a week.")
        await expect(page.locator(".line.user:not([hidden]) .body")).to_have_text("How often do roses need water?")
        await send_text(page, "/status")
        await expect(page.locator(".line.notice:not([hidden])")).to_have_count(1)
        await expect(again.and_(page.locator(":visible"))).to_have_count(0)
