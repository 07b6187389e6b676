"""The sidebar in a real browser before the whole gateway: conversations begun, found, named, deleted and restored."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
import pytest_asyncio
from playwright.async_api import Browser, FilePayload, Locator, Page, Route, ViewportSize, expect

from gateway.events import SessionKey
from gateway.i18n import translate
from tests.e2e.browser import open_chat, open_page, send_text, take_picture
from tests.fakes.held_model import HeldScriptModel, title_soon
from tests.fakes.inprocess_gateway import InProcessGateway, InstantModel, gateway

pytestmark = pytest.mark.asyncio(loop_scope="session")

PHONE = ViewportSize(width=360, height=740)


@pytest_asyncio.fixture(loop_scope="session")
async def up() -> AsyncIterator[InProcessGateway]:
    """Run a gateway on a home of its own."""
    async with gateway(model=InstantModel()) as running:
        yield running


async def visit(browser: Browser, up: InProcessGateway, path: str = "", **context: Any) -> Page:
    """Open the page and wait until it is connected; an error on it fails the test."""
    return await open_chat(browser, f"{up.app.web.url}{path}", **context)


async def say(page: Page, text: str) -> None:
    """Say *text* and wait for its answer."""
    answers = page.locator(".line:not(.user):not(.streaming)")
    count = await answers.count()
    await send_text(page, text)
    await expect(answers).to_have_count(count + 1)


def titles(page: Page) -> Locator:
    """Return the listed conversations."""
    return page.locator("#conversations a")


async def test_conversations_are_begun_found_and_come_back(chromium: Browser, up: InProcessGateway) -> None:
    """A title at once, in other windows too; each has its own lines and its draft; the address says which is open."""
    page, other = await visit(chromium, up), await visit(chromium, up)
    await say(page, "the roses need water")
    for each in (page, other):
        await expect(titles(each)).to_have_text(["the roses need water"])
    await page.locator("#new-chat").click()
    await expect(page.locator(".line")).to_have_count(0)
    await expect(page.locator("#text")).to_be_focused()
    await expect(titles(page)).to_have_text([translate("web.new_chat"), "the roses need water"])
    await say(page, "<b>which wine?</b>")
    await expect(titles(page)).to_have_text(["<b>which wine?</b>", "the roses need water"])
    await expect(page.locator('#conversations a[aria-current="page"]')).to_have_text("<b>which wine?</b>")
    assert await page.title() == "<b>which wine?</b> – Parlour"
    # The other window stands in the first conversation: it gets the list, and a sign that something was said there.
    await expect(titles(other).first).to_have_text(re.compile("which wine"))
    await expect(titles(other).first.get_by_role("img", name=translate("web.unread"))).to_have_count(1)
    await expect(other.locator(".line.user .body")).to_have_text(["the roses need water"])
    await page.locator("#text").fill("not sent yet")
    await titles(page).nth(1).click()
    await expect(page.locator(".line.user .body")).to_have_text(["the roses need water"])
    await expect(page.locator("#text")).to_have_value("")
    await page.go_back()
    await expect(page.locator(".line.user .body")).to_have_text(["<b>which wine?</b>"])
    await expect(page.locator("#text")).to_have_value("not sent yet")
    await page.reload()
    await expect(page.locator(".line.user .body")).to_have_text(["<b>which wine?</b>"])
    await expect(page.locator(".line")).to_have_count(2)


async def test_a_model_names_a_conversation_while_the_page_is_open(
    chromium: Browser, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first message is the title until the model has found one, which the list shows without a reload."""
    title_soon(monkeypatch)
    model = HeldScriptModel(held=[1])
    model.title = "Watering <i>roses</i>"
    async with gateway(model=model) as running:
        page = await visit(chromium, running)
        await send_text(page, "the roses need water")
        await expect(titles(page)).to_have_text(["the roses need water"])
        model.go(1)
        await expect(titles(page)).to_have_text(["Watering <i>roses</i>"])


