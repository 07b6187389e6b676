"""Messages edited and answered again in a real browser before the whole gateway; what was stopped stays."""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta

import pytest
from playwright.async_api import Browser, FilePayload, Locator, Page, expect

from agent.llm.chat_model import ChatReply, ChatRequest, Sink
from agent.reminders.recurrence import slot_of
from agent.reminders.reminder import SAY, Reminder
from gateway.events import SessionKey
from gateway.i18n import translate
from tests.e2e.browser import open_chat, send_text
from tests.fakes.held_model import HeldScriptModel, users
from tests.fakes.inprocess_gateway import gateway

pytestmark = pytest.mark.asyncio(loop_scope="session")


async def say(page: Page, text: str) -> None:
    """Type *text* and wait for an answer below it."""
    await send_text(page, text)
    await expect(shown(page).last).to_have_class("line assistant")


def shown(page: Page) -> Locator:
    """Return the lines that are shown."""
    return page.locator(".line:not([hidden])")


def bodies(page: Page) -> Locator:
    """Return what they say."""
    return page.locator(".line:not([hidden]) .body")


async def test_edited_answered_again_and_stepped_through(chromium: Browser) -> None:
    """Each version has its own sequel; the bot goes on from the latest; a reload shows the same; keys are enough."""
    model = HeldScriptModel()
    async with gateway(model=model) as up:
        page, other = await open_chat(chromium, up.app.web.url), await open_chat(chromium, up.app.web.url)
        await say(page, "plan a trip")
        await expect(bodies(page)).to_have_text(["plan a trip", "answer 1"])
        await say(page, "to Rome")
        await expect(bodies(page)).to_have_text(["plan a trip", "answer 1", "to Rome", "answer 2"])
        # By keys: the last message comes into the empty composer, Escape leaves it, Enter sends the new version.
        text = page.locator("#text")
        await text.press("ArrowUp")
        await expect(text).to_have_value("to Rome")
        await expect(page.locator("#editing")).to_be_visible()
        await text.press("Escape")
        await expect(page.locator("#editing")).to_be_hidden()
        await expect(text).to_have_value("")
        await text.press("ArrowUp")
        await say(page, "to <i>Vienna</i>")
        now = ["plan a trip", "answer 1", "to <i>Vienna</i>", "answer 3"]
        await expect(bodies(page)).to_have_text(now)
        await expect(bodies(other)).to_have_text(now)
        assert users(model.asked[2]) == ["plan a trip", "to <i>Vienna</i>"]
        head = shown(page).nth(2)
        await expect(head.get_by_role("group", name=translate("web.version", n=2, count=2))).to_be_visible()
        await head.get_by_role("button", name=translate("web.version_before")).click()
        await expect(bodies(page)).to_have_text(["plan a trip", "answer 1", "to Rome", "answer 2"])
        # What is said now belongs to the latest version, and the page shows it.
        await say(page, "and back")
        await expect(bodies(page)).to_have_text([*now, "and back", "answer 4"])
        assert users(model.asked[3]) == ["plan a trip", "to <i>Vienna</i>", "and back"]
        # The first answer once more: everything after it is of the first version.
        await shown(page).nth(1).hover()
        await shown(page).nth(1).get_by_role("button", name=translate("web.answer_again")).click()
        await expect(bodies(page)).to_have_text(["plan a trip", "answer 5"])
        assert users(model.asked[4]) == ["plan a trip"]
        await page.reload()
        await expect(bodies(page)).to_have_text(["plan a trip", "answer 5"])
        await page.get_by_role("button", name=translate("web.version_before")).focus()
        await page.keyboard.press("Enter")
        await expect(bodies(page)).to_have_text([*now, "and back", "answer 4"])
        steps = page.locator(".line:not([hidden]) .versions")
        await expect(steps).to_have_count(2)
        # A hit in a version that is not shown leads to it.
        await page.locator("#find").fill("Rome")
        await page.locator("#hits li a").first.click()
        await expect(bodies(page)).to_have_text(["plan a trip", "answer 1", "to Rome", "answer 2"])


class SlowModel(HeldScriptModel):
    """Shows the beginning of its first answer and then waits for ever."""

    async def complete(self, request: ChatRequest, *, sink: Sink | None = None) -> ChatReply:
        """Stream, and wait."""
        if not self.asked and sink is not None:
            sink("Once upon a time")
        return await super().complete(request, sink=sink)


