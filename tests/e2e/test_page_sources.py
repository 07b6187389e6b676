"""Sources of an answer on the page, in a real browser: footnotes, whose titles are others' text."""

from __future__ import annotations

import json

import pytest
from playwright.async_api import Browser, Page, expect

from agent.tools.tool import ResultContent, ToolContext, ToolKind, ToolResult, tool
from gateway.events import AnswerSource
from gateway.i18n import translate
from gateway.text.message_text import file_address
from tests.e2e.browser import open_chat, send_text, take_pictures
from tests.e2e.test_page_axe import AXE, check
from tests.fakes.held_model import HeldScriptModel, calls
from tests.fakes.inprocess_gateway import gateway

FERRIES = {"timetable": "Harbour ferries: timetable", "tickets": "Tickets and prices"}
SUNDAY = "Every hour from 9:00 to 20:00 ([timetable](https://example.org/timetable)), for 3 crowns."
HOSTILE = {"a": "<b>Ferries</b> [in](https://evil.example) May", "b": "", "c": "C" * 200}
ANSWER = "The [timetable](https://example.org/a) says so, and `https://example.org/b` agrees. `c` does not."


@tool("Read a page.", kind=ToolKind.WEB, name="open_page", brings=ResultContent.WORDS)
async def read_page(_: ToolContext, name: str) -> ToolResult:
    """Return a page whose title is its own."""
    return ToolResult(text="a page", sources=[AnswerSource(f"https://example.org/{name}", (FERRIES | HOSTILE)[name])])


@tool("Read a file.", kind=ToolKind.LOOK, name="open_file")
async def read_file(_: ToolContext) -> ToolResult:
    """Return a file whose name is its sender's."""
    address = file_address("received/lease.pdf", "page 2")
    return ToolResult(text="a file", sources=[AnswerSource(address, "<b>lease</b> example.org.pdf, page 2")])


async def check_footnotes(page: Page) -> None:
    """Expect three numbered sources below the answer, and a number behind each address that its text has."""
    answer = page.locator(".line.assistant").last
    links = answer.get_by_role("region", name=translate("web.sources")).locator("li > a")
    await expect(links).to_have_text([HOSTILE["a"], "example.org", "C" * 80])
    shown = [await link.get_attribute("href") for link in await links.all()]
    assert shown == [f"https://example.org/{name}" for name in "abc"]
    await expect(answer.locator(".sources b, .body b")).to_have_count(0)
    await expect(answer.locator(".body sup")).to_have_text(["1", "2"])
    # The source is on the line of its own list only, not in the text as well.
    await expect(page.get_by_text("Sources:")).to_have_count(0)
    second = answer.get_by_role("link", name=translate("web.source_number", number=2), exact=True)
    await second.focus()
    await page.keyboard.press("Enter")
    await expect(links.nth(1)).to_be_focused()
    assert "#" not in page.url


@pytest.mark.asyncio(loop_scope="session")
async def test_sources_are_footnotes(chromium: Browser) -> None:
    """As the answer arrives and after a reload: titles are plain and bounded, numbers lead there, axe finds nothing."""
    opened = [calls(*(("open_page", json.dumps({"name": name})) for name in titles)) for titles in (FERRIES, HOSTILE)]
    found: list[str] = []
    async with gateway(model=HeldScriptModel(opened[0], SUNDAY, opened[1], ANSWER), tools=[read_page]) as up:
        page = await open_chat(chromium, up.app.web.url, script=AXE, reduced_motion="reduce")
        await send_text(page, "Do the ferries run on Sunday?")
        await expect(page.locator(".sources li > a")).to_have_text(list(FERRIES.values()))
        await up.idle()
        await take_pictures(page, "page-sources")
        await send_text(page, "when do the ferries go?")
        await check_footnotes(page)
        await up.idle()
        await page.reload()
        await check_footnotes(page)
        await check(page, "footnotes", found)
    assert not found, "\n".join(found)


@pytest.mark.asyncio(loop_scope="session")
async def test_a_file_is_a_source_without_a_link(chromium: Browser) -> None:
    """Its name and page are text, as the answer arrives and after a reload: nothing opens it."""
    async with gateway(
        model=HeldScriptModel(calls(("open_file", "{}")), "In May, says lease.pdf."),
        tools=[read_file],
    ) as up:
        page = await open_chat(chromium, up.app.web.url)
        await send_text(page, "when does the lease end?")
        for _ in range(2):
            shown = page.locator(".line.assistant").last.locator(".sources li")
            await expect(shown).to_have_text(["<b>lease</b> example.org.pdf, page 2"])
            await expect(shown.locator("a, b")).to_have_count(0)
            await up.idle()
            await page.reload()
