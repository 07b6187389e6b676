"""Whatever a model answers: nothing that was remembered is lost, nothing that is new, and no message falls through.

Issue 4, "To show" 3.
"""

from __future__ import annotations

import asyncio
import json
import tempfile
from collections.abc import Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from hypothesis import assume, example, given, settings
from hypothesis import strategies as st

from agent.llm.model_calls import UnusableAnswer
from agent.memory import MemoryStore, Session
from agent.memory.editing.edit_simulation import DocumentOutcome, EditSimulation, outcome
from agent.memory.editing.memory_entries import EntryKind, MemoryEntry, is_same, parse, render, replaces
from agent.memory.editing.text_operations import NOTHING_YET, DocumentEdit, changed_texts, edits_of_text
from agent.memory.editing.three_way_merge import ThreeWayResult, merge_both, revert_change, three_way
from agent.memory.update.consolidator import ConsolidationAnswer, parse_answer

BUDGET = 4_000
_WORDS = "tea coffee Ann Bob Berlin Bern 2024 17 likes prefers Python allergic peanuts to not the dark at 北京 é - # x:"
WORDS = st.sampled_from([*_WORDS.split(), "**bold**", "`code`"])
PHRASES = st.lists(WORDS, min_size=1, max_size=6).map(" ".join)


@st.composite
def memories(draw: st.DrawFn) -> str:
    """Return a MEMORY.md: sections with paragraphs, nested lists, code."""
    lines: list[str] = []
    for _ in range(draw(st.integers(0, 4))):
        shape = draw(st.sampled_from(["heading", "sub", "list", "nested", "numbers", "paragraph", "code"]))
        said = draw(st.lists(PHRASES, min_size=1, max_size=4))
        if shape in ("heading", "sub"):
            lines += ["", ("# " if shape == "heading" else "## ") + said[0], ""]
        elif shape == "list":
            lines += [f"- {each}" for each in said]
        elif shape == "nested":
            lines += [f"- {said[0]}", *(f"  - {each}" for each in said[1:])]
        elif shape == "numbers":
            lines += [f"{n}. {each}" for n, each in enumerate(said, 1)]
        elif shape == "paragraph":
            lines += ["", *said, ""]
        else:
            lines += ["", "```", *said, "```", ""]
    return "\n".join(lines).strip("\n") + "\n" if lines else ""


@st.composite
def proposals(draw: st.DrawFn) -> tuple[str, str]:
    """Return a memory and what a model makes of it: something else, itself cut, lines dropped, doubled, moved, new."""
    current = draw(memories())
    how = draw(st.sampled_from(["other", "cut", "drop", "shuffle", "both", "text"]))
    if how == "other":
        return current, draw(memories())
    if how == "cut":
        return current, current[: draw(st.integers(0, max(len(current), 1)))]
    if how == "text":
        return current, draw(st.text(max_size=200))
    lines = current.splitlines()
    if how == "shuffle":
        return current, "\n".join(draw(st.permutations(lines)))
    kept = [line for line in lines if draw(st.booleans())]
    new = draw(st.lists(PHRASES, max_size=3)) if how == "both" else []
    return current, "\n".join([*kept, *(f"- {each}" for each in new)])


def converted(current: str, proposed: str) -> DocumentOutcome:
    """Return what the edits of a whole text make of *current*."""
    simulation = EditSimulation({"MEMORY.md": current}, budget=BUDGET)
    simulation.do([DocumentEdit("MEMORY.md", each) for each in edits_of_text(current, proposed)], is_final=True)
    return outcome(simulation, "MEMORY.md")


def stated(text: str) -> list[MemoryEntry]:
    """Return what a text says, headings left out."""
    return [entry for entry in parse(text) if entry.kind not in (EntryKind.HEADING, EntryKind.RULE) and entry.text]


