"""A turn goes on after a stop or is answered again in a new version, and leaves neither files open nor cycles."""

from __future__ import annotations

import asyncio
import gc
import os
import re
import threading
from collections import Counter
from pathlib import Path

import pytest

from agent.memory.search import scope_recall
from agent.tools.tool import AskRule, ToolContext, ToolKind, tool
from gateway.events import SessionKey
from gateway.i18n import translate
from gateway.ports.channel import DisplayedMessage
from tests.e2e.agent.test_consolidation import SummaryModel, at_work, entries, pointers, quiet
from tests.fakes.held_model import HeldScriptModel, calls, users
from tests.fakes.inprocess_gateway import InProcessGateway, InstantModel, gateway

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


CHATS = 8


def open_files(home: Path) -> Counter[str]:
    """Return what descriptors of this process stand in *home*, by kind."""
    found: Counter[str] = Counter()
    for descriptor in Path("/proc/self/fd").iterdir():
        try:
            target = str(descriptor.readlink())
        except OSError:  # the one that lists them
            continue
        if target.startswith(str(home)):
            found[re.sub(r".*/(journal|index)\.db.*|.*/.*(\.jsonl)$", r"\1\2", target)] += 1
    return found


def threads() -> Counter[str]:
    """Return the threads of this process by their pools."""
    return Counter(re.sub(r"[-_ ]?\d+.*", "", each.name) for each in threading.enumerate())


async def work(parlour: InProcessGateway) -> None:
    """Let people of many scopes write, keep something and search."""
    for n in range(2 * CHATS):
        chat = f"c{n % CHATS}"
        await parlour.channel.ask(chat, f"I like number {n}", sender=chat)
        await parlour.channel.ask(chat, f"/remember I own {n} boats", sender=chat)
        await parlour.channel.ask(chat, "/search boats", sender=chat)


async def test_descriptors_return_to_their_level_after_memory_work(monkeypatch: pytest.MonkeyPatch) -> None:
    """Indexes stay open while they are used, a bounded number of them, then close; transcripts are not held open."""
    # A loop that an earlier test of this process killed leaves its threads, which have the same names.
    left_over = threads()["asyncio"]
    async with gateway(model=HeldScriptModel()) as parlour:
        before, threads_before = open_files(parlour.home), threads()
        assert before["journal"] > 0
        await work(parlour)
        during = open_files(parlour.home)
        assert during[".jsonl"] == 0
        assert during["index"] >= CHATS
        grown = threads() - threads_before
        # Pools give no thread back, and have a limit each: asyncio's own, two that search (the second is made when the
        # first is busy) and one that writes.
        assert set(grown) <= {"asyncio", "recall-search", "recall-write"}
        assert threads()["asyncio"] - left_over <= min(32, (os.cpu_count() or 1) + 4)
        assert 1 <= grown["recall-search"] <= 2
        assert grown["recall-write"] == 1
        monkeypatch.setattr(scope_recall, "IDLE", 0.05)
        await parlour.channel.ask("c0", "one more", sender="c0")
        while open_files(parlour.home) - before:  # noqa: ASYNC110 - another thread closes them and rings no event
            await asyncio.sleep(0.01)
        await work(parlour)  # and all of it still works


TURNS = 50


async def test_a_turn_leaves_no_reference_cycle() -> None:
    """Answered turns are freed as they end, so that memory does not grow between two rare collections."""
    async with gateway(model=InstantModel()) as bench:
        await _answer(bench, 5)
        gc.collect()
        gc.disable()
        try:
            await _answer(bench, TURNS)
            found = gc.collect()
        finally:
            gc.enable()
        assert found < TURNS


async def _answer(bench: InProcessGateway, turns: int) -> None:
    for n in range(turns):
        await bench.channel.ask("c", f"message {n}")
    await bench.idle()
