"""The page before the whole gateway, a process of its own."""

from __future__ import annotations

from pathlib import Path

import aiohttp
import pytest
from playwright.async_api import Browser, FilePayload, expect

from channels.web.windows import NEWEST_TURNS
from gateway.i18n import translate
from gateway.installation import operator_command
from tests.benchmarks.page_speed import write_conversation
from tests.e2e.browser import open_chat, send_text
from tests.fakes.gateway import gateway
from tests.faults.process_pool import ForkServer

pytestmark = pytest.mark.asyncio(loop_scope="session")


async def test_a_fresh_home_answers_a_typed_message(tmp_path: Path, chromium: Browser) -> None:
    """No key, no configuration: open the page, type, read the answer, reload, read it again; stop cleanly."""
    async with gateway(tmp_path / "home") as process:
        page = await open_chat(chromium, process.url)
        await send_text(page, "Good evening")
        await expect(page.locator(".line.user .mark")).to_have_text("✓")
        await expect(page.locator(".line.assistant .body")).not_to_be_empty()
        await page.reload()
        await expect(page.locator(".line.user .body")).to_have_text("Good evening")
        await expect(page.locator(".line.assistant")).to_have_count(1)
        await send_text(page, "/status")
        await expect(page.locator(".line.notice, .line.command")).to_have_count(1)
        assert await process.stop() == 0


async def test_without_a_model_the_pages_own_suggestions_are_answered(
    tmp_path: Path, chromium: Browser, zygote: ForkServer
) -> None:
    """Each says something that helps, and all of them together, and what follows, say once how a model is set up."""
    async with gateway(tmp_path / "home", zygote) as process:
        page = await open_chat(chromium, process.url)
        suggestions = await page.locator(".chip").all_inner_texts()
        assert suggestions == ["/start", "What can you do?", "/status"]
        await page.locator(".chip").first.click()
        answers = page.locator(".line:not(.user) .body")
        await expect(answers).to_have_count(1)
        for n, text in enumerate((*suggestions[1:], "Good evening", "What can you do?", "remember that I like tea"), 2):
            await send_text(page, text)
            await expect(answers).to_have_count(n)
            await expect(page.locator(".line.streaming")).to_have_count(0)
        await expect(answers.last).to_contain_text("I like tea")
        told = await answers.all_text_contents()  # lines out of sight have no inner text
        start, abilities, status, evening, again, _ = told
        assert "What can you do?" in start
        assert "What can you do?" in status
        assert "/search" in abilities
        assert "/search" in again
        assert "don't remember anything" in evening
        command = operator_command("init")
        assert [each.count(command) for each in told] == [0, 1, 0, 0, 0, 0]


async def test_a_file_from_the_page_is_there_for_its_turn_and_afterwards(
    tmp_path: Path, chromium: Browser, zygote: ForkServer
) -> None:
    """Added, the gateway killed, the message sent, the turn run, the page reloaded: the file is a link to its bytes."""
    async with gateway(tmp_path / "home", zygote) as process:
        page = await open_chat(chromium, process.url)
        await page.locator("#files").set_input_files(
            FilePayload(name="notes.txt", mimeType="text/plain", buffer=b"the door code is 4711")
        )
        await expect(page.locator('#attached [data-state="ready"]')).to_have_count(1)
        await process.kill()
        await expect(page.locator("#state")).to_have_attribute("data-state", "offline")
        await send_text(page, "keep this")
        await process.start()
        await expect(page.locator(".line.user .mark")).to_have_text("✓")
        await expect(page.locator(".line.assistant:not(.streaming)")).to_have_count(1)
        await page.reload()
        await expect(page.locator(".line.user .body")).to_have_text("keep this")
        async with page.expect_download() as download:
            await page.locator(".line.user a.file").click()
        assert (await (await download.value).path()).read_bytes() == b"the door code is 4711"


