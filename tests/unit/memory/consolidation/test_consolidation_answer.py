"""Reading what a model made of a consolidation, in every form that providers give it."""

from __future__ import annotations

import json
from types import SimpleNamespace
from typing import Any

import pytest

from agent.llm.model_calls import MOST_CHARACTERS, UnusableAnswer
from agent.memory.update.consolidator import ConsolidationAnswer, parse_answer

GOOD = {"history_entry": "[2026-03-06 10:00] Talked.", "memory_update": "- likes tea\n"}
READ = ConsolidationAnswer("[2026-03-06 10:00] Talked.", "- likes tea")


def call(arguments: Any, name: str = "save_memory") -> list[Any]:
    """Return one tool call as the seeds' providers give it."""
    return [SimpleNamespace(name=name, arguments=arguments)]


@pytest.mark.parametrize(
    "arguments",
    [GOOD, json.dumps(GOOD), [GOOD], [json.dumps(GOOD)], json.dumps([GOOD]), GOOD | {"more": 1}],
    ids=["object", "string", "list", "list of a string", "string of a list", "with more"],
)
def test_arguments_in_every_form(arguments: Any) -> None:
    """An object, a JSON string, a one-element list of either."""
    assert parse_answer(None, call(arguments)) == READ


def test_calls_in_the_form_of_openai() -> None:
    """Mappings or objects, with the function inside."""
    function = {"name": "save_memory", "arguments": json.dumps(GOOD)}
    assert parse_answer("", [{"id": "a", "type": "function", "function": function}]) == READ
    assert parse_answer("", (SimpleNamespace(function=SimpleNamespace(**function)),)) == READ


def test_the_first_good_call_counts() -> None:
    """Others beside it do no harm."""
    calls = [*call({}), *call(GOOD, "exec"), *call(GOOD), *call(GOOD | {"memory_update": "x"})]
    assert parse_answer("text", calls) == READ


@pytest.mark.parametrize(
    "text",
    [
        json.dumps(GOOD),
        f"```json\n{json.dumps(GOOD, indent=2)}\n```",
        f"Here it is:\n```\n{json.dumps(GOOD)}\n```\nDone.",
        f"Sure! {{ok}} {json.dumps(GOOD)} Anything else?",
    ],
    ids=["plain", "fenced", "fenced with words", "among words"],
)
def test_json_of_a_model_without_tools(text: str) -> None:
    """As [004] asks for it."""
    assert parse_answer(text, None) == READ
    assert parse_answer(text, []) == READ


@pytest.mark.parametrize(
    ("content", "calls", "reason"),
    [
        (None, None, "no tool call and no JSON"),
        ("I have nothing to save.", [], "no tool call and no JSON"),
        ("", call(GOOD, "exec"), "another tool was called"),
        ("", call({"history_entry": "x"}), "memory_update missing"),
        ("", call({"memory_update": "x"}), "history_entry missing"),
        ("", call({}), "history_entry and memory_update missing"),
        ("", call(GOOD | {"history_entry": " \n"}), "history_entry missing"),
        ("", call(GOOD | {"memory_update": "\0"}), "memory_update missing"),
        ("", call(GOOD | {"memory_update": ["- a"]}), "memory_update missing"),
        ("", call(GOOD | {"memory_update": None}), "memory_update missing"),
        ("", call('{"history_entry": "x", "memory_upd'), "no JSON"),
        ("", call("[" * 100_000), "no JSON"),
        ("", call([GOOD, GOOD]), "a list of several"),
        ("", call([]), "a list of several"),
        ("", call(None), "no object"),
        ("", call("17"), "no object"),
        ("", call([[[[[GOOD]]]]]), "arguments in arguments"),
        ("", call("x" * (MOST_CHARACTERS + 1)), "too long"),
        ("", call(GOOD | {"memory_update": "x" * MOST_CHARACTERS}), "too long"),
        (json.dumps({"history_entry": "x"}), None, "memory_update missing"),
        (42, "save_memory", "no tool call and no JSON"),
    ],
)
def test_everything_else_is_no_answer_and_has_a_reason(content: Any, calls: Any, reason: str) -> None:
    """The reason names no word of it."""
    assert parse_answer(content, calls) == UnusableAnswer(reason)


def test_texts_are_made_fit_for_a_file() -> None:
    """Line ends, controls, half characters."""
    got = parse_answer("", call({"history_entry": "a\r\nb\0\x1b", "memory_update": "- \ud800x\ty"}))
    assert got == ConsolidationAnswer("a\nb", "- ?x\ty")


def test_an_object_that_breaks_when_it_is_looked_at_is_none() -> None:
    """Providers' objects may compute their attributes."""

    class BrokenArguments:
        @property
        def arguments(self) -> str:
            raise RuntimeError("no")

        name = "save_memory"

    assert parse_answer("", [BrokenArguments()]) == UnusableAnswer("no object")
