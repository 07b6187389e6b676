"""Notifications: an answer that nobody sees is announced once, and the page's worker shows it and opens its chat."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from playwright.async_api import Browser, Page, async_playwright, expect

from channels.web.adapter import WebChannel
from channels.web.push import PushNotice
from gateway.errors import UserError
from gateway.events import InboundMessage, Sender, SessionKey
from gateway.i18n import translate
from gateway.settings.settings_model import WebServerSettings
from tests.e2e.browser import FLAGS, open_chat
from tests.fakes.console_people import ConsolePeople, console_people
from tests.fakes.held_model import HeldScriptModel
from tests.fakes.inprocess_gateway import InProcessGateway, InstantModel, gateway
from tests.fakes.push_server import PushServer, push_server

pytestmark = pytest.mark.asyncio(loop_scope="session")
OTHER = "abcdefgh23456789"


def page_of(up: InProcessGateway, server: PushServer) -> WebChannel:
    """Return the page, whose push service is *server*, and which notifies at once."""
    page = up.app.chat_pages[0]
    assert page.push is not None
    page.push._http = server.client()
    page.push_after = timedelta(0)
    return page


async def ask(up: InProcessGateway, text: str, *, chat: str = "owner", who: str = "owner") -> None:
    """Write on the page without a window: as a message that was accepted before the window was closed."""
    message = InboundMessage(
        key=SessionKey("web", chat),
        message_id=text,
        sender=Sender(id=who),
        text=text,
        sent_at=datetime.now(UTC),
        is_addressed=True,
    )
    await up.app.intake.receive(message)


async def add(people: ConsolePeople, role: str, facts: dict[str, Any]) -> tuple[int, dict[str, Any]]:
    """Add a browser as the page of *role* does."""
    async with people.clients[role].post(f"{people.url}push", json=facts, headers=people.origin) as answer:
        return answer.status, json.loads(await answer.text())


async def test_an_answer_that_nobody_sees_is_announced_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each browser of its person gets one notification, nobody else's; with a window open, nobody gets any."""
    async with push_server(tmp_path, monkeypatch) as server, console_people() as people:
        page = page_of(people.up, server)
        phone, bobs = server.subscribe("phone"), server.subscribe("bob")
        assert page.push is not None
        status, added = await add(people, "admin of the chat", phone.facts())
        assert (status, added["id"]) == (200, (await page.push.browsers("ann"))[0].id)
        assert (await add(people, "member", bobs.facts(shows_text=True)))[0] == 200
        assert (await add(people, "no login", phone.facts()))[0] == 401
        await ask(people.up, "What is it?", chat=f"ann/{OTHER}", who="ann")
        async with asyncio.timeout(20):
            await server.arrived.wait()
        await people.up.idle()
        line = translate("web.push_answer")
        (found,) = server.received
        assert (found["conversation"], found["body"], found["title"]) == (OTHER, line, "Parlour")
        async with people.clients["admin of the chat"].ws_connect(
            people.url.replace("http", "ws") + "ws", headers=people.origin
        ) as window:
            await window.receive(timeout=20)
            await ask(people.up, "And now?", chat=f"ann/{OTHER}", who="ann")
            async with asyncio.timeout(20):
                while (await window.receive_json()).get("type") != "news":
                    pass
        await people.up.idle()
        assert len(server.received) == 1