async def test_renamed_pinned_deleted_and_restored(chromium: Browser, up: InProcessGateway) -> None:
    """With the mouse and with keys alone; what is deleted is out of reach, and back with all its lines."""
    page = await visit(chromium, up)
    await say(page, "first words")
    await page.keyboard.press("Control+Shift+O")
    await say(page, "second words")
    await expect(titles(page)).to_have_text(["second words", "first words"])
    first = page.locator("#conversations li", has_text="first words")
    await first.get_by_label(translate("web.options", title="first words")).click()
    await page.get_by_role("menuitem", name=translate("web.pin"), exact=True).click()
    await expect(titles(page).first).to_have_text(re.compile("first words"))
    # Keys alone: from the options to the name, kept by Enter, and not by Escape.
    await page.get_by_label(translate("web.options", title="second words")).focus()
    await page.keyboard.press("Enter")
    await page.keyboard.press("Enter")
    field = page.get_by_role("textbox", name=translate("web.rename"))
    await expect(field).to_be_focused()
    await field.fill("Thrown away")
    await page.keyboard.press("Escape")
    await expect(titles(page).nth(1)).to_have_text("second words")
    await page.keyboard.press("Enter")
    await page.keyboard.press("Enter")
    await field.fill("Wines")
    await page.keyboard.press("Enter")
    await expect(titles(page).nth(1)).to_have_text("Wines")
    await page.get_by_label(translate("web.options", title="Wines")).click()
    await page.get_by_role("menuitem", name=translate("web.delete")).click()
    await expect(page.locator("#spoken")).to_have_text(translate("web.deleted_note"))
    await expect(page.locator(".line.user .body")).to_have_text(["first words"])
    await expect(titles(page)).to_have_count(1)
    await page.locator("#deleted summary").click()
    await page.get_by_role("button", name=f"{translate('web.restore')}: Wines").click()
    await expect(titles(page)).to_have_count(2)
    await titles(page).nth(1).click()
    await expect(page.locator(".line.user .body")).to_have_text(["second words"])


async def test_what_is_typed_while_a_conversation_is_deleted_is_the_next_one_s(
    chromium: Browser, up: InProcessGateway
) -> None:
    """The next one is open before the server answers; a deletion that fails opens the conversation again."""
    page = await visit(chromium, up, f"#c={'d' * 16}")
    await say(page, "to be deleted")
    answered = asyncio.Event()

    async def hold(route: Route) -> None:
        await answered.wait()
        await route.continue_()

    await page.route(f"**/conversations/{'d' * 16}", hold)
    options = translate("web.options", title="to be deleted")
    await page.get_by_label(options).click()
    await page.get_by_role("menuitem", name=translate("web.delete")).click()
    await expect(page).not_to_have_url(re.compile("d{16}"))
    await page.locator("#text").click()
    await page.keyboard.type("for the next")
    answered.set()
    await expect(page.locator("#spoken")).to_have_text(translate("web.deleted_note"))
    await expect(page.locator("#text")).to_be_focused()
    await expect(page.locator("#text")).to_have_value("for the next")
    await page.goto(f"{up.app.web.url}#c={'e' * 16}")
    await say(page, "not to be deleted")
    await page.route(f"**/conversations/{'e' * 16}", lambda route: route.abort())
    await page.get_by_label(translate("web.options", title="not to be deleted")).click()
    await page.get_by_role("menuitem", name=translate("web.delete")).click()
    await expect(page.locator(".line.user .body")).to_have_text(["not to be deleted"])
    await expect(page).to_have_url(re.compile("e{16}"))


async def test_a_list_that_changes_leaves_an_open_menu_as_it_is(chromium: Browser, up: InProcessGateway) -> None:
    """Another window begins a conversation while somebody is at the options, or types a name: nothing is taken away."""
    page, other = await visit(chromium, up), await visit(chromium, up)
    await say(page, "first words")
    await page.get_by_label(translate("web.options", title="first words")).focus()
    await page.keyboard.press("Enter")
    rename = page.get_by_role("menuitem", name=translate("web.rename"))
    await expect(rename).to_be_focused()
    await other.keyboard.press("Control+Shift+O")
    await say(other, "second words")
    await expect(titles(page)).to_have_count(2)
    await expect(rename).to_be_focused()
    await page.keyboard.press("Enter")
    await page.keyboard.type("Named")
    await other.keyboard.press("Control+Shift+O")
    await say(other, "third words")
    await expect(page.get_by_role("textbox", name=translate("web.rename"))).to_have_value("Named")
    await page.keyboard.press("Enter")
    await expect(titles(page)).to_have_text([re.compile("third"), re.compile("second"), "Named"])


