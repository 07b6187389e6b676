"""A task on each platform through its real library: promised, listed with a button, and ended in the chat once."""

from __future__ import annotations

import asyncio
import json
import time
from datetime import timedelta

import pytest
from playwright.async_api import Browser

from agent.llm.chat_model import ChatReply, ChatRequest, Sink, TokenUsage, ToolCall
from tests.e2e.browser import open_chat
from tests.e2e.discord.test_gateway_discord import open_gateway as discord_gateway
from tests.e2e.platform_talks import DiscordTalk, PageTalk, PlatformTalk, SlackTalk, TelegramTalk
from tests.fakes.discord_server import open_discord
from tests.fakes.inprocess_gateway import InProcessGateway, InstantModel, gateway
from tests.fakes.slack_gateway import open_gateway as slack_gateway
from tests.fakes.slack_server import slack_server
from tests.fakes.telegram_gateway import settings_for
from tests.fakes.telegram_server import open_telegram

ON = {"PARLOUR_TOOLS__TASKS__ENABLED": "true"}
_LOOK = timedelta(seconds=0.05)
PROMISE, FOUND = "I will look into it.", "The second ferry is the cheapest."


class ClerkModel(InstantModel):
    """Starts a task where a person asks for one; in a task it searches, waits for `gate`, and reports."""

    def __init__(self) -> None:
        super().__init__()
        self.gate = asyncio.Event()

    async def complete(self, request: ChatRequest, *, sink: Sink | None = None) -> ChatReply:
        """Call a tool first, then answer."""
        is_task, last = request.turn.startswith("k"), request.messages[-1]
        if last["role"] == "user":
            name, arguments = ("memory_search", {"query": "ferry"}) if is_task else ("task", {"goal": "the ferries"})
            call = ToolCall("c1", name, json.dumps(arguments))
            return ChatReply(text="", tool_calls=(call,), model=self.name, tokens=TokenUsage(1, 1, 0), cost=0.0)
        if is_task:
            await self.gate.wait()
        text = FOUND if is_task else PROMISE
        if sink is not None:
            sink(text)
        return ChatReply(text=text, tool_calls=(), model=self.name, tokens=TokenUsage(1, 1, 0), cost=0.0)


async def live(talk: PlatformTalk, model: ClerkModel, parlour: InProcessGateway) -> None:
    """The life of a task that ends, and of one that is stopped."""
    await talk.say("compare the ferries")
    await talk.wait_shown(PROMISE)
    model.gate.set()
    assert "The task" in await talk.wait_shown(FOUND)
    model.gate.clear()
    await talk.say("and again")
    while not await parlour.app.store.jobs.pending_of("task"):
        await asyncio.wait_for(parlour.app.store.jobs.wait_changed(_LOOK), 10)
    await talk.say("/tasks")
    assert "Stop (1)" in await talk.wait_buttons("Tasks here:")
    (job,) = await parlour.app.store.jobs.pending_of("task")
    await talk.press("Tasks here:", "Stop (1)", f"/tasks stop {job.payload['k']}")
    await talk.wait_shown("is stopped")
    assert await parlour.app.store.jobs.pending_of("task") == ()


async def test_on_telegram() -> None:
    """An inline keyboard."""
    model = ClerkModel()
    async with (
        open_telegram() as server,
        gateway(model=model, environment=settings_for(server) | ON) as parlour,
    ):
        server.now = lambda: int(time.time())
        await live(TelegramTalk(server), model, parlour)
        assert sum(FOUND in post.text for post in server.posts) == 1


async def test_in_slack() -> None:
    """Blocks."""
    model = ClerkModel()
    async with slack_server() as server, slack_gateway(server, model=model, environment=ON) as parlour:
        await live(SlackTalk(server), model, parlour)


async def test_on_discord() -> None:
    """Components."""
    model = ClerkModel()
    async with open_discord() as server, discord_gateway(server, model=model, more=ON) as parlour:
        await live(DiscordTalk(server), model, parlour)


@pytest.mark.asyncio(loop_scope="session")
async def test_on_the_page(chromium: Browser) -> None:
    """Buttons that are clicked."""
    model = ClerkModel()
    async with gateway(model=model, environment=ON) as parlour:
        page = await open_chat(chromium, parlour.app.web.url)
        await live(PageTalk(page), model, parlour)
