"""The page's history in a real browser: a page of it at a time, in the order in which it was seen."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest
from playwright.async_api import Browser, expect

from channels.web.adapter import MOST_WINDOWS
from gateway.i18n import translate
from gateway.ports.channel import DisplayedMessage
from tests.fakes.web_services import FakePageServices, serve_page

pytestmark = pytest.mark.asyncio(loop_scope="session")


def line(n: int, text: str, at: datetime) -> DisplayedMessage:
    """Return a line of the history."""
    role = "assistant" if n % 2 else "user"
    return DisplayedMessage(id=f"t{n}/0", turn=f"t{n}", role=role, text=text, at=at, message_id=f"message-{n:04d}")


async def test_scrolling_up_brings_the_rest_without_moving_what_is_read(chromium: Browser) -> None:
    """A long history comes in pages; each line is there once, in order, with one heading for each day."""
    today = datetime.now(UTC).replace(hour=12, minute=0)
    lines = [line(n, f"{n}: {'word ' * 6_000}", today - timedelta(days=(23 - n) // 4)) for n in range(24)]
    async with serve_page(FakePageServices(lines=lines)) as served:
        page = await chromium.new_page(timezone_id="UTC")
        await page.goto(served.url)
        await expect(page.locator(".line .body").last).to_contain_text("23: word")
        assert await page.locator(".line").count() < len(lines)
        top = page.locator(".line .body").first
        words = (await top.text_content() or "").partition(" ")[0]  # a line out of sight has no inner text
        await page.locator("#scroller").evaluate("it => it.scrollTo(0, 0)")
        await expect(top).not_to_contain_text(f"{words} word")
        # What was read has not moved away: the new lines stand above it.
        assert await page.locator("#scroller").evaluate("it => it.scrollTop") > 1_000
        while await page.locator(".line").count() < len(lines):
            before = await page.locator(".line").count()
            await page.locator("#scroller").evaluate("it => it.scrollTo(0, 0)")
            await expect(page.locator(".line").nth(before)).to_be_attached()
        texts = await page.locator(".line .body").all_text_contents()
        assert [int(text.partition(":")[0]) for text in texts] == list(range(24))
        days = await page.locator(".day").all_inner_texts()
        assert len(days) == len(set(days)) == 6


_NOTE_FIRST_FRAME = """
new MutationObserver((_, observer) => {
  if (!document.querySelector(".line")) return;
  observer.disconnect();
  requestAnimationFrame(() => { window.drawnFirst = document.querySelectorAll(".line").length; });
}).observe(document, { childList: true, subtree: true });
"""


async def test_the_newest_lines_are_drawn_first_and_the_rest_of_the_page_behind_them(chromium: Browser) -> None:
    """A window shows some ten lines; each of the page's lines is there once, in order, and the window stays below."""
    today = datetime.now(UTC).replace(hour=12, minute=0)
    lines = [line(n, f"{n}: words", today - timedelta(days=(59 - n) // 20)) for n in range(60)]
    async with serve_page(FakePageServices(lines=lines)) as served:
        page = await chromium.new_page(timezone_id="UTC")
        await page.add_init_script(_NOTE_FIRST_FRAME)
        await page.goto(served.url)
        await expect(page.locator(".line")).to_have_count(60)
        assert await page.evaluate("window.drawnFirst") == 24
        texts = await page.locator(".line .body").all_text_contents()
        assert [int(text.partition(":")[0]) for text in texts] == list(range(60))
        assert await page.locator(".day").count() == 3
        await page.wait_for_function(
            "it => it.scrollHeight - it.scrollTop - it.clientHeight < 2", arg=await page.query_selector("#scroller")
        )


async def test_a_window_too_many_says_why_and_comes_in_when_it_can(chromium: Browser) -> None:
    """The page shows the server's line, tries again by itself, and forgets the line once it is let in."""
    async with serve_page(FakePageServices()) as served:
        context = await chromium.new_context()
        opener = await context.new_page()
        await opener.goto(served.url)
        await expect(opener.locator("#state")).to_have_attribute("data-state", "online")  # it is one of the windows
        address = f"{served.url.replace('http', 'ws', 1)}ws"
        await opener.evaluate(
            "([n, at]) => { window.more = Array.from({ length: n }, () => new WebSocket(at)) }",
            [MOST_WINDOWS - 1, address],
        )
        await opener.wait_for_function("() => window.more.every((each) => each.readyState === 1)")
        page = await context.new_page()
        await page.goto(served.url)
        await expect(page.locator("#trouble")).to_have_text(translate("frames.windows", most=MOST_WINDOWS))
        await expect(page.locator("#state")).to_have_attribute("data-state", "offline")
        await opener.evaluate("() => window.more.forEach((each) => each.close())")
        await expect(page.locator("#state")).to_have_attribute("data-state", "online")
        await expect(page.locator("#trouble")).to_be_hidden()