async def test_the_options_are_a_menu(chromium: Browser, up: InProcessGateway) -> None:
    """It lies over the list beside its button; arrows go through it, Escape and a click elsewhere close it."""
    page = await visit(chromium, up, viewport={"width": 1100, "height": 720})
    await say(page, "first words")
    options = page.get_by_label(translate("web.options", title="first words"))
    menu, entries = page.get_by_role("menu"), page.get_by_role("menuitem")
    await options.focus()
    row = await page.locator("#conversations li:has(a)").bounding_box()
    await page.keyboard.press("Enter")
    await expect(options).to_have_attribute("aria-expanded", "true")
    for key, n in (("", 0), ("ArrowDown", 1), ("End", -1), ("ArrowDown", 0), ("ArrowUp", -1), ("Home", 0)):
        if key:
            await page.keyboard.press(key)
        await expect(entries.nth(n)).to_be_focused()
    assert await page.locator("#conversations li:has(a)").bounding_box() == row
    at, box = await options.bounding_box(), await menu.bounding_box()
    assert at is not None
    assert box is not None
    assert abs(box["y"] - at["y"] - at["height"]) < 8
    for close in (page.keyboard.press("Escape"), page.keyboard.press("Tab")):
        await close
        await expect(menu).to_be_hidden()
        await expect(options).to_be_focused()
        await expect(options).to_have_attribute("aria-expanded", "false")
        await page.keyboard.press("Enter")
        await expect(menu).to_be_visible()
    await page.locator("#lines").click(position={"x": 5, "y": 5})
    await expect(menu).to_be_hidden()
    for is_open in (True, False):
        await options.click()
        await expect(menu).to_be_visible(visible=is_open)


async def test_everything_that_is_pressed_is_large_enough(chromium: Browser, up: InProcessGateway) -> None:
    """On a phone, buttons and links of the page are at least 24 pixels high and wide."""
    page = await visit(chromium, up, viewport=PHONE, has_touch=True)
    await say(page, "first words")
    await say(page, "/remember the roses are red")
    await page.locator("#text").press("ArrowUp")
    small = """() => [...document.querySelectorAll("button, summary, select, input, #sidebar a")]
        .filter((each) => each.checkVisibility())
        .map((each) => [each.outerHTML.slice(0, 80), each.getBoundingClientRect()])
        .filter(([, { width, height }]) => width < 24 || height < 24).map(([html]) => html)"""
    assert await page.evaluate(small) == []
    await page.locator("#edit-cancel").click()
    await page.locator("#sidebar-toggle").click()
    await page.get_by_label(translate("web.options", title="first words")).click()
    assert await page.evaluate(small) == []
    await page.keyboard.press("Escape")
    await page.locator("#settings-open").click()
    assert await page.evaluate(small) == []


async def test_a_search_leads_to_the_words(chromium: Browser, up: InProcessGateway) -> None:
    """A hit far above in another conversation is shown, in the middle of the page; titles are found as well."""
    page = await visit(chromium, up)
    await say(page, "the zanzibar plan")
    for n in range(45):
        await up.app.submit(SessionKey("web", "owner"), f"line {n}")
    await up.idle()
    await page.keyboard.press("Control+Shift+O")
    await say(page, "something else")
    await page.keyboard.press("Control+K")
    await expect(page.locator("#find")).to_be_focused()
    await page.keyboard.type("ZANZ plan")
    hits = page.locator("#hits li")
    await expect(hits).to_have_count(3)  # the title, the message and the answer that repeats it
    await hits.last.locator("a").click()
    found = page.locator(".line.user", has_text="the zanzibar plan")
    await expect(found).to_be_in_viewport()
    await page.locator("#find").fill("nothing has these words")
    await expect(page.locator("#hits [role=status]")).to_have_text(translate("web.find_none"))
    await page.locator("#find").fill("")
    await expect(titles(page)).to_have_count(2)


