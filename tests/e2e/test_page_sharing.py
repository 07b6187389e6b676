"""A conversation that is shared by a link: made in the page, read by anybody, withdrawn, expired, erased."""

from __future__ import annotations

import asyncio
import json
from datetime import UTC, datetime, timedelta

import aiohttp
import pytest
from playwright.async_api import Browser, Page, expect

from channels.web.adapter import WebChannel
from channels.web.routes import LONGEST_TOKEN
from channels.web.shared_links import LIFETIMES, MOST_LINKS, SharedLinks
from gateway.events import SessionKey
from gateway.i18n import translate
from tests.e2e.browser import open_chat, open_page, send_text
from tests.e2e.test_page_axe import AXE, check
from tests.fakes.held_model import HeldScriptModel
from tests.fakes.inprocess_gateway import InProcessGateway, gateway

pytestmark = pytest.mark.asyncio(loop_scope="session")

HOSTILE = (
    "Twice a **week**. <script>alert(1)</script> [x](javascript:alert(1)) ![p](https://evil.example/p.png) "
    "[roses](https://roses.example/)"
)
SAID = "How often? <img src=x onerror=alert(1)>"


async def say(page: Page, text: str) -> None:
    """Say *text* and wait for its answer."""
    answers = page.locator(".line:not(.user):not(.streaming):not([hidden])")
    count = await answers.count()
    await send_text(page, text)
    await expect(answers).to_have_count(count + 1)


async def share(page: Page, up: InProcessGateway) -> str:
    """Make a link by the menu of the first conversation; return its address."""
    await page.locator("#conversations li button").first.click()
    await page.get_by_role("menuitem", name=translate("web.share")).click()
    await page.get_by_role("button", name=translate("web.share_create")).click()
    field = page.get_by_label(translate("web.share_address"), exact=True)
    await expect(field).to_be_visible()
    address = await field.input_value()
    assert address.startswith(f"{up.app.web.url}share/")
    return address


async def status_of(address: str) -> int:
    """Read *address* as somebody without a cookie."""
    async with aiohttp.ClientSession() as http, http.get(address) as answer:
        await answer.read()
        return answer.status


def links_of(up: InProcessGateway) -> SharedLinks:
    """Return the links of the page."""
    (channel,) = up.app.chat_pages
    assert isinstance(channel, WebChannel)
    return channel.links


async def test_a_shared_conversation_is_read_and_withdrawn(chromium: Browser) -> None:
    """Its messages and answers as they are now, as text; no script, no file, no command; then it is gone."""
    model = HeldScriptModel("Every day.", HOSTILE, "later")
    found: list[str] = []
    async with gateway(model=model) as up:
        page = await open_chat(chromium, up.app.web.url, script=AXE, reduced_motion="reduce")
        await say(page, "first words")
        await page.locator("#text").press("ArrowUp")
        await send_text(page, SAID)  # another version
        await expect(page.locator(".line.assistant:not([hidden]) strong")).to_have_text("week")
        await say(page, "/remember my boat is called Nora")
        address = await share(page, up)
        await check(page, "sharing", found)
        await page.get_by_role("dialog").get_by_role("button", name=translate("web.close"), exact=True).click()
        await say(page, "a secret of later")
        reader = await open_page(chromium)
        requests: list[str] = []
        reader.on("request", lambda request: requests.append(request.url))
        await reader.goto(address)
        await expect(reader.locator("article")).to_have_count(2)
        await expect(reader.locator("article .said")).to_have_text(SAID)
        await expect(reader.locator("article strong")).to_have_text("week")
        await expect(reader.locator("script, img, article form, iframe")).to_have_count(0)
        links = reader.locator("article a")
        await expect(links).to_have_text(["p", "roses"])
        assert await links.nth(1).get_attribute("rel") == "noopener noreferrer nofollow"
        text = await reader.content()
        assert not [each for each in ("Nora", "Every day", "later", 'javascript:"') if each in text]
        assert requests == [address]
        async with aiohttp.ClientSession() as http, http.get(address) as answer:
            policy = answer.headers["Content-Security-Policy"]
            assert "sandbox" in policy
            assert "default-src 'none'" in policy
            assert "script" not in policy
            assert answer.headers["Referrer-Policy"] == "no-referrer"
        stored = await links_of(up)._state.all("links.")
        assert stored
        assert address.rpartition("/")[2] not in json.dumps(dict(stored)), "the token is stored"
        await page.locator("#conversations li button").first.click()
        await page.get_by_role("menuitem", name=translate("web.share")).click()
        await page.get_by_role("button", name=translate("web.share_withdraw")).click()
        await expect(page.locator("#sharing li")).to_have_count(0)
        assert await status_of(address) == 404
    assert found == []


