"""The page on a German phone of 360 pixels, in a real browser before the whole gateway."""

from __future__ import annotations

from typing import Any

import pytest
from playwright.async_api import Browser, Page, expect

from gateway.i18n import translate
from tests.e2e.browser import open_chat, open_page
from tests.fakes.held_model import HeldScriptModel
from tests.fakes.inprocess_gateway import InProcessGateway, gateway

pytestmark = pytest.mark.asyncio(loop_scope="session")

# A phone draws a page that is too wide smaller, or lets it be moved: `innerWidth` grows with it.
PHONE: dict[str, Any] = {
    "viewport": {"width": 360, "height": 640},
    "locale": "de-DE",
    "timezone_id": "Europe/Berlin",
    "has_touch": True,
    "is_mobile": True,
}
CLOSED = {"PARLOUR_WEB__LOGIN": "always"}


async def log_in(page: Page, up: InProcessGateway, who: str = "") -> None:
    """Enter a code of *who* on the page."""
    code = await up.app.channels["web"].issue_code(who)  # type: ignore[attr-defined]
    await page.locator("#code").fill(code)
    await page.locator("#login-form").get_by_role("button").tap()


async def test_the_login_page_speaks_the_browser_s_language(chromium: Browser) -> None:
    """So do its errors and the page behind it, which still says as whom; a choice or setting of a language wins."""
    async with gateway(model=HeldScriptModel(), environment=CLOSED) as up:
        page = await open_page(chromium, **PHONE)
        await page.goto(up.app.web.url)
        await expect(page.locator("#login-title")).to_have_text(translate("web.login_title", "de"))
        await expect(page.locator("html")).to_have_attribute("lang", "de")
        await page.locator("#code").fill("AAAA-BBBB")
        await page.locator("#login-form").get_by_role("button").tap()
        await expect(page.locator("#login-trouble")).to_have_text(translate("web.login_wrong", "de"))
        await log_in(page, up)
        as_whom = page.locator("#as-whom")
        await expect(as_whom).to_have_text(translate("web.logged_in", "de").replace("{who}", "owner"))
        await page.locator("#text").fill("/language es")
        await page.locator("#send").tap()
        await expect(page.locator(".line.command, .line.notice")).to_have_count(1)
        # Another browser: the person's own choice is known only after the login.
        other = await open_page(chromium, **PHONE)
        await other.goto(up.app.web.url)
        await log_in(other, up)
        await expect(other.locator("html")).to_have_attribute("lang", "es")
        as_whom = other.locator("#as-whom")
        await expect(as_whom).to_have_text(translate("web.logged_in", "es").replace("{who}", "owner"))
    async with gateway(model=HeldScriptModel(), environment={**CLOSED, "PARLOUR_LANGUAGE": "es"}) as up:
        page = await open_page(chromium, **PHONE)
        await page.goto(up.app.web.url)
        await expect(page.locator("#login-title")).to_have_text(translate("web.login_title", "es"))


@pytest.mark.parametrize("language", ["en", "de", "es", "zh"])
async def test_nothing_is_wider_than_the_phone(chromium: Browser, language: str) -> None:
    """The login, the page of a person who can log out, its list, and its dialogs."""
    async with gateway(model=HeldScriptModel(), environment=CLOSED) as up:
        page = await open_page(chromium, **{**PHONE, "locale": language})
        await page.goto(up.app.web.url)
        await expect(page.locator("#login")).to_be_visible()
        assert await _widths(page) == (360, 360)
        await log_in(page, up)
        await expect(page.locator("#leave")).to_be_visible()
        await expect(page.locator("#state")).to_have_attribute("data-state", "online")
        assert await _widths(page) == (360, 360)
        await page.context.set_offline(True)
        await expect(page.locator("#state")).to_have_attribute("data-state", "offline")
        await expect(page.locator("#state")).to_be_in_viewport(ratio=1)
        assert await _widths(page) == (360, 360)
        await page.context.set_offline(False)
        await page.locator("#sidebar-toggle").tap()
        await expect(page.locator("#new-chat")).to_have_text(translate("web.new_chat", language))
        assert await page.locator("#sidebar").evaluate("it => it.scrollWidth <= it.clientWidth")
        assert await _widths(page) == (360, 360)
        for name in ("memory", "reminders", "settings"):
            await page.locator(f"#{name}-open").tap()
            assert await _widths(page) == (360, 360)
            await page.keyboard.press("Escape")


async def test_the_card_to_connect_a_model_can_be_closed_without_scrolling(chromium: Browser) -> None:
    """Its buttons stay in sight on a phone, however long its questions are."""
    async with gateway() as up:
        page = await open_chat(chromium, up.app.web.url, **PHONE)
        await expect(page.locator("html")).to_have_attribute("lang", "de")
        await page.locator("#no-model").get_by_role("button").tap()
        card = page.get_by_role("dialog", name=translate("web.connect", "de"))
        await expect(card.get_by_role("button", name="OpenRouter")).to_be_visible()
        await expect(card.locator("#connect-close")).to_be_in_viewport(ratio=1)
        # What was typed last is not covered by them.
        await card.locator("#connect-step form").get_by_role("button").focus()
        await expect(card.locator("#connect-step form").get_by_role("button")).to_be_in_viewport(ratio=1)
        submit = await card.locator("#connect-step form").get_by_role("button").bounding_box()
        close = await card.locator("#connect-close").bounding_box()
        assert submit is not None
        assert close is not None
        assert submit["y"] + submit["height"] <= close["y"]
        await card.locator("#connect-close").tap()
        await expect(card).to_be_hidden()


async def _widths(page: Page) -> tuple[int, int]:
    """Return the widths of the window as it is laid out, and of what is in it."""
    widths: list[int] = await page.evaluate("[innerWidth, document.documentElement.scrollWidth]")
    return widths[0], widths[1]
