"""The whole gateway before a workspace: what people in Slack see, whatever happens in between."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from agent.llm.chat_model import ChatReply, ChatRequest, Sink
from gateway.i18n import translate
from tests.fakes.inprocess_gateway import InstantModel
from tests.fakes.slack_gateway import CALL, HeldModel, TwoPieceModel, open_gateway
from tests.fakes.slack_server import (
    ANN,
    APP_TOKEN,
    BOB,
    BOT_TOKEN,
    BOT_USER,
    DM,
    EVE,
    ROOM,
    SlackFault,
    slack_server,
)


async def test_people_are_answered_where_they_wrote() -> None:
    """In a direct message at its top level, in a channel in the message's own thread; a stranger not at all."""
    async with slack_server() as server, open_gateway(server):
        server.say(DM, ANN, "good evening")
        await server.until(lambda: len(server.shown(DM)) == 1)
        assert server.shown(DM)[0].endswith("good evening")
        times = [server.say(ROOM, who, f"{CALL} {who} asks") for who in (ANN, BOB)]
        server.say(ROOM, EVE, f"{CALL} stranger")
        server.say(ROOM, ANN, "not for you")
        await server.until(lambda: all(server.shown(ROOM, ts) for ts in times))
        assert [server.shown(ROOM, ts)[0].endswith(f"{ANN} asks") for ts in times] == [True, False]
        server.say(ROOM, ANN, "and a follow-up", thread=times[0])
        await server.until(lambda: len(server.shown(ROOM, times[0])) == 2)
        await server.until(lambda: not server.reactions)
        assert server.shown(ROOM) == []


async def test_a_command_in_a_channel_is_answered_to_its_sender_alone() -> None:
    """What a command says about somebody is ephemeral; the mention form is a command too."""
    async with slack_server() as server, open_gateway(server):
        for text in (f"{CALL} !usage", f"{CALL} usage"):
            before = len(server.places[ROOM].whispers)
            server.say(ROOM, ANN, text)
            await server.until(lambda: len(server.places[ROOM].whispers) > before)  # noqa: B023 - waited for right here
        assert {whisper["user"] for whisper in server.places[ROOM].whispers} == {ANN}


async def test_a_kill_in_mid_turn_and_messages_that_wait_are_answered_once(tmp_path: Path) -> None:
    """Accepted before, said while down, and delivered twice: one answer each after the restart."""
    model = HeldModel()
    async with slack_server() as server:
        async with open_gateway(server, home=tmp_path / "home", model=model) as parlour:
            server.say(DM, ANN, "before the kill")
            await model.asked.wait()
            await server.until(lambda: len(server.acks) == 1)
            copy = parlour.kill(tmp_path / "copy")
            model.go_on.set()
            await server.until(lambda: len(server.shown(DM)) == 1)
            server.places[DM].messages = [m for m in server.places[DM].messages if m["user"] != BOT_USER]
        waiting = server.say(DM, ANN, "while down")
        server.tell(DM, server._message(DM, waiting))
        async with open_gateway(server, home=copy) as parlour:
            await server.until(lambda: len(server.shown(DM)) == 2)
            await parlour.idle()
        first, second = server.shown(DM)
        assert ("before the kill" in first, "while down" in second) == (True, True)


async def test_posted_but_the_reply_was_lost_is_one_answer() -> None:
    """The key is read back from Slack, so nothing is doubled and nothing is marked."""
    async with slack_server() as server, open_gateway(server) as parlour:
        server.faults["chat.postMessage"] = [SlackFault(does=True, drops=True)]
        server.say(DM, ANN, "once")
        await server.until(lambda: bool(server.called("conversations.history")))
        await parlour.idle()
        (shown,) = server.shown(DM)
        assert shown.endswith("once")


