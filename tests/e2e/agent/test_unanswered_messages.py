"""Every way a message can end without an answer: each is told, once, and none disappears."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from agent.llm.scripted_model import ScriptEntry
from agent.tools.tool import ToolContext, ToolKind, tool
from gateway.admission import AdmissionPolicy
from gateway.events import InboundKind, SessionKey, short_turn_id
from gateway.i18n import translate
from gateway.i18n.failures import BY_NAME, FAILURES, failure_line
from gateway.ports.channel import IntakeVerdict
from tests.fakes.held_model import HeldScriptModel, calls, users
from tests.fakes.inprocess_gateway import OPEN, InProcessGateway, gateway
from tests.fakes.time_server import open_time_server

KEY = SessionKey("pocket", "c")


async def history(parlour: InProcessGateway, chat: str = "c") -> list[tuple[str, str]]:
    """Return role and text of what people see."""
    return [
        (line.role, line.text)
        for line in await parlour.app.memory.sessions.displayed_messages(SessionKey("pocket", chat), limit=100)
    ]


def figure(parlour: InProcessGateway, name: str, **labels: str) -> float:
    """Return one figure of /metrics."""
    return parlour.app.meter.registry.get_sample_value(f"parlour_{name}_total", labels) or 0.0


async def test_what_waited_more_than_a_day_is_told_once_per_chat() -> None:
    """After a long absence each chat reads one line; what comes now is answered; the next absence is told again."""
    model = HeldScriptModel()
    old = datetime.now(UTC) - timedelta(hours=25)
    async with gateway(model=model) as parlour:
        for n in range(3):
            await parlour.channel.say("c", f"old {n}", sent_at=old + timedelta(seconds=n))
        await parlour.channel.say("d", "old too", sent_at=old)
        await parlour.idle()
        assert await parlour.channel.ask("c", "new") == "answer 1"
        assert [post.text for post in parlour.channel.posts["c"]] == [translate("queue.expired"), "answer 1"]
        assert [post.text for post in parlour.channel.posts["d"]] == [translate("queue.expired")]
        assert users(model.asked[0]) == ["new"]
        await parlour.channel.say("c", "old again", sent_at=old)
        await parlour.idle()
        assert [post.text for post in parlour.channel.posts["c"]][-1] == translate("queue.expired")
        assert await history(parlour, "d") == [("user", "old too"), ("notice", translate("queue.expired"))]


async def test_a_clock_days_ahead_is_not_told_to_every_chat() -> None:
    """What people write now looks days old to such a machine: a server is asked, the message answered, the log told."""
    days = timedelta(days=3)
    async with open_time_server(datetime.now(UTC) - days) as server:
        environment = {"PARLOUR_LLM__API_BASE": server.base, "PARLOUR_LLM__MODEL": "stage"}
        async with gateway(model=HeldScriptModel(), environment=environment) as parlour:
            for n in range(2):
                text = await parlour.channel.ask("c", f"now {n}", sent_at=datetime.now(UTC) - days)
                assert text == f"answer {n + 1}"
            assert len(server.paths) == 1
            assert await parlour.channel.ask("d", "old", sent_at=datetime.now(UTC) - 2 * days) == translate(
                "queue.expired"
            )


async def test_who_was_revoked_while_waiting_is_told(tmp_path: Path) -> None:
    """Admission is judged again at claim: the message is refused, its sender reads why, the model sees nothing."""
    home, first, second = tmp_path / "home", HeldScriptModel(held=[1]), HeldScriptModel()
    environment = {"PARLOUR_AGENT__SHUTDOWN_GRACE_SECONDS": "0"}
    async with gateway(home=home, model=first, policy=OPEN, environment=environment) as parlour:
        await parlour.channel.say("c", "hello")
        await first.called(1)
    async with gateway(home=home, model=second, policy=AdmissionPolicy(channel="pocket")) as parlour:
        posts = await parlour.channel.posted("c", 1)
        await parlour.idle()
        assert [post.text for post in posts] == [translate("commands.revoked")]
        assert second.asked == []
        assert figure(parlour, "turns", outcome="refused") == 1


async def test_a_poison_message_runs_alone_and_is_set_aside_after_three_attempts(tmp_path: Path) -> None:
    """Five crashes: twice as usual, three times alone; then it is dead-lettered, told, and its neighbour answered."""
    home = tmp_path / "home0"
    for n in range(5):
        model = HeldScriptModel(held=[1, 2])
        async with gateway(home=home, model=model) as parlour:
            if n == 0:
                await parlour.channel.say("c", "poison")
            await model.called(1)
            home = parlour.kill(tmp_path / f"home{n + 1}")
            model.go(1)
            model.go(2)
    model = HeldScriptModel()
    async with gateway(home=home, model=model) as parlour:
        posts = await parlour.channel.posted("c", 1)
        assert await parlour.channel.ask("c", "fine") == "answer 1"
        assert len(posts) == 2
        turn = reference_in(posts[0].text)
        assert posts[0].text == failure_line(BY_NAME["poison"], turn)
        story = await parlour.app.store.journal.trace(turn)
        assert story is not None
        assert [letter.reason for letter in story.dead] == ["poison"]
        assert users(model.asked[0]) == ["fine"]
        assert figure(parlour, "turn_failures", failure="poison") == 1
        assert ("user", "poison") in await history(parlour)


def reference_in(text: str) -> str:
    """Return the reference at the end of a line."""
    return text.rpartition("(ref ")[2].rstrip(")")


@tool("Break inside.", kind=ToolKind.LOOK, name="breaks")
async def breaks(_: ToolContext) -> str:
    """Raise what no tool may raise."""
    raise ZeroDivisionError


@pytest.mark.parametrize("name", [failure.name for failure in FAILURES if failure.error and failure.name != "bug"])
async def test_each_failure_of_the_model_is_one_line_with_a_reference(name: str) -> None:
    """Whatever the model fails with, its sentence of the table is said once, and the reference tells the story."""
    model = HeldScriptModel(*[ScriptEntry(error=name)] * 2)
    async with gateway(model=model, environment={"PARLOUR_LLM__ATTEMPTS": "1"}) as parlour:
        text = await parlour.channel.ask("c", "hello")
        turn = reference_in(text)
        assert text == failure_line(BY_NAME[name], turn)
        story = await parlour.app.store.journal.trace(turn)
        assert story is not None
        assert story.record is not None
        assert (story.record["failure"], story.record["outcome"]) == (name, "answered")
        assert short_turn_id(story.turn) == turn
        assert figure(parlour, "turn_failures", failure=name) == 1
        assert await history(parlour) == [("user", "hello"), ("notice", text)]
        assert len(parlour.channel.posts["c"]) == 1


async def test_a_model_that_says_nothing_at_all_is_told_like_an_empty_one() -> None:
    """A plug-in that breaks its promise (no text, no call) still leaves one visible line."""

    class SilentModel(HeldScriptModel):
        async def complete(self, request: Any, *, sink: Any = None) -> Any:
            reply = await super().complete(request, sink=sink)
            return type(reply)(text=" ", tool_calls=(), model="x", tokens=reply.tokens, cost=None)

    async with gateway(model=SilentModel()) as parlour:
        text = await parlour.channel.ask("c", "hello")
        assert text == failure_line(BY_NAME["empty"], reference_in(text))


async def test_a_bug_in_a_turn_is_told_and_can_be_tried_again() -> None:
    """What raises inside is dead-lettered with one line; what was said stays in the history, and /retry finds it."""

    class FailingStream(HeldScriptModel):
        async def complete(self, request: Any, *, sink: Any = None) -> Any:
            if not self.asked:
                self.asked.append(request)
                raise KeyError("a bug")
            return await super().complete(request, sink=sink)

    model = FailingStream()
    async with gateway(model=model) as parlour:
        text = await parlour.channel.ask("c", "hello")
        assert text == failure_line(BY_NAME["bug"], reference_in(text))
        assert await history(parlour) == [("user", "hello"), ("notice", text)]
        assert await parlour.channel.ask("c", "/retry") == translate("commands.retry")
        posts = await parlour.channel.posted("c", 3)
        assert posts[2].text == "answer 2"
        assert users(model.asked[1]) == ["hello"]


async def test_a_tool_that_breaks_is_told_to_the_model_not_to_people() -> None:
    """A tool's own bug is a result like any other; the turn goes on to its answer."""
    model = HeldScriptModel(calls(("breaks", "{}")), "I could not do that")
    async with gateway(model=model, tools=[breaks]) as parlour:
        assert await parlour.channel.ask("c", "break") == "I could not do that"


