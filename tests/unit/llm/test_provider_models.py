"""litellm and our own client over HTTP, before a server with every fault: one request, one reply or the right error."""

from __future__ import annotations

import inspect
import json
import logging
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import Any, Protocol

import pytest

from agent.llm.chat_model import ANSWER_CHARS, ChatReply, ModelConfig, Sink, usage_of_error
from agent.llm.completion_stream import AnswerClock, CompletionStream
from agent.llm.litellm_model import LitellmModel
from agent.llm.model_client import ModelClient
from agent.llm.openai_model import OpenAIModel
from agent.llm.provider_model import ProviderModel
from gateway.errors import (
    ContextOverflow,
    EmptyModelReply,
    InvalidModelReply,
    ModelFailed,
    ModelRateLimited,
    ModelRefused,
    ModelServerFailed,
    ModelTimeout,
)
from tests.fakes.llm_context import NOW, FakeUsageRecorder, SummingMeter, memory_tools, request
from tests.fakes.openai_server import FakeOpenAI, ModelFault, Script, ScriptedAnswer, ScriptedToolCall, open_server

pytestmark = pytest.mark.xdist_group("litellm")
TEXT = "Paris is the capital of France. " * 8
BOTH = pytest.mark.parametrize("sink", [None, lambda _text: None], ids=["plain", "streamed"])


@dataclass
class ModelConnection:
    """A model and the server at its other end."""

    server: FakeOpenAI
    model: ProviderModel

    async def ask(self, *said: str, sink: Sink | None = None) -> ChatReply:
        """Ask with the memory tools on offer."""
        return await self.model.complete(request(*(said or ("hello",)), tools=memory_tools().schemas), sink=sink)


class OpenLine(Protocol):
    """Connects a model to a server with a script; both closed afterwards."""

    def __call__(self, script: Script, **config: Any) -> AbstractAsyncContextManager[ModelConnection]: ...


@pytest.fixture(params=[OpenAIModel, LitellmModel], ids=["direct", "litellm"])
def line(request: pytest.FixtureRequest) -> OpenLine:
    """Each client in turn."""

    @asynccontextmanager
    async def connect(script: Script, **config: Any) -> AsyncIterator[ModelConnection]:
        async with open_server(script) as server:
            settings = replace(ModelConfig(model="openai/test", api_base=server.base, api_key="sk-SECRET"), **config)
            model: ProviderModel = request.param(settings, now=lambda: NOW)
            await model.warm()
            try:
                yield ModelConnection(server, model)
            finally:
                await model.close()

    return connect


@BOTH
async def test_an_answer_with_its_tokens(line: OpenLine, sink: Sink | None) -> None:
    """Text, tokens and the cached part of them arrive as the provider said; an unknown model has no price."""
    async with line([ScriptedAnswer(text=TEXT, tokens=(1234, 56, 1024))]) as to:
        reply = await to.ask(sink=sink)
    assert reply.text == TEXT
    assert (reply.tokens.input, reply.tokens.output, reply.tokens.cached) == (1234, 56, 1024)
    assert not reply.tokens.is_estimate
    assert (reply.model, reply.cost, reply.tool_calls, reply.is_cut) == ("openai/test", None, (), False)
    assert len(to.server.bodies) == 1


@BOTH
async def test_a_known_model_has_its_price(line: OpenLine, sink: Sink | None) -> None:
    """The bundled table prices a known model, and what came from the provider's cache costs less."""
    costs = []
    for cached in (0, 900_000):
        async with line([ScriptedAnswer(text="x", tokens=(1_000_000, 0, cached))], model="openai/gpt-4o-mini") as to:
            costs.append((await to.ask(sink=sink)).cost)
    full, cheap = costs
    assert full == pytest.approx(0.15)
    assert cheap is not None
    assert 0 < cheap < 0.1


@BOTH
async def test_garbage_arguments_are_handed_on_as_they_are(line: OpenLine, sink: Sink | None) -> None:
    """Arguments that are no JSON, and tools that do not exist, are the toolbox's business, not an error here."""
    calls = (
        ScriptedToolCall(name="memory_search", arguments='{"query": "cut of'),
        ScriptedToolCall(name="no_such_tool", arguments="{}"),
    )
    async with line([ScriptedAnswer(text=None, calls=calls)]) as to:
        reply = await to.ask(sink=sink)
    assert [(call.name, call.arguments) for call in reply.tool_calls] == [
        ("memory_search", '{"query": "cut of'),
        ("no_such_tool", "{}"),
    ]


