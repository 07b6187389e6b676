"""The page in a real browser, before the real channel and the real server; only the gateway behind is a fake."""

from __future__ import annotations

import asyncio
import base64
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, aclosing
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio
from playwright.async_api import Browser, FilePayload, WebSocketRoute, expect

from gateway.errors import StoreUnavailable
from gateway.events import Attachment, MessagePart, OutboundKind, OutboundMessage, SessionKey
from gateway.i18n import load_catalogue, translate
from gateway.ports.channel import DisplayedMessage, DisplayedPage, IntakeResult, IntakeVerdict
from tests.e2e.browser import open_chat, open_page, send_text, take_pictures
from tests.fakes.held_model import HeldScriptModel
from tests.fakes.inprocess_gateway import gateway
from tests.fakes.platform_cases import load_case
from tests.fakes.web_services import FakePageServices, ServedPage, serve_page

PIXEL = "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNkYPhfDwAChwGA60e6kgAAAABJRU5ErkJggg=="

pytestmark = pytest.mark.asyncio(loop_scope="session")


@pytest.fixture
def services() -> FakePageServices:
    """Give a gateway that answers what it is asked."""
    return FakePageServices(answer=lambda text: f"You said **{text}**")


@pytest_asyncio.fixture(loop_scope="session")
async def served(services: FakePageServices) -> AsyncIterator[ServedPage]:
    """Serve the page of *house*."""
    async with serve_page(services) as served:
        yield served


async def test_a_typed_message_is_marked_stored_and_answered_in_a_stream(
    chromium: Browser, served: ServedPage, services: FakePageServices
) -> None:
    """Type, see ✓ once it is durable, read the words as they come, then the answer in their place."""
    services.go_on.clear()
    page = await open_chat(chromium, served.url)
    await send_text(page, "good evening")
    mine = page.locator(".line.user")
    await expect(mine).to_have_attribute("data-state", "accepted")
    await expect(mine.locator(".mark")).to_have_text("✓")
    await expect(page.locator(".line.streaming .body")).to_contain_text("You said")
    await expect(page.locator("#activity")).to_be_visible()
    services.go_on.set()
    answer = page.locator(".line.assistant")
    await expect(answer).not_to_have_class("streaming")
    await expect(answer.locator("strong")).to_have_text("good evening")
    await expect(answer).to_have_count(1)
    await expect(page.locator("#activity")).to_be_hidden()
    await expect(page.locator("#spoken")).to_have_text("You said good evening")
    assert [message.text for message in services.accepted] == ["good evening"]
    assert services.accepted[0].sender.id == "owner"


async def test_shift_enter_starts_a_line_and_enter_sends(
    chromium: Browser, served: ServedPage, services: FakePageServices
) -> None:
    """What people know from every chat works here."""
    page = await open_chat(chromium, served.url)
    text = page.locator("#text")
    await text.fill("one")
    await text.press("Shift+Enter")
    await text.press_sequentially("two")
    await text.press("Enter")
    await expect(page.locator(".line.user .body")).to_have_text("one\ntwo")
    assert (await services.wait_deliveries(1))[0].text == "one\ntwo"
    await expect(text).to_have_value("")


async def test_a_reload_shows_the_history(chromium: Browser, served: ServedPage) -> None:
    """The conversation is the server's: a page that was closed has lost nothing."""
    page = await open_chat(chromium, served.url)
    await send_text(page, "remember me")
    await expect(page.locator(".line.assistant strong")).to_have_text("remember me")
    await page.reload()
    await expect(page.locator(".line.user .body")).to_have_text("remember me")
    await expect(page.locator(".line.user .mark")).to_have_text("✓")
    await expect(page.locator(".line.assistant")).to_have_count(1)


async def test_the_session_is_asked_for_once_and_without_waiting_for_the_scripts(
    chromium: Browser, served: ServedPage
) -> None:
    """A page that waits for its modules first opens a fifth later."""
    page = await open_page(chromium)
    asked: list[str] = []
    page.on("request", lambda request: asked.append(request.url.removeprefix(served.url)))
    await page.goto(served.url)
    await expect(page.locator("#state")).to_have_attribute("data-state", "online")
    assert asked.count("session") == 1
    assert asked.index("session") < asked.index(next(each for each in asked if each.endswith("app.js")))


async def test_a_reload_in_the_middle_of_an_answer_shows_it_once(
    chromium: Browser, served: ServedPage, services: FakePageServices
) -> None:
    """What was streamed so far is there again, and the answer takes its place."""
    services.go_on.clear()
    page = await open_chat(chromium, served.url)
    await send_text(page, "a long story")
    await expect(page.locator(".line.streaming .body")).to_contain_text("You said")
    await page.reload()
    await expect(page.locator(".line.streaming .body")).to_contain_text("You said")
    services.go_on.set()
    await expect(page.locator(".line.assistant strong")).to_have_text("a long story")
    await expect(page.locator(".line.assistant")).to_have_count(1)


