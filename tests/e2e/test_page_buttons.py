"""Buttons on the page, in a real browser: pressed by mouse and by keyboard, and gone when they are settled."""

from __future__ import annotations

import pytest
from playwright.async_api import Browser, Page, expect

from gateway.events import InboundKind, MessageButton, MessagePart, OutboundKind, OutboundMessage, turn_id
from gateway.ports.channel import IntakeResult, IntakeVerdict
from tests.e2e.browser import open_chat, send_text
from tests.fakes.held_model import HeldScriptModel
from tests.fakes.inprocess_gateway import gateway
from tests.fakes.web_services import FakePageServices, ServedPage, serve_page

CHOICES = (
    MessageButton("Yes (1)", "/memory approve e7"),
    MessageButton("No (1)", "/memory reject e7"),
    MessageButton("Yes (2)", "/memory approve e8", 1),
    MessageButton("No (2)", "/memory reject e8", 1),
)


async def show(
    served: ServedPage, text: str, turn: str, *, choices: tuple[MessageButton, ...] = (), settles: bool = False
) -> None:
    """Send a notice to the page's chat."""
    row = OutboundMessage(id=f"{turn}.1", key=served.key, text=text, kind=OutboundKind.NOTICE)
    (part,) = served.channel.render(row)
    sent = MessagePart(
        id=part.id,
        key=part.key,
        payload=part.payload,
        plain=part.plain,
        kind=part.kind,
        choices=choices,
        settles=settles,
    )
    await served.channel.send(sent)


async def open_question(browser: Browser, served: ServedPage) -> Page:
    """Open the page and have it show four buttons in two rows."""
    page = await open_chat(browser, served.url)
    await show(served, "Some of this needs your yes or no.", "tquestionquestion", choices=CHOICES)
    await expect(page.locator(".buttons")).to_have_count(2)
    return page


@pytest.mark.asyncio(loop_scope="session")
async def test_a_press_is_a_command_and_its_row_goes_when_it_is_settled(chromium: Browser) -> None:
    """By keyboard as by mouse; nothing is written into the conversation, the other row stays, a refusal is told."""
    services = FakePageServices()
    async with serve_page(services) as served:
        page = await open_question(chromium, served)
        await page.get_by_role("button", name="No (1)").focus()
        await page.keyboard.press("Enter")
        (heard,) = await services.wait_deliveries(1)
        assert (heard.kind, heard.text, heard.message_id) == (InboundKind.BUTTON, "/memory reject e7", "")
        assert heard.reply_to == "tquestionquestion.1.1"
        await show(served, "Dropped.", turn_id(heard), settles=True)
        await expect(page.locator(".buttons")).to_have_count(1)
        await expect(page.locator(".line.user")).to_have_count(0)
        # What is not taken can be tried again, and an answer that settles nothing leaves the button, too.
        services.verdict = IntakeResult(
            verdict=IntakeVerdict.REJECTED, reason="stranger", line="Ask Ann to let you in."
        )
        button = page.get_by_role("button", name="Yes (2)")
        await button.click()
        await expect(page.locator("#trouble")).to_have_text("Ask Ann to let you in.")
        await expect(button).to_be_enabled()
        services.verdict = IntakeResult(verdict=IntakeVerdict.ACCEPTED)
        await button.click()
        heard = (await services.wait_deliveries(3))[2]
        assert heard.text == "/memory approve e8"
        await show(served, "Only an admin may.", turn_id(heard))
        await expect(page.locator(".line.notice")).to_have_count(3)
        await expect(button).to_be_enabled()


@pytest.mark.asyncio(loop_scope="session")
async def test_the_buttons_of_a_question_survive_a_reload_until_it_is_settled(chromium: Browser) -> None:
    """They work there, in place of the commands as text; no reload brings a settled question back."""
    async with gateway(model=HeldScriptModel()) as up:
        page = await open_chat(chromium, up.app.web.url)
        for said in ("/remember the zeppelin is red", "/forget zeppelin"):
            count = await page.locator(".line.notice, .line.command").count()
            await send_text(page, said)
            await expect(page.locator(".line.notice, .line.command")).to_have_count(count + 1)
        choices = await page.locator(".choice").all_inner_texts()
        assert len(choices) > 1
        await up.idle()
        for _ in range(2):
            await page.reload()
            await expect(page.locator(".choice")).to_have_text(choices)
            await expect(page.locator(".line:not(.user) .body").last).not_to_contain_text("/memory")
        await page.locator(".choice").first.click()
        await expect(page.locator(".choice")).to_have_count(0)
        await up.idle()
        await page.reload()
        await expect(page.locator("#state")).to_have_attribute("data-state", "online")
        await expect(page.locator(".line:not(.user)").last).to_be_visible()
        await expect(page.locator(".choice")).to_have_count(0)
