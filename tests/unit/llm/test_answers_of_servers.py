"""The answers of every scripted server, streamed and whole: words, calls and nothing that is not for people."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator

import pytest
import pytest_asyncio

from agent.llm import litellm_model, openai_model
from agent.llm.chat_model import ChatModel, ChatReply, ChatRequest, ModelConfig, Sink
from gateway.errors import ModelAbility, ModelUnreachable
from tests.fakes.model_zoo import PROFILES
from tests.fakes.model_zoo.profile import CallForm, EndForm, ModelProfile
from tests.fakes.model_zoo.server import TOOL, ModelZoo, open_zoo
from tests.fakes.strict_requests import RequestRule as R

# One loop for all: litellm keeps its clients for the loop of the first call.
pytestmark = [pytest.mark.xdist_group("litellm"), pytest.mark.asyncio(loop_scope="module")]
TOOLS = [
    {
        "type": "function",
        "function": {
            "name": TOOL,
            "description": "Look a word up.",
            "parameters": {"type": "object", "properties": {"word": {"type": "string"}}, "required": ["word"]},
        },
    }
]
ALL = pytest.mark.parametrize("profile", PROFILES.values(), ids=PROFILES)
STREAMED = pytest.mark.parametrize("is_streamed", [True, False], ids=["streamed", "whole"])


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def zoo() -> AsyncIterator[ModelZoo]:
    """All servers."""
    with open_zoo(PROFILES) as servers:
        yield servers
        await litellm_model.close_litellm()


def model_of(zoo: ModelZoo, profile: ModelProfile) -> ChatModel:
    """Return the model as the settings of the profile open it."""
    config = ModelConfig(model=profile.model, api_base=zoo.api_base(profile), api_key=zoo.key(profile), timeout=10)
    is_direct = openai_model.is_openai_compatible(config, {})
    assert is_direct is not profile.is_through_litellm
    return openai_model.open_model(config) if is_direct else litellm_model.open_model(config)


def request_for(profile: ModelProfile, act: str) -> ChatRequest:
    """Return a request, without what the server refuses."""
    lacks = {R.STREAM: ModelAbility.STREAM, R.STREAM_OPTIONS: ModelAbility.STREAM_OPTIONS}
    return ChatRequest(
        messages=[{"role": "user", "content": f"zoo-{act}-n"}],
        tools=TOOLS if profile.has_tools else [],
        turn="t",
        without=frozenset(ability for rule, ability in lacks.items() if rule in profile.refuses),
    )


async def ask(zoo: ModelZoo, profile: ModelProfile, act: str, sink: Sink | None) -> ChatReply:
    """Ask once; again where the server never marks the end of a stream, which looks like a broken one at first."""
    model = model_of(zoo, profile)
    try:
        if profile.stream.end is EndForm.NOTHING and sink is not None:
            with pytest.raises(ModelUnreachable):
                await model.complete(request_for(profile, act), sink=lambda _: None)
        return await model.complete(request_for(profile, act), sink=sink)
    finally:
        await model.close()


@ALL
@STREAMED
async def test_words_are_all_that_people_see(zoo: ModelZoo, profile: ModelProfile, is_streamed: bool) -> None:
    """The text is the answer alone, also in every preview of it: reasoning is apart, in whatever form it came."""
    shown = list[str]()
    reply = await ask(zoo, profile, "question", shown.append if is_streamed else None)
    assert reply.text.strip() == "Answer n."
    assert reply.tool_calls == ()
    assert not any("THOUGHT" in each or "think" in each for each in shown)


@ALL
@STREAMED
async def test_two_calls_are_two_calls(zoo: ModelZoo, profile: ModelProfile, is_streamed: bool) -> None:
    """Each call has its name and its arguments, whole and once, however the server cuts and numbers them."""
    if not profile.has_tools:
        assert profile.stream.calls in (CallForm.TEXT, CallForm.IGNORED) or R.TOOLS in profile.refuses
        return
    reply = await ask(zoo, profile, "calls", (lambda _: None) if is_streamed else None)
    assert [call.name for call in reply.tool_calls] == [TOOL, TOOL]
    assert [json.loads(call.arguments) for call in reply.tool_calls] == [{"word": "tea"}, {"word": "sea"}]
    assert reply.text.strip() == ""
