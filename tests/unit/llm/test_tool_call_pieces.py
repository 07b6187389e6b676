"""Tool calls of streams, in every form in which servers send their pieces."""

from __future__ import annotations

import json
from typing import Any

import pytest

from agent.llm.completion_stream import JsonObject
from agent.llm.reply_builder import ReplyBuilder

CATS, DOGS = '{"query":"cats"}', '{"query":"dogs"}'
SEARCH = "memory_search"


def piece(name: str | None = None, arguments: Any = None, **more: Any) -> dict[str, Any]:
    """One piece of a call."""
    return {"function": {"name": name, "arguments": arguments}, **more}


def gather(pieces: list[Any], *, key: str = "delta") -> ReplyBuilder:
    """Read one chunk for each of *pieces*, as parsed JSON."""
    gathered = ReplyBuilder("m", keeps_reasoning=True)
    gathered.tools = [{"function": {"name": name}} for name in (SEARCH, "files_list", "remember")]
    for each in pieces:
        calls = each if isinstance(each, list) else [each]
        chunk = {"choices": [{"index": 0, key: {"role": "assistant", "tool_calls": calls}}]}
        gathered.add(json.loads(json.dumps(chunk), object_hook=JsonObject))
    gathered.close()
    return gathered


ONE = [(SEARCH, CATS)]
TWO = [(SEARCH, CATS), (SEARCH, DOGS)]
FORMS: dict[str, tuple[list[Any], list[tuple[str, str]]]] = {
    "index missing": ([piece(SEARCH, "", id="a"), piece(arguments='{"query":'), piece(arguments='"cats"}')], ONE),
    "index a string": ([piece(SEARCH, CATS[:9], index="0", id="a"), piece(arguments=CATS[9:], index="0")], ONE),
    "index null, two": ([piece(SEARCH, CATS, index=None), piece(SEARCH, DOGS, index=None)], TWO),
    "index missing, two with ids": (
        [
            piece(SEARCH, "", id="a"),
            piece(arguments=CATS[:5]),
            piece(arguments=CATS[5:]),
            piece(SEARCH, DOGS[:4], id="b"),
            piece(arguments=DOGS[4:], id="b"),
        ],
        TWO,
    ),
    "all 0, no ids": ([piece(SEARCH, CATS, index=0, id=""), piece(SEARCH, DOGS, index=0, id="")], TWO),
    "all 0, no ids, in pieces": (
        [piece(SEARCH, CATS[:4], index=0), piece(arguments=CATS[4:], index=0), piece(SEARCH, DOGS, index=0)],
        TWO,
    ),
    "all 0, ids": ([piece(SEARCH, CATS, index=0, id="a"), piece(SEARCH, DOGS, index=0, id="b")], TWO),
    "all 0, no arguments": (
        [piece("files_list", "", index=0), piece(SEARCH, CATS, index=0)],
        [("files_list", ""), *ONE],
    ),
    "two in one chunk": ([[piece(SEARCH, CATS), piece(SEARCH, DOGS)]], TWO),
    "another id in every piece": (
        [
            piece(SEARCH, "", index=0, id="a"),
            piece(arguments='{"query":', index=0, id="b"),
            piece(arguments='"cats"}', index=0, id="c"),
        ],
        ONE,
    ),
    "another id, no index": ([piece(SEARCH, "", id="a"), piece(arguments=CATS, id="b")], ONE),
    "arguments once more": ([piece(SEARCH, CATS, index=0, id="a"), piece("", CATS, index=0, id="a")], ONE),
    "all once more": ([piece(SEARCH, CATS, index=0), piece(SEARCH, CATS, index=0)], ONE),
    "pieces, then all": (
        [
            piece(SEARCH, "", index=0),
            piece(arguments=CATS[:5], index=0),
            piece(arguments=CATS[5:], index=0),
            piece(arguments=CATS, index=0),
        ],
        ONE,
    ),
    "empty object first": ([piece(SEARCH, "{}", index=0, id="a"), piece(arguments=CATS, index=0)], ONE),
    "name in two pieces": ([piece("memory_", "", index=0, id="a"), piece("search", CATS, index=0)], ONE),
    "name in every piece": ([piece(SEARCH, CATS[:5], index=0), piece(SEARCH, CATS[5:], index=0)], ONE),
    "null": ([[None], piece(SEARCH, CATS, index=0), [None, 7, "x", []]], ONE),
    "function null": ([{"index": 0, "id": "a", "function": None}, piece(SEARCH, CATS, index=0)], ONE),
    "an object": ([piece(SEARCH, {"query": "cats"}, index=0)], [(SEARCH, '{"query": "cats"}')]),
    "no function": ([{"name": SEARCH, "arguments": CATS}], ONE),
    "interleaved": (
        [
            piece(SEARCH, "", index=0, id="a"),
            piece(SEARCH, "", index=1, id="b"),
            piece(arguments=DOGS, index=1),
            piece(arguments=CATS, index=0),
        ],
        TWO,
    ),
    "one id for two calls": (
        [piece(SEARCH, CATS, id="a"), piece("files_list", "{}", id="a")],
        [*ONE, ("files_list", "{}")],
    ),
    "name in every piece, another id": (
        [piece(SEARCH, CATS[:5], index=0, id="a"), piece(SEARCH, CATS[5:], index=0, id="b")],
        ONE,
    ),
    "all so far in every piece": (
        [piece(SEARCH, CATS[:5], index=0, id="a"), piece(arguments=CATS[:9], index=0), piece(arguments=CATS, index=0)],
        ONE,
    ),
    "encoded twice": ([piece(SEARCH, json.dumps(CATS), index=0, id="a")], ONE),
    "index below zero, huge, no whole number": (
        [piece(SEARCH, CATS, index=-1), piece(SEARCH, DOGS, index=10**30), piece("files_list", "{}", index=0.5)],
        [*TWO, ("files_list", "{}")],
    ),
    "ids that are no text": ([piece(SEARCH, CATS, index=0, id=17), piece(SEARCH, DOGS, index=1, id={"a": 1})], TWO),
    "braces in words": (
        [piece("remember", '{"fact":"a } \\"', index=0), piece(arguments='{ b"}', index=0)],
        [("remember", '{"fact":"a } \\"{ b"}')],
    ),
    "no json": ([piece(SEARCH, '{"query": "cut of', index=0)], [(SEARCH, '{"query": "cut of')]),
}