FAULTS: list[tuple[ScriptedAnswer, type[ModelFailed]]] = [
    (ScriptedAnswer(fault=ModelFault.BUSY), ModelRateLimited),
    (ScriptedAnswer(fault=ModelFault.OVERLOADED), ModelRateLimited),
    (ScriptedAnswer(fault=ModelFault.QUOTA), ModelRefused),
    (ScriptedAnswer(fault=ModelFault.FILTERED), ModelRefused),
    (ScriptedAnswer(fault=ModelFault.BAD_GATEWAY), ModelServerFailed),
    (ScriptedAnswer(fault=ModelFault.ERROR), ModelServerFailed),
    (ScriptedAnswer(fault=ModelFault.DROP), ModelServerFailed),
    (ScriptedAnswer(fault=ModelFault.BAD_REQUEST), ModelRefused),
    (ScriptedAnswer(fault=ModelFault.UNAUTHORISED), ModelRefused),
    (ScriptedAnswer(fault=ModelFault.NOT_FOUND), ModelRefused),
    (ScriptedAnswer(fault=ModelFault.OVERFLOW), ContextOverflow),
    (ScriptedAnswer(fault=ModelFault.EMPTY), EmptyModelReply),
    (ScriptedAnswer(fault=ModelFault.NULL), EmptyModelReply),
    (ScriptedAnswer(fault=ModelFault.NO_CHOICES), EmptyModelReply),
    (ScriptedAnswer(text=" \n\t "), EmptyModelReply),
]
PLAIN_FAULTS = [
    (ScriptedAnswer(text=TEXT, fault=ModelFault.CUT_JSON), InvalidModelReply),
    (ScriptedAnswer(text=TEXT, fault=ModelFault.CUT_BODY), ModelServerFailed),
]
STREAM_FAULTS = [
    (ScriptedAnswer(text=TEXT, fault=ModelFault.CUT_STREAM), ModelServerFailed),
    (ScriptedAnswer(text=TEXT, fault=ModelFault.END_STREAM), ModelServerFailed),
    (ScriptedAnswer(text=TEXT, fault=ModelFault.ERROR_IN_STREAM), ModelRateLimited),
]
CASES = [
    *((answer, error, streamed) for answer, error in FAULTS for streamed in (False, True)),
    *((answer, error, False) for answer, error in PLAIN_FAULTS),
    *((answer, error, True) for answer, error in STREAM_FAULTS),
]


@pytest.mark.parametrize(
    ("answer", "error", "is_streamed"),
    CASES,
    ids=[f"{answer.fault or 'blank'}-{'streamed' if streamed else 'plain'}" for answer, _, streamed in CASES],
)
async def test_each_fault_has_its_error_and_one_request(
    line: OpenLine, answer: ScriptedAnswer, error: type[ModelFailed], is_streamed: bool
) -> None:
    """A fault is exactly one error of ours, after exactly one request, with nothing of the provider's in it."""
    async with line([answer]) as to:
        with pytest.raises(ModelFailed) as raised:
            await to.ask(sink=(lambda _text: None) if is_streamed else None)
    assert type(raised.value) is error
    assert len(to.server.bodies) == 1
    assert "SECRET" not in str(raised.value)
    assert raised.value.__cause__ is None
    assert raised.value.__suppress_context__


async def test_the_libraries_make_no_objects_of_messages_and_chunks() -> None:
    """Litellm and OpenAI's SDK are as the client expects them: it skips what cost them four fifths of a call."""
    async with open_server([ScriptedAnswer(text=TEXT)]) as server:
        model = LitellmModel(ModelConfig(model="openai/test", api_base=server.base, api_key="x"))
        await model.warm()
        async with AnswerClock(30, 30, 30) as clock, model._open_stream(request("hello"), clock) as stream:
            assert isinstance(stream, CompletionStream)
        await model.close()
    from openai.resources.chat.completions import AsyncCompletions, completions

    assert "async_maybe_transform" in inspect.unwrap(AsyncCompletions.create).__code__.co_names
    assert vars(completions)["async_maybe_transform"].__module__ == LitellmModel.__module__
    from litellm._internal_context import is_internal_call

    assert is_internal_call.get()