async def test_what_was_typed_while_the_server_was_gone_is_sent_once(
    chromium: Browser, services: FakePageServices
) -> None:
    """The page says that it is alone, keeps the message over a reload of its own, and sends it when it can."""
    async with AsyncExitStack() as first:
        served = await first.enter_async_context(serve_page(services))
        port = served.server.port
        page = await open_chat(chromium, served.url)
        await send_text(page, "before")
        await expect(page.locator(".line.assistant")).to_have_count(1)
    await expect(page.locator("#state")).to_have_attribute("data-state", "offline")
    await send_text(page, "meanwhile")
    pending = page.locator(".line.user").nth(1)
    await expect(pending.locator(".mark")).to_have_text("○")
    async with serve_page(services, port=port):
        await expect(page.locator("#state")).to_have_attribute("data-state", "online")
        await expect(pending.locator(".mark")).to_have_text("✓")
        await expect(page.locator(".line.assistant")).to_have_count(2)
        assert [message.text for message in services.accepted] == ["before", "meanwhile"]
        assert await page.evaluate("localStorage.length") == 0


async def test_unsent_messages_go_before_newer_ones(chromium: Browser) -> None:
    """What is typed before the history is there, or after a message that could not be stored, waits for the older."""

    class HeldHistory(FakePageServices):
        is_asked, may_read = asyncio.Event(), asyncio.Event()

        async def displayed_page(self, key: SessionKey, before: str = "", *, turns: int) -> DisplayedPage | None:
            self.is_asked.set()
            await self.may_read.wait()
            return await super().displayed_page(key, before, turns=turns)

    services = HeldHistory()
    services.may_read.set()
    async with AsyncExitStack() as first:
        served = await first.enter_async_context(serve_page(services))
        page = await open_chat(chromium, served.url)
    await send_text(page, "one")
    services.is_asked.clear()
    services.may_read.clear()
    async with serve_page(services, port=served.server.port):
        await services.is_asked.wait()
        await send_text(page, "two")
        services.may_read.set()
        await expect(page.locator(".line.user .mark")).to_have_text(["✓", "✓"])
        services.is_down = True
        await send_text(page, "three")
        await expect(page.locator("#trouble")).to_be_visible()
        services.is_down = False
        await send_text(page, "four")
        await page.reload()
        await expect(page.locator(".line.user .mark")).to_have_text(["✓"] * 4)
    assert [message.text for message in services.accepted] == ["one", "two", "three", "four"]


async def test_a_confirmation_that_was_lost_makes_no_second_message(
    chromium: Browser, services: FakePageServices
) -> None:
    """Stored, but the server died before it could say so: the resend carries the same id."""

    class DiesAfterStoring(FakePageServices):
        async def receive(self, message: Any, **options: Any) -> IntakeResult:
            answer = await super().receive(message, **options)
            if len(self.deliveries) == 1:
                raise StoreUnavailable("killed between the commit and the confirmation")
            return answer

    services = DiesAfterStoring(answer=services.answer)
    async with serve_page(services) as served:
        page = await open_chat(chromium, served.url)
        await send_text(page, "only once")
        await expect(page.locator("#trouble")).to_be_visible()
        await page.reload()
        await expect(page.locator(".line.user .mark")).to_have_text("✓")
        await expect(page.locator(".line.user")).to_have_count(1)
        await expect(page.locator(".line.assistant")).to_have_count(1)
        assert len(services.accepted) == 1


async def test_a_message_that_is_not_taken_says_why_and_can_be_sent_again(
    chromium: Browser, served: ServedPage, services: FakePageServices
) -> None:
    """A full queue is told beside the message it was told for."""
    services.verdict = IntakeResult(verdict=IntakeVerdict.FULL)
    page = await open_chat(chromium, served.url)
    await send_text(page, "too much")
    await expect(page.locator(".line.user")).to_have_attribute("data-state", "refused")
    await expect(page.locator(".why")).to_contain_text("Too many messages")
    services.verdict = None
    await page.locator(".why button").click()
    await expect(page.locator(".line.user .mark")).to_have_text("✓")
    await expect(page.locator(".line.user")).to_have_count(1)


async def test_two_windows_show_one_conversation(chromium: Browser, served: ServedPage) -> None:
    """What is said in one window stands in the other, once, with its answer."""
    here, there = await open_chat(chromium, served.url), await open_chat(chromium, served.url)
    await send_text(here, "hello over there")
    await expect(there.locator(".line.user .body")).to_have_text("hello over there")
    await expect(there.locator(".line.assistant strong")).to_have_text("hello over there")
    await expect(here.locator(".line.assistant")).to_have_count(1)
    await expect(there.locator(".line.assistant")).to_have_count(1)


WIDE = "| " + " | ".join(f"column number {n}" for n in range(12)) + " |"
PHONE_TEXT = "\n\n".join(
    [
        "A word that does not end: " + "x" * 400,
        f"{WIDE}\n|{'---|' * 12}\n{WIDE}",
        "```\n" + "code " * 100 + "\n```",
        "https://example.com/" + "long/" * 60,
        "# A heading " + "y" * 120,
    ]
)


