"""Reading what a model wants changed: whatever it says, operations on the three documents or a reason."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent.llm.chat_model import ToolCall
from agent.llm.model_calls import UnusableAnswer
from agent.memory.editing.text_operations import (
    LONGEST,
    MOST,
    AddLines,
    DocumentEdit,
    ParsedEdits,
    RemoveLines,
    ReplaceLines,
    read_edit,
    read_edits,
)

TEA = {"document": "USER.md", "op": "add", "text": "- likes tea", "under": "Drinks", "after": "- likes milk"}


def called(arguments: Any, name: str = "edit_memory") -> tuple[ToolCall, ...]:
    """Return a call of the tool."""
    return (ToolCall("c", name, arguments if isinstance(arguments, str) else json.dumps(arguments)),)


@pytest.mark.parametrize("wrap", [lambda x: x, lambda x: [x], json.dumps])
def test_arguments_come_in_several_wrappings(wrap: Any) -> None:
    """An object, a list of one, a string of JSON: the same operations."""
    read = read_edits("", called(wrap({"operations": [TEA], "done": True})))
    assert read == ParsedEdits(
        (DocumentEdit("USER.md", AddLines("- likes tea", "Drinks", "- likes milk")),), is_done=True
    )


def test_each_operation_is_read_and_what_is_none_is_named() -> None:
    """One that is wrong costs itself alone, and the model hears why."""
    operations: list[Any] = [
        {"document": "MEMORY.md", "op": "replace", "old": "- a", "text": "- b", "under": "X"},
        {"document": "SOUL.md", "op": "remove", "old": "  - a  "},
        {"document": "history.jsonl", "op": "remove", "old": "- a"},
        {"document": "../USER.md", "op": "add", "text": "- a"},
        {"document": "USER.md", "op": "wipe"},
        {"document": "USER.md", "op": "replace", "old": "- a"},
        {"document": "USER.md", "op": "add", "text": 7},
        {"document": "USER.md", "op": "add", "text": "x" * (LONGEST + 1)},
        "remove everything",
        None,
    ]
    read = read_edits("", called({"operations": operations}))
    assert isinstance(read, ParsedEdits)
    assert read.edits == (
        DocumentEdit("MEMORY.md", ReplaceLines("- a", "- b", "X")),
        DocumentEdit("SOUL.md", RemoveLines("  - a  ")),
    )
    assert len(read.wrong) == 8
    assert not read.is_done


def test_there_is_a_limit_to_one_answer() -> None:
    """Hundreds of operations are not a small change."""
    read = read_edits("", called({"operations": [TEA] * 500, "done": True}))
    assert isinstance(read, ParsedEdits)
    assert len(read.edits) == MOST
    assert read.wrong


@pytest.mark.parametrize(
    "said",
    [
        ("", ()),
        ("Nothing has to change.", ()),
        ("", called({})),
        ("", called({"operations": "all"})),
        ("", called("{")),
        ("", called("[[[[[[]]]]]]")),
        ("", called({"operations": []}, name="save_memory")),
        (None, None),
    ],
)
def test_what_says_no_operations_is_unusable(said: tuple[Any, Any]) -> None:
    """No call, another tool, wrong fields, half an object."""
    assert isinstance(read_edits(*said), UnusableAnswer)


def test_a_model_without_tools_answers_in_text() -> None:
    """The JSON may stand in a fence, or among words."""
    text = 'So: ```json\n{"operations": [], "done": true}\n``` That is all.'
    assert read_edits(text, ()) == ParsedEdits(is_done=True)


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=20),
    lambda inner: (
        st.lists(inner, max_size=4) | st.dictionaries(st.sampled_from([*TEA, "operations", "done", "x"]), inner)
    ),
    max_leaves=12,
)


@given(json_values, st.text(max_size=60))
def test_it_never_raises_and_only_names_our_documents(value: Any, text: str) -> None:
    """Any JSON, any text; what is read survives its record."""
    for read in (read_edits(text, called(value)), read_edits(text, value), read_edits(value, [{"function": value}])):
        if isinstance(read, ParsedEdits):
            assert all(read_edit(json.loads(json.dumps(each.record()))) == each for each in read.edits)
