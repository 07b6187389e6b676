"""A message that is said anew: the model sees the new version alone, people see both, memory is made of one."""

from __future__ import annotations

import asyncio
from pathlib import Path

from agent.tools.tool import ToolContext, ToolKind, tool
from gateway.events import SessionKey
from gateway.i18n import translate
from gateway.ports.channel import DisplayedMessage
from tests.e2e.agent.test_consolidation import SummaryModel, at_work, entries, pointers, quiet
from tests.fakes.held_model import HeldScriptModel, calls, users
from tests.fakes.inprocess_gateway import InProcessGateway, gateway

KEY = SessionKey("pocket", "c")


async def shown(parlour: InProcessGateway) -> tuple[DisplayedMessage, ...]:
    """Return what people see."""
    return await parlour.app.memory.sessions.displayed_messages(KEY, limit=100)


async def test_the_model_sees_the_new_version_and_people_see_both(tmp_path: Path) -> None:
    """What followed the replaced message leaves the prompt, what was before keeps its bytes, after a restart too."""
    model = HeldScriptModel()
    async with gateway(home=tmp_path, model=model) as parlour:
        await parlour.channel.ask("c", "one", number="m1")
        await parlour.channel.ask("c", "two", number="m2")
        await parlour.channel.ask("c", "three", number="m3")
        await parlour.channel.ask("c", "two, edited", number="m4", replaces="m2")
        assert users(model.asked[3]) == ["one", "two, edited"]
        assert model.asked[3].messages[:3] == model.asked[1].messages[:3]
        await parlour.channel.ask("c", "two, edited", number="m5", replaces="m4")
        assert users(model.asked[4]) == ["one", "two, edited"]
        assert model.asked[4].messages[-1] == model.asked[3].messages[-1]
        lines = [(line.text, line.replaces) for line in await shown(parlour) if line.role == "user"]
        assert lines == [("one", ""), ("two", ""), ("three", ""), ("two, edited", "m2"), ("two, edited", "m4")]
        await parlour.channel.ask("c", "four", number="m6")
    again = HeldScriptModel()
    async with gateway(home=tmp_path, model=again) as parlour:
        await parlour.channel.ask("c", "five", number="m7")
        assert users(again.asked[0]) == ["one", "two, edited", "four", "five"]
        assert again.asked[0].messages[: len(model.asked[5].messages)] == model.asked[5].messages


async def test_retry_replaces_the_last_answer_alone() -> None:
    """The model answers the question again without reading its first answer; /retry of a /retry as well."""
    model = HeldScriptModel()
    async with gateway(model=model) as parlour:
        await parlour.channel.ask("c", "hello")
        await parlour.channel.ask("c", "and?")
        for n in (3, 4):
            await parlour.channel.ask("c", "/retry")
            await model.called(n)
            await parlour.idle()
        assert [users(request) for request in model.asked[2:]] == [["hello", "and?"]] * 2
        assert sum(bool(line.replaces) for line in await shown(parlour)) == 2


async def test_a_new_version_waits_for_the_running_turn_and_steers_nothing() -> None:
    """It is a turn of its own, whatever waits before and after it."""
    model = HeldScriptModel(held=[1])
    async with gateway(model=model, environment={"PARLOUR_AGENT__OVERLAP": "steer"}) as parlour:
        await parlour.channel.say("c", "first", number="m1")
        await model.called(1)
        await parlour.channel.say("c", "first, edited", number="m2", replaces="m1")
        model.go(1)
        await model.called(2)
        await parlour.idle()
        assert [users(request) for request in model.asked] == [["first"], ["first, edited"]]


async def test_what_was_done_is_named_and_kept() -> None:
    """A call that changed something is not undone: the model is told its name; one that only read is gone."""
    done: list[str] = []

    @tool("Note.", kind=ToolKind.KEEP, name="note")
    async def note(_: ToolContext) -> str:
        done.append("note")
        return "noted"

    @tool("Look.", kind=ToolKind.LOOK, name="look")
    async def look(_: ToolContext) -> str:
        return "seen"

    model = HeldScriptModel(calls(("note", "{}"), ("look", "{}")))
    async with gateway(model=model, tools=[note, look]) as parlour:
        await parlour.channel.ask("c", "note it", number="m1")
        await parlour.channel.ask("c", "note it well", number="m2", replaces="m1")
        said = model.asked[-1].messages[-1]["content"]
        assert "said anew; done before and not undone: note] note it well" in said
        assert done == ["note"]
        assert not [message for message in model.asked[-1].messages if message["role"] == "tool"]


async def test_a_message_that_left_the_window_is_answered_as_a_new_one() -> None:
    """Nothing is replaced then, and the answer says so."""
    model = HeldScriptModel(in_turns=True)
    async with gateway(model=model) as parlour:
        await parlour.channel.ask("c", "old", number="m1")
        await parlour.channel.ask("c", "/new")
        await parlour.channel.ask("c", "new", number="m2")
        answer = await parlour.channel.ask("c", "old, edited", number="m3", replaces="m1")
        assert answer.endswith(translate("queue.not_replaced"))
        assert users(model.asked[-1]) == ["new", "old, edited"]
        assert not any(line.replaces for line in await shown(parlour))


async def test_memory_is_made_of_the_version_that_went_on() -> None:
    """A replaced answer that is in no summary never comes into one, and what was summarised is not again."""
    model = SummaryModel()
    async with at_work(model) as parlour:
        for n in range(3):
            await parlour.channel.ask("ann", f"thing {n}", number=f"m{n}")
        await parlour.channel.ask("ann", "thing 1 edited", number="m3", replaces="m1")
        async with asyncio.timeout(30):
            while not pointers(parlour.home):
                await parlour.channel.ask("ann", "go on")
                await quiet(parlour)
        summarised = "".join(model.asked)
        assert "USER: thing 0\n" in summarised
        for gone in ("thing 1\n", "re thing 1\n", "thing 2\n"):
            assert gone not in summarised
        assert [each.end for each in entries(parlour.home)] == pointers(parlour.home)
        for n in range(4):
            await parlour.channel.ask("ann", f"more {n}")
        await quiet(parlour)
        assert "".join(model.asked).count("USER: thing 1 edited") == 1
        assert "USER: thing 2\n" not in "".join(model.asked)