async def test_nothing_is_wider_than_a_phone(chromium: Browser, served: ServedPage, services: FakePageServices) -> None:
    """Tables and code scroll in their own boxes; the page itself never sideways."""
    services.answer = lambda _: PHONE_TEXT
    page = await open_chat(chromium, served.url, viewport={"width": 360, "height": 640}, is_mobile=True, has_touch=True)
    await send_text(page, "z" * 300)
    await expect(page.locator(".line.assistant pre")).to_be_visible()
    for selector in ("document.documentElement", "document.getElementById('scroller')"):
        width, room = await page.evaluate(f"[{selector}.scrollWidth, {selector}.clientWidth]")
        assert width <= room, selector
    box = await page.locator("#send").bounding_box()
    assert box is not None
    assert box["x"] + box["width"] <= 360
    assert box["y"] + box["height"] <= 640


async def test_dark_and_light_follow_the_machine(chromium: Browser, served: ServedPage) -> None:
    """Dark is dark, light is light, and text stands out in both (WCAG AA: 4.5 to 1)."""
    for scheme, is_dark in (("dark", True), ("light", False)):
        page = await open_chat(chromium, served.url, color_scheme=scheme)
        paper, ink = await page.evaluate(
            "[getComputedStyle(document.documentElement).backgroundColor, getComputedStyle(document.body).color]"
        )
        assert (_luminance(paper) < 0.1) is is_dark
        assert _contrast(paper, ink) >= 4.5
        soft = await page.evaluate("getComputedStyle(document.querySelector('.hint')).color")
        assert _contrast(paper, soft) >= 4.5


async def test_the_page_can_be_installed_as_an_application(chromium: Browser, served: ServedPage) -> None:
    """Chromium finds nothing wrong with the manifest; its start leads back here, and each icon has the size it says."""
    page = await open_chat(chromium, served.url)
    devtools = await page.context.new_cdp_session(page)
    found = await devtools.send("Page.getAppManifest")
    assert found["errors"] == []
    wrong = [each["errorId"] for each in (await devtools.send("Page.getInstallabilityErrors"))["installabilityErrors"]]
    assert set(wrong) <= {"in-incognito"}  # as all contexts of tests are
    manifest = found["manifest"]
    assert (manifest["startUrl"], manifest["scope"]) == (served.url, served.url)
    for icon in manifest["icons"]:
        size = await page.evaluate(
            "async (url) => { const drawn = new Image(); drawn.src = url; await drawn.decode();"
            " return `${drawn.naturalWidth}x${drawn.naturalHeight}`; }",
            icon["url"],
        )
        assert icon["sizes"] in (size, "0x0")  # which is `any`, the size of the drawing


async def test_theme_and_text_size_are_chosen_here(chromium: Browser, served: ServedPage) -> None:
    """Whatever the machine says, at once and after a reload; nothing of it is sent anywhere."""
    page = await open_chat(chromium, served.url, color_scheme="light")
    await page.locator("#settings-open").click()
    await page.get_by_role("combobox", name=translate("web.theme")).select_option(translate("web.theme_dark"))
    await page.get_by_role("combobox", name=translate("web.text_size")).select_option(translate("web.text_large"))
    for _ in range(2):
        paper, size = await page.evaluate(
            "[getComputedStyle(document.documentElement).backgroundColor, getComputedStyle(document.body).fontSize]"
        )
        assert _luminance(paper) < 0.1
        assert size == "19px"
        await page.reload()
        await expect(page.locator("#state")).to_have_attribute("data-state", "online")
    await page.locator("#settings-open").click()
    await page.get_by_role("combobox", name=translate("web.theme")).select_option(translate("web.theme_system"))
    await page.keyboard.press("Escape")
    assert _luminance(await page.evaluate("getComputedStyle(document.documentElement).backgroundColor")) > 0.8


def _luminance(colour: str) -> float:
    channels = [int(part) / 255 for part in colour.removeprefix("rgb(").removesuffix(")").split(",")]
    linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in channels]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def _contrast(one: str, other: str) -> float:
    low, high = sorted((_luminance(one), _luminance(other)))
    return (high + 0.05) / (low + 0.05)


HOSTILE = """<script>window.hit = 1</script><img src=x onerror="window.hit = 1">
<iframe src="https://evil.example/"></iframe> [run](javascript:window.hit=1) [data](data:text/html,hit)
![a picture](https://evil.example/pixel.png?secret=1) [https://bank.example/](https://evil.example/login)
https://bank.example@evil.example/ <https://plain.example/path>

<b onmouseover=alert(1)>bold</b>
"""


async def test_hostile_text_is_only_text(chromium: Browser, served: ServedPage, services: FakePageServices) -> None:
    """Nothing runs, nothing is loaded, and a link shows where it really goes."""
    services.answer = lambda _: HOSTILE
    page = await open_chat(chromium, served.url)
    asked: list[str] = []
    page.on("request", lambda request: asked.append(request.url))
    await send_text(page, HOSTILE)
    body = page.locator(".line.assistant .body")
    await expect(body).to_contain_text("<script>window.hit = 1</script>")
    assert await page.evaluate("window.hit") is None
    assert await body.locator("script, img, iframe, b, [onerror], [onmouseover]").count() == 0
    assert not [url for url in asked if "evil" in url]
    links = await body.locator("a").evaluate_all(
        "all => all.map(a => [a.protocol, a.host, a.rel, a.nextSibling?.textContent])"
    )
    assert {protocol for protocol, *_ in links} == {"https:"}
    assert all("noreferrer" in rel and "noopener" in rel for _, _, rel, _ in links)
    chips = [chip for _, host, _, chip in links if host == "evil.example"]
    # The first is the frame's address as plain text, which says itself where it goes.
    assert chips[1:] == ["evil.example"] * 2
    # A host that poses as a user name is linked alone: what is shown is where it goes.
    assert await body.get_by_role("link", name="https://bank.example", exact=True).evaluate("a => a.href") == (
        "https://bank.example/"
    )
    assert await page.locator(".line.user .body").evaluate("body => body.childElementCount") == 0