UNSTREAMED_FAULTS = [
    (ScriptedAnswer(fault=ModelFault.EMPTY, is_unstreamed=True), EmptyModelReply),
    (ScriptedAnswer(fault=ModelFault.NO_CHOICES, is_unstreamed=True), EmptyModelReply),
    (ScriptedAnswer(fault=ModelFault.CUT_JSON, is_unstreamed=True), InvalidModelReply),
    (ScriptedAnswer(fault=ModelFault.CUT_BODY, is_unstreamed=True), ModelServerFailed),
    (ScriptedAnswer(text="x" * (17 * ANSWER_CHARS), is_unstreamed=True), InvalidModelReply),
]


@pytest.mark.parametrize(
    ("answer", "error"), UNSTREAMED_FAULTS, ids=[each.fault or "endless" for each, _ in UNSTREAMED_FAULTS]
)
async def test_what_is_wrong_with_plain_json_is_as_without_a_stream(
    line: OpenLine, answer: ScriptedAnswer, error: type[ModelFailed]
) -> None:
    """Half a body, none or an endless one: the same error as where no stream was asked for, and it ends in time."""
    async with line([answer]) as to:
        with pytest.raises(ModelFailed) as raised:
            await to.ask(sink=lambda _text: None)
    assert type(raised.value) is error


@BOTH
async def test_a_hang_ends_at_the_timeout(line: OpenLine, sink: Sink | None) -> None:
    """A model that never answers is given up after the timeout, its connection closed, the prompt's tokens noted."""
    async with line([ScriptedAnswer(fault=ModelFault.HANG)], timeout=1.0) as to:
        with pytest.raises(ModelTimeout) as raised:
            await to.ask(sink=sink)
        await to.server.left.wait()
    spent = usage_of_error(raised.value)
    assert spent is not None
    assert spent.tokens.is_estimate
    assert spent.tokens.input > 0
    assert len(to.server.bodies) == 1


async def test_silence_in_a_stream_ends_it(line: OpenLine) -> None:
    """A stream that falls silent is given up after the silence, long before the timeout; its tokens are noted."""
    async with line([ScriptedAnswer(text=TEXT, fault=ModelFault.PAUSE)], timeout=60, stream_silence=0.5) as to:
        with pytest.raises(ModelTimeout) as raised:
            await to.ask(sink=lambda _text: None)
        await to.server.left.wait()
    spent = usage_of_error(raised.value)
    assert spent is not None
    assert spent.tokens.output > 0


@pytest.mark.parametrize(
    ("header", "delay"),
    [
        ("", None),
        ("7", timedelta(seconds=7)),
        ("0.5", timedelta(seconds=0.5)),
        ("Sat, 21 Nov 2026 21:01:00 GMT", timedelta(minutes=1)),
        ("Sat, 21 Nov 2026 20:00:00 GMT", timedelta(0)),
        ("soon", None),
        ("-3", None),
        ("nan", None),
    ],
    ids=["absent", "seconds", "fraction", "date", "past", "words", "negative", "nan"],
)
async def test_retry_after_is_read(line: OpenLine, header: str, delay: timedelta | None) -> None:
    """Retry-After may be seconds or a date; nonsense counts as absent."""
    async with line([ScriptedAnswer(fault=ModelFault.BUSY, retry_after=header)]) as to:
        with pytest.raises(ModelRateLimited) as raised:
            await to.ask()
    assert raised.value.delay == delay


@BOTH
async def test_ten_megabytes_of_arguments_are_refused(line: OpenLine, sink: Sink | None) -> None:
    """Arguments that long are no tool call; half of them would be a wrong one."""
    huge = ScriptedToolCall(name="remember", arguments=json.dumps({"fact": "x" * 10_000_000}))
    async with line([ScriptedAnswer(calls=(huge,), pieces=20_000)]) as to:
        with pytest.raises(InvalidModelReply):
            await to.ask(sink=sink)