@example(("# tea coffee\n\n\n## tea\n\n- tea\n", "- coffee\n"))  # "coffee" stood in a heading that did not come back
@example(  # a line was put back between an item and what is nested in it
    ("- tea\n  - tea tea tea\n  - coffee\n- tea tea tea\n- coffee\n\n# tea\n", "- tea\n  - tea tea tea")
)
@example(("", "(empty)"))  # NOTHING_YET
@example(("- tea\n  - to\n\ntea\n", "  - to\ntea"))  # the second line of an item was no heading of what is nested in it
@given(proposals())
def test_every_entry_has_a_successor_and_every_addition_stands(pair: tuple[str, str]) -> None:
    """What was said before lives on in what is there; what is new is there, or a part of what is.

    The words that the prompt shows for an empty memory say nothing when a model gives them back.
    """
    current, proposed = pair
    result = converted(current, proposed)
    waiting = "\n".join(changed_texts(each)[1] for held in result.waiting.values() for each in held)
    after = [*parse(result.text), *parse(waiting)]
    for old in stated(current):
        assert any(replaces(new, old) for new in parse(result.text)), old.raw
    for new in stated("" if proposed.strip() == NOTHING_YET else proposed):
        assert any(is_same(each, new) or replaces(each, new) or each.text.startswith(new.text) for each in after), (
            new.raw
        )


def revise(base: str, proposed: str, now: str) -> ThreeWayResult:
    """Return *now* with what an answer about *base* proposes, as a consolidation applies it."""
    return three_way(base, converted(base, proposed).text, now)


@given(proposals())
def test_the_same_answer_again_changes_nothing(pair: tuple[str, str]) -> None:
    """After a crash an answer is applied to what it has made already: not a byte of it changes."""
    base, proposed = pair
    once = revise(base, proposed, base)
    again = revise(base, proposed, once.text)
    assert (again.text, again.conflicts) == (once.text, ())


@example(("", "\t0"), "tea")  # an indented paragraph became a part of the person's line
@given(proposals(), PHRASES)
def test_what_a_person_adds_meanwhile_survives(pair: tuple[str, str], fact: str) -> None:
    """Whatever the answer was, the person's line is there, and what the answer brought too."""
    base, proposed = pair
    made = revise(base, proposed, f"{base}\n- by hand: {fact}\n")
    assert f"- by hand: {fact}" in [entry.raw for entry in parse(made.text)]
    alone = {entry.raw for entry in stated(converted(base, proposed).text)}
    told = "\n".join(conflict.mine for conflict in made.conflicts)
    there = {entry.raw for entry in stated(made.text)}
    assert all(raw in there or raw in told for raw in alone)


@given(memories())
def test_an_unchanged_memory_stays_as_it_is(current: str) -> None:
    """Byte for byte."""
    assert edits_of_text(current, current) == []


@given(st.text())
def test_any_text_has_entries_and_is_written_back(text: str) -> None:
    """Reading what was written reads the same."""
    entries = parse(text)
    again = parse(render(entries))
    assert [(entry.kind, entry.raw) for entry in again] == [(entry.kind, entry.raw) for entry in entries]


@given(memories(), memories(), memories())
def test_both_changes_survive_or_it_is_said(base: str, mine: str, theirs: str) -> None:
    """Everything they wrote stands; everything we added stands, or is in a conflict."""
    result = three_way(base, mine, theirs)
    known = {entry.raw for entry in parse(base)}
    text = {entry.raw for entry in parse(result.text)}
    told = "\n".join(conflict.mine for conflict in result.conflicts)
    for entry in parse(theirs):
        assert entry.raw in text or entry.raw in known
    for entry in parse(mine):
        assert entry.raw in text or entry.raw in told or entry.raw in known
    assert three_way(base, mine, base).text == (mine if mine != base else base)
    assert three_way(base, base, theirs).text == theirs


@given(memories(), memories())
def test_a_change_that_nobody_built_on_is_taken_back(before: str, after: str) -> None:
    """Right after it the old text is back, line for line; and what cannot be taken back is refused, never half done."""
    undone = revert_change(before, after, after)
    assert undone is not None
    assert {line.rstrip() for line in undone.splitlines()} == {line.rstrip() for line in before.splitlines()}