async def test_markdown_is_drawn(chromium: Browser, served: ServedPage, services: FakePageServices) -> None:
    """What models write most: headings, emphasis, lists, tables, code, quotes, breaks."""
    services.answer = lambda _: (
        "## Plan\n\nSome *soft*, **loud**, ***both***, ~~gone~~ and `code`\nsecond line\n\n"
        "1. one\n2. two\n   - inner *a*\n\n- [x] done\n- [ ] open\n\n> quoted **words**\n\n"
        "| a | b |\n|---|--:|\n| 1 | `x|y` |\n\n---\n\n```python\nif a < b:\n    pass\n```\nsnake_case_name 2 * 3 * 4"
    )
    page = await open_chat(chromium, served.url)
    await send_text(page, "go")
    body = page.locator(".line.assistant .body")
    await expect(body.locator("h3")).to_have_text("Plan")
    await expect(body.locator("p em").first).to_have_text("soft")
    await expect(body.locator("p strong").first).to_have_text("loud")
    await expect(body.locator("p em > strong")).to_have_text("both")
    await expect(body.locator("s")).to_have_text("gone")
    await expect(body.locator("p br")).to_have_count(1)
    await expect(body.locator("ol > li")).to_have_count(2)
    await expect(body.locator("ol ul em")).to_have_text("a")
    await expect(body.locator("li.task")).to_have_text(["☑ done", "☐ open"])
    await expect(body.locator("blockquote strong")).to_have_text("words")
    await expect(body.locator("td.end").first).to_contain_text("x")
    await expect(body.locator("hr")).to_have_count(1)
    await expect(body.locator("pre code")).to_have_text("if a < b:\n    pass")
    await expect(body.locator("> p").last).to_have_text("snake_case_name 2 * 3 * 4")


LADDER = r"""With the wall at a height \(h\) and its foot at a distance \(d\):

$$
\ell = \sqrt{h^2 + d^2} = \sqrt{4^2 + 1.5^2} \approx 4.27
$$

So **4.3 m**, if it stands at an angle of \(\arctan\frac{h}{d} \approx 69°\)."""


async def test_the_page_reads_what_models_write_beyond_commonmark(
    chromium: Browser, served: ServedPage, services: FakePageServices
) -> None:
    """Bold beside Chinese, Japanese and Korean signs, products of stars, and a paragraph after a list, as elsewhere."""
    bold = load_case("30_render_cjk_bold")["render"]
    services.answer = lambda _: "\n\n".join([*bold, "2*3*4 = 24", "(a)*(b)*(c)", "10**3 and x**2", "- a\n- b\nAfter"])
    page = await open_chat(chromium, served.url)
    await send_text(page, "yes")
    body = page.locator(".line.assistant .body").last
    await expect(body.locator("strong")).to_have_text(["「重点」", "注意：", "“重要”", "「強調」", "굵게(강조)"])
    for text in ("2*3*4 = 24", "(a)*(b)*(c)", "10**3 and x**2"):
        await expect(body).to_contain_text(text)
    await expect(body.locator("em")).to_have_count(0)
    await expect(body.locator("li").last).to_have_text("b")
    await expect(body.locator("p").last).to_have_text("After")


async def test_formulas_are_drawn_and_load_their_library_alone(
    chromium: Browser, served: ServedPage, services: FakePageServices
) -> None:
    """In each notation; money, code and too long ones stay text, a broken one is code; none leads elsewhere."""
    answers = {
        "no": "It costs $5 and $6, or $5-$6. `$code$`",
        "How long is the ladder?": LADDER,
        "yes": "\n\n".join(
            [
                r"Inline \(\frac{a}{b}\) and $x^2$.",
                "$$\n\\sum_{i=1}^n i\n$$",
                r"\[\textcolor{red}{e} = mc^2\]",
                r"$\frac{$ broken",
                f"$${'x' * 1001}$$",
                r"\(\href{https://evil.example/}{x}\includegraphics{https://evil.example/a.png}y\)",
            ]
        ),
    }
    services.answer = lambda text: answers[text]
    page = await open_chat(chromium, served.url)
    asked: list[str] = []
    page.on("request", lambda request: asked.append(request.url))
    await send_text(page, "no")
    await expect(page.locator(".line.assistant .body p").last).to_have_text("It costs $5 and $6, or $5-$6. $code$")
    assert not any("katex" in url for url in asked)
    services.lines.clear()
    await page.reload()
    await expect(page.locator("#state")).to_have_attribute("data-state", "online")
    await send_text(page, "How long is the ladder?")
    await expect(page.locator(".line.assistant .formula.display math")).to_have_count(1)
    fonts = "[...document.querySelectorAll('math, math *')].map((each) => getComputedStyle(each).fontFamily)"
    # `math` alone is a font without growing signs where the system names none, though one is installed.
    assert all("DejaVu Math TeX Gyre" in each for each in await page.evaluate(fonts))
    await take_pictures(page, "page-formulas")
    await send_text(page, "yes")
    body = page.locator(".line.assistant .body").last
    await expect(body.locator("mfrac")).to_have_count(1)
    await expect(body.locator("p:first-child math")).to_have_count(2)
    await expect(body.locator(".formula.display math")).to_have_count(2)
    await expect(body.locator('[mathcolor="red"]')).to_have_count(1)
    await expect(body.locator("code")).to_have_text(r"\frac{")
    await expect(body).to_contain_text("x" * 1001)
    await expect(body.locator("a, img, annotation, [style], [href]")).to_have_count(0)
    assert not any("evil" in url for url in asked)
    assert sum("katex" in url for url in asked) == 1


