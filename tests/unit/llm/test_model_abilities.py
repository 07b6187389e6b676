"""What a model lacks is left out of the same request, and learned when that helped."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest

from agent.llm.chat_model import ChatReply, ChatRequest, ModelConfig, Sink, TokenUsage
from agent.llm.model_abilities import LearnedModels, uses_ability
from agent.llm.model_calls import ModelProvider, ProviderReply, UnusableAnswer, call_provider, tool_attempts
from agent.llm.model_client import ModelClient
from agent.llm.openai_model import OpenAIModel
from agent.llm.request_messages import NO_TOOLS, outgoing
from gateway.errors import (
    AbilityMissing,
    EmptyModelReply,
    ModelAbility,
    ModelFailed,
    ModelRateLimited,
    StoreUnavailable,
)
from gateway.ports.memory import FACTS_EXPIRE, ModelFact
from gateway.store.shared_caches import SqlModelFacts
from tests.fakes.llm_context import FakeUsageRecorder, SummingMeter, memory_tools, request
from tests.fakes.strict_requests import RequestRule, violations
from tests.fakes.turns import WallClock

PICTURE = {"type": "image_url", "image_url": {"url": "data:image/png;base64,iVBORw0KGgo="}}
CALL = {"id": "c1", "type": "function", "function": {"name": "look", "arguments": '{"at": 1}'}}
HISTORY: list[dict[str, Any]] = [
    {"role": "system", "content": "You are Parlour."},
    {"role": "user", "content": [{"type": "text", "text": "look"}, PICTURE]},
    {"role": "assistant", "content": None, "tool_calls": [CALL, {**CALL, "id": "c2"}], "thinking": {"model": "m"}},
    {"role": "tool", "tool_call_id": "c1", "content": "one"},
    {"role": "tool", "tool_call_id": "c2", "content": "two"},
    {"role": "assistant", "content": "Two things."},
    {"role": "user", "content": "and now?"},
]


class LimitedModel:
    """A model that refuses requests for what it *lacks*, one ability at a time, and then fails with *error*."""

    def __init__(
        self,
        *lacks: ModelAbility,
        name: str = "openai/limited",
        error: ModelFailed | None = None,
        is_lasting: bool = True,
    ) -> None:
        self.name = name
        self.is_lasting = is_lasting
        self.lacks: Collection[ModelAbility] = lacks
        self.error = error
        self.requests: list[ChatRequest] = []

    async def complete(self, request: ChatRequest, *, sink: Sink | None = None) -> ChatReply:
        """Answer "ok" to a request that needs nothing which is lacking."""
        self.requests.append(request)
        for each in self.lacks:
            if each not in request.without and uses_ability(request, each, is_streamed=sink is not None):
                # As providers do: a call that cannot be forced is refused as tools are.
                refused = ModelAbility.TOOLS if each is ModelAbility.TOOL_CHOICE else each
                raise AbilityMissing(f"{self.name}: HTTP 400", refused, is_lasting=self.is_lasting)
        if self.error is not None:
            raise self.error
        if sink is not None:
            sink("ok")
        return ChatReply(text="ok", tool_calls=(), model=self.name, tokens=TokenUsage(), cost=None)

    async def warm(self) -> None:
        """Nothing to load."""

    async def close(self) -> None:
        """Nothing to close."""


class FakeFacts(SqlModelFacts):
    """Facts in memory, which may be away."""

    def __init__(self) -> None:
        self.rows: dict[tuple[str, str], ModelFact] = {}
        self.is_away = False

    def facts(self) -> Mapping[tuple[str, str], ModelFact]:
        """Return the rows."""
        return self.rows

    async def change(self, put: Collection[ModelFact], remove: Collection[tuple[str, str]] = ()) -> None:
        """Store and remove, unless it is away."""
        if self.is_away:
            raise StoreUnavailable("away")
        self.rows |= {(each.model, each.name): each for each in put}
        for place in remove:
            self.rows.pop(place, None)


async def no_pause(_: float) -> None:
    """Wait for nothing."""


def client(*models: LimitedModel, facts: LearnedModels | None = None) -> ModelClient:
    """Return a client over *models*."""
    return ModelClient(models, recorder=FakeUsageRecorder(), meter=SummingMeter(), pause=no_pause, facts=facts)


def full_request() -> ChatRequest:
    """Return a request that uses every ability."""
    return replace(request(tools=memory_tools().schemas), messages=HISTORY, effort="high")


def show_nothing(_: str) -> None:
    """Show nothing."""


@pytest.mark.parametrize("ability", [each for each in ModelAbility if each is not ModelAbility.TOOL_CHOICE])
async def test_one_refusal_costs_one_request(ability: ModelAbility) -> None:
    """What was learned is of this model alone."""
    model, other = LimitedModel(ability), LimitedModel(name="openai/other")
    learned = LearnedModels()
    await client(model, facts=learned).complete(full_request(), sink=show_nothing)
    await client(other, facts=learned).complete(full_request(), sink=show_nothing)
    assert [each.without for each in model.requests] == [frozenset(), {ability}]
    assert learned.missing(model.name) == {ability}
    assert [each.without for each in other.requests] == [frozenset()]


async def test_a_retry_of_the_smaller_request_repeats_no_refused_one() -> None:
    """A rate limit between two steps does not begin the ladder again."""
    model = LimitedModel(ModelAbility.TOOLS, error=ModelRateLimited("m"))
    with pytest.raises(ModelRateLimited):
        await client(model).complete(full_request())
    assert [bool(each.without) for each in model.requests] == [False, True, True]


async def test_a_refusal_of_what_was_not_asked_for_is_an_error() -> None:
    """A server that names tools where there are none, or names them again, is not asked for ever."""
    model = LimitedModel(error=AbilityMissing("m", ModelAbility.TOOLS))
    with pytest.raises(AbilityMissing):
        await client(model).complete(request("hi"))
    assert len(model.requests) == 1
    with pytest.raises(AbilityMissing):
        await client(model).complete(full_request())
    assert len(model.requests) == 3


async def test_an_empty_answer_proves_that_the_request_was_taken() -> None:
    """The model thought and said nothing; its server took the smaller request."""
    asked = client(LimitedModel(ModelAbility.STREAM_OPTIONS, error=EmptyModelReply("m")))
    with pytest.raises(EmptyModelReply):
        await asked.complete(request("hi"), sink=show_nothing)
    assert asked.lacks(ModelAbility.STREAM_OPTIONS)


async def test_a_call_that_cannot_be_forced_is_left_to_the_model() -> None:
    """It is no lack of tools: chats keep them."""
    model = LimitedModel(ModelAbility.TOOL_CHOICE)
    asked = client(model)
    forced = replace(full_request(), tool_choice="required")
    await asked.complete(forced)
    assert asked.facts.missing(model.name) == {ModelAbility.TOOL_CHOICE}
    assert not asked.lacks(ModelAbility.TOOLS)


async def test_a_question_for_a_call_is_not_asked_of_a_model_without_tools() -> None:
    """Its caller asks for JSON instead; once that is known, no request is spent on it."""
    model = LimitedModel(ModelAbility.TOOLS)
    asked = client(model)
    forced = replace(full_request(), tool_choice="required")
    with pytest.raises(AbilityMissing):
        await asked.complete(forced)
    assert len(model.requests) == 2
    await asked.complete(full_request())
    before = len(model.requests)
    with pytest.raises(AbilityMissing, match="tools"):
        await asked.complete(forced)
    assert len(model.requests) == before


async def test_too_many_tools_are_left_out_of_one_request_alone() -> None:
    """The same request is answered without them, and the next one has tools again: there may be fewer by then."""
    model, learned = LimitedModel(ModelAbility.TOOLS, is_lasting=False), LearnedModels()
    asked = client(model, facts=learned)
    for _ in range(2):
        assert (await asked.complete(full_request())).text == "ok"
    assert [ModelAbility.TOOLS in each.without for each in model.requests] == [False, True, False, True]
    assert not learned.facts()


async def test_what_was_learned_is_tried_again_after_a_month() -> None:
    """A model that has got the ability is asked with it, and one that still lacks it costs one request."""
    wall = WallClock()
    model, learned = LimitedModel(ModelAbility.TOOLS), LearnedModels(now=wall.now)
    asked = client(model, facts=learned)
    await asked.complete(full_request())
    wall.advance(days=(FACTS_EXPIRE + timedelta(days=1)).days)
    await asked.complete(full_request())
    assert len(model.requests) == 4
    wall.advance(days=(FACTS_EXPIRE + timedelta(days=1)).days)
    model.lacks = ()
    await asked.complete(full_request())
    assert len(model.requests) == 5
    assert not asked.lacks(ModelAbility.TOOLS)


async def test_facts_outlive_a_store_that_is_away() -> None:
    """They hold in memory, and are stored with the next ones."""
    store = FakeFacts()
    learned = LearnedModels(store)
    store.is_away = True
    await learned.learn("m", {ModelAbility.TOOLS: ""})
    assert store.rows == {}
    assert learned.missing("m") == {ModelAbility.TOOLS}
    store.is_away = False
    await learned.learn("m", {"window": "8192 1.0"}, forget=[ModelAbility.TOOLS])
    assert learned.missing("m") == frozenset()
    assert [name for _, name in store.rows] == ["window"]
    store.rows.clear()  # another gateway has removed it
    assert learned.facts() == []


def test_facts_are_kept_by_model_and_address() -> None:
    """Another address is another model; a key or a password in an address is in no name."""
    names = [
        OpenAIModel(ModelConfig(model=model, api_base=base)).kept_as
        for model in ("openai/a", "openai/b")
        for base in ("", "http://one/v1", "http://me:secret@one/v1", "http://one/v1?key=secret")
    ]
    assert len(set(names)) == len(names)
    assert names[0] == "openai/a"
    assert not any("secret" in each or "one" in each for each in names)


def boundary(asked: ChatRequest) -> list[dict[str, Any]]:
    """Return the messages of a request as they are sent."""
    return outgoing(asked.messages, "m", has_tools=bool(asked.tools), lacks=asked.without)


def sent(*without: ModelAbility) -> dict[str, Any]:
    """Return the body for a model that lacks *without*."""
    asked = replace(full_request(), without=frozenset(without))
    tools = [] if ModelAbility.TOOLS in without else asked.tools
    return {"messages": boundary(asked), "tools": tools}


def test_calls_are_text_for_a_model_without_tools() -> None:
    """No call and no result is left, roles alternate, and the model is told that there are no tools."""
    body = sent(ModelAbility.TOOLS)
    assert violations(body, {RequestRule.TOOLS, RequestRule.ROLES, RequestRule.CONTENT}) == []
    system, _, called, results, *_ = body["messages"]
    assert system["content"].endswith(NO_TOOLS)
    assert called["content"].count("look") == 2
    assert results["content"].count('look({"at": 1}):\n  ') == 2
    without_tools = replace(full_request(), tools=(), without=frozenset({ModelAbility.TOOLS}))
    assert boundary(without_tools)[0] == HISTORY[0]  # the prompt promises none


def test_the_system_text_goes_into_the_first_message_of_the_user() -> None:
    """Pictures stay beside it, and a later system text goes into the message behind it."""
    body = sent(ModelAbility.SYSTEM, ModelAbility.TOOLS)
    assert violations(body, {RequestRule.SYSTEM, RequestRule.ROLES}) == []
    first = body["messages"][0]
    assert [part["type"] for part in first["content"]] == ["text", "text", "image_url"]
    later = [*HISTORY, {"role": "assistant", "content": "x"}, {"role": "system", "content": "news"}]
    asked = replace(full_request(), messages=later, without=frozenset({ModelAbility.SYSTEM}))
    assert boundary(asked)[-1] == {"role": "user", "content": "news"}


def test_reasoning_is_left_out_where_it_is_refused() -> None:
    """Nothing of it is in the history."""
    assert all("thinking" not in each for each in sent(ModelAbility.REASONING)["messages"])


@pytest.mark.parametrize("ability", list(ModelAbility))
def test_a_longer_history_is_sent_behind_the_same_bytes(ability: ModelAbility) -> None:
    """What a provider has cached of a prompt is cached of the next one, whatever is left out."""
    asked = replace(full_request(), without=frozenset({ability}))
    longer = replace(asked, messages=[*HISTORY, {"role": "assistant", "content": "so"}, *HISTORY[1:]])
    before = list(boundary(asked))
    assert list(boundary(longer))[: len(before)] == before


async def test_memory_is_summarised_by_a_model_without_tools() -> None:
    """The question is asked in plain words after the refusals, and by one request once the lack is known."""
    model = LimitedModel(ModelAbility.TOOLS)
    asked = client(model)
    provider = ModelProvider(model=asked, purpose="consolidation", turn="t1")
    messages = [{"role": "user", "content": "summarise"}]
    [save] = [dict(each) for each in memory_tools().schemas[:1]]

    async def ask() -> ProviderReply | UnusableAnswer:
        attempts = tool_attempts(messages, save, [{"role": "user", "content": "in JSON"}])
        return await call_provider(provider, "", attempts, deadline=timedelta(seconds=10))

    assert isinstance(reply := await ask(), ProviderReply)
    assert reply.content == "ok"
    await asked.complete(full_request())
    before = len(model.requests)
    assert isinstance(await ask(), ProviderReply)
    assert len(model.requests) == before + 1