async def test_in_a_container_log_and_page_name_the_container_s_command(tmp_path: Path, zygote: ForkServer) -> None:
    """Where the page is as compose publishes it, and the command that prints a login code, as it is typed there."""
    command = "docker compose exec parlour parlour web login"
    settings = {"PARLOUR_WEB__LOGIN": "always", "PARLOUR_WEB__PUBLISHED_PORT": "9000", "container": "oci"}
    async with gateway(tmp_path / "home", zygote, **settings) as process, aiohttp.ClientSession() as session:
        await process.wait_logged(command)
        assert "Parlour is ready: http://127.0.0.1:9000/" in process.log
        async with session.get(process.url) as answer:
            assert f">{command}</pre>" in await answer.text()
        assert "a gateway is running on this home" in await process.command("doctor", "--offline")


async def test_a_code_from_the_command_line_lets_a_browser_in(
    tmp_path: Path, chromium: Browser, zygote: ForkServer
) -> None:
    """`parlour web login` prints a code while the gateway runs; the page takes it."""
    async with gateway(tmp_path / "home", zygote, PARLOUR_WEB__LOGIN="always") as process:
        page = await chromium.new_page()
        await page.goto(process.url)
        await expect(page.locator("#login")).to_be_visible()
        printed = await process.command("web", "login")
        code = next(word for word in printed.split() if len(word) == 9 and word[4] == "-")
        await page.locator("#code").fill(code)
        await page.locator("#code").press("Enter")
        await expect(page.locator("#state")).to_have_attribute("data-state", "online")
        assert not [line for line in process.log if code in line]


async def test_health_and_metrics_of_the_whole_house(tmp_path: Path, zygote: ForkServer) -> None:
    """Ready means ready, and the figures are there to be scraped."""
    async with gateway(tmp_path / "home", zygote) as process, aiohttp.ClientSession() as session:
        async with session.get(f"{process.url}readyz") as answer:
            assert answer.status == 200
            assert (await answer.json())["ready"]
        async with session.get(f"{process.url}metrics") as answer:
            assert "parlour_queued 0.0" in await answer.text()


async def test_what_was_said_before_new_is_still_there(tmp_path: Path, chromium: Browser, zygote: ForkServer) -> None:
    """/new draws a line in every window at once, and after a kill and a reload all of it is there, once."""
    async with gateway(tmp_path / "home", zygote) as process:
        page, other = await chromium.new_page(), await chromium.new_page()
        for each in (page, other):
            await each.goto(process.url)
            await expect(each.locator("#state")).to_have_attribute("data-state", "online")
        for n, text in enumerate(("before", "/new", "after", "/new", "at last")):
            await send_text(page, text)
            await expect(page.locator(".line:not(.user):not(.streaming)")).to_have_count(n + 1)
            if text == "/new":
                for each in (page, other):
                    await expect(each.locator(".divider")).to_have_count((n + 1) // 2)
        said = ["before", "/new", "after", "/new", "at last"]
        await process.kill()
        await process.start()
        await page.reload()
        await expect(page.locator(".line.user .body")).to_have_text(said)
        # Behind an unclean stop a notice tells the owner of it, to whatever windows are open by then.
        await expect(page.locator(".line:not(.user, .notice)")).to_have_count(5)
        await expect(page.locator("#lines > .divider + .line.user .body")).to_have_text(["after", "at last"])
        await expect(page.locator(".divider").first).to_have_text(translate("web.divider"))


async def test_a_long_conversation_opens_at_its_end_and_goes_back_to_its_beginning(
    tmp_path: Path, chromium: Browser, zygote: ForkServer
) -> None:
    """The page draws the newest messages, and the rest as a reader comes to it: nothing twice, nothing missing."""
    home = tmp_path / "home"
    await write_conversation(home, 500, "answer {}".format)
    async with gateway(home, zygote) as process:
        page = await chromium.new_page()
        await page.goto(process.url)
        await expect(page.locator(".line .body").last).to_have_text("answer 499")
        assert await page.locator(".line").count() <= 2 * NEWEST_TURNS
        # Counted in the page: a locator looks at the text of every line, every time.
        lines = "document.querySelectorAll('.line').length"
        while (count := int(await page.evaluate(lines))) < 1_000:
            await page.locator("#scroller").evaluate("it => it.scrollTo(0, 0)")
            await page.wait_for_function(f"count => {lines} > count", arg=count)
        texts = await page.locator(".line .body").evaluate_all("them => them.map((each) => each.textContent.trim())")
        assert texts == [f"{word} {n}" for n in range(500) for word in ("question", "answer")]