async def test_the_keyboard_alone_suffices(chromium: Browser, served: ServedPage, services: FakePageServices) -> None:
    """Everything that a mouse reaches, Tab reaches, in reading order and with a visible ring; Enter works it."""
    services.answer = lambda _: "[the plan](https://plan.example/)\n\n```python\nx = 1\n```\n\n| a |\n|---|\n| 1 |"
    page = await open_chat(chromium, served.url, permissions=["clipboard-read", "clipboard-write"])
    await page.keyboard.type("go")  # the composer has the focus from the start
    await page.keyboard.press("Enter")
    await expect(page.locator(".line.assistant table")).to_have_count(1)
    reached: list[str] = []
    while "text" not in reached:
        await page.keyboard.press("Tab")
        name, ring = await page.evaluate(
            """() => {
                const at = document.activeElement;
                return [at.id || at.className || at.tagName, getComputedStyle(at).outlineStyle];
            }"""
        )
        reached.append(name)
        assert name in ("BODY", "text", "scroller") or ring == "solid", name  # the composer draws a ring of its own
        if name == "quiet":
            await page.keyboard.press("Enter")
    wanted = [
        "attach",  # below the text, from which the tour begins
        "sidebar-toggle",
        "help",
        "new-chat",
        "find",
        "A",
        "A",
        "quiet",
        "PRE",
        "scroll",
        "copy",
        "text",
    ]
    assert [name for name in reached if name in wanted] == wanted
    assert await page.evaluate("navigator.clipboard.readText()") == "x = 1"


async def test_code_is_coloured_in_colours_that_can_be_read(
    chromium: Browser, served: ServedPage, services: FakePageServices
) -> None:
    """Names, strings and comments differ, by day and by night; copying takes the text without a mark of ours."""
    code = 'def cost(n: int) -> str:  # euros\n    return "<b>" * n'
    services.answer = lambda _: f"```python\n{code}\n```\n\n```nonesuch\nplain\n```"
    for scheme in ("light", "dark"):
        page = await open_chat(chromium, served.url, color_scheme=scheme)
        await send_text(page, "go")
        shown = page.locator(".line.assistant pre code").first
        await expect(shown.locator(".hljs-keyword").first).to_have_text("def")
        assert await shown.evaluate("code => code.textContent") == code
        paper = await page.locator(".body .code").first.evaluate("box => getComputedStyle(box).backgroundColor")
        inks = await shown.locator("span").evaluate_all("all => all.map(each => getComputedStyle(each).color)")
        assert len(set(inks)) >= 4
        assert all(_contrast(paper, ink) >= 4.5 for ink in inks)


PATHOLOGICAL = {
    "stars": "*a **b " * 10_000,
    "brackets": "[" * 60_000,
    "links": "[a](" * 15_000,
    "ticks": "".join("`" * (n % 50) + " " for n in range(2_000)),
    "quotes": ">" * 50_000,
    "lists": "\n".join("  " * n + "- x" for n in range(250)),
    "hashes": "#" * 60_000,
    "tables": "|" * 60_000,
    "underscores": "_" * 30_000 + "a" + "_" * 30_000,
    "angles": "<https://" * 6_000,
    "addresses": "https://" * 7_000,
    "escapes": "\\" * 60_000,
    "pipes and dashes": "|a|\n|-|\n" * 6_000,
    "references": "[a]: <b>\n" * 6_000 + "[a]" * 6_000,
    "code": "```js\n" + "/a(" * 6_000 + "\n```",
}


async def test_no_text_hangs_the_page(chromium: Browser, served: ServedPage) -> None:
    """Texts made to be slow are drawn all the same, none of them lost (docs/attacks.md, attack 84)."""
    page = await open_chat(chromium, served.url)
    for name, text in PATHOLOGICAL.items():
        drawn = await page.evaluate(
            """async (text) => {
                const { show } = await import("./assets/markdown.js");
                const target = document.createElement("div");
                show(target, text, { copy: "", copied: "", image: "" });
                return target.textContent.length;
            }""",
            text,
        )
        assert drawn or not text.strip("|-#\n_`> "), name


