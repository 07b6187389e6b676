"""Correcting and forgetting in plain words, and /forget with its buttons, on every platform, through the whole gateway.

The model is scripted: it calls `memory_edit` when the person asks, then says "All right." What changed, how to undo it,
and the question whether to erase everywhere come from the gateway.
"""

from __future__ import annotations

import json
import re
import time
from pathlib import Path
from typing import Any

import pytest
from playwright.async_api import Browser, expect

from agent.llm.chat_model import ChatRequest
from agent.llm.scripted_model import ScriptedModel, ScriptEntry
from tests.e2e.browser import open_chat, send_text
from tests.e2e.discord.test_gateway_discord import open_gateway as discord_gateway
from tests.fakes.discord_records import ANN as DISCORD_ANN
from tests.fakes.discord_records import BOT
from tests.fakes.discord_records import buttons as discord_buttons
from tests.fakes.discord_server import open_discord
from tests.fakes.gateway import gateway
from tests.fakes.slack_buttons import buttons as slack_buttons
from tests.fakes.slack_gateway import open_gateway as slack_gateway
from tests.fakes.slack_server import ANN as SLACK_ANN
from tests.fakes.slack_server import BOT_USER, DM, slack_server
from tests.fakes.staged_changes import memory, scope_in
from tests.fakes.telegram_gateway import open_gateway as telegram_gateway
from tests.fakes.telegram_server import open_telegram
from tests.faults.process_pool import ForkServer

MOVED = {"operations": [{"op": "replace", "old": "Lives in Leipzig", "text": "Lives in Dresden"}]}
SMOKES = {"operations": [{"op": "remove", "old": "Smokes"}]}
ALTOGETHER = {"erase": "Dresden"}
SAID = {"no, I moved to Dresden": MOVED, "please forget that I smoke": SMOKES, "forget it altogether": ALTOGETHER}
UNDO = "/memory undo "


def obedient() -> ScriptedModel:
    """Return a model that does what the last message asks for."""

    def script(request: ChatRequest, _: int) -> ScriptEntry:
        last = request.messages[-1]
        found = [] if last["role"] == "tool" else [call for text, call in SAID.items() if text in str(last["content"])]
        if found:
            return ScriptEntry(calls=(("memory_edit", json.dumps(found[0])),))
        return ScriptEntry(text="All right.")

    return ScriptedModel(script)


async def test_on_telegram() -> None:
    """The answers name the change and its undo; the question has buttons, and a yes erases the messages too."""
    async with open_telegram() as server, telegram_gateway(server, obedient()) as parlour:
        server.now = lambda: int(time.time())
        scope = "people/telegram%3a42"

        async def say(text: str, count: int) -> str:
            server.say(text)
            await server.until(lambda: len(server.shown(42)) >= count)
            return server.shown(42)[count - 1]

        await say("/remember Lives in Leipzig", 1)
        await say("/remember Smokes", 2)
        answer = await say("no, I moved to Dresden", 3)
        assert "replaced Lives in Leipzig with Lives in Dresden" in answer
        assert UNDO in answer
        answer = await say("please forget that I smoke", 4)
        assert "removed Smokes" in answer
        assert memory(parlour, scope) == "- Lives in Dresden\n"
        await say("forget it altogether", 5)
        await server.until(lambda: any(post.buttons for post in server.posts))
        (question,) = [post for post in server.posts if post.buttons]
        assert question.buttons == [["Yes", "No"]]
        assert "I would erase 1 remembered line" in question.text
        (change,) = await parlour.app.commands.staging.pending_changes(scope)
        server.buttons.press(question, f"/memory approve {change.name}")
        await server.until(lambda: any(text.startswith("Done. Erased: 1 ") for text in server.shown(42)))
        assert memory(parlour, scope) == ""
        # The command asks the same way.
        await say("/remember Likes tea", len(server.shown(42)) + 1)
        await say("/forget tea", len(server.shown(42)) + 1)
        await server.until(lambda: any(post.buttons for post in server.posts))
        (question,) = [post for post in server.posts if post.buttons]
        (change,) = await parlour.app.commands.staging.pending_changes(scope)
        server.buttons.press(question, f"/memory reject {change.name}")
        await server.until(lambda: not question.buttons)
        assert memory(parlour, scope) == "- Likes tea\n"


