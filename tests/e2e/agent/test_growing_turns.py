"""A thought in several messages is one question: what its sender writes right behind it is taken into the turn."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from agent.llm.chat_model import ChatReply, ChatRequest, Sink
from gateway.events import InboundKind, edit_revision
from gateway.settings.settings_model import AgentSettings
from tests.fakes.held_model import HeldScriptModel, users
from tests.fakes.inprocess_gateway import InProcessGateway, gateway

BURST = {"PARLOUR_AGENT__MERGE": "burst"}


def test_it_is_the_default() -> None:
    """An installation merges, and has room for what one chat writes in a flood."""
    assert (AgentSettings().merge, AgentSettings().queued_per_chat) == ("burst", 300)


async def test_a_comment_and_what_it_is_about_are_one_question() -> None:
    """The model is asked again, once, with all that came within a moment; the first request is in the usage."""
    model = HeldScriptModel(held=[1])
    async with gateway(model=model, environment=BURST) as parlour:
        await parlour.channel.say("c", "what do you think of this?")
        await model.called(1)
        await parlour.channel.say("c", "the first half")
        await parlour.channel.say("c", "the second half")
        (post,) = await parlour.channel.posted("c", 1)
        assert post.text == "answer 2"
        assert users(model.asked[1]) == ["what do you think of this?", "the first half", "the second half"]
        await parlour.idle()
        assert len(parlour.channel.posts["c"]) == 1
        now = datetime.now(UTC)
        used = await parlour.app.store.usage.by("purpose", since=now - timedelta(days=1), until=now, zone="UTC")
        assert [row["calls"] for row in used if row["purpose"] == "answer"] == [2]


async def test_one_message_alone_waits_for_nothing() -> None:
    """Its model is asked once, at once."""
    model = HeldScriptModel()
    async with gateway(model=model, environment=BURST) as parlour:
        assert await parlour.channel.ask("c", "hello") == "answer 1"
        assert len(model.asked) == 1


async def test_a_command_behind_it_is_no_part_of_it() -> None:
    """It runs behind the turn, as it was typed."""
    model = HeldScriptModel(held=[1])
    async with gateway(model=model, environment=BURST) as parlour:
        await parlour.channel.say("c", "hello")
        await model.called(1)
        await parlour.channel.say("c", "/new")
        model.go(1)
        await parlour.idle()
        assert len(model.asked) == 1


async def test_after_a_moment_a_message_waits_for_its_own_turn() -> None:
    """Later ones are answered together behind the running turn, and the running request is not repeated."""
    model = HeldScriptModel(held=[1])
    async with gateway(model=model, environment=BURST) as parlour:
        await parlour.channel.say("c", "hello")
        await model.called(1)
        await asyncio.sleep(1.6)  # the time that is promised
        for text in ("one more thing", "and another"):
            _, answer = await parlour.channel.say("c", text)
        model.go(1)
        await answer
        assert [users(request)[-2:] for request in model.asked] == [["hello"], ["one more thing", "and another"]]


async def test_two_hundred_messages_at_once_are_a_few_turns() -> None:
    """None is refused, and the model is asked twelve times at most."""
    model = HeldScriptModel(held=[1])
    async with gateway(model=model, environment=BURST) as parlour:
        await asyncio.gather(*(parlour.channel.say("c", f"m{n}") for n in range(200)))
        model.go(1)
        await parlour.idle()
        asked = [request for request in model.asked if request.purpose == "answer"]
        assert len(asked) <= 12
        read = {text for request in asked for text in users(request)}
        assert read >= {f"m{n}" for n in range(200)}
        assert all(post.text.startswith("answer ") for post in parlour.channel.posts["c"])


async def test_messages_during_the_end_of_a_request_are_taken_in() -> None:
    """A connection takes a moment to close; what is written meanwhile harms nothing, and belongs to the question."""

    class SlowlyClosed(HeldScriptModel):
        closed = asyncio.Event()

        async def complete(self, request: ChatRequest, *, sink: Sink | None = None) -> ChatReply:
            try:
                return await super().complete(request, sink=sink)
            except asyncio.CancelledError:
                await self.closed.wait()
                raise

    model = SlowlyClosed(held=[1])
    async with gateway(model=model, environment=BURST) as parlour:
        await parlour.channel.say("c", "one")
        await model.called(1)
        await parlour.channel.say("c", "two")
        await asyncio.sleep(0)  # the request is being cancelled
        await parlour.channel.say("c", "three")
        await parlour.channel.say("c", "four")
        model.closed.set()
        (post,) = await parlour.channel.posted("c", 1)
        assert post.text == "answer 2"
        assert users(model.asked[1]) == ["one", "two", "three", "four"]


async def test_what_comes_while_the_prompt_is_assembled_is_taken_in() -> None:
    """A forward right behind its comment is part of the question, also where the first request has not begun."""

    class SlowToMeasure(HeldScriptModel):
        sized_as = "slow"
        measured, asked_size = asyncio.Event(), asyncio.Event()

        async def window(self) -> int | None:
            self.asked_size.set()
            await self.measured.wait()
            return 100_000

    model = SlowToMeasure()
    async with gateway(model=model, environment=BURST) as parlour:
        await parlour.channel.say("c", "what do you think of this?")
        await model.asked_size.wait()
        await parlour.channel.say("c", "the forward")
        model.measured.set()
        (post,) = await parlour.channel.posted("c", 1)
        await parlour.idle()
        assert [users(request) for request in model.asked] == [["what do you think of this?", "the forward"]]
        assert post.text == "answer 1"


async def test_what_stands_behind_another_sender_repeats_no_request() -> None:
    """In a group the sender's next messages wait behind the others' words, and the running request goes on."""
    model = HeldScriptModel(held=[1])
    async with gateway(model=model, environment=BURST) as parlour:
        await parlour.channel.say("c", "mine", group=True, sender="ann")
        await model.called(1)
        await parlour.channel.say("c", "yours", group=True, sender="bob")
        for n in range(5):
            await parlour.channel.say("c", f"and {n}", group=True, sender="ann")
        model.go(1)
        await parlour.idle()
        assert [users(request)[-1] for request in model.asked] == ["mine", "yours", "and 4"]


async def pausing(parlour: InProcessGateway, model: HeldScriptModel) -> None:
    """Let "one" be asked and "two" be written behind it, whose sender may go on writing."""
    await parlour.channel.say("c", "one", number="1")
    await model.called(1)
    await parlour.channel.say("c", "two", number="2")
    await asyncio.sleep(0.1)


async def test_a_stop_ends_what_was_about_to_be_taken_in() -> None:
    """Nothing that was written before the /stop is answered."""
    model = HeldScriptModel(held=[1])
    async with gateway(model=model, environment=BURST) as parlour:
        await pausing(parlour, model)
        await parlour.channel.say("c", "/stop")
        await parlour.idle()
        assert [users(request) for request in model.asked] == [["one"]]


async def test_a_deletion_before_it_is_taken_in_leaves_nothing() -> None:
    """The model never reads a message that its sender has deleted by then; the question is asked again without it."""
    model = HeldScriptModel(held=[1])
    async with gateway(model=model, environment=BURST) as parlour:
        await pausing(parlour, model)
        await parlour.channel.say("c", "", number="2", kind=InboundKind.DELETION)
        await parlour.idle()
        assert [users(request) for request in model.asked] == [["one"], ["one"]]


async def test_an_edit_before_it_is_taken_in_is_what_the_model_reads() -> None:
    """The new text alone, whatever is delivered again."""
    model = HeldScriptModel(held=[1])
    async with gateway(model=model, environment=BURST) as parlour:
        await pausing(parlour, model)
        await parlour.channel.say("c", "two, rather", number="2", revision=edit_revision("5", "two, rather"))
        await parlour.channel.say("c", "two", number="2")
        await parlour.channel.say("c", "one", number="1")
        await parlour.idle()
        assert [users(request) for request in model.asked] == [["one"], ["one", "two, rather"]]


async def test_an_edit_into_a_command_is_not_taken_in() -> None:
    """It runs behind the turn, and so does what is behind it."""
    model = HeldScriptModel(held=[1])
    async with gateway(model=model, environment=BURST) as parlour:
        await pausing(parlour, model)
        edit: dict[str, Any] = {"number": "2", "revision": "5", "kind": InboundKind.COMMAND}
        await parlour.channel.say("c", "/new", **edit)
        await parlour.channel.say("c", "three", number="3")
        await parlour.idle()
        asked = [users(request) for request in model.asked if request.purpose == "answer"]
        assert asked == [["one"], ["one"], ["three"]]


async def test_a_kill_before_it_is_taken_in_loses_nothing(tmp_path: Path) -> None:
    """Each is answered after the start, once."""
    model = HeldScriptModel(held=[1])
    async with gateway(model=model, environment=BURST) as parlour:
        await pausing(parlour, model)
        copy = parlour.kill(tmp_path / "copy")
    model = HeldScriptModel()
    async with gateway(home=copy, model=model, environment=BURST) as parlour:
        await parlour.idle()
        assert users(model.asked[-1]) == ["one", "two"]
        assert [post.reply_to for post in parlour.channel.posts["c"]] == ["1", "2"]