async def test_who_leaves_leaves_nothing_on_the_page(chromium: Browser) -> None:
    """Ann's lines, titles, drafts and hits are gone from the document before Ben logs in in the same window."""
    async with gateway(model=InstantModel(), environment={"PARLOUR_WEB__LOGIN": "always"}) as up:
        page = await open_page(chromium)
        await page.goto(up.app.web.url)
        await log_in(page, up, "ann")
        await say(page, "the zanzibar plan")
        await page.keyboard.press("Control+Shift+O")
        await say(page, "zanzibar again")
        await page.locator("#text").fill("a draft of zanzibar")
        await titles(page).nth(1).click()
        await expect(page.locator("#text")).to_have_value("")
        await page.locator("#text").fill("another zanzibar")
        await page.locator("#find").fill("zanzibar")
        await expect(page.locator("#hits li").first).to_be_visible()
        await page.locator("#leave").click()
        await log_in(page, up, "ben")
        await expect(titles(page)).to_have_text([translate("web.first_conversation")])
        assert "zanzibar" not in await page.content()
        await expect(page.locator("#text")).to_have_value("")
        await page.locator("#new-chat").click()
        await expect(page.locator("#text")).to_have_value("")


async def test_a_visit_opens_the_conversation_that_was_used_last(chromium: Browser, up: InProcessGateway) -> None:
    """Not the oldest one, and none that is deleted; an address that names one opens that one."""
    page = await visit(chromium, up)
    for words in ("first words", "second words", "third words"):
        await say(page, words)
        await page.keyboard.press("Control+Shift+O")
    await titles(page).filter(has_text="second words").click()
    await expect(page.locator(".line.user .body")).to_have_text(["second words"])
    await say(page, "second again")
    again = await visit(chromium, up)
    await expect(again.locator(".line.user .body")).to_have_text(["second words", "second again"])
    await expect(titles(again).and_(again.locator("[aria-current]"))).to_have_text("second words")
    await expect(titles(again)).to_have_count(3)
    named = await visit(chromium, up, "#c=main")
    await expect(named.locator(".line.user .body")).to_have_text(["first words"])
    await again.get_by_label(translate("web.options", title="second words")).click()
    await again.get_by_role("menuitem", name=translate("web.delete")).click()
    await expect(titles(again)).to_have_count(2)
    last = await visit(chromium, up)
    await expect(last.locator(".line.user .body")).to_have_text(["third words"])


async def test_a_draft_outlives_a_reload(chromium: Browser) -> None:
    """Each conversation has its own, an edited message too; what was sent is none, and who logs out leaves none."""
    async with gateway(model=InstantModel(), environment={"PARLOUR_WEB__LOGIN": "always"}) as up:
        page = await open_page(chromium)
        await page.goto(up.app.web.url)
        await log_in(page, up, "ann")
        text = page.locator("#text")
        await say(page, "the roses need water")
        await text.fill("about the roses")
        await page.locator("#new-chat").click()
        await text.fill("sent at once")
        await say(page, "sent at once")
        await text.fill("about the wine\nand the cellar")
        await page.reload()
        await expect(text).to_have_value("about the wine\nand the cellar")
        await expect(page.locator("#send")).to_be_enabled()
        await titles(page).nth(1).click()
        await expect(text).to_have_value("about the roses")
        # What is edited comes back as what it is, and the draft below it is still there.
        await expect(page.locator(".line.user .body")).to_have_text("the roses need water")
        await page.get_by_role("button", name=translate("web.edit")).click()
        await text.fill("the roses need no water")
        await page.reload()
        await expect(text).to_have_value("the roses need no water")
        await expect(page.locator("#editing")).to_be_visible()
        await text.press("Enter")
        await expect(page.locator(".line.user:not([hidden]) .body")).to_have_text("the roses need no water")
        await expect(text).to_have_value("about the roses")
        await page.reload()
        await expect(text).to_have_value("about the roses")
        await expect(page.locator("#state")).to_have_attribute("data-state", "online")
        await page.locator("#leave").click()
        await expect(page.locator("#code")).to_be_focused()
        assert "about" not in await page.evaluate("JSON.stringify(localStorage)")
        await log_in(page, up, "ann")
        await expect(text).to_have_value("")


