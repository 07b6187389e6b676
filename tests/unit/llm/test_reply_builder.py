"""Putting messages together, and reading errors, without litellm."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent.llm.chat_model import ChatRequest, ModelConfig, estimate
from agent.llm.litellm_model import LitellmModel
from agent.llm.provider_errors import map_provider_error
from agent.llm.reply_builder import ReplyBuilder, clean
from agent.llm.request_messages import outgoing
from gateway.errors import (
    ContextOverflow,
    InvalidModelReply,
    ModelFailed,
    ModelRateLimited,
    ModelRefused,
    ModelServerFailed,
)
from tests.fakes.llm_context import NOW, request


def chunk(content: Any = None, calls: Any = None, finish: str | None = None, thinking: Any = None) -> Any:
    """One piece of a stream as litellm gives it."""
    delta = SimpleNamespace(content=content, tool_calls=calls, thinking_blocks=thinking)
    return SimpleNamespace(choices=[SimpleNamespace(delta=delta, finish_reason=finish)])


def call(index: int | None, name: str | None, arguments: str | None, id: str | None = None) -> Any:  # noqa: A002 - the provider's word
    """One piece of a tool call."""
    return SimpleNamespace(index=index, id=id, function=SimpleNamespace(name=name, arguments=arguments))


@given(st.text(), st.lists(st.integers(min_value=1, max_value=7)))
def test_a_text_survives_any_cutting(text: str, cuts: list[int]) -> None:
    """However a stream is cut, the pieces come to the whole."""
    gathered = ReplyBuilder("m")
    rest = text
    for cut in [*cuts, len(text) + 1]:
        gathered.add(chunk(rest[:cut]))
        rest = rest[cut:]
    gathered.close()
    assert gathered.final_text() == clean(text)


def test_calls_that_come_interleaved_are_kept_apart() -> None:
    """Pieces belong to the call of their index."""
    gathered = ReplyBuilder("m")
    for piece in (
        call(0, "a", "", "1"),
        call(1, "b", "", "2"),
        call(0, None, '{"x":'),
        call(1, None, "{}"),
        call(0, None, "1}"),
    ):
        gathered.add(chunk(calls=[piece]))
    assert [(c.id, c.name, c.arguments) for c in gathered.tool_calls()] == [("1", "a", '{"x":1}'), ("2", "b", "{}")]


def test_a_new_id_begins_a_new_call_even_with_the_same_index() -> None:
    """Servers that number every parallel call 0 do not have their arguments glued together."""
    gathered = ReplyBuilder("m")
    gathered.add(chunk(calls=[call(0, "a", "{}", "1")]))
    gathered.add(chunk(calls=[call(0, "b", "{}", "2")]))
    gathered.add(chunk(calls=[call(None, "c", "{}", "3")]))
    assert [c.arguments for c in gathered.tool_calls()] == ["{}", "{}", "{}"]


def test_thinking_is_put_together_with_its_signature() -> None:
    """Thinking comes in pieces and its signature last; the next block is another one."""
    gathered = ReplyBuilder("m")
    for block in (
        {"type": "thinking", "thinking": "I "},
        {"type": "thinking", "thinking": "think", "signature": ""},
        {"type": "thinking", "thinking": "", "signature": "sig"},
        {"type": "redacted_thinking", "data": "…"},
    ):
        gathered.add(chunk(thinking=[block]))
    assert gathered.thinking() == {
        "model": "m",
        "message": {
            "thinking_blocks": [
                {"type": "thinking", "thinking": "I think", "signature": "sig"},
                {"type": "redacted_thinking", "data": "…"},
            ]
        },
    }


def test_surrogate_halves() -> None:
    """Halves that meet are joined, a lone one becomes the replacement character."""
    assert clean("\ud83d\ude00") == "\U0001f600"
    assert clean("a\ud83db") == "a\ufffdb"


class ProviderError(Exception):
    """An exception shaped like litellm's."""

    def __init__(self, text: str, status: int | None) -> None:
        super().__init__(text)
        self.status_code = status


@pytest.mark.parametrize(
    ("text", "status", "error"),
    [
        ("prompt is too long: 210000 tokens > 200000 maximum", 400, ContextOverflow),
        ("the request exceeds the available context size", 400, ContextOverflow),
        ("Request Entity Too Large: input is too long", 413, ContextOverflow),
        ("tool schema invalid", 400, ModelRefused),
        ("Overloaded", 529, ModelRateLimited),
        ("upstream overloaded", 500, ModelRateLimited),
        ("Your credit balance is too low", 429, ModelRefused),
        ("bad gateway", 502, ModelServerFailed),
        ("list index out of range", None, InvalidModelReply),
    ],
)
def test_other_servers_words(text: str, status: int | None, error: type[ModelFailed]) -> None:
    """Servers say the same thing in many words; none of them gets into our error."""
    found = map_provider_error(ProviderError(text, status), "m", NOW)
    assert type(found) is error
    assert text not in str(found)


def test_only_marking_providers_get_marks() -> None:
    """For a provider that caches what is marked, the first and the last message carry a mark; others get none."""
    messages = [{"role": "system", "content": "s"}, {"role": "user", "content": "a"}, {"role": "user", "content": "b"}]
    assert outgoing(messages, "openai/gpt-4o") == messages
    marked = outgoing(messages, "anthropic/claude-x")
    assert [isinstance(message["content"], list) for message in marked] == [True, False, True]
    assert messages[0]["content"] == "s"
    assert outgoing(messages, "anthropic/claude-x", marks=False) == messages


def test_a_mark_stands_before_tool_results() -> None:
    """The step after a tool reads what the step before wrote: its mark is where that one was, or behind it."""
    call = {"id": "c", "type": "function", "function": {"name": "look", "arguments": "{}"}}
    messages: list[dict[str, Any]] = [
        {"role": "system", "content": "s"},
        {"role": "user", "content": "a"},
        {"role": "assistant", "content": "", "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "c", "content": "result"},
    ]
    first, second = (outgoing(messages[:count], "anthropic/claude-x") for count in (2, 4))
    assert second[:2] == first
    assert [isinstance(message["content"], list) for message in second] == [True, True, False, False]
    messages[2]["content"] = "I look."
    spoken = outgoing(messages, "anthropic/claude-x")
    assert [isinstance(message["content"], list) for message in spoken] == [True, False, True, False]


async def test_background_prompts_carry_no_marks(monkeypatch: pytest.MonkeyPatch) -> None:
    """A summary's prompt is sent once: writing it to a cache would cost a quarter more."""
    model = LitellmModel(ModelConfig(model="anthropic/claude-x", vision="off"))
    sent: dict[str, Any] = {}

    async def complete(**arguments: Any) -> None:
        sent.update(arguments)

    monkeypatch.setattr(model, "_litellm", SimpleNamespace(acompletion=complete))
    messages = [{"role": "system", "content": "s"}, {"role": "user", "content": "a"}]
    for purpose, is_marked in (("answer", True), ("consolidation", False), ("dream", False), ("note", False)):
        await model._call(ChatRequest(messages=messages, turn="t", purpose=purpose))
        assert [isinstance(each["content"], list) for each in sent["messages"]] == [is_marked] * 2


def test_an_estimate_grows_with_the_prompt() -> None:
    """A guess is of the right order: about four characters a token."""
    assert 900 < estimate(request("word " * 800)).input < 1_200
    assert ModelConfig(model="x").timeout == 120
