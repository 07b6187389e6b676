"""What every chat model promises, whoever answers."""

from __future__ import annotations

import asyncio
import copy
from collections.abc import AsyncIterator, Callable

import pytest

from agent.llm.chat_model import ChatModel, ModelConfig
from agent.llm.litellm_model import LitellmModel
from agent.llm.model_client import ModelClient
from agent.llm.model_registry import open_model
from agent.llm.openai_model import OpenAIModel
from tests.fakes.llm_context import FakeUsageRecorder, SummingMeter, request
from tests.fakes.openai_server import open_server

pytestmark = pytest.mark.xdist_group("litellm")


@pytest.fixture(params=["offline", "scripted", "client", "direct", "litellm"])
async def model(request: pytest.FixtureRequest) -> AsyncIterator[ChatModel]:
    """Each model in turn, closed afterwards."""
    if request.param in ("direct", "litellm"):
        async with open_server(lambda body, _n: f"You said: {body['messages'][-1]['content']}") as server:
            opened = open_model(ModelConfig(model="openai/test", api_base=server.base, client=request.param))
            assert isinstance(opened, OpenAIModel if request.param == "direct" else LitellmModel)
            yield opened
            await opened.close()
        return
    own: dict[str, Callable[[], ChatModel]] = {
        "offline": lambda: open_model(ModelConfig(model="")),
        "scripted": lambda: open_model(ModelConfig(model="scripted")),
        "client": lambda: ModelClient(
            [open_model(ModelConfig(model="scripted"))], recorder=FakeUsageRecorder(), meter=SummingMeter()
        ),
    }
    opened = own[request.param]()
    yield opened
    await opened.close()


async def test_a_reply_says_something_and_who_said_it(model: ChatModel) -> None:
    """A reply is never empty, names the model as it was configured, and counts what it took."""
    reply = await model.complete(request("What is the capital of France?"))
    assert reply.text.strip() or reply.tool_calls
    assert reply.model == model.name
    assert reply.tokens.input >= reply.tokens.cached >= 0


async def test_a_sink_sees_the_text_grow_and_ends_with_all_of_it(model: ChatModel) -> None:
    """Each state of a stream is a beginning of the answer, and the last one is the whole answer."""
    seen: list[str] = []
    reply = await model.complete(request("Say a few words, please, about nothing in particular."), sink=seen.append)
    assert seen[-1] == reply.text
    assert all(reply.text.startswith(state) for state in seen)
    assert [len(state) for state in seen] == sorted(len(state) for state in seen)


async def test_streamed_or_not_the_answer_is_the_same(model: ChatModel) -> None:
    """A sink changes how an answer comes, not what it is."""
    asked = request("Tell me the time.")
    streamed = await model.complete(asked, sink=lambda _text: None)
    plain = await model.complete(asked)
    assert (plain.text, plain.tool_calls) == (streamed.text, streamed.tool_calls)


async def test_calls_side_by_side_do_not_mix(model: ChatModel) -> None:
    """Twenty calls at once get their own answers, the same as one after the other."""
    asked = [request(f"question number {n}") for n in range(20)]
    alone = [(await model.complete(each)).text for each in asked]
    together = await asyncio.gather(*(model.complete(each) for each in asked))
    assert [reply.text for reply in together] == alone


async def test_the_request_is_left_as_it_was(model: ChatModel) -> None:
    """A model does not write into the history that it is shown."""
    asked = request("hello", "are you there?")
    before = copy.deepcopy(asked.messages)
    await model.complete(asked)
    assert asked.messages == before


async def test_warming_and_closing_may_happen_twice(model: ChatModel) -> None:
    """Warm and close are safe to repeat, and a closed model that is asked again answers."""
    await model.warm()
    await model.warm()
    await model.close()
    await model.close()
    assert (await model.complete(request("still there?"))).model == model.name
