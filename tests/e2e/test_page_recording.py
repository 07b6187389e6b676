"""Voice messages recorded on the page, in a real browser whose microphone beeps."""

from __future__ import annotations

import re

import pytest
from playwright.async_api import Browser, Page, expect

from gateway.i18n import translate
from tests.e2e.browser import open_chat, open_page, take_pictures
from tests.e2e.test_page_axe import AXE, check
from tests.fakes.file_gateway import open_gateway
from tests.fakes.openai_server import ScriptedAnswer
from tests.fakes.web_services import FakePageServices, serve_page

pytestmark = pytest.mark.xdist_group("litellm")


_COUNTED = """
    const { start } = MediaRecorder.prototype;
    MediaRecorder.prototype.start = function (...given) {
        const { dataset } = document.documentElement;
        dataset.recorded = 0;
        this.addEventListener("dataavailable", ({ data }) => (dataset.recorded = data.size));
        return start.apply(this, given);
    };
"""


async def record(page: Page) -> None:
    """Begin a recording by keyboard and wait until it runs."""
    await expect(page.locator("#record")).to_be_visible()
    await page.locator("#record").focus()
    await page.keyboard.press("Enter")
    await expect(page.locator("#record-stop")).to_be_focused()


async def wait_sound(page: Page) -> None:
    """Wait until the browser has recorded something."""
    await expect(page.locator("html")).to_have_attribute("data-recorded", re.compile("[1-9]"))


async def take_off(page: Page) -> None:
    """Expect one recording among the files of the next message, and remove it."""
    await expect(page.locator("#attached .file")).to_have_count(1)
    await page.get_by_label(translate("web.attach_remove", name="Recording.webm")).click()
    await expect(page.locator("#attached .file")).to_have_count(0)


@pytest.mark.asyncio(loop_scope="session")
async def test_a_recording_is_transcribed(chromium: Browser) -> None:
    """By keyboard: cancelled it leaves nothing; at a limit of bytes or time it ends and is kept; sent it is heard."""
    found: list[str] = []
    async with open_gateway(PARLOUR_LLM__TRANSCRIPTION_MODEL="openai/whisper-1") as at:
        at.server.transcript = ScriptedAnswer(text="come at six")
        page = await open_page(chromium, script=AXE, reduced_motion="reduce")
        await page.add_init_script(_COUNTED)
        await page.clock.install()
        await page.goto(at.parlour.app.web.url)
        await record(page)
        await check(page, "recording", found)
        await page.keyboard.press("Escape")
        await expect(page.locator("#recording")).to_be_hidden()
        await expect(page.locator("#text")).to_be_focused()
        await expect(page.locator("#attached .file")).to_have_count(0)
        # Ten minutes.
        await record(page)
        await wait_sound(page)
        await page.clock.fast_forward("09:00")
        await expect(page.get_by_role("timer")).to_have_text(re.compile("^9:"))
        await take_pictures(page, "page-recording")
        await page.clock.fast_forward("01:00")
        await expect(page.locator("#trouble")).to_have_text(translate("web.record_full"))
        await expect(page.locator("#recording")).to_be_hidden()
        await take_off(page)
        # So many bytes.
        await record(page)
        before = await page.locator("#record").get_attribute("data-largest")
        await page.locator("#record").evaluate("(each) => (each.dataset.largest = 10)")
        await expect(page.locator("#recording")).to_be_hidden()
        await take_off(page)
        await page.locator("#record").evaluate("(each, largest) => (each.dataset.largest = largest)", before)
        # What is stopped is sent.
        await record(page)
        await wait_sound(page)
        await page.keyboard.press("Enter")
        await expect(page.locator('#attached [data-state="ready"]')).to_have_count(1)
        await page.locator("#text").press("Enter")
        await expect(page.locator(".line.assistant:not(.streaming)")).to_have_count(1)
        (sound,) = at.server.sounds
        assert sound.data.startswith(b"\x1a\x45\xdf\xa3")  # WebM
        (said,) = [each["content"] for each in at.server.requests[0]["messages"] if each["role"] == "user"]
        assert said.endswith("] (voice: come at six)")  # what a file says would be marked as data
    assert not found, "\n".join(found)


@pytest.mark.asyncio(loop_scope="session")
async def test_without_a_transcription_model_there_is_no_microphone(chromium: Browser) -> None:
    """No button, and the browser refuses the page a microphone that it would have."""
    async with serve_page(FakePageServices()) as served:
        page = await open_chat(chromium, served.url)
        await expect(page.locator("#record")).to_be_hidden()
        opening = "navigator.mediaDevices.getUserMedia({ audio: true }).then(() => 'open', (error) => error.name)"
        assert await page.evaluate(opening) == "NotAllowedError"
