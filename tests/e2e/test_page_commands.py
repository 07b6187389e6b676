"""The menu of commands and the sheet of keys, in a real browser before the real channel."""

from __future__ import annotations

import pytest
from playwright.async_api import Browser, expect

from gateway.i18n import HELP, command_names, translate
from gateway.text import render_plain
from tests.e2e.browser import open_chat, open_page, send_text
from tests.fakes.held_model import HeldScriptModel
from tests.fakes.inprocess_gateway import gateway
from tests.fakes.web_services import FakePageServices, serve_page

pytestmark = pytest.mark.asyncio(loop_scope="session")


def lines(start: str, language: str = "en") -> list[str]:
    """Return the entries of the menu for commands that begin with *start*: the words of `/help`."""
    found = [name for name in command_names() if name.startswith(start)]
    return [f"/{name} {render_plain(translate(f'{HELP}{name}', language))}" for name in found][:8]


@pytest.mark.parametrize("language", ["de", "zh"])
async def test_a_slash_opens_the_commands_with_the_words_of_help(chromium: Browser, language: str) -> None:
    """In the chat's language, on a phone: the entries, fewer with each letter, none for a whole name or a path."""
    async with serve_page(FakePageServices(language=language)) as served:
        page = await open_chat(chromium, served.url, viewport={"width": 360, "height": 740})
        entries = page.get_by_role("option")
        await page.locator("#text").press_sequentially("/")
        await expect(entries).to_have_text(lines("", language))
        assert await page.evaluate("document.documentElement.scrollWidth") == 360
        await page.locator("#text").press_sequentially("re")
        await expect(entries).to_have_text(lines("re", language))
        for text in ("/retry", "/nonesuch", "/retry x", "no / command", "/etc/passwd", "//"):
            await page.locator("#text").fill(text)
            await expect(page.locator("#commands")).to_be_hidden()


async def test_the_menu_is_worked_by_keys_and_by_mouse(chromium: Browser) -> None:
    """Arrows and Enter, Tab, Escape, a click; Enter without a choice sends what was typed."""
    services = FakePageServices(answer=lambda text: f"You said {text}")
    async with serve_page(services) as served:
        page = await open_chat(chromium, served.url)
        text, menu = page.locator("#text"), page.locator("#commands")
        await text.press_sequentially("/st")
        names = [line.split()[0] for line in lines("st")]
        await text.press("ArrowDown")
        chosen = page.locator('[role=option][aria-selected="true"]')
        await expect(chosen.locator("code")).to_have_text(names[0])
        assert await text.get_attribute("aria-activedescendant") == await chosen.get_attribute("id")
        await text.press("ArrowUp")
        await expect(chosen.locator("code")).to_have_text(names[-1])
        await text.press("Enter")
        await expect(text).to_have_value(f"{names[-1]} ")
        await expect(menu).to_be_hidden()
        assert services.deliveries == []
        await text.press("Enter")
        await services.wait_deliveries(1)
        assert services.deliveries[0].text == names[-1]
        await text.press_sequentially("/sta")
        await text.press("Tab")
        await expect(text).to_have_value(f"{lines('sta')[0].split()[0]} ")
        await expect(text).to_be_focused()
        await text.fill("/st")
        await text.press("Escape")
        await expect(menu).to_be_hidden()
        await text.fill("/h")
        await page.get_by_role("option", name="/help").click()
        await expect(text).to_have_value("/help ")
        await expect(text).to_be_focused()
        await text.fill("/st")
        await text.press("Enter")
        await services.wait_deliveries(2)
        assert services.deliveries[1].text == "/st"
        await expect(menu).to_be_hidden()


async def test_an_answer_is_copied_as_it_was_written(chromium: Browser) -> None:
    """Its Markdown, not what is drawn of it; of an answer that was streamed, and of one from the history."""
    markdown = "**bold** and `code`\n\n- [a link](https://example.org/)\n\n| a |\n|---|\n| 1 |"
    async with serve_page(FakePageServices(answer=lambda _: markdown)) as served:
        page = await open_chat(chromium, served.url, permissions=["clipboard-read", "clipboard-write"])
        await send_text(page, "go")
        copy = page.get_by_role("button", name=translate("web.copy_answer"))
        for _ in range(2):
            await expect(page.locator(".line.assistant:not(.streaming) table")).to_have_count(1)
            await page.evaluate("navigator.clipboard.writeText('')")
            await copy.click()
            await expect(copy).to_have_text(translate("web.copied"))
            assert await page.evaluate("navigator.clipboard.readText()") == markdown
            await page.reload()
            await expect(page.locator("#state")).to_have_attribute("data-state", "online")