async def test_an_infinite_tool_loop_ends_with_one_line() -> None:
    """The same call a third time, or the twenty-sixth call, is not run; a model that goes on is told to people."""
    same = HeldScriptModel(*[calls(("memory_search", '{"query": "x"}'))] * 40)
    async with gateway(model=same) as parlour:
        text = await parlour.channel.ask("c", "go")
        assert text == failure_line(BY_NAME["loop"], reference_in(text))
        assert len(same.asked) == 4
    other = HeldScriptModel(*[calls(("memory_search", f'{{"query": "{n}"}}')) for n in range(40)])
    async with gateway(model=other) as parlour:
        text = await parlour.channel.ask("c", "go")
        assert text == failure_line(BY_NAME["loop"], reference_in(text))
        assert len(other.asked) == 26


async def test_thirty_calls_at_once_are_twenty_five() -> None:
    """A reply that asks for more calls than there may be gets results for all, and runs the first twenty-five."""
    ran: list[str] = []

    @tool("Count.", kind=ToolKind.LOOK, name="tick")
    async def tick(_: ToolContext, n: int) -> str:
        ran.append(str(n))
        return f"ran {n}"

    model = HeldScriptModel(calls(*[("tick", f'{{"n": {n}}}') for n in range(30)]), "done")
    async with gateway(model=model, tools=[tick]) as parlour:
        assert await parlour.channel.ask("c", "go") == "done"
        assert len(ran) == 25
        results = [message for message in model.asked[1].messages if message["role"] == "tool"]
        assert len(results) == 30


