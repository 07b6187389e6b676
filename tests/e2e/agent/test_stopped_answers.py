"""/stop keeps the text that people have seen: in the chat, in the history and in the next prompt, marked as stopped."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from agent.llm.chat_model import ChatReply, ChatRequest, Sink
from agent.tools.tool import ToolContext, ToolKind, tool
from agent.workers.turn_runner import TurnRunner
from gateway.events import InboundKind, InboundMessage, Role, Sender, SessionKey
from gateway.i18n import translate
from gateway.ports.journal import InboxRow, TurnLease
from gateway.store.engine import StoreLimits
from gateway.store.journal import SqlJournal
from gateway.store.sqlite import FILE, open_file
from tests.fakes.held_model import HeldScriptModel, calls
from tests.fakes.inprocess_gateway import STREAMING, InProcessGateway, gateway

KEY = SessionKey("pocket", "c")
TALE = "Once upon a time there was a kettle that wanted to be a teapot, and"
HERE = translate("delivery.stopped_here")
STOPPED = translate("commands.stopped_turn")


class StallingModel(HeldScriptModel):
    """Streams *tale* in its first calls and then falls silent; later calls answer."""

    def __init__(self, *script: Any, tale: str = TALE, silent: int = 1) -> None:
        super().__init__(*script)
        self.told = asyncio.Event()
        self._tale = tale
        self._silent = silent

    async def complete(self, request: ChatRequest, *, sink: Sink | None = None) -> ChatReply:
        """Tell the tale, or whatever the script says."""
        if len(self.asked) + 1 != self._silent:
            return await super().complete(request, sink=sink)
        self.asked.append(request)
        if sink is not None and self._tale:
            for end in range(10, len(self._tale) + 10, 10):
                sink(self._tale[:end])
        self.told.set()
        await asyncio.Event().wait()
        raise AssertionError("never reached")


async def texts(parlour: InProcessGateway) -> list[str]:
    """Return what stands in the chat."""
    await parlour.idle()
    return [post.text for post in parlour.channel.posts["c"]]


async def visible_history(parlour: InProcessGateway) -> list[tuple[str, str]]:
    """Return role and text of what people see in the history."""
    return [(line.role, line.text) for line in await parlour.app.memory.sessions.displayed_messages(KEY, limit=20)]


def bot_texts_in_prompt(request: ChatRequest) -> list[str]:
    """Return what the bot said before, as the model is shown it."""
    return [str(each["content"]) for each in request.messages if each["role"] == "assistant"]


async def test_a_stopped_answer_keeps_its_text() -> None:
    """One message in the chat, the same in the history, one line of ours; the next prompt knows that it was cut."""
    model = StallingModel()
    async with gateway(model=model, capabilities=STREAMING) as parlour:
        await parlour.channel.say("c", "a tale, please")
        await model.told.wait()
        await parlour.channel.say("c", "/stop")
        assert await texts(parlour) == [f"{TALE}\n\n{HERE}"]
        told = [("user", "a tale, please"), ("assistant", f"{TALE}\n\n{HERE}"), ("user", "/stop")]
        assert sorted(await visible_history(parlour)) == sorted(told)
        await parlour.channel.ask("c", "go on")
        assert bot_texts_in_prompt(model.asked[1]) == [f"{TALE}\n[stopped by the user]"]


async def test_a_stop_before_any_text_is_one_line() -> None:
    """Nothing had streamed: the turn ends with one line, and so does its history."""
    model = StallingModel(tale="")
    async with gateway(model=model, capabilities=STREAMING) as parlour:
        await parlour.channel.say("c", "a tale, please")
        await model.told.wait()
        await parlour.channel.say("c", "/stop")
        assert await texts(parlour) == [STOPPED]
        assert ("notice", STOPPED) in await visible_history(parlour)
        await parlour.channel.ask("c", "go on")
        assert bot_texts_in_prompt(model.asked[1]) == ["[stopped by the user]"]


async def test_where_nobody_watches_there_is_no_text_to_keep() -> None:
    """A channel without previews showed nothing, so that nothing is passed off as seen."""
    async with gateway(model=(model := StallingModel())) as parlour:
        await parlour.channel.say("c", "a tale, please")
        await model.told.wait()
        await parlour.channel.say("c", "/stop")
        assert await texts(parlour) == [STOPPED]


async def test_a_stop_during_a_tool_keeps_the_words_before_it() -> None:
    """What the model said before it called the tool stands in the preview, and stays there."""
    begun = asyncio.Event()

    @tool("Look.", kind=ToolKind.LOOK, name="look")
    async def look(_: ToolContext) -> str:
        begun.set()
        await asyncio.Event().wait()
        return ""

    model = HeldScriptModel(calls(("look", "{}"), text="Let me look it up for you in the encyclopaedia."))
    async with gateway(model=model, tools=[look], capabilities=STREAMING) as parlour:
        await parlour.channel.say("c", "what is a kettle?")
        await begun.wait()
        await parlour.channel.posted("c", 1)
        await parlour.channel.say("c", "/stop")
        said = "Let me look it up for you in the encyclopaedia."
        assert await texts(parlour) == [f"{said}\n\n{HERE}"]
        assert ("assistant", f"{said}\n\n{HERE}") in await visible_history(parlour)


async def test_what_waits_is_counted_beside_the_stopped_answer() -> None:
    """Where messages were dropped /stop has something of its own to say."""
    model = StallingModel()
    async with gateway(model=model, capabilities=STREAMING) as parlour:
        await parlour.channel.say("c", "a tale, please")
        await model.told.wait()
        await parlour.channel.say("c", "and another")
        await parlour.channel.say("c", "/stop")
        assert await texts(parlour) == [f"{TALE}\n\n{HERE}", translate("commands.stopped", queued=1)]


@pytest.mark.parametrize("moment", ["before the stop is stored", "after the stop is stored"])
async def test_a_kill_between_stop_and_commit_does_not_undo_the_stop(tmp_path: Path, moment: str) -> None:
    """The next start ends the turn as stopped, asks no model, and leaves one message; a stored stop has its text."""
    model = StallingModel()
    reached, go_on = asyncio.Event(), asyncio.Event()
    async with gateway(model=model, capabilities=STREAMING) as parlour:
        journal = parlour.app.store.journal
        step, commit = type(journal).step, type(journal).commit

        async def held(*arguments: Any, is_step: bool) -> Any:
            if is_step == (moment == "before the stop is stored"):
                reached.set()
                await go_on.wait()
            return await (step if is_step else commit)(journal, *arguments)

        await parlour.channel.say("c", "a tale, please")
        await model.told.wait()
        await parlour.channel.posted("c", 1)
        journal.step = lambda *each: held(*each, is_step=True)  # type: ignore[method-assign]
        journal.commit = lambda *each: held(*each, is_step=False)  # type: ignore[method-assign]
        await parlour.channel.say("c", "/stop")
        await reached.wait()
        copy = parlour.kill(tmp_path / "copy")
        posts = parlour.channel.posts
        go_on.set()
        await parlour.idle()
    second = HeldScriptModel()
    async with gateway(home=copy, model=second, capabilities=STREAMING) as parlour:
        standing = posts["c"][:1]
        standing[0].text = TALE[:40]  # what the chat showed when the kill came
        parlour.channel.posts["c"] = standing
        kept = moment == "after the stop is stored"
        expected = f"{TALE}\n\n{HERE}" if kept else STOPPED
        await parlour.idle()
        await parlour.channel.until(lambda: standing[0].text != TALE[:40])
        await parlour.idle()
        # /stop, which was not answered yet, may find that it has nothing left to do.
        said = [post.text for post in parlour.channel.posts["c"] if post.text != translate("commands.nothing_to_stop")]
        assert said == [expected]
        assert (("assistant" if kept else "notice"), expected) in await visible_history(parlour)
        assert second.asked == []
        assert await parlour.channel.ask("c", "go on") == "answer 1"


async def test_a_stop_before_a_kill_covers_what_was_accepted_before_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Both wait in the journal: the next life ends the messages before it claims one, however slow the command is."""
    control, model = TurnRunner.control, HeldScriptModel()

    async def slow_control(runner: TurnRunner, row: InboxRow) -> None:
        await model.called(1)  # until the other chat is answered
        await control(runner, row)

    monkeypatch.setattr(TurnRunner, "control", slow_control)
    store = await open_file(tmp_path / "home" / FILE, StoreLimits())
    for number, (chat, text) in enumerate((("c", "a tale"), ("c", "another"), ("d", "hello"), ("c", "/stop"))):
        message = InboundMessage(
            key=SessionKey("pocket", chat),
            message_id=f"{number}",
            sender=Sender(id="ann"),
            text=text,
            command=text.removeprefix("/") if text.startswith("/") else "",
            sent_at=datetime.now(UTC),
            kind=InboundKind.MESSAGE,
        )
        await store.journal.accept(message, role=Role.OWNER, is_control=text == "/stop")
    await store.close()
    async with gateway(home=tmp_path / "home", model=model) as parlour:
        assert await texts(parlour) == ["2 waiting messages were discarded. No answer was running."]
        assert [post.text for post in parlour.channel.posts["d"]] == ["answer 1"]
    assert len(model.asked) == 1