async def log_in(page: Page, up: InProcessGateway, name: str) -> None:
    """Log in with a code for *name*."""
    (issued,) = [dict(line) async for line in up.app.operations["web login"]({"as": name})]
    await page.locator("#code").fill(str(issued["code"]))
    await page.locator("#code").press("Enter")
    await expect(page.locator("#state")).to_have_attribute("data-state", "online")


async def test_on_a_phone_the_list_lies_over_the_conversation(chromium: Browser) -> None:
    """At 360 pixels: nothing is wider than the screen, the list opens, is left, and leads on."""
    async with gateway(model=InstantModel(), environment={"PARLOUR_LANGUAGE": "de"}) as up:
        page = await visit(chromium, up, viewport=PHONE, has_touch=True)
        await say(page, "an unbreakableverylongwordthatwouldnotfit" * 3)
        await expect(page.locator("#sidebar")).to_be_hidden()
        toggle = page.get_by_role("button", name=translate("web.conversations", "de"))
        await expect(toggle).to_have_attribute("aria-expanded", "false")
        await toggle.click()
        await expect(page.locator("#sidebar")).to_be_visible()
        await expect(page.locator("#new-chat")).to_have_text(translate("web.new_chat", "de"))
        assert await page.evaluate("document.documentElement.scrollWidth") == PHONE["width"]
        assert await page.locator("#sidebar").evaluate("it => it.scrollWidth <= it.clientWidth")
        await expect(page.locator("main")).to_have_attribute("inert", "")
        await page.keyboard.press("Escape")
        await expect(page.locator("#sidebar")).to_be_hidden()
        await expect(toggle).to_be_focused()
        await toggle.click()
        await page.locator("#new-chat").click()
        await expect(page.locator("#sidebar")).to_be_hidden()
        await expect(page.locator("#text")).to_be_focused()
        await say(page, "and another")
        assert await page.evaluate("document.documentElement.scrollWidth") == PHONE["width"]


@pytest.mark.parametrize("scheme", ["light", "dark"])
async def test_the_list_fits_every_window(chromium: Browser, up: InProcessGateway, scheme: str) -> None:
    """By day and by night, wide and on a phone: nothing is wider than the window."""
    page = await visit(chromium, up, viewport={"width": 1100, "height": 720}, color_scheme=scheme)
    await say(page, "Which roses need water in November?")
    await page.locator("#new-chat").click()
    await say(page, "Plan the week in the cellar")
    await page.locator("#new-chat").click()
    await say(page, "What did Ann say about the key?")
    await say(page, "/new")
    await say(page, "And the wine?")
    await expect(titles(page)).to_have_count(3)
    for name in ("wide", "phone"):
        if name == "phone":
            await page.set_viewport_size(PHONE)
            await page.locator("#sidebar-toggle").click()
        await expect(page.locator("#sidebar")).to_be_visible()
        await take_picture(page, f"page-conversations-{name}-{scheme}")


