"""What a tool with effects did is never repeated unasked, and never passed off as not done."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest

from agent.llm.chat_model import ToolCall
from agent.llm.scripted_model import ScriptEntry
from agent.tools.tool import AskRule, NothingHappened, ToolContext, ToolKind, tool
from agent.tools.toolbox import Toolbox
from gateway.errors import ToolFailed
from gateway.events import SessionKey, short_turn_id
from gateway.i18n import translate
from tests.fakes.clock import VirtualClock
from tests.fakes.documents import run, stored_documents
from tests.fakes.held_model import HeldScriptModel, calls, results
from tests.fakes.inprocess_gateway import InProcessGateway, gateway
from tests.fakes.llm_context import context

KEY = SessionKey("pocket", "c")
UNKNOWN = "outcome unknown: it may have happened"
REFUSED = "not run: the same call was already made in this turn and may have happened; ask the person first"
TEA = json.dumps({"fact": "Ann drinks oolong tea"})


class PostOffice:
    """A tool that sends letters; what it does after the sending is the test's."""

    def __init__(self, after: str = "", *, repeatable: bool = False) -> None:
        self.sent: list[str] = []
        self.begun = asyncio.Event()
        self.go = asyncio.Event()

        @tool("Send a letter.", kind=ToolKind.ACT, ask=AskRule.NEVER, name="send_letter", repeatable=repeatable)
        async def send_letter(_: ToolContext, to: str, subject: str = "") -> str:
            if after == "refuses":
                raise NothingHappened(f"{to} has no letter box")
            self.sent.append(to)
            self.begun.set()
            if after == "raises":
                raise ConnectionResetError("the connection broke")
            if after == "fails":
                raise ToolFailed("the server hung up")
            if after == "is cancelled inside":
                raise asyncio.CancelledError
            if after == "gives no text":
                return None  # type: ignore[return-value]
            if after == "hangs":
                await self.go.wait()
            return f"sent to {to}"

        self.tool = send_letter


def letter(**arguments: str) -> tuple[str, str]:
    """Return a call that sends a letter."""
    return "send_letter", json.dumps({"to": "bob", **arguments})


async def memory_of(parlour: InProcessGateway) -> str:
    """Return what the chat's scope remembers: each turn begins with what the ones before it wanted kept."""
    await parlour.channel.ask("c", "/queue")
    await parlour.channel.ask("c", "anything else?")
    await parlour.idle()
    with stored_documents(parlour.home) as documents:
        return "\n".join(documents.text(each) for each in run(documents.scopes()))


@pytest.mark.parametrize("after", ["raises", "fails", "is cancelled inside", "gives no text"])
async def test_a_call_that_fails_after_its_effect_is_not_made_again(after: str) -> None:
    """The model is told that it may have happened, its second try is refused, and the program says so to the person."""
    office = PostOffice(after)
    model = HeldScriptModel(calls(letter()), calls(letter(subject="")), "I wrote to Bob.")
    async with gateway(model=model, tools=[office.tool]) as parlour:
        told = await parlour.channel.ask("c", "write to bob")
        assert office.sent == ["bob"]
        assert results(model.asked[2]) == [UNKNOWN, REFUSED]
        line = translate("delivery.outcome_unknown", what="`send_letter`", reference=short_turn_id(model.asked[0].turn))
        assert told == f"I wrote to Bob.\n\n{line}"
        shown = [each.text for each in await parlour.app.memory.sessions.displayed_messages(KEY, limit=9)]
        assert shown == ["write to bob", "I wrote to Bob.", line]


async def test_a_call_that_refused_may_be_made_again() -> None:
    """`NothingHappened` is a plain error: nothing is in doubt, and the same call is free."""
    office = PostOffice("refuses")
    model = HeldScriptModel(calls(letter()), calls(letter()), "He has none.")
    async with gateway(model=model, tools=[office.tool]) as parlour:
        assert await parlour.channel.ask("c", "write to bob") == "He has none."
        assert results(model.asked[2]) == ["error: bob has no letter box"] * 2