async def test_a_stop_of_an_interrupted_turn_outlives_another_kill(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Killed in a tool, stopped before the next life claims the turn, killed again: it ends as stopped."""
    begun, go = asyncio.Event(), asyncio.Event()

    @tool("Wait.", kind=ToolKind.LOOK, name="wait_here")
    async def wait_here(context: ToolContext) -> str:
        begun.set()
        await go.wait()
        return "done"

    async with gateway(model=HeldScriptModel(calls(("wait_here", "{}"))), tools=[wait_here]) as parlour:
        _, answer = await parlour.channel.say("c", "wait")
        await begun.wait()
        copy = parlour.kill(tmp_path / "copy")
        go.set()
        await answer
    claim, is_claimed = SqlJournal.claim, False

    async def claim_later(journal: SqlJournal, key: SessionKey) -> TurnLease | None:
        return await claim(journal, key) if is_claimed else None

    control, is_stored = TurnRunner.control, asyncio.Event()

    async def note_control(runner: TurnRunner, row: InboxRow) -> None:
        await control(runner, row)
        is_stored.set()

    monkeypatch.setattr(SqlJournal, "claim", claim_later)
    monkeypatch.setattr(TurnRunner, "control", note_control)
    model = HeldScriptModel()
    async with gateway(home=copy, model=model, tools=[wait_here]) as parlour:
        await parlour.channel.say("c", "/stop", number="9")
        await is_stored.wait()
        copy = parlour.kill(tmp_path / "again")
    is_claimed = True
    async with gateway(home=copy, model=model, tools=[wait_here]) as parlour:
        assert await texts(parlour) == [STOPPED]
        await parlour.channel.ask("c", "and now?")
        assert [str(each["content"]) for each in model.asked[0].messages if each["role"] == "tool"] == [
            "stopped by the user"
        ]
    assert len(model.asked) == 1