async def test_the_files_of_a_draft_outlive_a_reload(chromium: Browser) -> None:
    """Each conversation has its own; they are sent with their message, and what was removed or sent is gone."""
    async with gateway(model=InstantModel(), environment={"PARLOUR_WEB__LOGIN": "always"}) as up:
        page = await open_page(chromium)
        await page.goto(up.app.web.url)
        await log_in(page, up, "ann")
        await say(page, "the roses need water")
        files = page.locator("#attached li")
        await page.locator("#files").set_input_files([_note("roses.txt"), _note("tulips.txt")])
        await expect(page.locator("#attached li[data-state=ready]")).to_have_count(2)
        await page.locator("#new-chat").click()
        await expect(files).to_have_count(0)
        await page.locator("#files").set_input_files([_note("wine.txt")])
        await expect(page.locator("#attached li[data-state=ready]")).to_have_count(1)
        await page.reload()
        await expect(files).to_contain_text(["wine.txt"])
        await expect(page.locator("#send")).to_be_enabled()
        await titles(page).filter(has_text="roses").click()
        await expect(files).to_contain_text(["roses.txt", "tulips.txt"])
        await page.get_by_role("button", name=translate("web.attach_remove", name="tulips.txt")).click()
        await page.reload()
        await expect(files).to_contain_text(["roses.txt"])
        await expect(page.locator(".line.assistant")).to_have_count(1)
        await say(page, "what is in it?")
        await expect(page.locator(".line.user").last.locator(".file")).to_contain_text("roses.txt")
        await page.reload()
        await expect(page.locator("#state")).to_have_attribute("data-state", "online")
        await expect(files).to_have_count(0)
        # A file that the gateway no longer keeps is not offered.
        await page.locator("#files").set_input_files([_note("old.txt")])
        await expect(page.locator("#attached li[data-state=ready]")).to_have_count(1)
        await page.clock.install(time=datetime.now(UTC) + timedelta(hours=25))
        await page.reload()
        await expect(page.locator("#trouble")).to_have_text(translate("web.upload_gone"))
        await expect(files).to_have_count(0)
        await page.locator("#leave").click()
        await log_in(page, up, "ben")
        await expect(files).to_have_count(0)


async def test_a_file_on_its_way_is_not_left_without_a_question(chromium: Browser, up: InProcessGateway) -> None:
    """The browser asks before it leaves a page that is still handing files over, and not afterwards."""
    page = await visit(chromium, up)
    goes_on = asyncio.Event()

    async def hold(route: Route) -> None:
        await goes_on.wait()
        await route.continue_()

    await page.route("**/files", hold)
    await page.locator("#text").press("a")  # browsers ask only people who did something
    await page.locator("#files").set_input_files([_note("roses.txt")])
    await expect(page.locator("#attached li[data-state=sending]")).to_have_count(1)
    async with page.expect_event("dialog") as asked:
        await page.evaluate("() => void setTimeout(() => location.reload())")  # `page.reload` waits for a load
    question = await asked.value
    assert question.type == "beforeunload"
    await question.dismiss()
    goes_on.set()
    await expect(page.locator("#attached li[data-state=ready]")).to_have_count(1)
    await page.reload()
    await expect(page.locator("#attached li")).to_have_count(1)


def _note(name: str) -> FilePayload:
    return {"name": name, "mimeType": "text/plain", "buffer": b"some words"}


async def test_the_list_is_grouped_and_a_conversation_is_saved(chromium: Browser, up: InProcessGateway) -> None:
    """Today's under a heading; Markdown and JSON have every message, oldest first, over several pages of history."""
    page = await visit(chromium, up)
    for n in range(3):
        await say(page, f"question {n} <b>bold</b>")
    await expect(page.locator("#conversations .group")).to_have_text(["Today"])
    title = await titles(page).first.text_content()
    for name, ending in (("export_markdown", "md"), ("export_json", "json")):
        await page.get_by_label(translate("web.options", title=str(title))).click()
        async with page.expect_download() as saved:
            await page.get_by_role("menuitem", name=translate(f"web.{name}")).click()
        download = await saved.value
        assert download.suggested_filename.endswith(f".{ending}")
        text = (await download.path()).read_text("utf-8")
        places = [text.index(f"question {n} <b>bold</b>") for n in range(3)]
        assert places == sorted(places)
        assert text.count("answer to:") == 3
        if ending == "json":
            roles = [each["role"] for each in json.loads(text)["messages"]]
            assert roles == ["user", "assistant"] * 3
    ask = "async (path) => (await fetch(path)).status"
    for path in (f"conversations/{'a' * 16}/export", "conversations/main/export?format=exe", "conversations/x/export"):
        assert await page.evaluate(ask, path) == 404
