"""Edits of a document: a record holds the whole edit; doing it twice is doing it once, and it can be undone."""

from __future__ import annotations

import json

from hypothesis import given
from hypothesis import strategies as st

from agent.memory.editing.edit_simulation import EditOutcome, EditSimulation
from agent.memory.editing.text_operations import (
    AddLines,
    DocumentEdit,
    Operation,
    RemoveLines,
    ReplaceLines,
    apply,
    read_edit,
)
from agent.memory.editing.three_way_merge import revert_change, three_way

WORDS = st.lists(
    st.sampled_from(["tea", "Ann", "Bern", "17", "likes", "not", "allergic", "the", "dark", "é", "北京", "x:"]),
    min_size=1,
    max_size=5,
)
LINES = WORDS.map(lambda words: "- " + " ".join(words))
DOCUMENTS = st.lists(LINES, max_size=8, unique=True).map(lambda lines: "".join(f"{line}\n" for line in lines))


@st.composite
def edits(draw: st.DrawFn) -> tuple[str, DocumentEdit]:
    """Return a document and an edit of it, most often one that fits."""
    text = draw(DOCUMENTS)
    old = draw(st.sampled_from(text.splitlines()) if text and draw(st.integers(0, 9)) else LINES)
    new = draw(LINES)
    operations: list[Operation] = [AddLines(new), ReplaceLines(old, new), RemoveLines(old)]
    operation = draw(st.sampled_from(operations))
    source, reason = draw(st.integers(-1, 10**6)), draw(st.sampled_from(["", "because"]))
    return text, DocumentEdit("MEMORY.md", operation, source, has_evidence=draw(st.booleans()), reason=reason)


@given(edits())
def test_a_record_is_read_back_as_the_same_edit(pair: tuple[str, DocumentEdit]) -> None:
    """Through JSON, as a job or a file stores it."""
    _, edit = pair
    assert read_edit(json.loads(json.dumps(edit.record()))) == edit


@given(edits())
def test_an_edit_done_twice_is_done_once(pair: tuple[str, DocumentEdit]) -> None:
    """After a crash the change from the base is merged into a document that has it already."""
    text, edit = pair
    simulation = EditSimulation({"MEMORY.md": text})
    simulation.do([edit], is_final=True)
    done = simulation.texts["MEMORY.md"]
    assert three_way(text, done, done).text == done
    again = EditSimulation({"MEMORY.md": text})
    again.do([edit], is_final=True)
    assert again.texts == simulation.texts


@given(edits())
def test_an_edit_can_be_undone(pair: tuple[str, DocumentEdit]) -> None:
    """Every line that was there is there again, and no other."""
    text, edit = pair
    simulation = EditSimulation({"MEMORY.md": text})
    [result] = simulation.do([edit])
    after = simulation.texts["MEMORY.md"]
    assert (after == text) is (result.fate not in (EditOutcome.DONE, EditOutcome.LOSES))
    undone = revert_change(text, after, after)
    assert undone is not None
    assert sorted(undone.splitlines()) == sorted(text.splitlines())


@given(DOCUMENTS, LINES, LINES)
def test_a_replacement_and_its_reverse_cancel_each_other(text: str, one: str, other: str) -> None:
    """Byte for byte, where the new line is not there yet."""
    start = f"{one}\n{text}"
    if one in text.splitlines() or other in start.splitlines():
        return
    there = apply([ReplaceLines(one, other)], start)
    assert not there.refused
    assert apply([ReplaceLines(other, one)], there.text).text == start