async def test_a_browser_is_withdrawn_with_its_login(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody lists or removes another person's; a logout, by the person or an operator, removes what it added."""
    async with push_server(tmp_path, monkeypatch) as server, console_people() as people:
        page = page_of(people.up, server)
        assert page.push is not None
        _, added = await add(people, "member", server.subscribe("bob").facts(name="Bob's <b>"))
        async with people.clients["admin of the chat"].post(
            f"{people.url}push/{added['id']}", headers=people.origin
        ) as answer:
            assert answer.status == 204
        async with people.clients["admin of the chat"].get(f"{people.url}push") as answer:
            assert (await answer.json())["browsers"] == []
        async with people.clients["member"].get(f"{people.url}push") as answer:
            (seen,) = (await answer.json())["browsers"]
            assert (seen["id"], seen["name"]) == (added["id"], "Bob's <b>")
            assert "endpoint" not in seen
        await page.log_out("bob")
        assert list(await page.push.browsers("bob")) == []


async def test_the_key_stays_and_is_demanded_of_several_gateways(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A home makes it once, in its secrets; where the store is shared, it has to be set."""
    async with push_server(tmp_path, monkeypatch) as server:
        keys = []
        for _ in range(2):
            async with gateway(home=tmp_path / "home", model=InstantModel()) as up:
                page = page_of(up, server)
                assert page.push is not None
                keys.append((await page.push.key()).public)
        assert keys[0] == keys[1]
        file = tmp_path / "home" / "secrets" / "web__push_key"
        assert file.stat().st_mode & 0o777 == 0o600
        async with gateway(home=tmp_path / "home", model=InstantModel()) as up:
            settings = up.app.settings
            shared = {"web": WebServerSettings(), "store": settings.store.model_copy(update={"shared": True})}
            page = page_of(up, server)
            assert page.push is not None
            with monkeypatch.context() as patch:
                patch.setattr(up.app, "settings", settings.model_copy(update=shared))
                with pytest.raises(UserError, match=r"set web\.push_key on each"):
                    await page.push.key()


@asynccontextmanager
async def notifying_page(url: str, folder: Path) -> AsyncIterator[Page]:
    """Open the page in a profile of its own: a private window, as other tests have, may show no notifications."""
    path = shutil.which("chromium")  # the shell without windows shows none either
    if path is None:
        if os.environ.get("CI") == "true":
            pytest.fail("CI needs Chromium: .ci/run installs it")
        pytest.skip("no Chromium on this machine")
    async with async_playwright() as playwright:
        context = await playwright.chromium.launch_persistent_context(
            folder, executable_path=path, headless=True, args=FLAGS, permissions=["notifications"]
        )
        try:
            await context.pages[0].goto(url)
            await context.pages[0].evaluate("navigator.serviceWorker.ready.then(() => null)")
            yield context.pages[0]
        finally:
            await context.close()


async def deliver(page: Page, *payloads: str) -> None:
    """Have the browser take push messages for the page's worker, as from its push service."""
    session = await page.context.new_cdp_session(page)
    found: asyncio.Future[str] = asyncio.get_running_loop().create_future()

    def note(event: dict[str, Any]) -> None:
        if event["registrations"] and not found.done():
            found.set_result(event["registrations"][0]["registrationId"])

    session.on("ServiceWorker.workerRegistrationUpdated", note)
    await session.send("ServiceWorker.enable")
    async with asyncio.timeout(20):
        target = {"origin": await page.evaluate("location.origin"), "registrationId": await found}
    for data in payloads:
        await session.send("ServiceWorker.deliverPushMessage", {**target, "data": data})


async def until(page: Page, condition: str) -> None:
    """Wait for an expression of the page; its policy forbids `wait_for_function` to evaluate a text again."""
    async with asyncio.timeout(20):
        while not await page.evaluate(condition):
            await page.evaluate("new Promise((done) => setTimeout(done, 50))")


async def test_the_worker_shows_what_comes_and_opens_its_conversation(tmp_path: Path) -> None:
    """The push event in Chromium: a notification of the turn, replaced by a later one; a click opens the chat."""
    async with gateway(model=HeldScriptModel()) as up, notifying_page(up.app.web.url, tmp_path) as page:
        payload = {"tag": "t1", "conversation": OTHER, "title": "The roof", "body": "<b>It leaks</b>"}
        await deliver(page, json.dumps(payload), json.dumps(payload | {"body": "It is mended"}), "no JSON")
        ready = "navigator.serviceWorker.ready.then((one) => one.getNotifications())"
        await until(page, f"{ready}.then((all) => all.length === 2 && all.some((one) => /mended/.test(one.body)))")
        found = await page.evaluate(f"{ready}.then((all) => all.map(({{ title, body, tag }}) => [title, body, tag]))")
        assert sorted(found) == [["Parlour", "", "answer"], ["The roof", "It is mended", "t1"]]
        for tag in ("answer", "t1"):
            await page.context.service_workers[0].evaluate(
                "(tag) => registration.getNotifications({ tag }).then(([notification]) => {"
                " self.dispatchEvent(new NotificationEvent('notificationclick', { notification })); })",
                tag,
            )
        await page.wait_for_url(f"**/#c={OTHER}")
        await until(page, f"{ready}.then((all) => all.length === 0)")


async def test_browsers_are_listed_and_withdrawn_in_the_settings(
    chromium: Browser, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The names are texts of browsers and no markup; a browser without the right to notify says so."""
    async with push_server(tmp_path, monkeypatch) as server, gateway(model=HeldScriptModel()) as up:
        channel = page_of(up, server)
        assert channel.push is not None
        await channel.push.add("owner", server.subscribe().facts(name="<img src=x onerror=alert(1)>"), "")
        page = await open_chat(chromium, up.app.web.url, service_workers="allow")
        await page.locator("#settings-open").click()
        section = page.locator("#settings-push")
        await expect(section.locator("li")).to_contain_text("<img src=x onerror=alert(1)>")
        await section.get_by_role("button", name=translate("web.push_add")).click()
        await expect(section.get_by_role("status")).to_have_text(translate("web.push_denied"))
        await section.locator("li button").click()
        await expect(section.locator("li")).to_have_count(0)
        assert list(await channel.push.browsers("owner")) == []
        async with aiohttp.ClientSession() as http, http.get(f"{up.app.web.url}worker.js") as answer:
            assert answer.headers["Content-Type"].startswith("text/javascript")
            assert answer.headers["Cache-Control"] == "no-cache"


# Chromium subscribes at a service on the internet: this stands for it, and survives a reload as a subscription does.
_SUBSCRIPTIONS = """(() => {
    const { key, endpoint, keys } = %s;
    const found = () => localStorage.getItem("subscribed") && {
        endpoint,
        options: { applicationServerKey: Uint8Array.from(atob(key), (letter) => letter.charCodeAt(0)).buffer },
        toJSON: () => ({ endpoint, keys }),
        unsubscribe: async () => localStorage.removeItem("subscribed"),
    };
    PushManager.prototype.getSubscription = async () => found() || null;
    PushManager.prototype.subscribe = async () => (localStorage.setItem("subscribed", "yes"), found());
})()"""


async def test_the_next_person_at_a_browser_is_not_notified_unasked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ann had words shown. Her login is ended, or another one comes in: her subscription ends, and Bob has none."""
    environment = {"PARLOUR_WEB__LOGIN": "always", "PARLOUR_CHANNELS__WEB__ALLOW_FROM": "ann,bob"}
    async with (
        push_server(tmp_path, monkeypatch) as server,
        gateway(model=HeldScriptModel(), environment=environment) as up,
        notifying_page(up.app.web.url, tmp_path / "browser") as page,
    ):
        channel = page_of(up, server)
        assert channel.push is not None
        facts = server.subscribe("shared").facts()
        key = (await channel.push.key()).public.replace("-", "+").replace("_", "/")
        given = {"key": key + "=" * (-len(key) % 4), "endpoint": facts["endpoint"], "keys": facts["keys"]}
        await page.add_init_script(_SUBSCRIPTIONS % json.dumps(given))
        await page.reload()
        section, entry = page.locator("#settings-push"), page.locator("#settings-push li")

        async def come_in(who: str) -> None:
            await page.locator("#code").fill(await channel.issue_code(who))
            await page.locator("#login-form button").click()
            await expect(page.locator("#leave")).to_have_attribute("title", who)
            await expect(page.locator("#state")).to_have_attribute("data-state", "online")
            await page.locator("#settings-open").click()

        await come_in("ann")
        await section.get_by_role("button", name=translate("web.push_add")).click()
        await expect(entry).to_have_count(1)
        async with page.expect_response(lambda answer: answer.request.method == "POST"):
            await section.get_by_role("checkbox").check()
        (anns,) = await channel.push.browsers("ann")
        assert anns.shows_text
        await page.reload()  # her own is added again, with her choice
        await page.locator("#settings-open").click()
        await expect(entry).to_have_count(1)
        await expect(section.get_by_role("checkbox")).to_be_checked()

        await page.keyboard.press("Escape")
        await channel.log_out("ann")
        await expect(page.locator("#login")).to_be_visible()
        await until(page, "localStorage.getItem('subscribed') === null")
        await come_in("bob")
        await expect(section.get_by_role("button", name=translate("web.push_add"))).to_be_visible()
        await expect(section.locator("input")).not_to_be_checked()
        assert list(await channel.push.browsers("bob")) == []

        await page.evaluate("localStorage.setItem('subscribed', 'yes')")  # as if the page had not seen Ann's end
        await page.reload()
        await page.locator("#settings-open").click()
        await expect(section.get_by_role("button", name=translate("web.push_add"))).to_be_visible()
        await until(page, "localStorage.getItem('subscribed') === null")
        assert list(await channel.push.browsers("bob")) == []


async def test_a_notification_behind_a_logout_has_no_words(tmp_path: Path) -> None:
    """It was on its way when the login ended: the worker asks, and shows that there is something, and no more."""
    environment = {"PARLOUR_WEB__LOGIN": "always"}
    payload = json.dumps({"tag": "t1", "conversation": OTHER, "title": "The roof", "body": "It leaks"})
    ready = "navigator.serviceWorker.ready.then((one) => one.getNotifications())"
    async with (
        gateway(model=HeldScriptModel(), environment=environment) as up,
        notifying_page(up.app.web.url, tmp_path) as page,
    ):
        await deliver(page, payload)
        await until(page, f"{ready}.then((all) => all.length === 1)")
        found = await page.evaluate(f"{ready}.then((all) => all.map(({{ title, body, tag }}) => [title, body, tag]))")
        assert found == [["Parlour", "", "answer"]]


async def test_a_browser_without_a_login_is_one_of_the_private_page(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Added while the page needed no login, and removed at the first notification once it needs one."""
    notice = PushNotice(turn="t1", conversation="main", at=datetime.now(UTC), line="An answer.")
    async with push_server(tmp_path, monkeypatch) as server:
        for environment, left in (({}, 1), ({"PARLOUR_WEB__LOGIN": "always"}, 0)):
            async with gateway(home=tmp_path / "home", model=InstantModel(), environment=environment) as up:
                channel = page_of(up, server)
                assert channel.push is not None
                if not environment:
                    await channel.push.add("owner", server.subscribe().facts(), "")
                await channel.push.notify("owner", notice)
                assert (len(await channel.push.browsers("owner")), len(server.received)) == (left, 1)