async def test_a_deletion_behind_a_turned_away_message_is_not_lost() -> None:
    """What takes an earlier message back is heeded although the turn it rides with is not answered."""
    model = HeldScriptModel()
    async with gateway(model=model) as parlour:
        await parlour.channel.ask("c", "the code is 4711", number="7")
        from_the_past = datetime.now(UTC) - timedelta(days=2)
        await delete(parlour, "7")
        await parlour.channel.say("c", "old", sent_at=from_the_past)
        await parlour.idle()
        await parlour.channel.ask("c", "next")
        assert users(model.asked[1])[0] == "[forgotten]"


async def delete(parlour: InProcessGateway, number: str) -> None:
    """Take a message back on the platform."""
    await parlour.channel.say("c", "", number=number, kind=InboundKind.DELETION)


async def test_stopping_at_any_moment_leaves_the_lane_alive() -> None:
    """/stop twice in a row ends the turn once, and the chat answers on."""
    model = HeldScriptModel(held=[1])
    async with gateway(model=model) as parlour:
        await parlour.channel.say("c", "long")
        await model.called(1)
        await asyncio.gather(
            parlour.app.pool.turns.stop(KEY), parlour.app.pool.turns.stop(KEY), parlour.app.pool.turns.stop(KEY)
        )
        assert await parlour.channel.ask("c", "next") == "answer 2"


@pytest.mark.parametrize("text", ["", " \n\t", "\u200b", "\u2800 \u3164", "\ufeff\u00ad\u202e", "\u2060\ufe0f"])
async def test_a_message_that_shows_nothing_is_no_question(text: str) -> None:
    """Invisible characters alone cost no call of the model; their sender gets a line now and then."""
    model = HeldScriptModel()
    async with gateway(model=model) as parlour:
        result, _ = await parlour.channel.say("c", text)
        assert (result.verdict, result.line) == (IntakeVerdict.REJECTED, translate("files.unreadable"))
        await parlour.channel.ask("c", "👍🏽")
        await parlour.channel.ask("c", "\U0001fae8")  # which the tables of Python 3.11 do not have
    assert [users(request)[-1] for request in model.asked] == ["👍🏽", "\U0001fae8"]