async def test_a_link_ends_with_its_time_and_its_conversation(chromium: Browser) -> None:
    """After its days, while the conversation is deleted, and when its turn is erased: the same 404 as for any guess."""
    async with gateway(model=HeldScriptModel()) as up:
        page = await open_chat(chromium, up.app.web.url)
        await say(page, "roses")
        address = await share(page, up)
        links = links_of(up)
        assert await status_of(address) == 200
        links._now = lambda: datetime.now(UTC) + timedelta(days=7, minutes=1)
        assert await status_of(address) == 404
        links._now = lambda: datetime.now(UTC)
        assert await status_of(address) == 200
        (channel,) = up.app.chat_pages
        assert isinstance(channel, WebChannel)
        assert channel.conversations is not None
        await channel.conversations.delete(SessionKey("web", "owner"))
        assert await status_of(address) == 404
        await channel.conversations.restore(SessionKey("web", "owner"))
        assert await status_of(address) == 200
        guesses = ["x", "A" * 40, "." * 12, f"{address.rpartition('/')[2]}x", "%00" * 8, "a" * (LONGEST_TOKEN + 1)]
        assert {await status_of(f"{up.app.web.url}share/{each}") for each in guesses} == {404}


async def test_links_are_of_their_person_alone_and_bounded(chromium: Browser) -> None:
    """Nobody shares, lists or withdraws for another person; days, number and readings have limits."""
    async with gateway(model=HeldScriptModel(), environment={"PARLOUR_WEB__LOGIN": "always"}) as up:
        (channel,) = up.app.chat_pages
        pages: dict[str, Page] = {}
        for who in ("", "ann"):
            pages[who] = await open_page(chromium)
            await pages[who].goto(f"{up.app.web.url}#code={await channel.issue_code(who)}")
            await pages[who].locator("#code").press("Enter")
            await expect(pages[who].locator("#state")).to_have_attribute("data-state", "online")
        await say(pages[""], "roses")

        async def post(who: str, path: str, body: object) -> tuple[int, str]:
            ask = """async ([path, body]) => {
                const answer = await fetch(path, { method: "POST", body: JSON.stringify(body) });
                return [answer.status, await answer.text()];
            }"""
            status, text = await pages[who].evaluate(ask, [path, body])
            return status, text

        create = "conversations/main/links"
        for days in (0, 2, 365, -1, "7", True, None):
            assert (await post("", create, {"days": days}))[0] == 400
        assert (await post("ann", create, {"days": 7}))[0] == 404
        code, body = await post("", create, {"days": LIFETIMES[0]})
        assert code == 200
        made = json.loads(body)
        listed = "async () => (await (await fetch('conversations/main/links')).json()).links.length"
        assert [await pages[who].evaluate(listed) for who in ("", "ann")] == [1, 0]
        assert (await post("ann", f"links/{made['id']}/withdraw", {}))[0] == 404
        codes = [(await post("", create, {"days": 1}))[0] for _ in range(MOST_LINKS)]
        assert codes == [200] * (MOST_LINKS - 1) + [409]
        assert (await post("", f"links/{made['id']}/withdraw", {}))[0] == 204
        statuses = await asyncio.gather(*(status_of(f"{up.app.web.url}share/{n}") for n in range(60)))
        assert 429 in statuses
