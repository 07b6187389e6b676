"""The model that stands in when none is configured."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from agent.llm.chat_model import ChatReply, ChatRequest, ModelConfig
from agent.memory.search.search_unit import SearchHit, SearchHits
from agent.tools.memory_tools import facts_in, format_hits, format_lines
from agent.tools.offline_model import open_model
from agent.tools.toolbox import Toolbox
from gateway.errors import ModelRefused
from gateway.i18n import LANGUAGES, translate
from gateway.installation import operator_command
from tests.fakes.llm_context import FakeSearchIndex, context, memory_tools, request

MODEL = open_model(ModelConfig(model="offline"))
HITS = {"people/ann": [SearchHit(source="MEMORY.md", line=4, text="Ann's dog is called Bello", score=1.0)]}


async def talk(said: str, *, sources: FakeSearchIndex | None = None, staged: list[str] | None = None) -> str:
    """Have a whole turn: the model, its tool, and the model again. Returns the answer."""
    box = memory_tools()
    asked = request(said, tools=box.schemas)
    reply = await MODEL.complete(asked)
    (call,) = reply.tool_calls
    outcome = await box.run(call, context(sources, staged=staged))
    final = await MODEL.complete(answered(asked, reply, outcome.text))
    assert not final.tool_calls
    return final.text


def answered(asked: ChatRequest, reply: ChatReply, result: str) -> ChatRequest:
    """The request after the tool ran."""
    (call,) = reply.tool_calls
    calls = [{"id": call.id, "type": "function", "function": {"name": call.name, "arguments": call.arguments}}]
    more: list[dict[str, object]] = [
        {"role": "assistant", "content": reply.text, "tool_calls": calls},
        {"role": "tool", "tool_call_id": call.id, "content": result},
    ]
    return replace(asked, messages=[*asked.messages, *more])


@pytest.mark.parametrize(
    ("said", "fact"),
    [
        ("remember that my dog is called Bello", "my dog is called Bello"),
        ("Remember: the gate code is 4711", "the gate code is 4711"),
        ("please remember I like tea", "I like tea"),
        ("[Sat 21 Nov 2026 22:20 CET, Ann]\nremember that\nline two counts", "line two counts"),
    ],
)
async def test_it_remembers_when_told_to(said: str, fact: str) -> None:
    """An order to remember goes through the tool as with any model, and is confirmed with the fact."""
    staged: list[str] = []
    assert await talk(said, staged=staged) == translate("offline.remembered", fact=fact)
    assert staged == [fact]


@pytest.mark.parametrize("said", ["remember when we met?", "what do you remember", "remember", "I remember that day"])
async def test_not_everything_with_remember_is_an_order(said: str) -> None:
    """Questions, bare words and stories are looked up, not stored."""
    reply = await MODEL.complete(request(said, tools=memory_tools().schemas))
    assert [call.name for call in reply.tool_calls] == ["memory_search"]


async def test_it_answers_from_memory() -> None:
    """Anything else is looked up with the words of the question; people read the facts, not where a line stands."""
    sources = FakeSearchIndex(HITS)
    answer = await talk("what is my dog called?", sources=sources)
    assert "- Ann's dog is called Bello" in answer
    assert "MEMORY.md:" not in answer
    assert sources.asked == [("people/ann", "what is my dog called?")]


HOW = translate("offline.setup", command=operator_command("init"), button=translate("web.connect"))
SETUP = f"{translate('offline.no_model')} {HOW}"


async def test_it_is_honest_when_it_knows_nothing() -> None:
    """Without a hit it says that no model is set up, what it can do, and which command sets one up."""
    answer = await talk("tell me a joke")
    assert answer == f"{translate('offline.nothing')} {SETUP}"
    assert operator_command("init") in answer


@pytest.mark.parametrize("language", LANGUAGES)
async def test_what_the_page_suggests_is_answered_without_a_look_into_memory(language: str) -> None:
    """The suggestion's own words, in each language: what works without a model, and how one is set up."""
    asked = replace(request(translate("web.try_help", language), tools=memory_tools().schemas), language=language)
    reply = await MODEL.complete(asked)
    button = translate("web.connect", language)
    setup = translate("offline.setup", language, command=operator_command("init"), button=button)
    assert (reply.tool_calls, reply.text) == ((), f"{translate('offline.abilities', language)}\n\n{setup}")


