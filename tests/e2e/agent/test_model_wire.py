"""The whole gateway before a model server, with litellm and without: streams, tools, fallback, every fault."""

from __future__ import annotations

import json
import re
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Any

import pytest

from agent.tools.tool import AskRule, ToolContext, ToolKind, tool
from gateway.events import OutboundKind, SessionKey
from gateway.i18n import translate
from tests.e2e.agent.test_files import first_turn_usage
from tests.fakes.inprocess_gateway import PLAIN, STREAMING, InProcessGateway, gateway
from tests.fakes.openai_server import FakeOpenAI, ModelFault, Script, ScriptedAnswer, ScriptedToolCall, open_server

pytestmark = pytest.mark.xdist_group("litellm")
KEY = SessionKey("pocket", "c")
CLIENT = {"PARLOUR_LLM__CLIENT": "auto"}
LONG = "A fairly long answer, with **bold** words, an é and a 🙂. " * 12


@pytest.fixture(params=["auto", "litellm"], autouse=True)
def _each_client(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(CLIENT, "PARLOUR_LLM__CLIENT", request.param)


@asynccontextmanager
async def open_wired_gateway(
    script: Script, *, streaming: bool = False, tools: tuple[Any, ...] = (), **environment: str
) -> AsyncIterator[tuple[InProcessGateway, FakeOpenAI]]:
    """Run a gateway whose model is the scripted server; one attempt each, short limits."""
    async with open_server(script) as server:
        settings = {
            "PARLOUR_LLM__MODEL": "openai/test",
            "PARLOUR_LLM__API_BASE": server.base,
            "PARLOUR_LLM__ATTEMPTS": "1",
            "PARLOUR_LLM__TIMEOUT_SECONDS": "1",
            "PARLOUR_LLM__STREAM_SILENCE_SECONDS": "1",
            **CLIENT,
            **environment,
        }
        capabilities = STREAMING if streaming else PLAIN
        async with gateway(environment=settings, tools=tools, capabilities=capabilities) as parlour:
            await parlour.app.models.default.warm()
            yield parlour, server


def reference_in(text: str) -> str:
    """Return the reference at the end of a line."""
    found = re.search(r"\(ref (\w+)\)\Z", text)
    assert found is not None, text
    return found[1]


async def test_a_streamed_answer_is_seen_growing_and_ends_whole() -> None:
    """What streams in is shown as one message that grows; at the end it is the whole answer, and stands once."""
    async with open_wired_gateway([ScriptedAnswer(text=LONG, gap=0.01)], streaming=True) as (parlour, server):
        await parlour.channel.ask("c", "hello")
        (post,) = parlour.channel.posts["c"]
        assert post.text == LONG
        assert post.kind is OutboundKind.ANSWER
        assert len(post.was) > 1
        assert all(LONG.startswith(shown) for shown in post.was)
        assert server.requests[0]["stream"] is True
        assert parlour.channel.activities[-1].on is False
        rows = await first_turn_usage(parlour)
        assert [(row.tokens_in, row.tokens_out, row.tokens_cached) for row in rows] == [(100, 20, 60)]


async def test_where_nobody_looks_nothing_is_streamed() -> None:
    """A stream costs CPU: it is asked for only where somebody sees it; the answer is the same."""
    async with open_wired_gateway([LONG]) as (parlour, server):
        assert await parlour.channel.ask("c", "hello") == LONG
        assert "stream" not in server.requests[0]


async def test_tools_in_parallel_with_equal_call_ids() -> None:
    """Calls of one message, and of two messages that repeat an id, each get their own result; effects happen once."""
    rang: list[str] = []

    @tool("Ring a bell.", kind=ToolKind.ACT, ask=AskRule.NEVER, name="ring")
    async def ring(_: ToolContext, bell: str) -> str:
        rang.append(bell)
        return f"{bell} rang"

    def script(body: Mapping[str, Any], n: int) -> ScriptedAnswer:
        if n == 1:
            both = tuple(
                ScriptedToolCall(name="ring", arguments=json.dumps({"bell": bell}), id="same") for bell in ("a", "b")
            )
            return ScriptedAnswer(text="ringing", calls=both)
        if n == 2:
            return ScriptedAnswer(calls=(ScriptedToolCall(name="ring", arguments='{"bell": "c"}', id="same"),))
        return ScriptedAnswer(text="all rang")

    for streaming in (False, True):
        rang.clear()
        async with open_wired_gateway(script, streaming=streaming, tools=(ring,)) as (parlour, server):
            assert await parlour.channel.ask("c", "ring them") == "all rang"
            last = server.requests[-1]["messages"]
            ids = [call["id"] for message in last for call in message.get("tool_calls", ())]
            results = {m["tool_call_id"]: m["content"] for m in last if m["role"] == "tool"}
            assert sorted(rang) == ["a", "b", "c"]
            assert len(set(ids)) == 3
            assert [results[each] for each in ids] == ["a rang", "b rang", "c rang"]
            assert len(parlour.channel.posts["c"]) == 1
            assert len(await first_turn_usage(parlour)) == 3


async def test_wrong_tools_and_wrong_arguments_are_told_to_the_model() -> None:
    """An unknown tool, arguments that are no JSON, and wrong ones come back as results; people see the answer only."""

    def script(body: Mapping[str, Any], n: int) -> ScriptedAnswer:
        if n == 1:
            wrong = (
                ScriptedToolCall(name="remembr"),
                ScriptedToolCall(name="remember", arguments='{"fact": '),
                ScriptedToolCall(name="remember"),
            )
            return ScriptedAnswer(
                calls=tuple(
                    ScriptedToolCall(name=c.name, arguments=c.arguments, id=f"c{i}") for i, c in enumerate(wrong)
                )
            )
        results = [m["content"] for m in body["messages"] if m["role"] == "tool"]
        return ScriptedAnswer(text=" | ".join(results))

    async with open_wired_gateway(script) as (parlour, _):
        unknown, broken, missing = (await parlour.channel.ask("c", "go")).split(" | ")
        assert "did you mean remember" in unknown
        assert "no valid JSON" in broken
        assert "wrong arguments" in missing


async def test_another_model_answers_when_the_first_fails() -> None:
    """The fallback is asked after the first model's failure; the person sees its answer only."""

    def script(body: Mapping[str, Any], n: int) -> ScriptedAnswer:
        return (
            ScriptedAnswer(fault=ModelFault.ERROR) if body["model"] == "test" else ScriptedAnswer(text="from the other")
        )

    async with open_wired_gateway(script, PARLOUR_LLM__FALLBACKS='["openai/other"]') as (parlour, server):
        assert await parlour.channel.ask("c", "hello") == "from the other"
        assert [body["model"] for body in server.requests] == ["test", "other"]
        assert {row.model for row in await first_turn_usage(parlour) if row.tokens_out} >= {"openai/other"}


async def test_ten_megabytes_are_cut_and_said_so() -> None:
    """An endless answer is one answer of bounded size, over both ways of asking."""
    for streaming in (False, True):
        huge = ScriptedAnswer(text=" ".join(map(str, range(1_500_000))), pieces=200_000)
        async with open_wired_gateway([huge], streaming=streaming, PARLOUR_LLM__TIMEOUT_SECONDS="20") as (parlour, _):
            await parlour.channel.ask("c", "hello")
            (post,) = parlour.channel.posts["c"]
            assert len(post.text) <= 160_000
            assert post.text.endswith(translate("delivery.cut"))


async def test_a_stopped_call_is_left_and_paid_for() -> None:
    """/stop in the middle of a call hangs up at once; the usage row says what the prompt cost."""
    async with open_wired_gateway(
        [ScriptedAnswer(fault=ModelFault.HANG), "later"], PARLOUR_LLM__TIMEOUT_SECONDS="30"
    ) as (
        parlour,
        server,
    ):
        await parlour.channel.say("c", "hello")
        await server.arrived.wait()
        await parlour.channel.say("c", "/stop")
        await server.left.wait()
        await parlour.idle()
        assert await parlour.channel.ask("c", "next") == "later"
        lines = await parlour.app.memory.sessions.displayed_messages(KEY, limit=20)
        turn = next(line.turn for line in lines if line.text == "hello")
        story = await parlour.app.store.journal.trace(turn)
        assert story is not None
        assert [row.tokens_in > 0 for row in story.usage] == [True]
