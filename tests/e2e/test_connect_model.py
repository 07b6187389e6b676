"""The card "Connect a model" in a real browser: from an empty home to an answer by a model of this machine."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio
from aiohttp import web
from playwright.async_api import Browser, Locator, Page, expect

from agent.llm.chat_model import ModelConfig
from agent.llm.model_registry import open_model
from agent.tools.offline_model import OfflineModel
from gateway.app import model_trial
from gateway.app.model_trial import KnownProvider
from gateway.i18n import translate
from tests.e2e.browser import open_chat, open_page, send_text, take_pictures
from tests.e2e.test_page_axe import AXE, LOOKS, check
from tests.fakes.console_people import ConsolePeople, console_people
from tests.fakes.gateway import GatewayProcess, free_port
from tests.fakes.loopback import serve_app
from tests.fakes.openai_server import FakeOpenAI, ModelFault, ScriptedAnswer, open_server

pytestmark = pytest.mark.asyncio(loop_scope="session")

KEY = "sk-canary-of-the-model-card-0123456789"
# `parlour run`, where Ollama's usual port is that of the tests' own server.
PROGRAM = """
import os, parlour
from gateway.app import model_trial
model_trial.LOCAL_SERVERS = {"Ollama": int(os.environ["OLLAMA_PORT"])}
parlour.main()
"""
SOON = 60_000  # milliseconds; a start on a busy machine
HOSTILE = "<img/src=x/onerror=alert(1)>"


def port_of(server: FakeOpenAI) -> str:
    """Return the port of a scripted server."""
    return server.base.removesuffix("/v1").rpartition(":")[2]


async def show_card(page: Page) -> Locator:
    """Open the card by the line above the composer and return it, its servers looked for."""
    await page.locator("#no-model").get_by_role("button").press("Enter")
    card = page.get_by_role("dialog", name=translate("web.connect"))
    await expect(card.get_by_role("button", name="OpenRouter")).to_be_visible()
    return card


async def log_in(browser: Browser, people: ConsolePeople, role: str, **context: Any) -> Page:
    """Return the chat page of *role*, who has logged in."""
    page = await open_page(browser, script=AXE, **context)
    jar = [{"name": each.key, "value": each.value, "url": people.url} for each in people.clients[role].cookie_jar]
    await page.context.add_cookies(jar)  # type: ignore[arg-type]
    await page.goto(people.url)
    await expect(page.locator("#state")).to_have_attribute("data-state", "online")
    return page


@dataclass(slots=True)
class GuardedList:
    """A provider's list of models, which wants *key*."""

    key: str
    asked: list[str] = field(default_factory=list)  # the keys that came

    async def answer(self, request: web.Request) -> web.StreamResponse:
        """Refuse every other key as OpenAI does."""
        self.asked.append(request.headers.get("Authorization", "").removeprefix("Bearer "))
        if self.asked[-1] != self.key:
            return web.json_response(
                {"error": {"message": f"Incorrect API key provided: {self.asked[-1]}"}}, status=401
            )
        return web.json_response({"data": [{"id": "gpt-9", "created": 9}, {"id": "gpt-8", "created": 8}]})


async def test_from_an_empty_home_to_an_answer_in_two_clicks(chromium: Browser, tmp_path: Path) -> None:
    """The server is found, its model tried, saved and used; what is written during the restart is answered after it."""
    async with open_server(lambda *_: ScriptedAnswer(text="Here I am.")) as model:
        model.models = ["qwen3:4b", "nomic-embed-text"]
        process = GatewayProcess(tmp_path / "home", free_port(), OLLAMA_PORT=port_of(model))
        process.program = (sys.executable, "-c", PROGRAM)
        try:
            await process.start()
            page = await open_chat(chromium, process.url)
            assert not model.headers, "a server is looked for before the card is open"
            card = await show_card(page)
            await card.get_by_role("button", name="Ollama").press("Enter")
            await expect(card.get_by_role("list").get_by_role("button")).to_have_count(1)
            await card.get_by_role("button", name="qwen3:4b").press("Enter")
            await expect(card.get_by_role("status")).to_contain_text("restarting", timeout=SOON)
            await expect(card.get_by_role("alert")).to_contain_text("called no tool")
            await page.keyboard.press("Escape")
            await send_text(page, "Hello?")
            answer = page.get_by_role("list", name="Conversation").get_by_text("Here I am.")
            await expect(answer).to_have_count(1, timeout=SOON)
            await expect(page.locator("#no-model")).to_be_hidden(timeout=SOON)
            await page.evaluate("location.hash = 'connect'")
            await expect(page.get_by_role("dialog").get_by_role("button", name="Ollama")).to_be_focused()
            await page.keyboard.press("Escape")
            await expect(page.locator("#text")).to_be_focused()
            assert await process.stop() == 0
        finally:
            await process.close()
    settings = (process.home / "parlour.yaml").read_text(encoding="utf-8")
    assert re.search(rf"^llm:\n  model: openai/qwen3:4b\n  api_base: {model.base}$", settings, re.MULTILINE)
    assert all("Authorization" not in each or "sk-" not in each["Authorization"] for each in model.headers)