async def test_a_streamed_block_that_stands_is_not_drawn_again(chromium: Browser, served: ServedPage) -> None:
    """A long answer costs its last block per update, and what somebody selected stays selected."""
    page = await open_chat(chromium, served.url)
    same, text = await page.evaluate(
        """async () => {
            const { show } = await import("./assets/markdown.js");
            const target = document.createElement("div");
            const words = { copy: "", copied: "", image: "" };
            show(target, "one\\n\\ntwo\\n\\nthr", words);
            const first = [...target.childNodes];
            show(target, "one\\n\\ntwo\\n\\nthree **bold**", words);
            return [first.map((node, n) => node === target.childNodes[n]), target.textContent];
        }"""
    )
    assert same == [True, True, False]
    assert text == "onetwothree bold"


async def test_a_code_lets_a_browser_in_and_it_can_leave(chromium: Browser, services: FakePageServices) -> None:
    """Beyond loopback the page asks; the code works once; leaving closes the door again."""
    async with serve_page(services, login="always") as served:
        page = await (await chromium.new_context()).new_page()
        await page.goto(served.url)
        await expect(page.locator("#login")).to_be_visible()
        await page.locator("#code").fill("AAAA-AAAA")
        await page.locator("#code").press("Enter")
        await expect(page.locator("#login-trouble")).to_contain_text("This code is wrong")
        code = await served.channel.issue_code()
        await page.locator("#code").fill(code.lower())
        await page.locator("#code").press("Enter")
        await expect(page.locator("#state")).to_have_attribute("data-state", "online")
        assert code not in page.url
        await send_text(page, "let me in")
        await expect(page.locator(".line.assistant:not(.streaming)")).to_have_count(1)
        await page.reload()
        await expect(page.locator(".line.assistant")).to_have_count(1)
        await page.locator("#leave").click()
        await expect(page.locator("#login")).to_be_visible()
        await expect(page.locator(".line")).to_have_count(0)


async def test_a_resend_that_may_repeat_says_so(chromium: Browser, served: ServedPage) -> None:
    """A part sent twice stands once; a marked one carries its mark."""
    page = await open_chat(chromium, served.url)
    (part,) = served.channel.render(
        OutboundMessage(id="tabcdefghijklmnop.1", key=served.key, text="only one of me", kind=OutboundKind.ANSWER)
    )
    await served.channel.send(part)
    await served.channel.send(part, may_be_duplicate=True)
    await expect(page.locator(".line.assistant .note")).to_have_text(load_catalogue("en")["delivery.may_repeat"])
    await expect(page.locator(".line.assistant")).to_have_count(1)


async def test_a_file_is_a_link_that_saves_it(
    chromium: Browser, served: ServedPage, services: FakePageServices
) -> None:
    """Below the answer, with its size, before and after a reload; a page in it never runs in ours."""
    data = b"<script>document.title = 'owned'</script>"
    blob = await services.blobs.put("people/ann", data)
    file = Attachment(kind="document", name="<b>plan</b>.html", size=len(data), media_type="text/html", blob=blob)
    page = await open_chat(chromium, served.url)
    await send_text(page, "the plan, please")
    await expect(page.locator(".line.assistant strong")).to_have_text("the plan, please")
    turn = services.lines[-1].turn
    await served.channel.send(MessagePart(id=f"{turn}.1.2", key=served.key, payload="", plain="", file=file))
    link = page.locator(".line.assistant a.file")
    await expect(link).to_contain_text("<b>plan</b>.html 41 byte")
    async with page.expect_download() as download:
        await link.click()
    saved = await download.value
    assert (await saved.path()).read_bytes() == data
    assert await page.title() == "Parlour"
    services.lines[-1] = replace(services.lines[-1], attachments=(file,))
    await page.reload()
    await expect(page.locator(".line.assistant a.file")).to_have_count(1)
    async with page.expect_download() as download:
        await page.locator(".line.assistant a.file").click()
    assert (await (await download.value).path()).read_bytes() == data


async def test_pictures_are_seen_small_and_whole(chromium: Browser, services: FakePageServices, tmp_path: Path) -> None:
    """What was just sent and what the history has: a thumbnail, and the picture whole; other bytes are a link alone."""
    services.folder = tmp_path
    data = base64.b64decode(PIXEL)
    blobs = [await services.blobs.put("people/ann", each) for each in (data, b"<svg onload='alert(1)'>")]
    files = tuple(
        Attachment(kind="image", name=name, size=9, media_type=media_type, blob=blob)
        for name, media_type, blob in (
            ("sea.png", "image/png", blobs[0]),
            ("bad.png", "image/png", blobs[1]),
            ("x.svg", "image/svg+xml", blobs[1]),
        )
    )
    at = datetime.now(UTC)
    services.lines.append(DisplayedMessage(id="t/0", turn="t", role="assistant", text="here", at=at, attachments=files))
    async with serve_page(services) as served:
        page = await open_chat(chromium, served.url)
        thumbnails = page.locator(".line.assistant .thumbnail")
        await expect(thumbnails).to_have_count(1)
        await expect(page.locator(".line.assistant a.file")).to_have_count(3)
        assert await thumbnails.locator("img").evaluate("it => it.decode().then(() => it.naturalWidth)") == 1
        await page.get_by_role("button", name=translate("web.picture_open", name="sea.png")).focus()
        await page.keyboard.press("Enter")
        viewer = page.get_by_role("dialog", name=translate("web.picture"))
        await expect(viewer.get_by_role("img", name="sea.png")).to_be_attached()
        await expect(viewer.get_by_role("link", name="sea.png")).to_have_attribute("download", "sea.png")
        await page.keyboard.press("Escape")
        await expect(viewer).to_be_hidden()
        await page.locator("#files").set_input_files(FilePayload(name="own.png", mimeType="image/png", buffer=data))
        await expect(page.locator('#attached [data-state="ready"]')).to_have_count(1)
        await page.locator("#send").click()
        mine = page.locator(".line.user .thumbnail img")
        assert await mine.evaluate("it => it.decode().then(() => it.naturalWidth)") == 1


