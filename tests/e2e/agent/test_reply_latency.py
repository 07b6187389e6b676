"""Issue 4, point 2, on virtual time: a summary takes half a minute, and nobody's answer takes a moment longer."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from datetime import datetime
from pathlib import Path

import pytest

from agent.llm.chat_model import ChatReply, ChatRequest, Sink, TokenUsage, ToolCall
from gateway.app import composition
from gateway.settings import Settings
from gateway.store.objects import ObjectStore
from gateway.store.sql_store import SqlStore
from tests.fakes.chat_model import FakeChatModel
from tests.fakes.clock import VirtualClock
from tests.fakes.inprocess_gateway import InProcessGateway, gateway
from tests.fakes.store import open_inline_store

SCOPE = "people/pocket%3aann"
SLOW = 30.0  # seconds that the model takes for a summary, and for a flush


class SlowSummaryModel(FakeChatModel):
    """Answers in a second; takes half a minute for anything that nobody waits for."""

    name = "thoughtful"

    def __init__(self) -> None:
        self.thinking = 0
        self.longest = 0

    async def complete(self, request: ChatRequest, *, sink: Sink | None = None) -> ChatReply:
        """Answer, or summarise."""
        if request.purpose == "answer":
            self.longest = max(self.longest, request.weight)
            await asyncio.sleep(1)
            return ChatReply(text="yes", tool_calls=(), model=self.name, tokens=TokenUsage(1, 1), cost=0.0)
        self.thinking += 1
        await asyncio.sleep(SLOW)
        if request.purpose == "flush":
            return ChatReply(text="- a fact", tool_calls=(), model=self.name, tokens=TokenUsage(1, 1), cost=0.0)
        saved = json.dumps({"history_entry": "They talked.", "memory_update": "- they talked"})
        calls = (ToolCall("c", "save_memory", saved),)
        return ChatReply(text="", tool_calls=calls, model=self.name, tokens=TokenUsage(1, 1), cost=0.0)


async def measure_answer(parlour: InProcessGateway, clock: VirtualClock, chat: str, text: str) -> float:
    """Ask, and return how long the answer took."""
    begun = clock.seconds
    assert await parlour.channel.ask(chat, text) == "yes"
    return clock.seconds - begun


@pytest.fixture(autouse=True)
def threadless(monkeypatch: pytest.MonkeyPatch) -> None:
    """Give the gateway a store without a thread: virtual time does not see threads."""

    @asynccontextmanager
    async def opened(
        _: Settings, *, has_served: bool, now: Callable[[], datetime], objects: ObjectStore | None
    ) -> AsyncIterator[SqlStore]:
        assert objects is None
        store = await open_inline_store(clock=now)
        yield store
        await store.close(has_served=has_served)

    monkeypatch.setattr(composition, "open_store", opened)


@pytest.mark.parametrize("trigger", ["messages", "tokens"])
async def test_answers_keep_their_latency_while_the_past_is_summarised(
    clock: VirtualClock, tmp_path: Path, trigger: str
) -> None:
    """In the same chat and in others; also when the budget is passed before the summary has come."""
    settings = {
        "messages": {"PARLOUR_AGENTS__DEFAULTS__MEMORY_WINDOW": "10"},
        "tokens": {
            "PARLOUR_AGENTS__DEFAULTS__MEMORY_WINDOW": "10000",
            "PARLOUR_LLM__CONTEXT_WINDOW": "5000",
            "PARLOUR_CHATS": '{"pocket:*": {"tools": {"allow": []}}}',  # the window is for the conversation
        },
    }
    model, home = SlowSummaryModel(), tmp_path / "home"
    async with gateway(model=model, home=home, environment=settings[trigger]) as parlour:
        took: dict[bool, list[float]] = {False: [], True: []}  # by whether a summary was being thought about
        for n in range(40):
            chat = ("ann", "ann", "bob")[n % 3]
            is_thinking = bool(parlour.app.background.running)
            took[is_thinking].append(
                await measure_answer(parlour, clock, chat, f"thing {n}: " + "and more words " * 30)
            )
        assert len(took[True]) > 10
        assert len(took[False]) > 2
        assert max(took[True]) <= max(took[False]) + 0.1
        assert model.thinking >= 2
        begun = clock.seconds
        while not await parlour.app.store.history.after(SCOPE):
            await asyncio.sleep(SLOW)
            assert clock.seconds - begun < 20 * SLOW
        if trigger == "tokens":
            assert model.longest <= await parlour.app.models.default.prompt_limit()


async def test_new_that_waits_waits_for_every_round(clock: VirtualClock, tmp_path: Path) -> None:
    """`memory.new_waits`: what does not fit one question is in the history, all of it, when the answer comes."""
    model, home = SlowSummaryModel(), tmp_path / "home"
    settings = {"PARLOUR_MEMORY__NEW_WAITS": "true", "PARLOUR_LLM__CONTEXT_WINDOW": "4000"}
    settings |= {"PARLOUR_TOOLS__MEMORY_FLUSH__ENABLED": "false", "PARLOUR_AGENTS__DEFAULTS__MEMORY_WINDOW": "10000"}
    async with gateway(model=model, home=home, environment=settings) as parlour:
        for n in range(4):
            await measure_answer(parlour, clock, "ann", f"thing {n}: " + "and more words " * 250)
        assert await parlour.channel.ask("ann", "/new") == "New session started."
        entries = await parlour.app.store.history.after(SCOPE)
        assert len(entries) > 1
        assert [0, *(each.end for each in entries)] == [*(each.start for each in entries), 8]
