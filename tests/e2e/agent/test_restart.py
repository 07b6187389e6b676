"""A stop in the middle of a turn: it goes on after its last stored step, and nothing happens twice."""

from __future__ import annotations

import asyncio
from pathlib import Path

from agent.tools.tool import AskRule, ToolContext, ToolKind, tool
from gateway.events import SessionKey
from gateway.i18n import translate
from tests.fakes.held_model import HeldScriptModel, calls, users
from tests.fakes.inprocess_gateway import gateway

KEY = SessionKey("pocket", "c")
AT_ONCE = {"PARLOUR_AGENT__SHUTDOWN_GRACE_SECONDS": "0"}


class CountingTool:
    """A tool with effects that counts how often it ran, and can be held."""

    def __init__(self, *, repeatable: bool = False) -> None:
        self.ran = 0
        self.begun = asyncio.Event()
        self.go = asyncio.Event()

        @tool("Boil water.", kind=ToolKind.ACT, ask=AskRule.NEVER, name="boil", repeatable=repeatable)
        async def boil(_: ToolContext) -> str:
            self.ran += 1
            self.begun.set()
            await self.go.wait()
            return "boiled"

        self.tool = boil


async def test_a_killed_turn_goes_on_after_its_last_step(tmp_path: Path) -> None:
    """The tool that ran is not run again, its question is not asked again, and the answer comes once."""
    kettle = CountingTool()
    kettle.go.set()
    first = HeldScriptModel(calls(("boil", "{}"), text="one moment"), held=[2])
    async with gateway(model=first, tools=[kettle.tool]) as parlour:
        await parlour.channel.say("c", "tea please", number="1")
        second = await first.called(2)
        copy = parlour.kill(tmp_path / "copy")
        first.go(2)
    model = HeldScriptModel("here is your tea")
    async with gateway(home=copy, model=model, tools=[kettle.tool]) as parlour:
        posts = await parlour.channel.posted("c", 1)
        await parlour.idle()
        assert [(post.text, post.reply_to) for post in posts] == [("here is your tea", "1")]
        assert kettle.ran == 1
        assert list(model.asked[0].messages) == list(second.messages)
        assert model.asked[0].turn == second.turn
        assert len(model.asked) == 1


async def test_a_stopped_gateway_gives_its_turns_back_with_their_steps(tmp_path: Path) -> None:
    """A chosen stop beyond its grace loses nothing either, and counts no attempt."""
    kettle = CountingTool()
    kettle.go.set()
    home, first = tmp_path / "home", HeldScriptModel(calls(("boil", "{}")), held=[2])
    async with gateway(home=home, model=first, tools=[kettle.tool], environment=AT_ONCE) as parlour:
        await parlour.channel.say("c", "tea please")
        second = await first.called(2)
    model = HeldScriptModel("here is your tea")
    async with gateway(home=home, model=model, tools=[kettle.tool]) as parlour:
        await parlour.channel.posted("c", 1)
        assert kettle.ran == 1
        assert list(model.asked[0].messages) == list(second.messages)


async def test_what_was_steered_in_is_not_lost_between_stamp_and_step(tmp_path: Path) -> None:
    """A kill after a message was taken into the turn and before that was a step: the model reads it all the same."""
    kettle = CountingTool(repeatable=True)
    steering = {"PARLOUR_AGENT__OVERLAP": "steer"}
    async with gateway(
        model=HeldScriptModel(calls(("boil", "{}"))), tools=[kettle.tool], environment=steering
    ) as parlour:
        _, answer = await parlour.channel.say("c", "tea please")
        await kettle.begun.wait()
        await parlour.channel.say("c", "with milk")
        running = parlour.app.pool.turns.get(KEY)
        assert running is not None
        await parlour.app.store.journal.steer(running.lease)
        copy = parlour.kill(tmp_path / "copy")
        kettle.go.set()
        await answer
    model = HeldScriptModel("with milk, then")
    async with gateway(home=copy, model=model, tools=[kettle.tool], environment=steering) as parlour:
        await parlour.channel.posted("c", 1)
        await parlour.idle()
        assert users(model.asked[0]) == ["tea please", "with milk"]
        assert len(parlour.channel.posts["c"]) == 1


async def test_a_loop_that_was_noticed_stays_noticed(tmp_path: Path) -> None:
    """After a kill behind the third equal call the model still has to answer: it is not given another round."""
    same = calls(("memory_search", '{"query": "x"}'))
    first = HeldScriptModel(same, same, same, held=[4])
    async with gateway(model=first) as parlour:
        await parlour.channel.say("c", "go")
        await first.called(4)
        copy = parlour.kill(tmp_path / "copy")
        first.go(4)
    model = HeldScriptModel(same)
    async with gateway(home=copy, model=model) as parlour:
        posts = await parlour.channel.posted("c", 1)
        assert posts[0].text.startswith(translate("failures.loop"))
        assert len(model.asked) == 1


async def test_a_restart_changes_no_byte_of_the_prompt(tmp_path: Path) -> None:
    """The first request after a restart begins with everything the last one was."""
    home, first, second = tmp_path / "home", HeldScriptModel(), HeldScriptModel()
    async with gateway(home=home, model=first) as parlour:
        await parlour.channel.ask("c", "one")
        await parlour.channel.ask("c", "two")
    async with gateway(home=home, model=second) as parlour:
        await parlour.channel.ask("c", "three")
    before = list(first.asked[-1].messages)
    assert list(second.asked[0].messages)[: len(before)] == before