async def test_a_line_without_formatting_is_shown_as_it_is(chromium: Browser, served: ServedPage) -> None:
    """What delivery says of a file that is missing is text, whatever its name looks like."""
    page = await open_chat(chromium, served.url)
    line = "(The file **x** <img src=x> was not sent: it is not available any more.)"
    await served.channel.send(MessagePart(id="t.1.2", key=served.key, payload="", plain=line))
    await expect(page.locator(".line.assistant .body")).to_have_text(line)
    await expect(page.locator(".line.assistant strong")).to_have_count(0)


async def test_files_are_added_left_out_and_sent(chromium: Browser, services: FakePageServices, tmp_path: Path) -> None:
    """Chosen with the button: shown above the text, taken out again, sent without a word."""
    services.folder = tmp_path
    async with serve_page(services) as served:
        page = await open_chat(chromium, served.url)
        await expect(page.locator("#send")).to_be_disabled()
        async with page.expect_file_chooser() as chooser:
            await page.locator("#attach").click()
        one = FilePayload(name="one.txt", mimeType="text/plain", buffer=b"first")
        two = FilePayload(name="<b>two</b>.txt", mimeType="text/plain", buffer=b"second")
        await (await chooser.value).set_files([one, two])
        await expect(page.locator('#attached [data-state="ready"]')).to_have_count(2)
        await page.locator("#attached .file").first.get_by_role("button").click()
        await expect(page.locator("#attached .file")).to_have_count(1)
        await page.locator("#send").click()
        mine = page.locator(".line.user")
        await expect(mine).to_have_attribute("data-state", "accepted")
        await expect(mine.locator(".file")).to_contain_text("b two b .txt")
        await expect(page.locator("#attached")).to_be_hidden()
        (message,) = services.accepted
        (attachment,) = message.attachments
        assert (message.text, attachment.name, attachment.size) == ("", "b two b .txt", 6)
        async with aclosing(served.channel.fetch(attachment)) as pieces:
            assert [piece async for piece in pieces] == [b"second"]


async def test_a_file_is_pasted_into_the_message(chromium: Browser, services: FakePageServices, tmp_path: Path) -> None:
    """A picture from the clipboard, such as a screenshot, is attached; pasted text stays text."""
    services.folder = tmp_path
    async with serve_page(services) as served:
        page = await open_chat(chromium, served.url)
        await page.locator("#text").fill("see ")
        await page.locator("#text").evaluate(
            """(field) => {
                const data = new DataTransfer();
                data.items.add(new File(["png"], "image.png", { type: "image/png" }));
                field.dispatchEvent(new ClipboardEvent("paste", { clipboardData: data, bubbles: true }));
            }"""
        )
        await expect(page.locator("#attached")).to_contain_text("image.png")
        await expect(page.locator('#attached [data-state="ready"]')).to_have_count(1)
        await expect(page.locator("#text")).to_have_value("see ")
        await page.locator("#text").press("Enter")
        await expect(page.locator(".line.user")).to_have_attribute("data-state", "accepted")
        (message,) = services.accepted
        assert (message.text, [each.name for each in message.attachments]) == ("see", ["image.png"])


async def test_a_file_is_dropped_onto_the_page(chromium: Browser, services: FakePageServices, tmp_path: Path) -> None:
    """Anywhere on it; the place says so while it hovers; what is refused is told in a line, and the text stays."""
    services.folder = tmp_path
    async with serve_page(services) as served:
        page = await open_chat(chromium, served.url)
        await page.locator("#text").fill("look at this")
        drop = """([type, size]) => {
            const data = new DataTransfer();
            data.items.add(new File([new Uint8Array(size).fill(65)], "photo.png", { type: "image/png" }));
            document.getElementById("scroller").dispatchEvent(
                new DragEvent(type, { dataTransfer: data, bubbles: true, cancelable: true }),
            );
        }"""
        await page.evaluate(drop, ["dragover", 1])
        await expect(page.locator("#drop")).to_be_visible()
        await page.evaluate(drop, ["drop", 0])
        await expect(page.locator("#trouble")).to_have_text(load_catalogue("en")["web.upload_empty"])
        await expect(page.locator("#attached")).to_be_hidden()
        await page.evaluate(drop, ["drop", 2_000])
        await expect(page.locator('#attached [data-state="ready"]')).to_contain_text("photo.png")
        await expect(page.locator("#drop")).to_be_hidden()
        await page.locator("#text").press("Enter")
        await expect(page.locator(".line.user .file")).to_contain_text("photo.png")
        (message,) = await services.wait_deliveries(1)
        assert (message.text, message.attachments[0].kind) == ("look at this", "image")