@pytest.fixture(scope="module")
def ports() -> dict[str, int]:
    """Return the ports at which the gateway of this module looks for servers, by title."""
    return {}


@pytest_asyncio.fixture(loop_scope="session", scope="module")
async def people(ports: dict[str, int]) -> AsyncIterator[ConsolePeople]:
    """Run a gateway without a model; a browser for each role."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(model_trial, "LOCAL_SERVERS", ports)
        async with console_people(model=OfflineModel("offline")) as people:
            yield people


async def test_the_card_has_no_violation_and_shows_names_as_text(
    chromium: Browser, people: ConsolePeople, ports: dict[str, int]
) -> None:
    """By axe, in light and dark, wide and on a phone; a name that is markup stays text; the field finds models."""
    found: list[str] = []
    async with open_server() as model:
        model.models = [HOSTILE, *(f"model-{n}" for n in range(60))]
        ports |= {"Ollama": int(port_of(model))}
        page = await log_in(chromium, people, "owner", reduced_motion="reduce")
        card = await show_card(page)
        await take_pictures(page, "page-connect")
        for name, size in LOOKS:
            await page.set_viewport_size(size)
            await check(page, f"servers, {name}", found)
            await card.get_by_role("button", name="OpenAI").click()
            await expect(card.get_by_label("Key")).to_be_focused()
            await check(page, f"key, {name}", found)
            await card.get_by_role("button", name="Back").click()
            await card.get_by_role("button", name="Ollama").click()
            await expect(card.get_by_label("Find a model")).to_be_focused()
            assert await page.evaluate("document.documentElement.scrollWidth - innerWidth") <= 0
            await check(page, f"models, {name}", found)
            await card.get_by_label("Find a model").fill("model-59")
            await expect(card.get_by_role("list").get_by_role("button")).to_have_text(["model-59"])
            await card.get_by_label("Find a model").fill("<img")
            await expect(card.get_by_role("list").get_by_role("button")).to_have_text([HOSTILE])
            assert await card.locator("img").count() == 0
            await card.get_by_role("button", name="Back").click()
            await expect(card.get_by_role("button", name="Ollama")).to_be_focused()
        await page.keyboard.press("Escape")
        await expect(card).to_be_hidden()
    ports.clear()
    assert not found, "\n".join(found)


async def test_servers_without_models_and_wrong_keys_are_said(
    chromium: Browser, people: ConsolePeople, ports: dict[str, int]
) -> None:
    """Nothing is saved; the step stays, so that the next try is one click; a typed name is tried too."""

    def refuse(body: Mapping[str, Any], _: int) -> ScriptedAnswer:
        return ScriptedAnswer(fault=ModelFault.UNAUTHORISED if "secret" in body["model"] else ModelFault.NOT_FOUND)

    async with open_server(refuse) as model:
        ports |= {"LM Studio": int(port_of(model))}
        page = await log_in(chromium, people, "owner")
        card = await show_card(page)
        await card.get_by_role("button", name="LM Studio").press("Enter")
        await expect(card.get_by_role("alert")).to_contain_text("has no model yet")
        model.models = ["secret"]
        await card.get_by_role("button", name="Look again").press("Enter")
        await card.get_by_role("button", name="LM Studio").press("Enter")
        await card.get_by_role("button", name="secret").press("Enter")
        await expect(card.get_by_role("alert")).to_contain_text("requires an API key")
        await expect(card.get_by_role("button", name="secret")).to_be_focused()

        await card.get_by_role("button", name="Back").press("Enter")
        await card.get_by_label("Address of the server").fill(model.base.removesuffix("/v1"))
        await card.get_by_label("Key").fill(KEY)
        await card.get_by_role("button", name="Show its models").press("Enter")
        await card.get_by_role("button", name="secret").press("Enter")
        await expect(card.get_by_role("alert")).to_contain_text("the key was rejected")
        assert KEY not in await card.inner_text()
        assert model.headers[-1]["Authorization"] == f"Bearer {KEY}"

        model.models = ["nomic-embed-text"]
        await card.get_by_role("button", name="Back").press("Enter")
        await card.get_by_label("Address of the server").fill(model.base)
        await card.get_by_role("button", name="Show its models").press("Enter")
        await expect(card.get_by_role("alert")).to_contain_text("has no model yet")

        await card.get_by_role("button", name="Back").press("Enter")
        await card.get_by_label("Address of the server").fill(f"127.0.0.1:{free_port()}")
        await card.get_by_role("button", name="Show its models").press("Enter")
        await expect(card.get_by_role("alert")).to_contain_text("does not answer")
        await card.get_by_label("Address of the server").fill("ftp://example.org")
        await card.get_by_role("button", name="Show its models").press("Enter")
        await expect(card.get_by_role("alert")).to_contain_text("Nothing was saved")
    ports.clear()
    assert not [*people.up.home.glob("parlour.*"), *people.up.home.glob("secrets")]


async def test_a_provider_s_wrong_key_is_said_and_the_right_one_lists_its_models(
    chromium: Browser, people: ConsolePeople, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The key stays in its field until it is right, and is never shown; the newest model comes first."""
    guarded = GuardedList(KEY)
    async with serve_app(guarded.answer) as place:
        provider = KnownProvider("openai", "OpenAI", f"http://{place}/v1", "https://example.org/keys")
        monkeypatch.setattr(model_trial, "PROVIDERS", {"openai": provider})
        page = await log_in(chromium, people, "owner")
        await page.locator("#no-model").get_by_role("button").press("Enter")
        card = page.get_by_role("dialog", name=translate("web.connect"))
        await card.get_by_role("button", name="OpenAI").press("Enter")
        await expect(card.get_by_role("link")).to_have_attribute("href", "https://example.org/keys")
        await card.get_by_label("Key").fill("sk-wrong")
        await page.keyboard.press("Enter")
        await expect(card.get_by_role("alert")).to_have_text(
            "OpenAI did not accept the key. Check that all of it was copied."
        )
        await expect(card.get_by_label("Key")).to_be_focused()
        await card.get_by_label("Key").fill(KEY)
        await page.keyboard.press("Enter")
        await expect(card.get_by_role("list").get_by_role("button")).to_have_text(["gpt-9", "gpt-8"])
        assert KEY not in await page.content()
    assert guarded.asked == ["sk-wrong", KEY]