async def test_what_was_stopped_stays_and_can_be_answered_again(chromium: Browser) -> None:
    """The text so far stays with its notice, over a reload; answering again puts another version in its place."""
    model = SlowModel(held=[1])
    async with gateway(model=model) as up:
        page = await open_chat(chromium, up.app.web.url)
        await send_text(page, "a story")
        await expect(page.locator(".line.streaming .body")).to_have_text("Once upon a time")
        await page.locator("#stop").click()
        stopped = re.compile(f"Once upon a time\\s*{re.escape(translate('delivery.stopped_here'))}")
        ended: list[str | re.Pattern[str]] = ["a story", stopped]
        await expect(bodies(page)).to_have_text(ended)
        await page.reload()
        await expect(bodies(page)).to_have_text(ended)
        again = page.get_by_role("button", name=translate("web.answer_again"))
        await again.focus()
        await page.keyboard.press("Enter")
        await expect(bodies(page)).to_have_text(["a story", "answer 2"])
        assert users(model.asked[1]) == ["a story"]
        await page.get_by_role("button", name=translate("web.version_before")).click()
        await expect(bodies(page)).to_have_text(ended)


async def test_files_stay_with_the_versions_of_their_message(chromium: Browser) -> None:
    """Another version shows them at once, in every window, edited or answered again; new files replace them."""
    async with gateway(model=HeldScriptModel()) as up:
        page, other = await open_chat(chromium, up.app.web.url), await open_chat(chromium, up.app.web.url)
        await attach(page, "notes.txt")
        await say(page, "read this")
        await expect(shown(page).first.locator(".file")).to_contain_text("notes.txt")
        await shown(page).last.get_by_role("button", name=translate("web.answer_again")).click()
        await expect(bodies(page).last).to_have_text("answer 2")
        await page.locator("#text").press("ArrowUp")
        await say(page, "read it slowly")
        await expect(bodies(page).last).to_have_text("answer 3")
        for window in (page, other):
            await expect(shown(window).first.locator(".file")).to_contain_text("notes.txt")
        await page.locator("#text").press("ArrowUp")
        await attach(page, "more.txt")
        await say(page, "and this")
        for window in (page, other):
            await expect(shown(window).first.locator(".file")).to_have_text(re.compile("^more.txt"))
        await page.reload()
        await expect(shown(page).first.locator(".file")).to_have_text(re.compile("^more.txt"))


async def attach(page: Page, name: str) -> None:
    """Add a file to the next message."""
    file = FilePayload(name=name, mimeType="text/plain", buffer=name.encode())
    await page.locator("#files").set_input_files(file)
    await expect(page.locator('#attached [data-state="ready"]')).to_have_count(1)


async def test_a_reminder_that_came_is_not_answered_again(chromium: Browser) -> None:
    """It answers no message: the one above it would set a second reminder. Each answer names its own message."""
    model = HeldScriptModel(held=[1])
    async with gateway(model=model) as up:
        page = await open_chat(chromium, up.app.web.url)
        await send_text(page, "first question")
        await model.called(1)
        await send_text(page, "second question")
        await expect(page.locator(".line.user .mark")).to_have_text(["✓", "✓"])
        model.go(1)
        await expect(page.locator(".line.assistant:not(.streaming)")).to_have_count(2)
        now = datetime.now(UTC)
        reminder = Reminder(
            id="raaaaaaaa",
            key=SessionKey("web", "owner"),
            by="owner",
            person="web%3aowner",
            kind=SAY,
            text="water the roses",
            at=slot_of(now - timedelta(minutes=1), "UTC"),
            zone="UTC",
            set_at=now,
            source="t.1",
        )
        job = reminder.to_job("people/web%3aowner")
        await up.app.store.jobs.put(job)
        up.app.memory.jobs.note(job)
        again = translate("web.answer_again")
        fired = page.locator(".line.assistant", has_text="water the roses")
        for _ in range(2):
            await expect(fired).to_be_visible()
            await expect(fired.get_by_role("button", name=again)).to_have_count(0)
            await page.reload()
        await page.locator(".line.assistant").first.get_by_role("button", name=again).click()
        await expect(page.locator(".line.assistant .body").last).to_have_text("answer 3")
        assert users(model.asked[2]) == ["first question"]