async def test_a_message_with_a_file_waits_for_the_server_as_any_other(
    chromium: Browser, services: FakePageServices, tmp_path: Path
) -> None:
    """Sent while the server was gone: it comes with its file once the server is back, over a reload of the page."""
    services.folder = tmp_path
    async with AsyncExitStack() as first:
        served = await first.enter_async_context(serve_page(services))
        port = served.server.port
        page = await open_chat(chromium, served.url)
        await page.locator("#files").set_input_files(
            FilePayload(name="one.txt", mimeType="text/plain", buffer=b"first")
        )
        await expect(page.locator('#attached [data-state="ready"]')).to_have_count(1)
    await expect(page.locator("#state")).to_have_attribute("data-state", "offline")
    await send_text(page, "meanwhile")
    await expect(page.locator(".line.user .mark")).to_have_text("○")
    async with serve_page(services, port=port) as served:
        await expect(page.locator(".line.user .mark")).to_have_text("✓")
        (message,) = services.accepted
        async with aclosing(served.channel.fetch(message.attachments[0])) as pieces:
            assert [piece async for piece in pieces] == [b"first"]


@pytest.mark.parametrize(
    ("language", "spoken", "day"), [("de", "de-AT", "Freitag, 2. Jänner"), ("zh", "en-US", "1月2日")]
)
async def test_the_page_speaks_the_language_of_the_chat(
    chromium: Browser, services: FakePageServices, served: ServedPage, language: str, spoken: str, day: str
) -> None:
    """Its words, dates and numbers, and what a screen reader is told, are the chat's, whatever the browser's are."""
    services.language = language
    services.lines.append(
        DisplayedMessage(id="l1", turn="t1", role="user", text="hello", at=datetime(2026, 1, 2, 12, tzinfo=UTC))
    )
    page = await open_chat(chromium, served.url, locale=spoken)
    words = load_catalogue(language)
    assert await page.locator("html").get_attribute("lang") == language
    await expect(page.locator("#text")).to_have_attribute("placeholder", words["web.placeholder"])
    await expect(page.locator("#state-text")).to_have_text(words["web.state_online"])
    await expect(page.locator("#send")).to_have_attribute("aria-label", words["web.send"])
    await expect(page.locator(".day").first).to_contain_text(day)
    services.is_down = True
    await send_text(page, "keep this")
    await expect(page.locator("#trouble")).to_have_text(words["frames.later"])


async def test_a_cut_network_is_told_at_once(chromium: Browser, served: ServedPage) -> None:
    """The browser says that it is offline; back online, the page is connected and what was typed is sent."""
    page = await open_chat(chromium, served.url)
    await page.context.set_offline(True)
    await expect(page.locator("#state")).to_have_attribute("data-state", "offline", timeout=10_000)
    await send_text(page, "typed while the network was cut")
    await page.context.set_offline(False)
    await expect(page.locator("#state")).to_have_attribute("data-state", "online")
    await expect(page.locator(".line.user .mark")).to_have_text("✓")


async def test_a_connection_that_is_silently_dead_is_noticed(chromium: Browser, served: ServedPage) -> None:
    """Nothing arrives any more and nobody closes it: 12 seconds later, or 4 after something is said, it is replaced."""
    page = await open_page(chromium)
    connected: list[bool] = []  # by number: whether the connection is dead
    is_new = asyncio.Event()

    def connect(socket: WebSocketRoute) -> None:
        server, n = socket.connect_to_server(), len(connected)
        connected.append(False)
        is_new.set()
        socket.on_message(lambda message: None if connected[n] else server.send(message))
        server.on_message(lambda message: None if connected[n] else socket.send(message))

    await page.route_web_socket("**/ws?*", connect)
    await page.clock.install()
    for seconds, text in ((12, ""), (4, "are you there?")):
        await page.goto("about:blank")
        await page.goto(served.url)
        await expect(page.locator("#state")).to_have_attribute("data-state", "online")
        is_new.clear()
        connected[-1] = True
        if text:
            await send_text(page, text)
        await page.clock.run_for(seconds * 1_000)
        async with asyncio.timeout(60):
            await is_new.wait()
        await expect(page.locator("#state")).to_have_attribute("data-state", "online")
    await expect(page.locator(".line.user .mark")).to_have_text("✓")


async def test_a_first_visit_takes_at_most_200_kilobytes(chromium: Browser) -> None:
    """The page with all that it loads before anything is said, as it comes over the wire."""
    async with gateway(model=HeldScriptModel()) as up:
        page = await open_chat(chromium, up.app.web.url)
        sizes = "performance.getEntries().map((each) => each.encodedBodySize ?? 0)"
        loaded = await page.evaluate(sizes)
        assert 50_000 < sum(loaded) <= 200_000, sum(loaded)