@pytest.mark.parametrize(("pieces", "calls"), FORMS.values(), ids=FORMS)
def test_pieces_become_the_calls_that_were_meant(pieces: list[Any], calls: list[tuple[str, str]]) -> None:
    """However they are numbered, named, repeated or cut."""
    assert [(each.name, each.arguments) for each in gather(pieces).tool_calls()] == calls


def test_calls_of_a_streamed_message_are_calls() -> None:
    """A server that streams `message` in place of `delta`."""
    gathered = gather([[piece(SEARCH, CATS), piece(SEARCH, "not json"), piece(SEARCH, DOGS)]], key="message")
    assert [each.arguments for each in gathered.tool_calls()] == [CATS, "not json", DOGS]


def test_data_of_a_call_is_kept_by_its_position() -> None:
    """Gemini's signature, as its own address and as litellm write it; the other call has none."""
    extra = {"google": {"thought_signature": "c2ln"}}
    gathered = gather([piece(SEARCH, CATS, index=0, extra_content=extra), piece(SEARCH, DOGS, index=1)])
    assert gathered.thinking() == {"model": "m", "message": {}, "calls": [{"extra_content": extra}, {}]}
    own = {"thought_signature": "c2ln"}
    gathered = gather([piece(SEARCH, CATS, index=0, id="call_1__thought__c2ln", provider_specific_fields=own)])
    assert [each.id for each in gathered.tool_calls()] == ["call_1"]
    assert (gathered.thinking() or {})["calls"] == [{"provider_specific_fields": own}]


def test_details_of_reasoning_are_put_together() -> None:
    """OpenRouter's list: pieces of one kind and index are one entry, and go back with calls alone."""
    gathered = ReplyBuilder("m", keeps_reasoning=True)
    entries: list[dict[str, Any]] = [
        {"type": "reasoning.text", "index": 0, "text": "I ", "format": "x"},
        {"type": "reasoning.text", "index": 0, "text": "think", "signature": "s"},
        {"type": "reasoning.encrypted", "index": 1, "data": "abc"},
    ]
    for each in entries:
        delta = {"reasoning": "I think", "reasoning_details": [each, None]}
        gathered.add(json.loads(json.dumps({"choices": [{"delta": delta}]}), object_hook=JsonObject))
    assert gathered.thinking() is None
    call = {"choices": [{"delta": {"tool_calls": [piece(SEARCH, CATS, index=0)]}}]}
    gathered.add(json.loads(json.dumps(call), object_hook=JsonObject))
    text = {"type": "reasoning.text", "index": 0, "text": "I think", "format": "x", "signature": "s"}
    assert gathered.thinking() == {"model": "m", "message": {"reasoning_details": [text, entries[2]]}}


def test_data_that_goes_back_is_bounded() -> None:
    """Half a megabyte of it is dropped, and the call is not."""
    gathered = gather([piece(SEARCH, CATS, index=0, extra_content={"x": "y" * 500_000})])
    assert gathered.thinking() is None
    assert len(gathered.tool_calls()) == 1


FIGURES = [
    *[7, "many", [], [1], {"prompt_tokens": "12"}, {"prompt_tokens": None}, {"prompt_tokens": -3}],
    {"prompt_tokens": float("nan")},
    {"prompt_tokens": {}, "completion_tokens": 4, "prompt_tokens_details": [1]},
]


@pytest.mark.parametrize("usage", FIGURES, ids=str)
def test_odd_figures_never_raise(usage: Any) -> None:
    """What is no figure counts as none."""
    gathered = ReplyBuilder("m")
    chunk = {"choices": [{"delta": {"content": "Hi"}}], "usage": usage}
    gathered.add(json.loads(json.dumps(chunk), object_hook=JsonObject))
    tokens = gathered.tokens()
    assert tokens is None or (tokens.input, tokens.output) in ((12, 0), (0, 4))
