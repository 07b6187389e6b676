"""The whole gateway before a workspace: what people in Slack see, whatever happens in between."""

from __future__ import annotations

import pytest

from agent.llm.chat_model import ChatReply, ChatRequest, Sink
from gateway.i18n import translate
from tests.fakes.held_model import HeldModel
from tests.fakes.inprocess_gateway import InstantModel
from tests.fakes.slack_gateway import CALL, open_gateway
from tests.fakes.slack_server import (
    ANN,
    BOB,
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


@pytest.mark.parametrize("streaming", ["native", "edit"])
async def test_a_stopped_answer_keeps_its_words(streaming: str) -> None:
    """In a channel's thread, by Slack's own stream or by edits: the words stay, marked as stopped, and 👀 goes."""
    words, here = "Once upon a time there was a kettle that wanted to be", translate("delivery.stopped_here")
    model = HeldModel(f"{words} a teapot.", first=len(words) + 1)
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
