"""Tool calls that models write as text: found in every form, and told from words about them."""

from __future__ import annotations

import json
import time

import pytest

from agent.llm.answer_text import AnswerText, find_written_calls
from agent.llm.chat_model import WrittenCalls


def find(text: str) -> WrittenCalls | None:
    """Read *text* as an answer."""
    answer = AnswerText()
    answer.add(text)
    answer.close()
    return find_written_calls(answer.text, answer.call_at, {"memory_search"}.__contains__, is_expected=True)


CALL = '{"name": "memory_search", "arguments": {"query": "cats"}}'
FORMS = {
    "hermes": f"<tool_call>\n{CALL}\n</tool_call>",
    "unclosed": f"<tool_call>{CALL}",
    "mistral": f"[TOOL_CALLS][{CALL}]",
    "mistral, newer": '[TOOL_CALLS]memory_search[ARGS]{"query": "cats"}',
    "llama": '<|python_tag|>{"name": "memory_search", "parameters": {"query": "cats"}}',
    "llama, older": '<function=memory_search>{"query": "cats"}</function>',
    "qwen coder": "<tool_call>\n<function=memory_search>\n<parameter=query>\ncats\n</parameter>\n</function>\n"
    "</tool_call>",
    "claude": '<function_calls>\n<invoke name="memory_search">\n<parameter name="query">cats</parameter>\n</invoke>\n'
    "</function_calls>",
    "granite": f"<|tool_call|>[{CALL}]",
    "nemotron": f"<TOOLCALL>[{CALL}]</TOOLCALL>",
    "cherry": f"<tool_use>{CALL}</tool_use>",
    "cohere": '<|START_ACTION|>[{"tool_name": "memory_search", "parameters": {"query": "cats"}}]<|END_ACTION|>',
    "bare": CALL,
    "bare, in a list": f"[{CALL}]",
    "bare, in a code block": f"```json\n{CALL}\n```",
    "bare, as OpenAI has it": f'{{"tool_calls": [{{"function": {CALL}}}]}}',
    "wrapped": '{"type": "function", "function": {"name": "memory_search", "arguments": "{\\"query\\": \\"cats\\"}"}}',
}


@pytest.mark.parametrize("text", FORMS.values(), ids=FORMS)
def test_each_form_is_a_call(text: str) -> None:
    """Name and arguments are read, and nothing else stands in the answer."""
    found = find(text)
    assert found is not None
    assert [(call.name, json.loads(call.arguments)) for call in found.calls] == [("memory_search", {"query": "cats"})]
    assert found.is_whole


@pytest.mark.parametrize(
    "text",
    [
        f"Let me look.\n<tool_call>{CALL}</tool_call>",
        f"<tool_call>{CALL}</tool_call>\nThere are no cats.",
        '<tool_call>{"name": "memory_search", "argum',
        "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>memory_search",
        "<tool_call>memory_search\n<arg_key>query</arg_key>\n<arg_value>cats</arg_value>\n</tool_call>",
        "<function_calls>memory_search(query='cats')</function_calls>",
        "<|tool_call>call:memory_search{query:cats}<tool_call|>",
        "[memory_search(query='cats')]",
        "```tool_code\nprint(memory_search(query='cats'))\n```",
    ],
)
def test_a_call_beside_words_or_in_pieces_is_not_the_whole_answer(text: str) -> None:
    """It is a call nevertheless: never shown, and never run."""
    found = find(text)
    assert found is not None
    assert not found.is_whole


@pytest.mark.parametrize("inside", ["{", "[", '{"a":"', '<function=x>{"a":', "<invoke name=x>", "x "])
def test_a_long_call_costs_little(inside: str) -> None:
    """Whatever a model writes into a call, it is read in a twentieth of a second; a longer one is not read."""
    text = "<tool_call>" + "{" + inside * (19_000 // len(inside))
    started = time.thread_time()
    found = find_written_calls(text, 0, set().__contains__, is_expected=True)
    assert time.thread_time() - started < 0.05
    assert found is not None
    assert not found.is_whole
    long = f'<tool_call>{{"name": "x", "arguments": {{"y": "{"z" * 20_000}"}}}}'
    assert find_written_calls(long, 0, set().__contains__, is_expected=True) == WrittenCalls(
        (), is_whole=False, is_expected=True
    )


@pytest.mark.parametrize(
    "text",
    [
        "The <tool_call> tag is what Hermes writes.",
        f"```\n<tool_call>{CALL}</tool_call>\n```",
        '{"name": "Ann", "arguments": "none"}',
        '{"name": "memory_search", "arguments": {}} is what it writes.',
        '```json\n{"name": "Ann"}\n```',
        "print('cats')",
        "[1] A footnote, a <b>bold</b> word and 2 < 3.",
    ],
)
def test_words_about_calls_are_words(text: str) -> None:
    """Text in a code block, tags in a sentence, and other JSON are answers."""
    assert find(text) is None