async def test_a_call_that_may_be_repeated_fails_plainly() -> None:
    """What is harmless twice is an error like any other."""
    office = PostOffice("fails", repeatable=True)
    async with gateway(model=HeldScriptModel(calls(letter()), "Sorry."), tools=[office.tool]) as parlour:
        assert await parlour.channel.ask("c", "write to bob") == "Sorry."


async def test_wrong_arguments_leave_no_doubt() -> None:
    """A call that was never run did not happen: the model may correct it."""
    office = PostOffice()
    model = HeldScriptModel(calls(("send_letter", '{"whom": "bob"}')), calls(letter()), "Done.")
    async with gateway(model=model, tools=[office.tool]) as parlour:
        assert await parlour.channel.ask("c", "write to bob") == "Done."
        assert office.sent == ["bob"]


async def test_a_call_that_does_not_end_in_time_is_in_doubt(clock: VirtualClock) -> None:
    """After its timeout nobody knows what became of it; one that is repeatable is a plain error."""
    for repeatable, text in ((False, UNKNOWN), (True, "error: send_letter did not finish in 60 seconds")):
        office = PostOffice("hangs", repeatable=repeatable)
        box = Toolbox([office.tool])
        request = calls(letter()).calls[0]
        outcome = await box.run(ToolCall("call_0", *request), context())
        assert (outcome.text, outcome.is_error) == (text, True)


async def test_after_a_kill_the_same_call_is_refused(tmp_path: Path) -> None:
    """Killed between the effect and its result: the next life reports the doubt and does not do it again."""
    office = PostOffice("hangs")
    async with gateway(model=HeldScriptModel(calls(letter())), tools=[office.tool]) as parlour:
        _, answer = await parlour.channel.say("c", "write to bob")
        await office.begun.wait()
        copy = parlour.kill(tmp_path / "copy")
        office.go.set()
        await answer
    model = HeldScriptModel(calls(letter()), "I wrote to Bob.")
    async with gateway(home=copy, model=model, tools=[office.tool]) as parlour:
        posts = await parlour.channel.posted("c", 1)
        assert results(model.asked[1]) == [UNKNOWN, REFUSED]
        assert office.sent == ["bob"]
        assert posts[0].text.startswith("I wrote to Bob.\n\n")


async def test_a_call_has_the_same_key_after_a_kill(tmp_path: Path) -> None:
    """The turn and the call's number in it: what a server needs to do once what it is asked for twice."""
    keys: list[tuple[str, str]] = []
    begun, go = asyncio.Event(), asyncio.Event()

    @tool("Order.", kind=ToolKind.ACT, name="order", repeatable=True, ask=AskRule.NEVER)
    async def order(context: ToolContext, what: str) -> str:
        keys.append((what, context.call_key))
        if what == "milk":
            begun.set()
            await go.wait()
        return f"ordered {what}"

    script = [
        calls(("order", '{"what": "tea"}')),
        calls(*(("order", json.dumps({"what": w})) for w in ("jam", "milk"))),
    ]
    model = HeldScriptModel(*script)
    async with gateway(model=model, tools=[order]) as parlour:
        _, answer = await parlour.channel.say("c", "order all")
        await begun.wait()
        copy = parlour.kill(tmp_path / "copy")
        go.set()
        await answer
    turn = model.asked[0].turn
    assert keys == [("tea", f"{turn}.1"), ("jam", f"{turn}.2"), ("milk", f"{turn}.3")]
    model = HeldScriptModel("Ordered.")
    async with gateway(home=copy, model=model, tools=[order]) as parlour:
        await parlour.channel.posted("c", 1)
        assert results(model.asked[0]) == ["ordered tea", "ordered jam", "ordered milk"]
    assert keys[3:] == [("milk", f"{turn}.3")]


