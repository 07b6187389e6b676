"""The page without its server: the last conversations of the login that is in, within bounds, and of nobody else."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
from playwright.async_api import Browser, Page, expect

from tests.e2e.browser import open_chat, open_page, send_text
from tests.fakes.held_model import HeldScriptModel
from tests.fakes.inprocess_gateway import gateway

pytestmark = pytest.mark.asyncio(loop_scope="session")
STORED = """async () => {
    const names = (await caches.keys()).filter((each) => each.startsWith("parlour-offline"));
    if (names.length === 0) return {};
    const cache = await caches.open(names[0]);
    const found = {};
    for (const { url } of await cache.keys()) {
        found[new URL(url).pathname.replace(/^.*\\/offline\\//, "")] = await (await cache.match(url))?.json();
    }
    return found;
}"""


async def stored(page: Page) -> dict[str, Any]:
    """Return what the browser has stored of conversations, by name."""
    found = await page.evaluate(STORED)
    assert isinstance(found, dict)
    return found


async def ask(page: Page, text: str, answer: str) -> None:
    """Say something, and wait until its answer is stored."""
    await send_text(page, text)
    await expect(page.locator(".line.assistant").last).to_contain_text(answer)
    await _until_stored(page, answer)


async def _until_stored(page: Page, text: str) -> None:
    async with asyncio.timeout(20):
        while text not in str(await stored(page)):
            await page.evaluate("new Promise((done) => setTimeout(done, 50))")


async def enter(page: Page, code: str) -> None:
    """Log in as the page does, and load it again."""
    status = await page.evaluate(
        "(code) => fetch('login', { method: 'POST', body: JSON.stringify({ code }) }).then((answer) => answer.status)",
        code,
    )
    assert status == 204
    await page.reload()
    await expect(page.locator("#state")).to_have_attribute("data-state", "online")


async def test_the_last_conversations_are_shown_without_the_server(chromium: Browser, tmp_path: Path) -> None:
    """The server is gone: page, list and lines are there. It comes back and asks for a login: they are not."""
    async with gateway(home=tmp_path, model=HeldScriptModel("It leaks.", "Mended.")) as up:
        url = up.app.web.url
        page = await open_chat(chromium, url, service_workers="allow")
        await page.evaluate("navigator.serviceWorker.ready.then(() => null)")
        await page.reload()  # its files come by the worker now
        await expect(page.locator("#state")).to_have_attribute("data-state", "online")
        await ask(page, "How is the roof?", "It leaks.")
        await ask(page, "And now?", "Mended.")
    await page.reload()
    await expect(page.locator("#state")).to_have_attribute("data-state", "offline")
    await expect(page.locator(".line .body")).to_have_text(["How is the roof?", "It leaks.", "And now?", "Mended."])
    await expect(page.locator("#conversations")).to_contain_text("How is the roof?")
    await expect(page.locator("#send")).to_be_disabled()
    port = {"PARLOUR_WEB__PORT": str(urlsplit(url).port), "PARLOUR_WEB__LOGIN": "always"}
    async with gateway(home=tmp_path, model=HeldScriptModel(), environment=port):
        await page.evaluate("dispatchEvent(new Event('online'))")
        await expect(page.locator("#login")).to_be_visible()
        await expect(page.locator(".line")).to_have_count(0)
        await expect(page.locator("#conversations")).not_to_contain_text("How is the roof?")
        assert await stored(page) == {}
    await page.close()


async def test_what_is_stored_ends_with_a_login(chromium: Browser) -> None:
    """Another person who comes in, another login of the same person, and a logout: nothing of before is left."""
    environment = {"PARLOUR_WEB__LOGIN": "always", "PARLOUR_CHANNELS__WEB__ALLOW_FROM": "ann,bob"}
    async with gateway(model=HeldScriptModel("A secret of Ann."), environment=environment) as up:
        channel = up.app.chat_pages[0]
        page = await open_page(chromium, service_workers="allow")
        await page.goto(up.app.web.url)
        await enter(page, await channel.issue_code("ann"))
        await ask(page, "What is it?", "A secret of Ann.")
        first = (await stored(page))["session"]
        await enter(page, await channel.issue_code("bob"))
        await _until_stored(page, "bob")
        assert "secret" not in str(await stored(page))
        await enter(page, await channel.issue_code("ann"))
        await _until_stored(page, "A secret of Ann.")  # as the server told it again
        again = (await stored(page))["session"]
        assert (again["who"], again["login"] != first["login"], again["until"] > first["until"]) == ("ann", True, True)
        await page.locator("#leave").click()
        await expect(page.locator("#login")).to_be_visible()
        assert await stored(page) == {}
        await page.close()


async def test_the_store_is_bounded(chromium: Browser) -> None:
    """Thirty conversations of a megabyte each: ten are kept, each within 100 kB; one that has run out is not shown."""
    async with gateway(model=HeldScriptModel()) as up:
        page = await open_chat(chromium, up.app.web.url, service_workers="allow")
        await page.evaluate(
            """async () => {
                const module = document.querySelector("script[type=module]").src.replace("app.js", "offline.js");
                const { Offline } = await import(module);
                window.store = new Offline();
                store.begin({ who: "owner", login: "", until: "" });
                const line = { id: "1", role: "user", text: "x".repeat(1000) };
                const lines = Array.from({ length: 1000 }, () => line);
                for (let n = 0; n < 30; n += 1) {
                    store.lines.set(`c${n}`, lines);
                    store.write(`c${n}`);
                }
                await store.writes;
            }"""
        )
        found = await stored(page)
        kept = [name for name in found if name.startswith("of/")]
        assert len(kept) == 10
        assert "of/c29" in kept
        assert max(len(str(found[each])) for each in kept) <= 110_000
        shown = """([session]) => (async () => {
            store.begin(session);
            return (await store.read("c29"))?.lines.length ?? 0;
        })()"""
        assert await page.evaluate(shown, [{"who": "owner", "login": "", "until": "2999-01-01T00:00:00Z"}]) == 60
        assert await page.evaluate(shown, [{"who": "owner", "login": "", "until": "2020-01-01T00:00:00Z"}]) == 0
        assert await page.evaluate(shown, [{"who": "bob", "login": "", "until": ""}]) == 0
        await page.close()


OPENED = """async () => {
    const module = document.querySelector("script[type=module]").src.replace("app.js", "offline.js");
    const { Offline } = await import(module);
    window.open = () => new Offline();
    window.ann = { who: "ann", login: "a", until: "" };
    const entry = (id) => ({ id, deleted: false });
    window.list = (erased, ...ids) => JSON.stringify({ erased, conversations: ids.map(entry) });
    window.line = { id: "1", role: "user", text: "a secret" };
}"""


async def test_no_tab_writes_behind_the_logout_of_another(chromium: Browser) -> None:
    """A line that waited to be written, a list that came late; and lines of nobody are not the next person's."""
    async with gateway(model=HeldScriptModel()) as up:
        page = await open_chat(chromium, up.app.web.url, service_workers="allow")
        await page.evaluate(OPENED)
        await page.evaluate(
            """async () => {
                const [one, other] = [open(), open()];
                for (const tab of [one, other]) tab.begin(ann);
                one.keep("main", [line]);
                other.forget();
                one.write("main");
                one.keepList(list("", "main"));
                await Promise.all([one.writes, other.writes]);
            }"""
        )
        assert await stored(page) == {}
        await page.evaluate(
            """async () => {
                const tab = open();
                await tab.put("of/main", [line]);
                tab.begin({ who: "bob", login: "b", until: "" });
                await tab.writes;
            }"""
        )
        assert set(await stored(page)) == {"session"}
        await page.evaluate(
            """async () => {
                const tab = open();
                tab.begin(ann);
                tab.keep("main", [line]);
                tab.begin({ who: "bob", login: "b", until: "" });
                tab.add("main", line);
                await new Promise((done) => setTimeout(done, 400));
                await tab.writes;
            }"""
        )
        assert set(await stored(page)) == {"session"}
        await page.close()


async def test_stored_lines_go_with_their_conversation_and_with_an_erasure(chromium: Browser) -> None:
    """Deleted or missing in the list; after an erasure all, also what another tab still has; and all once run out."""
    async with gateway(model=HeldScriptModel()) as up:
        page = await open_chat(chromium, up.app.web.url, service_workers="allow")
        await page.evaluate(OPENED)
        steps = """async (step) => {
            const keep = (tab, ...ids) => ids.forEach((id) => (tab.keep(id, [line]), tab.write(id)));
            window.tabs ??= [open(), open()];
            if (step === 0) {
                for (const tab of tabs) tab.begin(ann);
                for (const tab of tabs) tab.keepList(list("", "main", "two", "three"));
                keep(tabs[0], "main", "two", "three");
            }
            if (step === 1) tabs[0].keepList(list("", "main", "two"));
            if (step === 2) {
                keep(tabs[1], "two");
                tabs[0].keepList(list("e1", "main", "two"));
                tabs[1].write("two");
            }
            if (step === 3) {
                tabs[1].keepList(list("e1", "main", "two"));
                keep(tabs[1], "two");
            }
            if (step === 4) {
                tabs[0].begin({ ...ann, until: "2020-01-01T00:00:00Z" });
                await tabs[0].read("two");
            }
            await Promise.all(tabs.map((tab) => tab.writes));
        }"""
        expected = [["main", "three", "two"], ["main", "two"], [], ["two"], []]
        for step, names in enumerate(expected):
            await page.evaluate(steps, step)
            found = await stored(page)
            assert sorted(name.removeprefix("of/") for name in found if name.startswith("of/")) == names, step
        assert found == {}
        await page.close()


async def test_an_erasure_reaches_the_browser(chromium: Browser) -> None:
    """Words of a conversation that is not open are purged: what the browser has stored of it goes, too."""
    async with gateway(model=HeldScriptModel("Noted.", "Fine.")) as up:
        page = await open_chat(chromium, up.app.web.url, service_workers="allow")
        await ask(page, "The code is zebrafish", "Noted.")
        await page.locator("#new-chat").click()
        await ask(page, "Good morning", "Fine.")
        assert "zebrafish" in str(await stored(page))
        await send_text(page, "/forget zebrafish --purge")
        await page.locator("#lines").get_by_role("button", name="Yes").click()
        async with asyncio.timeout(20):
            while "The code is zebrafish" in str(await stored(page)):
                await page.evaluate("new Promise((done) => setTimeout(done, 50))")
        await page.close()