async def test_without_history_a_repeat_says_so() -> None:
    """Where the key cannot be read back the second copy is marked: never two answers that look like two."""
    async with slack_server() as server:
        server.scopes -= {"im:history"}
        async with open_gateway(server) as parlour:
            server.faults["chat.postMessage"] = [SlackFault(does=True, drops=True)]
            server.say(DM, ANN, "twice")
            await server.until(lambda: len(server.shown(DM)) == 2)
            await parlour.idle()
        first, second = server.shown(DM)
        assert translate("delivery.may_repeat") not in first
        assert translate("delivery.may_repeat") in second


async def test_without_history_strict_answers_into_a_placeholder() -> None:
    """`delivery.once: strict`: what cannot be read back goes by an edit, which may be repeated: one answer, no mark."""
    async with slack_server() as server:
        server.scopes -= {"im:history"}
        async with open_gateway(server, environment={"PARLOUR_DELIVERY__ONCE": "strict"}) as parlour:
            await server.until(lambda: bool(server.called("auth.test")))
            server.faults["chat.update"] = [SlackFault(does=True, drops=True)]
            server.say(DM, ANN, "once")
            await server.until(lambda: any("once" in shown for shown in server.shown(DM)))
            await parlour.idle()
        (answer,) = server.shown(DM)
        assert answer.endswith("once")
        assert translate("delivery.may_repeat") not in answer
        assert len(server.called("chat.update")) == 2


async def test_a_limit_in_one_chat_delays_no_other() -> None:
    """429 with Retry-After: that answer waits as long as asked, others go out meanwhile."""
    async with slack_server() as server, open_gateway(server):
        server.faults["chat.postMessage"] = [SlackFault(status=429, error="ratelimited", retry_after=2)]
        server.say(DM, ANN, "limited")
        await server.until(lambda: bool(server.called("chat.postMessage")))
        ts = server.say(ROOM, BOB, f"{CALL} free")
        await server.until(lambda: bool(server.shown(ROOM, ts)))
        assert server.shown(DM) == []
        await server.until(lambda: bool(server.shown(DM)))
        assert len(server.shown(DM)) == 1


async def test_a_long_answer_arrives_whole_over_a_broken_line() -> None:
    """20,000 characters with code; one part's reply is lost, one is refused for a moment: each part once, in order."""

    class LongAnswerModel(InstantModel):
        async def complete(self, request: ChatRequest, *, sink: Sink | None = None) -> ChatReply:
            reply = await super().complete(request)
            text = "\n\n".join(f"part{n} " + "word " * 50 for n in range(60)) + "\n\n```\n" + "line\n" * 800 + "```"
            return ChatReply(text=text, tool_calls=(), model=self.name, tokens=reply.tokens, cost=0.0)

    async with slack_server() as server, open_gateway(server, model=LongAnswerModel()) as parlour:
        lost, limited = SlackFault(does=True, drops=True), SlackFault(status=429, error="ratelimited", retry_after=1)
        server.faults["chat.postMessage"] = [lost, limited]
        server.say(DM, ANN, "at length")
        await server.until(lambda: len(server.shown(DM)) >= 5)
        await parlour.idle()
        words = " ".join(server.shown(DM)).replace("```", " ").split()
        assert [word for word in words if word.startswith("part")] == [f"part{n}" for n in range(60)]
        assert words.count("line") == 800
        assert all(shown.count("```") % 2 == 0 for shown in server.shown(DM))