@given(memories(), memories(), st.integers(0, 10**6))
def test_what_came_later_stays_when_a_change_is_taken_back(before: str, after: str, n: int) -> None:
    """An entry of its own that was added at the end since then is still there, or nothing was done at all."""
    later = f"{after.rstrip()}\n\nA sentence of {n} words that nobody else wrote.\n".lstrip("\n")
    undone = revert_change(before, after, later)
    assert undone is None or f"A sentence of {n} words that nobody else wrote." in undone


# -- answers ---------------------------------------------------------------------------------------

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=8,
)
FIELDS = st.fixed_dictionaries({}, optional={"history_entry": JSON | PHRASES, "memory_update": JSON | memories()})
ARGUMENTS = FIELDS | JSON | FIELDS.map(json.dumps) | st.lists(FIELDS, max_size=2) | st.text(max_size=40)
CALLS = st.builds(SimpleNamespace, name=st.sampled_from(["save_memory", "exec"]) | JSON, arguments=ARGUMENTS)
TEXTS = st.text(max_size=60) | FIELDS.map(json.dumps) | FIELDS.map(lambda each: f"```json\n{json.dumps(each)}\n```")
RESPONSES = st.builds(
    SimpleNamespace,
    content=TEXTS | st.none() | JSON,
    tool_calls=st.lists(CALLS | JSON, max_size=2) | st.none() | JSON,
)


@given(RESPONSES)
def test_no_answer_is_raised_at(response: SimpleNamespace) -> None:
    """It is two texts that say something, or a reason."""
    read = parse_answer(response.content, response.tool_calls)
    if isinstance(read, ConsolidationAnswer):
        assert read.history_entry.strip()
        assert read.memory_update.strip() or not read.memory_update
    else:
        assert isinstance(read, UnusableAnswer)
        assert read.reason


class FixedAnswerProvider:
    """A provider that answers what it is told to, for ever."""

    def __init__(self, response: Any) -> None:
        self._response = response

    async def chat(self, **asked: Any) -> Any:
        """Answer."""
        return self._response


def said(n: int) -> Mapping[str, Any]:
    """Return the *n*th message of a conversation; every third turn uses a tool."""
    role = ("user", "assistant", "user", "assistant", "tool", "assistant")[n % 6]
    return {"role": role, "content": f"message {n}", "timestamp": "2026-03-06T10:00:00Z"}


@settings(max_examples=20)
@given(memories(), st.lists(RESPONSES, min_size=1, max_size=6), st.integers(3, 12))
def test_no_message_falls_through(current: str, responses: list[SimpleNamespace], window: int) -> None:
    """Every index is in an entry's range, in the raw archive, or in what is replayed; memory keeps its entries."""
    assume(parse(current) or not current)

    async def live(workspace: Path) -> Session:
        store = MemoryStore(workspace, budget=BUDGET)
        store.write_long_term(current)
        session = Session("a:1")
        for response in responses:
            session.messages += [dict(said(len(session.messages) + n)) for n in range(window)]
            await store.consolidate(session, FixedAnswerProvider(response), "m", memory_window=window)
        return session

    with tempfile.TemporaryDirectory() as folder:
        workspace = Path(folder)
        session = asyncio.run(live(workspace))
        covered = set(range(session.last_consolidated, len(session.messages)))
        path = workspace / "memory" / "history.jsonl"
        for line in path.read_text().splitlines() if path.exists() else []:
            entry = json.loads(line)
            covered |= set(range(entry["from"], entry["to"]))
        assert covered == set(range(len(session.messages)))
        after = parse(MemoryStore(workspace).read_long_term())
        for old in stated(current):
            assert any(replaces(new, old) for new in after), old.raw


@given(base=memories(), mine=memories(), theirs=memories())
def test_an_edit_by_hand_loses_no_line_of_its_own(base: str, mine: str, theirs: str) -> None:
    """Whatever was changed meanwhile, each new line of the edit is in the text; a second time, it changes nothing."""

    def lines(text: str) -> set[str]:
        return {line.rstrip() for line in text.split("\n") if line.strip()}

    merged = merge_both(base, mine, theirs)
    assert lines(mine) - lines(base) <= lines(merged)
    assert lines(merge_both(base, mine, merged)) == lines(merged)
    assert merge_both(base, mine, base) == mine
    assert merge_both(base, base, theirs) == theirs