async def test_a_server_that_does_not_list_says_what_to_do(
    chromium: Browser, people: ConsolePeople, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A server wants a key, an address or a provider is not reached: each has its own remedy."""
    away = KnownProvider("openai", "OpenAI", f"http://127.0.0.1:{free_port()}/v1", "https://example.org/keys")
    monkeypatch.setattr(model_trial, "PROVIDERS", {"openai": away, **model_trial.PROVIDERS})
    guarded = GuardedList(KEY)
    async with serve_app(guarded.answer) as place:
        page = await log_in(chromium, people, "owner")
        card = await show_card(page)
        for address, said in ((place, "needs a key"), (f"127.0.0.1:{free_port()}", "that the server runs")):
            await card.get_by_label("Address of the server").fill(address)
            await page.keyboard.press("Enter")
            await expect(card.get_by_role("alert")).to_contain_text(said)
        await card.get_by_role("button", name="OpenAI").press("Enter")
        await card.get_by_label("Key").fill("sk-any")
        await page.keyboard.press("Enter")
        await expect(card.get_by_role("alert")).to_contain_text("PARLOUR_PROXY")


@pytest.mark.parametrize("role", ["member", "admin of the chat"])
async def test_a_member_sees_neither_the_card_nor_the_console(
    chromium: Browser, people: ConsolePeople, role: str
) -> None:
    """Not by its link, and not by its operations: these are refused to their login."""
    page = await log_in(chromium, people, role)
    await page.goto(f"{people.url}#connect")
    await page.reload()
    await expect(page.locator("#state")).to_have_attribute("data-state", "online")
    for hidden in ("#no-model", "#connect", "#connect-open", "#console-link"):
        await expect(page.locator(hidden)).to_be_hidden()
    for name in ("setup status", "setup servers", "setup models", "setup model", "setup restart"):
        assert (await people.call(role, name))[0] == 403
    assert (await people.call("no login", "setup servers"))[0] == 401
    async with people.clients["owner"].post(
        f"{people.url}console/v1/setup/servers", json={}, headers={"Origin": "https://evil.example"}
    ) as answer:
        assert answer.status == 403, "another site's page makes the owner's browser look for servers"


@pytest.mark.parametrize("fault", [ModelFault.UNAUTHORISED, ModelFault.QUOTA, ModelFault.NOT_FOUND, None], ids=str)
async def test_an_owner_s_failure_leads_to_the_card(chromium: Browser, fault: ModelFault | None) -> None:
    """A wrong key, an empty account, no such model, and nothing that answers; a member reads the failure alone."""
    async with open_server(lambda *_: ScriptedAnswer(fault=fault)) as model:
        base = f"http://127.0.0.1:{free_port()}/v1" if fault is None else model.base
        client = open_model(ModelConfig(model="openai/gone", api_base=base))
        environment = {"PARLOUR_WEB__PORT": str(free_port()), "PARLOUR_LLM__ATTEMPTS": "1"}
        async with console_people(model=client, environment=environment) as people:
            for role, count in (("owner", 1), ("member", 0)):
                page = await log_in(chromium, people, role)
                await expect(page.locator("#no-model")).to_be_hidden()
                await page.get_by_role("button", name="New chat").click()
                await send_text(page, "Hello?")
                notice = page.locator(".line:not(.user) .body").last
                await expect(notice).to_contain_text("(ref ")
                await expect(notice.get_by_role("link")).to_have_count(count)
                if not count:
                    assert translate("web.connect") not in await notice.inner_text()
                    continue
                await notice.get_by_role("link", name="Connect a model").click()
                await expect(page.get_by_role("dialog", name="Connect a model")).to_be_visible()
                assert len(page.context.pages) == 1
                await page.keyboard.press("Escape")
                await expect(notice).to_be_visible()  # the conversation is the same


async def test_chat_and_console_link_to_each_other(chromium: Browser, people: ConsolePeople) -> None:
    """The owner goes from the chat to the console and back; its set-up has the card's link, which opens the card."""
    page = await log_in(chromium, people, "owner")
    await page.get_by_role("link", name="Console").click()
    await expect(page.get_by_role("navigation", name="Views")).to_be_visible()
    await page.goto(f"{people.url}console#setup")
    await page.get_by_role("link", name="Connect a model").click()
    await expect(page.get_by_role("dialog", name="Connect a model")).to_be_visible()
    await expect(page).to_have_url(people.url)


async def test_what_cannot_be_saved_is_said_with_its_lines(people: ConsolePeople) -> None:
    """Where the file is TOML, or a variable overrides it, the answer has the variables to set by hand."""
    async with open_server(lambda *_: ScriptedAnswer(text="ok")) as model:
        model.models = ["qwen3:4b"]
        asked = {"model": "qwen3:4b", "api_base": model.base, "api_key": KEY}
        file = people.up.home / "parlour.toml"
        file.write_text("[web]\n", encoding="utf-8")
        try:
            status, body = await people.call("owner", "setup model", **asked)
        finally:
            file.unlink()
        lines = json.loads(body)["error"].splitlines()
        assert (status, lines[-3:]) == (
            400,
            [
                "PARLOUR_LLM__MODEL=openai/qwen3:4b",
                f"PARLOUR_LLM__API_BASE={model.base}",
                "PARLOUR_LLM__API_KEY=<the key>",
            ],
        )
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("PARLOUR_LLM__MODEL", "")
            status, body = await people.call("owner", "setup model", **asked)
        assert (status, "PARLOUR_LLM__MODEL=openai/qwen3:4b" in body, KEY in body) == (400, True, False)
    assert not [*people.up.home.glob("parlour.*"), *people.up.home.glob("secrets")]


async def test_a_saved_key_goes_to_its_own_provider_only() -> None:
    """Another provider, or another address, needs a key of its own; nothing is sent with the saved one."""
    environment = {"PARLOUR_LLM__MODEL": "openai/gpt-5", "PARLOUR_LLM__API_KEY": KEY}
    async with open_server() as model, console_people(environment=environment) as people:
        for arguments in ({"model": "anthropic/claude"}, {"model": "x", "api_base": model.base}):
            status, body = await people.call("owner", "setup model", **arguments)
            assert (status, "the saved key is for another address" in body) == (400, True)
        status, body = await people.call("owner", "setup models", api_base=model.base)
        assert status == 200
        lines = [json.loads(each)["line"] for each in (await people.call("owner", "setup servers"))[1].splitlines()]
        assert {each["provider"]: each["has_key"] for each in lines if "provider" in each} == {
            "openai": True,
            "anthropic": False,
            "gemini": False,
            "openrouter": False,
        }
    assert KEY not in json.dumps(model.headers) + json.dumps(lines)