async def test_two_threads_at_once_keep_their_streams_apart() -> None:
    """Each preview grows in its own thread and becomes its own answer; the status shows there and ends."""

    class SlowAnswerModel(InstantModel):
        def __init__(self) -> None:
            super().__init__()
            self.go_on = asyncio.Event()

        async def complete(self, request: ChatRequest, *, sink: Sink | None = None) -> ChatReply:
            word = "alpha" if str(request.messages[-1]["content"]).endswith("alpha") else "beta"
            if sink is not None:
                sink(f"{word} begins, with enough words to be worth showing")
            await self.go_on.wait()
            reply = await super().complete(request)
            return ChatReply(text=f"{word} ends", tool_calls=(), model=self.name, tokens=reply.tokens, cost=0.0)

    model = SlowAnswerModel()
    async with slack_server() as server, open_gateway(server, model=model) as parlour:
        times = {word: server.say(ROOM, who, f"{CALL} {word}") for word, who in (("alpha", ANN), ("beta", BOB))}
        await server.until(lambda: all(server.shown(ROOM, ts) for ts in times.values()))
        assert [server.shown(ROOM, ts)[0].split()[:2] for ts in times.values()] == [
            ["alpha", "begins,"],
            ["beta", "begins,"],
        ]
        assert all(server.statuses[ROOM, ts] for ts in times.values())
        model.go_on.set()
        await server.until(lambda: all(server.shown(ROOM, ts) == [f"{word} ends"] for word, ts in times.items()))
        await server.until(lambda: not any(server.statuses.values()))
        await parlour.idle()
        for word, ts in times.items():
            (message,) = (m for m in server.places[ROOM].messages if m.get("thread_ts") == ts)
            assert all(text.startswith(word) for text in message["was"])


async def test_a_message_that_is_deleted_before_its_turn_is_not_answered() -> None:
    """Edited before its turn it is answered as it stands then, deleted not at all."""
    model = HeldModel()
    async with slack_server() as server, open_gateway(server, model=model) as parlour:
        server.say(DM, ANN, "first")
        await model.asked.wait()
        changed = server.say(DM, ANN, "helo")
        gone = server.say(DM, ANN, "never mind")
        await server.until(lambda: len(server.acks) == 3)
        server.edit(DM, changed, "hello")
        server.delete(DM, gone)
        await server.until(lambda: len(server.acks) == 5)
        model.go_on.set()
        await server.until(lambda: len(server.shown(DM)) == 2)
        await parlour.idle()
        assert [shown.split()[-1] for shown in server.shown(DM)] == ["first", "hello"]


async def test_two_apps_in_one_gateway_are_two_channels() -> None:
    """A second block has its own tokens, its own keys and its own chats."""
    async with slack_server() as first, slack_server() as second:
        second.bot_token, second.app_token = f"{BOT_TOKEN}2", f"{APP_TOKEN}2"
        more = {"KIND": "slack", "BOT_TOKEN": second.bot_token, "APP_TOKEN": second.app_token, "ALLOW_FROM": ANN}
        more["BASE_URL"] = f"{second.base}/api/"
        environment = {f"PARLOUR_CHANNELS__SLACK_SUPPORT__{name}": value for name, value in more.items()}
        async with open_gateway(first, environment=environment) as parlour:
            await second.until(lambda: second.connections == 1)
            first.say(DM, ANN, "to one")
            second.say(DM, ANN, "to the other")
            await first.until(lambda: bool(first.shown(DM)))
            await second.until(lambda: bool(second.shown(DM)))
            await parlour.idle()
            assert first.shown(DM)[0].endswith("to one")
            assert second.shown(DM)[0].endswith("to the other")
            assert len(first.shown(DM)) == len(second.shown(DM)) == 1


@pytest.mark.parametrize("streaming", ["native", "edit"])
async def test_a_stopped_answer_keeps_its_words(streaming: str) -> None:
    """In a channel's thread, by Slack's own stream or by edits: the words stay, marked as stopped, and 👀 goes."""
    words, here = "Once upon a time there was a kettle that wanted to be", translate("delivery.stopped_here")
    model = TwoPieceModel(f"{words} a teapot.", first=len(words), held=True)
    settings = {"PARLOUR_CHANNELS__SLACK__STREAMING": streaming}
    async with slack_server() as server, open_gateway(server, model=model, environment=settings) as parlour:
        ts = server.say(ROOM, ANN, f"{CALL} a tale")
        await server.until(lambda: bool(server.shown(ROOM, ts)))
        server.say(ROOM, ANN, f"{CALL} !stop", thread=ts)
        await server.until(lambda: server.shown(ROOM, ts) == [f"{words}\n\n{here}"])
        await parlour.idle()
        assert server.shown(ROOM, ts) == [f"{words}\n\n{here}"]
        await server.until(lambda: not server.reactions)
        model.go_on.set()