@pytest.mark.parametrize("said", ["What can you do?", "tell me a joke", "what is my dog called?"])
async def test_how_a_model_is_set_up_is_said_once_in_a_conversation(said: str) -> None:
    """What an answer before this one said is not said again; a person's own words do not count as an answer."""
    command = operator_command("init")
    box, sources = memory_tools(), FakeSearchIndex(HITS)
    before = request(f"what does {command} do?", tools=box.schemas).messages
    for told, times in ((f"Run {command}.", 0), ("Noted.", 1)):
        asked = request(said, tools=box.schemas)
        asked = replace(asked, messages=[*before, {"role": "assistant", "content": told}, asked.messages[-1]])
        reply = await MODEL.complete(asked)
        if reply.tool_calls:
            outcome = await box.run(reply.tool_calls[0], context(sources))
            reply = await MODEL.complete(answered(asked, reply, outcome.text))
        assert reply.text.count(command) == times


@pytest.mark.parametrize("said", ["remember that x is y", "what is x"])
async def test_it_never_claims_what_did_not_happen(said: str) -> None:
    """A tool that failed is not confirmed."""
    asked = request(said, tools=memory_tools().schemas)
    reply = await MODEL.complete(asked)
    final = await MODEL.complete(answered(asked, reply, "error: the disk is full"))
    assert final.text in {translate("offline.not_remembered"), f"{translate('offline.not_searched')} {SETUP}"}


async def test_without_tools_it_calls_none() -> None:
    """What is not on offer is not called."""
    assert not (await MODEL.complete(request("hello", tools=Toolbox([]).schemas))).tool_calls


async def test_a_new_turn_is_a_new_question() -> None:
    """Tool results of earlier turns answer nothing."""
    asked = request("what is x", tools=memory_tools().schemas)
    first = answered(asked, await MODEL.complete(asked), "No memories found for 'x'.")
    again = replace(first, messages=[*first.messages, {"role": "user", "content": "and what is z"}], turn="tdef")
    (call,) = (await MODEL.complete(again)).tool_calls
    assert json.loads(call.arguments) == {"query": "and what is z"}


async def test_it_streams_in_word_groups() -> None:
    """A watcher sees the text grow in whole words."""
    seen: list[str] = []
    reply = await MODEL.complete(request("hello"), sink=seen.append)
    assert seen[-1] == reply.text
    assert len(seen) > 5
    assert all(reply.text[len(state) - 1].isspace() for state in seen[:-1])


async def test_it_does_nothing_but_answer() -> None:
    """Consolidation and the like are refused, not pretended."""
    with pytest.raises(ModelRefused):
        await MODEL.complete(request("hello", purpose="consolidation"))


def test_facts_stand_before_talk() -> None:
    """Where a fact is known, what was said about it is not repeated; without one, what people said is shown once."""
    kept = SearchHit(source="memory/MEMORY.md", line=1, text="- the cat is Miez")
    said = SearchHit(
        source="sessions/a", line=4, text="my cat is called Miez", role="user", before="you: hi", after="you: ok"
    )
    assert facts_in(format_lines(SearchHits([said, kept]))) == ["the cat is Miez"]
    assert facts_in(format_hits("cat", [kept], "memory result(s)")) == ["the cat is Miez"]
    twice = format_lines(SearchHits([said, replace(said, line=9)]))
    assert facts_in(twice) == ["somebody: my cat is called Miez"]


async def test_its_own_answers_are_no_answer() -> None:
    """What it said itself is not repeated, or answers would grow from question to question."""
    own = SearchHit(source="sessions/a", line=5, text="This is what I remember about cats", role="assistant")
    sources = FakeSearchIndex({"people/ann": [own]})
    assert await talk("what about cats?", sources=sources) == f"{translate('offline.nothing')} {SETUP}"
