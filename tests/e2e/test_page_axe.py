"""The page's states before axe, by the rules of WCAG 2.2 AA: no violation, in light and dark, wide and on a phone."""

from __future__ import annotations

import base64
import re
from pathlib import Path

import pytest
from playwright.async_api import Browser, FilePayload, Page, ViewportSize, expect

from gateway.i18n import translate
from tests.e2e.browser import send_text
from tests.e2e.test_page import PIXEL
from tests.fakes.held_model import HeldScriptModel
from tests.fakes.inprocess_gateway import gateway

AXE = Path(__file__).with_name("axe") / "axe.js"
TAGS = ["wcag2a", "wcag2aa", "wcag21a", "wcag21aa", "wcag22aa"]
ANSWER = """## A plan

Some **bold**, `code` and [a link](https://example.org/).

| day | what |
|---|--:|
| Mon | roses |

```python
print("hello")
```

- one
- two
"""
COLOURS = ["color-contrast", "link-in-text-block"]  # the rules that a scheme of colours can break
_RUN = """async ([type, values]) => {
    const { violations } = await axe.run(document, { runOnly: { type, values }, resultTypes: ["violations"] });
    const said = (rule) => (node) => `${rule.id}: ${node.target} ${node.failureSummary}`;
    return violations.flatMap((rule) => rule.nodes.map(said(rule)));
}"""


PHONE = ViewportSize(width=360, height=740)
LOOKS = (("wide", ViewportSize(width=1100, height=720)), ("phone", PHONE))


async def check(page: Page, state: str, found: list[str]) -> None:
    """Add what axe finds in the page's *state* to *found*: wide, every rule in light and those of colours in dark.

    On a phone every rule in dark alone: no colour depends on the width.
    """
    wide, phone = [("light", "tag", TAGS), ("dark", "rule", COLOURS)], [("dark", "tag", TAGS)]
    for scheme, kind, values in phone if page.viewport_size == PHONE else wide:
        await page.emulate_media(color_scheme="dark" if scheme == "dark" else "light")
        # What fades in has other colours for a moment.
        await page.evaluate("Promise.all(document.getAnimations().map((each) => each.finished.catch(() => 0)))")
        found += [f"{state}, {scheme}: {each}" for each in await page.evaluate(_RUN, [kind, values])]


async def say(page: Page, text: str) -> None:
    """Say *text* and wait until its whole answer is below it."""
    await send_text(page, text)
    body = page.locator(".body", has_text=re.compile(rf"^{re.escape(text)}$"))
    said = page.locator(".line.user:not([hidden])", has=body).last
    answers = said.locator("xpath=following-sibling::li").and_(page.locator(".line:not(.user):not(.streaming)"))
    await expect(answers.first).to_be_visible()


@pytest.mark.asyncio(loop_scope="session")
async def test_axe_finds_nothing_in_any_state(chromium: Browser) -> None:
    """Login, welcome, a conversation with a question, versions, menu, list with its options, hits, sheet, editing."""
    environment = {"PARLOUR_WEB__LOGIN": "always"}
    model = HeldScriptModel(*[ANSWER] * 20)
    found: list[str] = []
    async with gateway(model=model, environment=environment) as up:
        context = await chromium.new_context(reduced_motion="reduce")
        await context.add_init_script(path=AXE)
        page = await context.new_page()
        await page.goto(up.app.web.url)
        await expect(page.locator("#login")).to_be_visible()
        await check(page, "login", found)
        (issued,) = [dict(line) async for line in up.app.operations["web login"]({})]
        await page.locator("#code").fill(str(issued["code"]))
        await page.locator("#code").press("Enter")
        await expect(page.locator("#state")).to_have_attribute("data-state", "online")
        await check(page, "welcome", found)
        await page.keyboard.press("Control+Shift+O")
        await say(page, "to be deleted")
        await page.get_by_label(translate("web.options", title="to be deleted")).click()
        await page.get_by_role("menuitem", name=translate("web.delete")).click()
        await expect(page.locator("#welcome")).to_be_visible()  # another conversation is open
        await page.locator("#deleted summary").click()
        await say(page, "roses")
        await page.locator("#text").press("ArrowUp")
        await say(page, "roses and wine")
        await say(page, "/new")
        await say(page, "which wine?")
        picture = FilePayload(name="sea.png", mimeType="image/png", buffer=base64.b64decode(PIXEL))
        await page.locator("#files").set_input_files(picture)
        await expect(page.locator('#attached [data-state="ready"]')).to_have_count(1)
        await say(page, "look")
        await say(page, "/remember my boat is called Nora")
        await say(page, "/forget roses")
        await expect(page.locator(".buttons").first).to_be_visible()
        for name, size in LOOKS:
            await page.set_viewport_size(size)
            await states(page, name, found)
        await page.locator("#sidebar-toggle").click()
        await page.locator("#settings-open").click()
        await page.get_by_label(translate("web.language_choice")).select_option("Deutsch")
        await expect(page.locator("html")).to_have_attribute("lang", "de")
        await expect(page.locator("#text")).to_have_attribute("placeholder", translate("web.placeholder", "de"))
    assert not found, "\n".join(found)


async def states(page: Page, look: str, found: list[str]) -> None:
    """Check what can be opened, one after the other, and close it again."""
    is_phone = look == "phone"
    await check(page, f"conversation, {look}", found)
    await page.locator("#text").press_sequentially("/")
    await page.locator("#text").press("ArrowDown")
    await check(page, f"menu, {look}", found)
    await page.locator("#text").fill("")
    await page.locator("#text").press("ArrowUp")
    await check(page, f"editing, {look}", found)
    await page.locator("#text").press("Escape")
    await page.locator("#scroller").focus()
    await page.keyboard.press("?")
    await expect(page.locator("#keys")).to_be_visible()
    await check(page, f"keys, {look}", found)
    await page.locator("#keys-close").click()
    await page.locator(".thumbnail").click()
    await check(page, f"viewer, {look}", found)
    await page.keyboard.press("Escape")
    if is_phone:
        await page.locator("#sidebar-toggle").click()
    await page.get_by_label(translate("web.options", title="roses")).click()
    await check(page, f"list with options, {look}", found)
    await page.get_by_label(translate("web.options", title="roses")).click()
    await page.locator("#settings-open").click()
    await check(page, f"settings, {look}", found)
    await page.locator("#settings-close").click()
    await page.locator("#memory-open").click()
    await page.locator("#memory").get_by_role("button", name=translate("web.memory_correct")).click()
    await check(page, f"memory, {look}", found)
    await page.keyboard.press("Escape")
    await page.locator("#memory > .primary").click()
    await page.locator("#find").fill("roses")
    await expect(page.locator("#hits li").first).to_be_visible()
    await check(page, f"hits, {look}", found)
    await page.locator("#find").fill("")
    await expect(page.locator("#hits")).to_be_hidden()
    if is_phone:
        await page.keyboard.press("Escape")
