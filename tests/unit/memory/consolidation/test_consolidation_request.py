"""Asking a provider: what is tried when it refuses, and that nothing it does is raised."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from types import SimpleNamespace
from typing import Any

from agent.llm.model_calls import UnusableAnswer, force_tool
from agent.memory.update.consolidator import TOOL, ConsolidationAnswer, request_consolidation
from gateway.errors import ModelRateLimited, ModelRefused
from tests.fakes.clock import VirtualClock

GOOD = {"history_entry": "[2026-03-06 10:00] Talked.", "memory_update": "- likes tea"}
READ = ConsolidationAnswer("[2026-03-06 10:00] Talked.", "- likes tea")
LINES = ["[2026-03-06 10:00] USER: hi"]


class ScriptedAttempts:
    """A provider that raises or returns what it was given for each call, in turn, and remembers what it was asked."""

    def __init__(self, *does: Any) -> None:
        self.does = list(does)
        self.asked: list[dict[str, Any]] = []

    async def chat(self, **asked: Any) -> Any:
        self.asked.append(asked)
        does = self.does.pop(0)
        if isinstance(does, BaseException):
            raise does
        return does


def calling(arguments: Any = None) -> Any:
    """Return a response that calls the tool."""
    return SimpleNamespace(content=None, tool_calls=[SimpleNamespace(name="save_memory", arguments=arguments or GOOD)])


async def answer(provider: Any) -> ConsolidationAnswer | UnusableAnswer:
    """Ask with a deadline that matters to nobody else."""
    return await request_consolidation(provider, "m", "- old", LINES, deadline=timedelta(seconds=30))


async def test_the_tool_is_forced_first() -> None:
    """One call, when it works."""
    provider = ScriptedAttempts(calling())
    assert await answer(provider) == READ
    [asked] = provider.asked
    assert asked["tool_choice"] == force_tool(TOOL)
    assert asked["model"] == "m"


async def test_a_provider_that_refuses_a_forced_tool_is_asked_with_auto() -> None:
    """Whether it raises that or returns it; then without tools, for the JSON of [004]."""
    text = '{"history_entry": "[2026-03-06 10:00] Talked.", "memory_update": "- likes tea"}'
    error = SimpleNamespace(content="Error: tool_choice is not supported", tool_calls=[], finish_reason="error")
    for refusal in (ModelRefused("no"), RuntimeError("400: tool_choice unsupported"), error):
        provider = ScriptedAttempts(refusal, calling())
        assert await answer(provider) == READ
        assert [asked.get("tool_choice") for asked in provider.asked] == [force_tool(TOOL), "auto"]
    provider = ScriptedAttempts(
        TypeError("unexpected keyword 'tools'"), ModelRefused("no"), SimpleNamespace(content=text)
    )
    assert await answer(provider) == READ
    assert "tools" not in provider.asked[2]
    assert "Return JSON" in provider.asked[2]["messages"][1]["content"]


async def test_what_refuses_everything_gives_a_reason() -> None:
    """After three calls, and no more."""
    provider = ScriptedAttempts(*[ModelRefused("no")] * 3)
    assert await answer(provider) == UnusableAnswer("refused: ModelRefused")


async def test_trouble_is_not_asked_again_at_once() -> None:
    """A busy or broken provider is left in peace."""
    for trouble, reason in (
        (ModelRateLimited("later", delay=timedelta(seconds=1)), "ModelRateLimited"),
        (ConnectionResetError(), "ConnectionResetError"),
        (RuntimeError("boom"), "RuntimeError"),
        (SimpleNamespace(content="Error: overloaded", finish_reason="error"), "the provider's error"),
    ):
        provider = ScriptedAttempts(trouble)
        assert await answer(provider) == UnusableAnswer(reason, is_outage=True)
        assert len(provider.asked) == 1


async def test_hangs_for_minutes(clock: VirtualClock) -> None:
    """There is a deadline per call."""

    class HangingProvider:
        async def chat(self, **asked: Any) -> Any:
            await asyncio.Event().wait()

    assert await answer(HangingProvider()) == UnusableAnswer("TimeoutError", is_outage=True)
    assert clock.seconds == 30