async def test_a_question_mark_opens_the_keys_where_nothing_is_typed(chromium: Browser) -> None:
    """By key and by button; in the composer it is a question mark; Escape and the button close it."""
    async with serve_page(FakePageServices()) as served:
        page = await open_chat(chromium, served.url)
        sheet = page.get_by_role("dialog", name=translate("web.keys"))
        await page.locator("#text").press_sequentially("?")
        await expect(page.locator("#text")).to_have_value("?")
        await expect(sheet).to_be_hidden()
        await page.locator("#scroller").focus()
        await page.keyboard.press("?")
        await expect(sheet).to_be_visible()
        await expect(sheet.locator("dd").first).to_have_text(translate("web.key_send"))
        await page.keyboard.press("Escape")
        await expect(sheet).to_be_hidden()
        await page.get_by_role("button", name=translate("web.keys")).click()
        await expect(sheet).to_be_visible()
        await sheet.get_by_role("button", name=translate("web.close")).click()
        await expect(sheet).to_be_hidden()


@pytest.mark.parametrize("isolation", ["strict", "shared"])
async def test_the_menu_offers_what_the_role_allows(chromium: Browser, isolation: str) -> None:
    """An owner's commands to owners alone, in one memory for all people its export too; the others to everybody."""
    offered: dict[str, list[str]] = {}
    settings = {"PARLOUR_WEB__LOGIN": "always", "PARLOUR_MEMORY__ISOLATION": isolation}
    async with gateway(model=HeldScriptModel(), environment=settings) as up:
        for name in ("", "ann"):
            arguments = {"as": name} if name else {}
            (issued,) = [dict(line) async for line in up.app.operations["web login"](arguments)]
            page = await open_page(chromium)
            await page.goto(f"{up.app.web.url}#code={issued['code']}")
            await page.locator("#code").press("Enter")
            await expect(page.locator("#state")).to_have_attribute("data-state", "online")
            offered[name] = []
            for typed in ("/pe", "/sh", "/me", "/ex"):
                await page.locator("#text").fill(typed)
                offered[name] += await page.get_by_role("option").locator("code").all_inner_texts()
    own = ["/export"] if isolation == "strict" else []
    assert offered == {"": ["/people", "/share", "/memory", "/export"], "ann": ["/memory", *own]}


async def test_a_link_says_as_whom_one_is_logged_in(chromium: Browser) -> None:
    """The code of a link may be another person's: the page names who they are now, until they write."""
    async with gateway(model=HeldScriptModel("Hello."), environment={"PARLOUR_WEB__LOGIN": "always"}) as up:
        (issued,) = [dict(line) async for line in up.app.operations["web login"]({"as": "mallory"})]
        page = await open_page(chromium)
        await page.goto(f"{up.app.web.url}#code={issued['code']}")
        await expect(page.locator("#as-whom")).to_be_hidden()
        await page.locator("#code").press("Enter")
        await expect(page.locator("#as-whom")).to_have_text(translate("web.logged_in").replace("{who}", "mallory"))
        await page.locator("#text").fill("hello")
        await page.locator("#text").press("Enter")
        await expect(page.locator("#as-whom")).to_be_hidden()


async def test_copying_works_over_plain_http(chromium: Browser) -> None:
    """There a page has no clipboard of its own; where nothing can be copied, no button says that it was."""
    markdown = "Run **this**:\n\n```sh\nparlour doctor\n```"
    services = FakePageServices(answer=lambda _: markdown)
    async with serve_page(services) as served:
        page = await open_page(chromium)
        await page.add_init_script("Object.defineProperty(Navigator.prototype, 'clipboard', { value: undefined })")
        await page.goto(served.url)
        await expect(page.locator("#state")).to_have_attribute("data-state", "online")
        await send_text(page, "how?")
        answer = page.get_by_role("button", name=translate("web.copy_answer"))
        code = page.locator(".code").get_by_role("button")
        text = page.locator("#text")
        for button, copied in ((answer, markdown), (code, "parlour doctor")):
            await button.click()
            await expect(button).to_have_text(translate("web.copied"))
            await expect(button).to_be_focused()
            await text.fill("")
            await text.press("Control+V")
            await expect(text).to_have_value(copied)
            await expect(button).to_have_text(translate("web.copy"))
        await page.evaluate("document.execCommand = () => false")
        for button in (answer, code):
            await button.click()
            await expect(button).to_have_text(translate("web.copy_failed"))


async def test_the_enter_that_ends_a_word_of_an_input_method_sends_nothing(chromium: Browser) -> None:
    """Safari ends the composition before that key: only its code says so. The same in a title and in the menu."""
    press = """(field) => field.dispatchEvent(
        new KeyboardEvent("keydown", { key: "Enter", keyCode: 229, bubbles: true, cancelable: true }))"""
    async with gateway(model=HeldScriptModel()) as up:
        page = await open_chat(chromium, up.app.web.url)
        text = page.locator("#text")
        await text.fill("日本")
        await text.evaluate(press)
        await expect(text).to_have_value("日本")
        await expect(page.locator(".line")).to_have_count(0)
        await text.press("Enter")
        await expect(page.locator(".line.user .body")).to_have_text("日本")
        await text.fill("/st")
        await text.press("ArrowDown")
        await text.evaluate(press)
        await expect(text).to_have_value("/st")
        await page.get_by_label(translate("web.options", title="日本")).click()
        await page.get_by_text(translate("web.rename"), exact=True).click()
        title = page.get_by_role("textbox", name=translate("web.rename"))
        await title.evaluate(press)
        await expect(title).to_be_visible()
