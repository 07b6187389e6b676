"""Changing a text by naming what changes: what does not fit is refused, and it is said which."""

from __future__ import annotations

import pytest

from agent.memory.editing.text_operations import (
    AddLines,
    AppliedOperations,
    Operation,
    RemoveLines,
    ReplaceLines,
    apply,
)

TEXT = "# Likes\n\n- tea\n- coffee\n\n# Dislikes\n\n- tea\n- rain\n"


def test_operations_are_done_in_order() -> None:
    """Each sees the text as the ones before left it."""
    operations: list[Operation] = [
        AddLines("- cake", under="Likes"),
        ReplaceLines("- cake", "- cake, with cream"),
        RemoveLines("- rain"),
    ]
    expected = "# Likes\n\n- tea\n- coffee\n- cake, with cream\n\n# Dislikes\n\n- tea\n"
    assert apply(operations, TEXT) == AppliedOperations(expected, done=3)


@pytest.mark.parametrize(
    ("operation", "why"),
    [
        (ReplaceLines("- milk", "- oat milk"), "no such line"),
        (RemoveLines("- Tea"), "no such line"),
        (RemoveLines("- tea"), "such a line stands under several headings"),
        (RemoveLines("- tea", under="Hates"), "no such heading"),
        (RemoveLines(""), "no old text was given"),
        (ReplaceLines("- rain", " "), "the new text is empty"),
        (AddLines(" \n"), "there is nothing to add"),
        (AddLines("- x", after="- gone"), "no such line"),
        (AddLines("- x", under="Hates"), "no such heading"),
    ],
)
def test_what_does_not_match_is_refused(operation: Operation, why: str) -> None:
    """It is told with its place in the list; the others are done."""
    applied = apply([RemoveLines("- rain"), operation], TEXT + "- snow\n")
    if operation == ReplaceLines("- rain", " "):
        why = "no such line"
    assert [(refused.index, refused.operation, refused.why) for refused in applied.refused] == [(1, operation, why)]
    assert applied.done == 1
    assert "- rain" not in applied.text
    assert applied.text.count("- ") == 4


def test_a_heading_says_which_of_several_is_meant() -> None:
    """Exact lines, several of them too."""
    assert apply([RemoveLines("- tea", under="Dislikes")], TEXT).text == TEXT.replace("\n\n- tea\n- rain", "\n\n- rain")
    assert apply([ReplaceLines("- tea\n- coffee", "- all of it")], TEXT).text == TEXT.replace(
        "- tea\n- coffee", "- all of it"
    )


def test_nothing_done_is_the_same_text() -> None:
    """Byte for byte; adding what stands there already is nothing done."""
    odd = "x\n\n\n- y   \n\n"
    assert apply([RemoveLines("- z"), AddLines("- y")], odd).text == odd
    assert apply([], odd) == AppliedOperations(odd)


def test_an_addition_stays_an_entry_of_its_own() -> None:
    """Behind a paragraph or before a heading there is a blank line."""
    assert apply([AddLines("A sentence.")], "Another one.\n").text == "Another one.\n\nA sentence.\n"
    assert apply([AddLines("- x")], "").text == "- x\n"
    assert (
        apply(
            [
                AddLines(
                    "- x",
                    after="- tea",
                )
            ],
            "- tea\n- rest\n",
        ).text
        == "- tea\n- x\n- rest\n"
    )