@BOTH
async def test_the_models_own_limit_is_said(line: OpenLine, sink: Sink | None) -> None:
    """An answer that stopped at the token limit is handed on, marked as cut."""
    async with line([ScriptedAnswer(text="and so on and", finish="length")]) as to:
        assert (await to.ask(sink=sink)).is_cut


@BOTH
async def test_missing_usage_is_estimated(line: OpenLine, sink: Sink | None) -> None:
    """A server that counts nothing still costs something: usage is never zero for an answered call."""
    async with line([ScriptedAnswer(text=TEXT, no_usage=True)]) as to:
        reply = await to.ask(sink=sink)
    assert reply.tokens.input > 0
    assert reply.tokens.output > 0


async def test_surrogate_halves_are_joined(line: OpenLine) -> None:
    """An emoji cut between two pieces of a stream comes out whole, and a lone half does no harm later."""
    async with line([ScriptedAnswer(text="a\U0001f600b\ud83d", pieces=100)]) as to:
        reply = await to.ask()
    assert reply.text.encode()
    assert reply.text.startswith("a\U0001f600b")


async def test_connections_are_reused(line: OpenLine) -> None:
    """Twenty calls, plain and streamed, one after the other, go over one connection."""
    async with line([TEXT]) as to:
        for n in range(20):
            await to.ask(sink=(lambda _text: None) if n % 2 else None)
        assert len(to.server.peers) == 1


async def test_thinking_goes_back_to_its_own_model_only(line: OpenLine) -> None:
    """What a model thought is sent to that model again, and left out for any other."""
    blocks = {"thinking_blocks": [{"type": "thinking", "thinking": "hm", "signature": "s"}]}
    for name, is_sent in (("openai/test", True), ("openai/other", False)):
        history: Sequence[Mapping[str, Any]] = [
            {"role": "user", "content": "a"},
            {"role": "assistant", "content": "b", "thinking": {"model": "openai/test", "message": blocks}},
            {"role": "user", "content": "c"},
        ]
        async with line(["ok"], model=name) as to:
            await to.model.complete(replace(request(), messages=history))
        sent = to.server.requests[0]["messages"][1]
        assert ("thinking_blocks" in sent) is is_sent
        assert "thinking" not in sent


async def test_no_log_line_holds_key_address_or_words(line: OpenLine, caplog: pytest.LogCaptureFixture) -> None:
    """Neither httpx nor litellm nor we log the key, the address, or what a person wrote, also when it fails."""
    caplog.set_level(logging.INFO)
    async with line(
        [
            ScriptedAnswer(fault=ModelFault.UNAUTHORISED),
            ScriptedAnswer(fault=ModelFault.ERROR),
            ScriptedAnswer(text=TEXT),
        ]
    ) as to:
        for _ in range(2):
            with pytest.raises(ModelFailed):
                await to.ask("my private words")
        await to.ask("my private words")
        address = to.server.base
    said = "\n".join(f"{record.name} {record.getMessage()} {record.exc_text or ''}" for record in caplog.records)
    assert not any(word in said for word in ("SECRET", "private words", address, "Paris"))


async def test_no_key_is_invented_for_an_own_server(line: OpenLine, monkeypatch: pytest.MonkeyPatch) -> None:
    """OPENAI_API_KEY of the environment is not sent to another address, and none is needed there."""
    monkeypatch.setenv("OPENAI_API_KEY", "sk-ENVIRONMENT")
    async with line(["ok"], api_key="") as to:
        await to.ask()
    assert "sk-ENVIRONMENT" not in to.server.headers[0]["Authorization"]


async def test_fallback_after_retries_counts_every_request(line: OpenLine) -> None:
    """Two attempts at the first model, then the second: three requests, one answer, one usage row per spent call."""
    usages = FakeUsageRecorder()
    pauses: list[float] = []

    async def pause(seconds: float) -> None:
        pauses.append(seconds)

    async with line([ScriptedAnswer(fault=ModelFault.ERROR)]) as first, line(["from the second"]) as second:
        client = ModelClient([first.model, second.model], recorder=usages, meter=SummingMeter(), pause=pause)
        reply = await client.complete(request("hello"))
        assert (len(first.server.bodies), len(second.server.bodies)) == (2, 1)
    assert reply.text == "from the second"
    assert len(pauses) == 1
    assert [used.text for used in usages.replies] == ["from the second"]
