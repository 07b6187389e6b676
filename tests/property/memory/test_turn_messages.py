"""Whatever a transcript holds, what is sent of it is valid for the strictest server, and begins with what was sent."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent.base import transcript_lines as build
from agent.llm.request_messages import outgoing
from agent.memory.prompt.prompt_window import PromptWindow, apply_trims, fold, kept_lines, last_messages, render
from agent.memory.prompt.turn_messages import call_id, turn_messages
from gateway.errors import ModelAbility
from gateway.ports.journal import Line
from tests.fakes.memory import START
from tests.fakes.strict_requests import STRICTEST, RequestRule, violations

MODEL, OTHER = "openai/one", "openai/two"
SYSTEM = {"role": "system", "content": "You are Parlour."}
TOOLS = [{"type": "function", "function": {"name": "look", "parameters": {"type": "object"}}}]
SEEN = {"kind": "image", "name": "p.png", "seen": {"blob": "people/ann/" + "a" * 64, "media_type": "image/png"}}

TEXTS = st.sampled_from(["", " ", "\n", "hello", "[no answer was sent]", "è 🙂", "\ud800"])
PARTS = st.lists(st.fixed_dictionaries({"type": st.just("text"), "text": TEXTS}), max_size=2)
IDS = st.sampled_from(["", "a", "a", "b", "call_0", "chatcmpl-tool-" + "f" * 32, "ab:c/d", "é", None, 7])
NAMES = st.sampled_from(["look", "", "web search", "functions.look", "n" * 65, "é", None, "a\nb"])
ARGUMENTS = st.sampled_from(
    ["{}", '{"a":1}', "", "{", "null", "[]", "[{}]", '"{}"', "NaN", '{"a":NaN}', '{"a":1e999}', '{"a":"\\ud800"}']
) | st.sampled_from([None, {}, {"a": 1}, 7, "[" * 50_000])
CALLS = st.lists(
    st.builds(
        lambda name, arguments, each: {"id": each, "function": {"name": name, "arguments": arguments}},
        NAMES,
        ARGUMENTS,
        IDS,
    )
    | st.sampled_from([None, {}, {"id": "a"}, "look"]),
    max_size=3,
)
DATA = st.sampled_from(
    [
        None,
        {"model": MODEL, "message": {"reasoning_content": "hm"}},
        {"model": MODEL, "calls": [{"extra_content": {"google": {"thought_signature": "s"}}}, None]},
        {"model": OTHER, "message": {"reasoning_details": [{"type": "x"}]}, "calls": [{"extra_content": {}}]},
        {"model": MODEL},
        {"model": MODEL, "message": None, "calls": "odd"},
        "odd",
    ]
)


@st.composite
def turns(draw: st.DrawFn) -> list[list[Line]]:
    """Draw the lines of some turns, with every fault that a transcript of any release, or an import, may have."""
    index = 0
    drawn: list[list[Line]] = []
    for n in range(draw(st.integers(1, 5))):
        turn = f"t{n}"
        lines: list[Line] = []
        called: list[Any] = []
        more: dict[str, Any]
        for kind in draw(st.lists(st.sampled_from("uuuaacccrrrrndpsftwx"), max_size=9)):
            match kind:
                case "u":
                    more = draw(st.sampled_from([{}, {"head": "Sat, Ann"}, {"files": [SEEN]}, {"mid": "m1"}]))
                    lines.append(build.message(index, turn, "user", draw(TEXTS | PARTS), START, **more))
                case "a":
                    more = draw(st.sampled_from([{}, {"dropped": True}, {"stopped": "Stopped."}]))
                    lines.append(build.message(index, turn, "assistant", draw(TEXTS | PARTS), START, **more))
                case "c":
                    calls, data = draw(CALLS), draw(DATA)
                    called = [each.get("id") for each in calls if isinstance(each, dict)]
                    more = {"tool_calls": calls, "thinking": data}
                    lines.append(build.message(index, turn, "assistant", draw(TEXTS | st.none()), START, **more))
                case "r":
                    to = draw(st.sampled_from(called) if called else IDS)
                    more = draw(st.sampled_from([{}, {"files": [SEEN]}, {"name": "a b"}]))
                    lines.append(build.message(index, turn, "tool", draw(TEXTS), START, tool_call_id=to, **more))
                case "n":
                    lines.append(build.message(index, turn, "user", "[refused]", START, denials=["j1"]))
                case _:
                    lines.append(draw(other_lines(index)))
            index += "i" in lines[-1]
        drawn.append(lines)
    return drawn


def other_lines(index: int) -> st.SearchStrategy[Line]:
    """Draw a line that is no message, but may change what is above it."""
    below = st.integers(0, max(index, 1))
    return st.one_of(
        st.just(build.delta("r", "[memory] tea")),
        st.just(build.notice("t", "failed", START)),
        st.just(build.forgotten_line("m1")),
        st.builds(lambda at: build.trim(at, tools=0, chars=3), below),
        st.builds(lambda at: build.rewind(at, index), below),
        st.builds(build.mark, below),
        st.just(build.snapshot(1, {}, "UTC", index, replay_from=0, rev="r")),
    )


def window(drawn: Sequence[Sequence[Line]]) -> PromptWindow:
    """Return the state after these turns."""
    state = PromptWindow()
    for lines in drawn:
        own = [line["i"] for line in lines if "i" in line]
        low = min(own, default=state.turns[-1].high if state.turns else 0)
        fold(state, low, max(own, default=low - 1) + 1, lines)
    return state


def running(answered: int = 1) -> list[Line]:
    """Return the lines of a turn that waits for its answer, after *answered* calls."""
    lines: list[Line] = [build.message(90, "t9", "user", "and now?", START, head="Sat, Ann")]
    for n in range(answered):
        calls = [{"id": "a", "function": {"name": "look", "arguments": "{"}}]
        lines.append(build.message(91 + 2 * n, "t9", "assistant", "", START, tool_calls=calls))
        lines.append(build.message(92 + 2 * n, "t9", "tool", "", START, tool_call_id="a", name="look"))
    return lines


def body(messages: Sequence[dict[str, Any]], *lacks: ModelAbility, has_tools: bool = True) -> dict[str, Any]:
    """Return the request that *messages* become, as a server reads it."""
    sent = outgoing([SYSTEM, *messages], MODEL, has_tools=has_tools, lacks=lacks)
    is_bare = not has_tools or ModelAbility.TOOLS in lacks
    found: dict[str, Any] = json.loads(json.dumps({"messages": sent, "tools": [] if is_bare else TOOLS}))
    return found


@pytest.mark.parametrize(
    ("lacks", "rules"),
    [
        ([], []),
        ([ModelAbility.TOOLS], [RequestRule.TOOLS]),
        ([ModelAbility.PICTURES], [RequestRule.PICTURES]),
        ([ModelAbility.SYSTEM], [RequestRule.SYSTEM]),
        ([ModelAbility.REASONING], [RequestRule.NO_REASONING]),
        ([ModelAbility.SYSTEM, ModelAbility.TOOLS, ModelAbility.PICTURES], [RequestRule.TOOLS, RequestRule.PICTURES]),
    ],
    ids=lambda each: "+".join(map(str, each)) or "nothing",
)
@given(drawn=turns(), answered=st.integers(0, 2))
def test_every_transcript_is_valid_for_the_strictest_server(
    lacks: list[ModelAbility], rules: list[RequestRule], drawn: list[list[Line]], answered: int
) -> None:
    """With all faults of ids, names, arguments, pairs, roles and contents, and without what a model lacks."""
    state = window(drawn)
    own = turn_messages(running(answered), is_over=False)
    for history in (render(state.turns), last_messages(render(state.turns), state)):
        assert violations(body([*history, *own], *lacks), STRICTEST | set(rules)) == []


@given(drawn=turns())
def test_calls_are_no_calls_where_the_request_has_no_tools(drawn: list[list[Line]]) -> None:
    """Servers refuse calls beside no tools."""
    sent = body([*render(window(drawn).turns), *turn_messages(running(), is_over=False)], has_tools=False)
    assert violations(sent, STRICTEST | {RequestRule.TOOLS}) == []


@pytest.mark.parametrize("rule", [RequestRule.SIGNATURE, RequestRule.DETAILS, RequestRule.REASONING])
@given(drawn=turns())
def test_calls_of_other_models_are_no_calls_where_they_lack_something(
    rule: RequestRule, drawn: list[list[Line]]
) -> None:
    """Gemini wants its signature with each call, OpenRouter its details: what another model called has neither."""
    wanted: dict[RequestRule, dict[str, Any]] = {
        RequestRule.SIGNATURE: {"calls": [{"extra_content": {"google": {"thought_signature": "s"}}}] * 3},
        RequestRule.DETAILS: {"message": {"reasoning_details": []}},
        RequestRule.REASONING: {"message": {"reasoning_content": "hm"}},
    }
    for lines in drawn:
        for n, line in enumerate(lines):
            if isinstance(line.get("thinking"), dict) and line["thinking"]["model"] == MODEL:
                lines[n] = {**line, "thinking": {"model": MODEL, **wanted[rule]}}
    messages = [
        *render(window([kept_lines(lines) for lines in drawn]).turns),
        *turn_messages(running(0), is_over=False),
    ]
    assert violations(body(messages, ModelAbility.FOREIGN_CALLS), STRICTEST | {rule}) == []


@pytest.mark.parametrize("lacks", [(), (ModelAbility.TOOLS,), (ModelAbility.FOREIGN_CALLS,), (ModelAbility.SYSTEM,)])
@given(drawn=turns())
def test_what_was_sent_is_sent_again(lacks: tuple[ModelAbility, ...], drawn: list[list[Line]]) -> None:
    """Each request of a turn, and the next turn's, begin with the bytes of the one before."""
    history = [
        message
        for lines in drawn
        for message in turn_messages([line for line in lines if build.kind_of(line) != "trim"])
    ]
    own = running(2)
    before: list[Any] = []
    for count in (1, 3, 5):
        sent = body([*history, *turn_messages(own[:count], is_over=False)], *lacks)["messages"]
        assert sent[: len(before)] == before
        before = sent
    failed = body([*history, *turn_messages(own), {"role": "user", "content": "again"}], *lacks)["messages"]
    assert failed[: len(before)] == before
    assert failed[len(before)] == {"role": "assistant", "content": "[no answer was sent]"}


@given(st.lists(st.tuples(st.integers(0, 2_000_000_000), st.integers(0, 1_295)), unique=True, max_size=40))
def test_ids_of_calls_are_nine_letters_and_digits_and_unique(places: list[tuple[int, int]]) -> None:
    """Two calls of a transcript never share one."""
    ids = {call_id(*place) for place in places}
    assert len(ids) == len(places)
    assert all(len(each) == 9 and each.isascii() and each.isalnum() for each in ids)


def test_trims_leave_a_valid_prompt_with_the_keys_that_providers_miss() -> None:
    """A call that was shortened still has the data that goes with it, as far as it is of use."""
    data = {"model": MODEL, "message": {"reasoning_content": "x" * 999}, "calls": [{"extra_content": "s"}]}
    lines = running(1)
    lines[1] = {**lines[1], "thinking": data}
    (_, called, *_) = turn_messages(apply_trims([*lines, build.trim(95, tools=0, chars=0)]), is_over=False)
    assert called["thinking"] == {"model": MODEL, "message": {"reasoning_content": ""}}
    assert called["tool_calls"][0]["added"] == {"extra_content": "s"}