async def test_stop_does_not_deny_what_ran() -> None:
    """/stop during a call with effects: the next prompt and the notice say that it may have happened."""
    office = PostOffice("hangs")
    model = HeldScriptModel(calls(letter(), ("memory_search", '{"query": "bob"}')))
    async with gateway(model=model, tools=[office.tool]) as parlour:
        await parlour.channel.say("c", "write to bob")
        await office.begun.wait()
        await parlour.channel.say("c", "/stop")
        await parlour.idle()
        line = translate("delivery.outcome_unknown", what="`send_letter`", reference=short_turn_id(model.asked[0].turn))
        assert any(line in post.text for post in parlour.channel.posts["c"])
        await parlour.channel.ask("c", "and now?")
        assert results(model.asked[1]) == ["stopped while it ran: it may have happened", "stopped by the user"]


async def test_a_stop_that_a_kill_interrupts_is_repeated_and_denies_nothing(tmp_path: Path) -> None:
    """Killed between /stop and its first write, a letter on its way: the next life ends the turn as stopped."""
    office = PostOffice("hangs")
    reached = asyncio.Event()
    async with gateway(model=HeldScriptModel(calls(letter())), tools=[office.tool]) as parlour:
        journal = parlour.app.store.journal
        step, go_on = type(journal).step, asyncio.Event()

        async def held(*arguments: Any) -> None:
            reached.set()
            await go_on.wait()
            await step(journal, *arguments)

        await parlour.channel.say("c", "write to bob")
        await office.begun.wait()
        journal.step = held  # type: ignore[method-assign,assignment]
        await parlour.channel.say("c", "/stop")
        await reached.wait()
        copy = parlour.kill(tmp_path / "copy")
        go_on.set()
        await parlour.idle()
    model = HeldScriptModel()
    async with gateway(home=copy, model=model, tools=[office.tool]) as parlour:
        post = (await parlour.channel.posted("c", 1))[0]
        assert post.text.startswith(translate("commands.stopped_turn"))
        assert "`send_letter`" in post.text
        await parlour.idle()
        await parlour.channel.ask("c", "and now?")
        assert results(model.asked[0]) == ["stopped while it ran: it may have happened"]
        assert office.sent == ["bob"]


async def test_a_stopped_turn_keeps_nothing_that_it_staged() -> None:
    """What was to be remembered with the answer is dropped with it, and both the person and the model are told."""
    model = HeldScriptModel(calls(("remember", TEA)), held=[2])
    async with gateway(model=model) as parlour:
        await parlour.channel.say("c", "I drink oolong")
        await model.called(2)
        await parlour.channel.say("c", "/stop")
        await parlour.idle()
        assert "oolong" not in await memory_of(parlour)
        assert any(translate("delivery.staged_dropped") in post.text for post in parlour.channel.posts["c"])
        told = [str(each["content"]) for each in model.asked[2].messages if each["role"] == "assistant"]
        assert told[-1] == "[stopped by the user; nothing of this answer was remembered or sent]"


async def test_a_turn_that_fails_keeps_nothing_that_it_staged() -> None:
    """No answer, nothing remembered: /retry begins from the same memory."""
    model = HeldScriptModel(calls(("remember", TEA)), ScriptEntry(error="refused"))
    async with gateway(model=model) as parlour:
        told = await parlour.channel.ask("c", "I drink oolong")
        assert told.endswith(translate("delivery.staged_dropped"))
        assert "oolong" not in await memory_of(parlour)


async def test_an_answered_turn_keeps_what_it_staged() -> None:
    """The promise of the tool: remembered when the answer is sent."""
    async with gateway(model=HeldScriptModel(calls(("remember", TEA)), "Noted.")) as parlour:
        assert await parlour.channel.ask("c", "I drink oolong") == "Noted."
        assert "oolong" in await memory_of(parlour)
