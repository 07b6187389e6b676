"""Conversations whose transcripts hold what servers refuse: each is answered again, by a strict server, over HTTP."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

from agent.tools.tool import Tool, ToolContext, ToolKind, tool
from gateway.ports.journal import Line
from tests.fakes.inprocess_gateway import gateway
from tests.fakes.openai_server import FakeOpenAI, ModelFault, Script, ScriptedAnswer, ScriptedToolCall, open_server
from tests.fakes.strict_requests import STRICTEST, RequestRule, violations

CHAT = "main"


@tool("Look around.", kind=ToolKind.LOOK)
async def look(context: ToolContext) -> str:
    """Return what there is."""
    return "a chair"


def strict(*rules: RequestRule, calls: tuple[ScriptedToolCall, ...] = (ScriptedToolCall(name="look"),)) -> Script:
    """Answer as a server that refuses what no strict one takes, and *rules*; make *calls* where one says "look"."""

    def script(body: Mapping[str, Any], n: int) -> ScriptedAnswer:
        if violations(body, STRICTEST | set(rules)):
            return ScriptedAnswer(fault=ModelFault.BAD_REQUEST)
        last = body["messages"][-1]
        if last["role"] == "user" and "look" in str(last["content"]):
            return ScriptedAnswer(text="", calls=calls)
        return ScriptedAnswer(text=f"answer {n}")

    return script


def environment(server: FakeOpenAI, **more: str) -> dict[str, str]:
    """Return the settings of a gateway with the model of *server*."""
    return {
        "PARLOUR_LLM__MODEL": "openai/test",
        "PARLOUR_LLM__API_BASE": server.base,
        "PARLOUR_LLM__API_KEY": "test-key",
        **more,
    }


async def ask(home: Path, server: FakeOpenAI, *texts: str, tools: tuple[Tool, ...] = (look,)) -> list[str]:
    """Run a gateway on *home* and return its answers."""
    async with gateway(home=home, environment=environment(server), tools=tools) as parlour:
        answers = [await parlour.channel.ask(CHAT, text) for text in texts]
        await parlour.idle()
    return answers


def rewrite(home: Path, change: Callable[[dict[str, Any]], Line | None]) -> None:
    """Make the transcript what an earlier release or another model left behind."""
    (path,) = home.glob("people/*/sessions/*main.jsonl")
    lines = [change(json.loads(line)) for line in path.read_bytes().splitlines()]
    path.write_bytes(b"".join(json.dumps(line).encode() + b"\n" for line in lines if line is not None))


def with_call(line: dict[str, Any], **fields: Any) -> Line:
    """Return *line* with other arguments or another name in its calls."""
    calls = [{**call, "function": {**call["function"], **fields}} for call in line.get("tool_calls") or ()]
    return {**line, "tool_calls": calls} if calls else line


def with_id(line: dict[str, Any], new: str) -> Line:
    """Return *line* with another id of its call."""
    if line.get("tool_calls"):
        return {**line, "tool_calls": [{**call, "id": new} for call in line["tool_calls"]]}
    return {**line, "tool_call_id": new} if "tool_call_id" in line else line


FAULTS: Mapping[str, Callable[[dict[str, Any]], Line | None]] = {
    "arguments that are not JSON": lambda line: with_call(line, arguments='{"at": '),
    "arguments that are no object": lambda line: with_call(line, arguments='["chair"]'),
    "empty arguments": lambda line: with_call(line, arguments=""),
    "a name with a space": lambda line: with_call(line, name="look around"),
    "an empty name": lambda line: with_call(line, name=""),
    "a long name": lambda line: with_call(line, name="look" * 40),
    "an id of 46 characters": lambda line: with_id(line, "chatcmpl-tool-" + "f" * 32),
    "the same id in two turns": lambda line: with_id(line, "call_0"),
    "an empty id": lambda line: with_id(line, ""),
    "an id with signs": lambda line: with_id(line, "functions.look:0"),
    "no result": lambda line: None if line.get("role") == "tool" else line,
    "no call": lambda line: None if line.get("tool_calls") else line,
    "an empty result": lambda line: {**line, "content": ""} if line.get("role") == "tool" else line,
    "an empty answer": lambda line: {**line, "content": ""} if line.get("role") == "assistant" else line,
    "no answer": lambda line: None if line.get("role") == "assistant" and not line.get("tool_calls") else line,
}


@pytest.mark.parametrize("fault", FAULTS)
async def test_a_conversation_is_answered_whatever_its_transcript_holds(tmp_path: Path, fault: str) -> None:
    """Every later message was refused, and so was /retry; only /new helped."""
    async with open_server(strict()) as server:
        await ask(tmp_path / "home", server, "hello", "look", "look again")
        rewrite(tmp_path / "home", FAULTS[fault])
        answers = await ask(tmp_path / "home", server, "and now?", "look once more")
    assert [each.partition(" ")[0] for each in answers] == ["answer", "answer"]
    assert [violations(body, STRICTEST) for body in server.requests] == [[]] * len(server.requests)


@pytest.mark.parametrize(
    "call",
    [
        ScriptedToolCall(name="look", arguments='{"at": '),
        ScriptedToolCall(name="look", arguments="[1]"),
        ScriptedToolCall(name="look", arguments=" "),
        ScriptedToolCall(name="look around", arguments="{}"),
        ScriptedToolCall(name="l" * 100, arguments="{}"),
        ScriptedToolCall(name="look", arguments="{}", id="x" * 46),
    ],
    ids=["cut JSON", "no object", "blank", "a space", "a long name", "a long id"],
)
async def test_what_a_model_called_wrongly_poisons_nothing(tmp_path: Path, call: ScriptedToolCall) -> None:
    """The model reads what was wrong, in the same turn and later; the server takes each request."""
    async with open_server(strict(calls=(call, ScriptedToolCall(name="look", id=call.id)))) as server:
        answers = await ask(tmp_path / "home", server, "look", "look again", "and now?")
    assert [each.partition(" ")[0] for each in answers] == ["answer"] * 3
    assert [violations(body, STRICTEST) for body in server.requests] == [[]] * len(server.requests)
    results = [each["content"] for each in server.requests[-1]["messages"] if each["role"] == "tool"]
    assert len(results) == 4
    assert sum(each == "a chair" for each in results) == (4 if len(call.id) == 46 else 2)
    is_told = all(each == "a chair" or each.startswith("error: ") for each in results)
    assert is_told


async def test_a_failed_turn_is_the_question_and_a_line_that_it_was_not_answered(tmp_path: Path) -> None:
    """Servers whose templates want roles to alternate refused the next question."""
    refused = ScriptedAnswer(fault=ModelFault.BAD_REQUEST)
    async with open_server([refused, refused, "answer"]) as server:
        answers = await ask(tmp_path / "home", server, "one", "two", "three")
    assert answers[2] == "answer"
    sent = server.requests[-1]["messages"][1:]
    assert [(each["role"], each["content"].rpartition("] ")[2]) for each in sent] == [
        ("user", "one"),
        ("assistant", "[no answer was sent]"),
        ("user", "two"),
        ("assistant", "[no answer was sent]"),
        ("user", "three"),
    ]


async def test_tools_that_were_taken_away_leave_a_valid_conversation(tmp_path: Path) -> None:
    """Servers refuse calls beside no tools; what was called is told as text."""
    async with open_server(strict()) as server:
        await ask(tmp_path / "home", server, "look")
        bare = environment(server, PARLOUR_CHATS='{"pocket:*": {"tools": {"allow": []}}}')
        async with gateway(home=tmp_path / "home", environment=bare) as parlour:
            (answer,) = [await parlour.channel.ask(CHAT, "and now?")]
            await parlour.idle()
    assert answer.startswith("answer")
    assert violations(server.requests[-1], STRICTEST) == []


@pytest.mark.parametrize("rule", [RequestRule.SIGNATURE, RequestRule.DETAILS, RequestRule.REASONING])
async def test_calls_of_another_model_are_no_obstacle(tmp_path: Path, rule: RequestRule) -> None:
    """A server that misses its own data with them, and says nothing of use, is asked again with them as text."""
    home = tmp_path / "home"
    async with open_server(strict()) as first, open_server(strict(rule)) as second:
        await ask(home, first, "look")
        other = environment(second) | {"PARLOUR_LLM__MODEL": "openai/other"}
        async with gateway(home=home, environment=other, tools=(look,)) as parlour:
            answers = [await parlour.channel.ask(CHAT, text) for text in ("and now?", "and then?")]
            await parlour.idle()
        back = await ask(home, first, "back again")
    assert [each.partition(" ")[0] for each in (*answers, *back)] == ["answer"] * 3
    assert [bool(violations(body, {rule})) for body in second.requests] == [True, False, False]  # learned by the second
    assert [violations(body, STRICTEST) for body in first.requests] == [[]] * len(first.requests)
