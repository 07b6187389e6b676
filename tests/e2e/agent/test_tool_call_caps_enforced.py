"""Daily caps on tool calls through the whole gateway: the model, the person and a restart."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from agent.llm.scripted_model import ScriptEntry
from agent.tools.tool import ToolContext, ToolKind, tool
from gateway.access.usage_caps import UsageCapTracker
from gateway.errors import StoreUnavailable
from gateway.ports.access import ToolAllowance
from tests.e2e.agent.test_tool_questions import OutsideWorld, decide, waiting
from tests.fakes.held_model import HeldScriptModel, calls, results
from tests.fakes.inprocess_gateway import OPEN, gateway


@tool("Read a page.", kind=ToolKind.WEB, name="read_page")
async def numbered_page(context: ToolContext, n: int = 9) -> str:
    """Return a page."""
    return f"page {n}"


async def test_web_calls_end_for_the_day(tmp_path: Path) -> None:
    """The fourth of three is refused, beside others and after a restart; the person reads until when."""
    home, environment = tmp_path / "home", {"PARLOUR_CAPS__TOOLS__WEB": "3"}
    read = ("read_page", "{}")
    several = calls(*(("read_page", f'{{"n": {n}}}') for n in range(4)))
    model = HeldScriptModel(calls(read), "one", several, "three")
    async with gateway(home=home, model=model, tools=[numbered_page], environment=environment, policy=OPEN) as parlour:
        assert await parlour.channel.ask("c", "read it") == "one"
        answer = await parlour.channel.ask("c", "read four")
        refused = "not run: the limit of 3 web calls a day is reached for this person"
        assert results(model.asked[3])[-4:] == ["page 0", "page 1", refused, refused]
        assert answer.startswith("three\n\nYou've used your 3 pages and searches for today.")
        assert "refused: the calls of this kind for today" in await parlour.channel.ask("c", "/tools last")
        await parlour.idle()
    model = HeldScriptModel(calls(read), "none", calls(read), "one")
    async with gateway(home=home, model=model, tools=[numbered_page], environment=environment, policy=OPEN) as parlour:
        assert "3 pages and searches for today" in await parlour.channel.ask("c", "read it")
        assert "You have 0 of 3 pages and searches left" in await parlour.channel.ask("c", "/usage")
        assert await parlour.channel.ask("d", "read it", sender="bob") == "one"


async def test_a_call_that_a_kill_interrupts_counts_once(tmp_path: Path) -> None:
    """Killed while it runs, it runs again under the same key, although it was the last of the day."""
    begun, go = asyncio.Event(), asyncio.Event()

    @tool("Read a page.", kind=ToolKind.WEB, name="read_page")
    async def slow_page(context: ToolContext) -> str:
        begun.set()
        await go.wait()
        return "a page"

    environment = {"PARLOUR_CAPS__TOOLS__WEB": "1"}
    model = HeldScriptModel(calls(("read_page", "{}")), "read")
    async with gateway(model=model, tools=[slow_page], environment=environment, policy=OPEN) as parlour:
        _, answer = await parlour.channel.say("c", "read it")
        await begun.wait()
        await parlour.app.store.check()
        copy = parlour.kill(tmp_path / "copy")
        go.set()
        await answer
    model = HeldScriptModel("read", calls(("read_page", "{}")), "none left")
    async with gateway(home=copy, model=model, tools=[slow_page], environment=environment, policy=OPEN) as parlour:
        (post,) = await parlour.channel.posted("c", 1)
        assert post.text == "read"
        assert results(model.asked[0]) == ["a page"]
        assert "You have 0 of 1 page" in await parlour.channel.ask("c", "/usage")
        assert "none left" in await parlour.channel.ask("c", "again")
        assert "limit of 1 web calls" in results(model.asked[2])[-1]


async def test_acts_that_are_used_up_are_not_asked_about() -> None:
    """An allowed call counts when it runs; after the last one the model reads the limit, and nobody is asked."""
    world = OutsideWorld()
    send: list[ScriptEntry | str] = [calls(("send_letter", '{"to": "bob"}')), "asked"]
    model = HeldScriptModel(*send, "done", *send, *send)
    async with gateway(model=model, tools=[world.tool], environment={"PARLOUR_CAPS__TOOLS__ACT": "1"}) as parlour:
        question = await parlour.channel.ask("c", "write to bob")
        await parlour.channel.ask("c", decide(question))
        await parlour.idle()
        assert "You've used your 1 call for today" in await parlour.channel.ask("c", "write again")
        assert await waiting(parlour) == 0
    assert len(world.sent) == 1


async def test_a_call_that_another_rule_refuses_is_no_refusal_of_the_cap() -> None:
    """The metric counts what the cap refused, also if the limit was reached before."""
    environment = {"PARLOUR_CAPS__TOOLS__WEB": "1", "PARLOUR_TOOLS__RIGHTS": '{"read_page": {"where": ["direct"]}}'}
    read = calls(("read_page", "{}"))
    model = HeldScriptModel(read, "one", read, "not here", read, "none")
    async with gateway(model=model, tools=[numbered_page], environment=environment, policy=OPEN) as parlour:

        def refusals() -> float:
            found = parlour.app.meter.registry.get_sample_value("parlour_cap_refusals_total", {"cap": "web-calls"})
            return found or 0.0

        await parlour.channel.ask("c", "read it")
        await parlour.channel.ask("g", "read it", group=True)
        assert "only in a direct chat" in results(model.asked[3])[-1]
        assert refusals() == 0
        await parlour.channel.ask("c", "read it again")
        assert refusals() == 1


async def test_an_outage_during_calls_side_by_side_costs_no_message(monkeypatch: pytest.MonkeyPatch) -> None:
    """The store fails while several calls of one request are counted: the turn runs again and answers."""
    model = HeldScriptModel(calls(("read_page", '{"n": 1}'), ("read_page", '{"n": 2}')), "read")
    async with gateway(model=model, tools=[numbered_page], policy=OPEN) as parlour:
        count, failed = UsageCapTracker.count_tool_call, [0]

        async def down_twice(tracker: UsageCapTracker, kind: str, **fields: Any) -> ToolAllowance | None:
            if failed[0] < 2:
                failed[0] += 1
                raise StoreUnavailable("the database does not answer")
            return await count(tracker, kind, **fields)

        monkeypatch.setattr(UsageCapTracker, "count_tool_call", down_twice)
        assert await parlour.channel.ask("c", "read both") == "read"
        assert failed == [2]
        assert results(model.asked[-1])[-2:] == ["page 1", "page 2"]