async def test_in_slack() -> None:
    """In a direct message, with Slack's blocks."""
    async with slack_server() as server, slack_gateway(server, model=obedient()) as parlour:

        async def say(text: str, count: int) -> str:
            server.say(DM, SLACK_ANN, text)
            await server.until(lambda: len(server.shown(DM)) >= count)
            return str(server.shown(DM)[count - 1])

        await say("!remember Lives in Leipzig", 1)
        await say("!remember Smokes", 2)
        answer = await say("no, I moved to Dresden", 3)
        assert "Lives in Dresden" in answer
        assert "memory undo " in answer
        assert "Smokes" in await say("please forget that I smoke", 4)
        scope = await scope_in(parlour, f"slack:{DM}")
        assert memory(parlour, scope) == "- Lives in Dresden\n"
        await say("!forget Dresden", 5)
        asked = [each for each in server.places[DM].messages if each["user"] == BOT_USER and slack_buttons(each)]
        assert slack_buttons(asked[0]) == [["Yes", "No"]]
        server.press(DM, SLACK_ANN, asked[0], "Yes")
        await server.until(lambda: any("Erased: 1 remembered line" in text for text in server.shown(DM)))
        assert memory(parlour, scope) == ""


async def test_on_discord() -> None:
    """In a direct message, with Discord's components."""
    async with open_discord() as discord, discord_gateway(discord, model=obedient()) as parlour:
        direct = discord.direct(DISCORD_ANN)

        async def say(text: str, count: int) -> str:
            discord.say(direct, DISCORD_ANN, text)
            await discord.until(lambda: len(discord.chat(direct)) >= count)
            return str(discord.chat(direct)[count - 1])

        await say("!remember Lives in Leipzig", 1)
        await say("!remember Smokes", 2)
        answer = await say("no, I moved to Dresden", 3)
        assert "Lives in Dresden" in answer
        assert UNDO in answer
        assert "Smokes" in await say("please forget that I smoke", 4)
        scope = await scope_in(parlour, f"discord:{direct}")
        assert memory(parlour, scope) == "- Lives in Dresden\n"
        await say("!forget Dresden", 5)
        asked: list[dict[str, Any]] = [
            each for each in discord.messages[direct] if each["author"]["id"] == BOT and discord_buttons(each)
        ]
        assert discord_buttons(asked[0]) == [["Yes", "No"]]
        (change,) = await parlour.app.commands.staging.pending_changes(scope)
        discord.interactions.press(asked[0]["id"], DISCORD_ANN, f"/memory approve {change.name}")
        await discord.until(lambda: any("Erased: 1 remembered line" in text for text in discord.chat(direct)))
        assert memory(parlour, scope) == ""


def write_script(path: Path) -> str:
    """Write the model's answers to two messages; return the setting that names them."""
    answers = [
        each
        for call in (MOVED, SMOKES)
        for each in ({"calls": [{"name": "memory_edit", "arguments": call}]}, "All right.")
    ]
    path.write_text(json.dumps(answers))
    return f"scripted:{path}"


@pytest.mark.asyncio(loop_scope="session")
async def test_on_the_page(tmp_path: Path, zygote: ForkServer, chromium: Browser) -> None:
    """In a real browser: the answers, and a question whose button Yes is clicked."""
    model = write_script(tmp_path / "script.json")
    async with gateway(tmp_path / "home", zygote, PARLOUR_LLM__MODEL=model) as process:
        page = await open_chat(chromium, process.url)
        answers = page.locator(".line:not(.user) .body")

        async def say(text: str, count: int) -> str:
            await send_text(page, text)
            await expect(answers).to_have_count(count)
            await expect(page.locator(".line.streaming")).to_have_count(0)
            return str(await answers.nth(count - 1).text_content())

        await say("/remember Lives in Leipzig", 1)
        await say("/remember Smokes", 2)
        answer = await say("no, I moved to Dresden", 3)
        assert "replaced Lives in Leipzig with Lives in Dresden" in answer
        assert UNDO in answer
        assert "removed Smokes" in await say("please forget that I smoke", 4)
        assert "I would erase 1 remembered line" in await say("/forget Dresden", 5)
        await page.get_by_role("button", name="Yes").click()
        await expect(answers).to_have_count(6)
        await expect(answers.nth(5)).to_contain_text("Erased: 1 remembered line")
        await expect(page.locator(".buttons")).to_have_count(0)


async def test_in_the_terminal(tmp_path: Path, zygote: ForkServer) -> None:
    """Without buttons the question names the command to type."""
    model = write_script(tmp_path / "script.json")
    async with gateway(tmp_path / "home", zygote, PARLOUR_LLM__MODEL=model) as process:

        async def chat(*lines: str) -> str:
            code, printed = await process.run_to_its_end("chat", typed="".join(f"{line}\n" for line in lines))
            assert code == 0, printed
            return printed

        printed = await chat(
            "/remember Lives in Leipzig",
            "/remember Smokes",
            "no, I moved to Dresden",
            "please forget that I smoke",
            "/forget Dresden",
        )
        assert "replaced `Lives in Leipzig` with `Lives in Dresden`" in printed
        assert UNDO in printed
        assert "removed `Smokes`" in printed
        assert "I would erase 1 remembered line" in printed
        found = re.search(r"/memory approve f[a-z2-7]{16}", printed)
        assert found, printed
        assert "Erased: 1 remembered line" in await chat(found[0])
