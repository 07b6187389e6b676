"""What a Dream's edits may do to a document, and what waits for a person."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent.memory.editing.edit_simulation import DocumentOutcome, EditOutcome, EditSimulation, outcome
from agent.memory.editing.memory_entries import match_entries, parse, statements
from agent.memory.editing.text_operations import AddLines, DocumentEdit, Operation, RemoveLines, ReplaceLines, apply

NAME = "MEMORY.md"


def simulated(base: str, *operations: Operation, has_evidence: bool = False) -> EditSimulation:
    """Return the play of the operations on *base*."""
    simulation = EditSimulation({NAME: base})
    simulation.do([DocumentEdit(NAME, each, has_evidence=has_evidence) for each in operations])
    return simulation


def fates(simulation: EditSimulation) -> Sequence[EditOutcome]:
    """Return what became of each."""
    return [each.fate for each in simulation.results]


def test_small_edits_are_done() -> None:
    """Add, replace, remove: each names what it changes, and no more."""
    wanted = (AddLines("- dog"), ReplaceLines("- uses MySQL", "- uses SQL"), RemoveLines("- old"))
    simulation = simulated("- tea\n- uses MySQL\n- old\n", *wanted)
    assert fates(simulation) == [EditOutcome.DONE, EditOutcome.LOSES, EditOutcome.LOSES]
    assert outcome(simulation, NAME) == DocumentOutcome(text="- tea\n- uses SQL\n- dog\n", done=wanted)


def test_what_stands_there_already_changes_nothing() -> None:
    """The no-op that ends the edits."""
    assert fates(simulated("- tea\n", AddLines("- tea"))) == [EditOutcome.NOTHING]


@pytest.mark.parametrize(
    ("base", "operation"),
    [
        ("- a b c\n- d e f\n", AddLines("```", after="- a b c")),  # a fence swallows what follows
        ("# Allergies\n\n- nuts\n", RemoveLines("# Allergies")),  # nuts are what, now?
        ("# Likes\n\n- nuts\n- milk\n", AddLines("# Hates", after="- nuts")),  # milk changes sides
        ("- is allergic to\n  - nuts\n", ReplaceLines("- is allergic to", "- likes")),
        ("- tea\n", RemoveLines("- coffee")),
        ("- tea\n", ReplaceLines("- tea", "")),
        ("# A\n\n- x\n\n# B\n\n- x\n", RemoveLines("- x")),  # which one?
    ],
)
def test_what_an_operation_does_not_name_does_not_vanish(base: str, operation: Operation) -> None:
    """An edit that would take other lines with it, or fits nowhere, is refused, and the model hears why."""
    simulation = simulated(base, operation)
    assert fates(simulation) == [EditOutcome.REFUSED]
    assert simulation.results[0].why
    assert simulation.texts[NAME] == base


def facts(count: int) -> str:
    """Return so many lines."""
    return "".join(f"- fact number {n}\n" for n in range(count))


@pytest.mark.parametrize(
    ("there", "gone", "waits"),
    [(12, 3, False), (12, 4, True), (16, 4, False), (16, 5, True), (4, 4, True), (3, 3, True)],
)
def test_removals_beyond_a_quarter_and_three_wait(there: int, gone: int, waits: bool) -> None:
    """25 % and 3 entries, as for consolidation; and a text is never emptied unasked."""
    operations = [RemoveLines(f"- fact number {n}") for n in range(gone)]
    result = outcome(simulated(facts(there), *operations), NAME)
    if waits:
        assert result == DocumentOutcome(
            text=facts(there), waiting={"empty" if there == gone else "many": tuple(operations)}
        )
    else:
        assert result.text == "".join(facts(there).splitlines(keepends=True)[gone:])


def test_replacing_everything_by_something_else_is_removing_it() -> None:
    """A rewording that keeps no word of what stood there counts as a loss, by whatever name it goes."""
    operations = [
        ReplaceLines(f"- fact number {n}", f"- {word}") for n, word in enumerate(("ab", "cd", "ef", "gh", "ij"))
    ]
    result = outcome(simulated(facts(6), *operations), NAME)
    assert result.text == facts(6)
    assert result.waiting == {"many": tuple(operations)}


def test_what_is_added_stands_although_the_removals_wait() -> None:
    """Also where an addition hangs on a line that was not made: that one waits with the rest, and is not lost."""
    removals = [RemoveLines(f"- fact number {n}") for n in range(4)]
    other = "- entirely different"
    hanging: list[Operation] = [ReplaceLines("- fact number 5", other), AddLines("- behind it", after=other)]
    result = outcome(simulated(facts(6), *removals, AddLines("- new"), *hanging), NAME)
    assert result.text == facts(6) + "- new\n"
    assert result.waiting == {"many": (*removals, *hanging)}


def test_what_lived_on_in_a_line_that_was_not_made_stays() -> None:
    """A removal was harmless because another line said the same; that line waits, so the removal waits too."""
    moved = [ReplaceLines(f"- fact number {n + 5}", f"- fact number {n}, as we know") for n in range(5)]
    harmless = [RemoveLines(f"- fact number {n}") for n in range(5)]
    simulation = simulated(facts(10), *moved, *harmless)
    assert fates(simulation) == [EditOutcome.LOSES] * 5 + [EditOutcome.DONE] * 5
    result = outcome(simulation, NAME)
    assert result.text == facts(10)
    assert result.waiting == {"many": (*moved, *harmless)}


def test_a_section_that_is_not_there_is_begun() -> None:
    """The first line under a heading brings it along, the next one finds it; elsewhere nothing changes."""
    simulation = simulated("- tea\n", AddLines("- a cat", under="## Pets"), AddLines("- a dog", under="Pets"))
    assert simulation.texts[NAME] == "- tea\n\n## Pets\n\n- a cat\n- a dog\n"
    assert fates(simulated("- tea\n", AddLines("- x", under="Pets", after="- y"))) == [EditOutcome.REFUSED]


def test_what_is_done_and_undone_is_no_change() -> None:
    """A model that changes its mind leaves no version."""
    simulation = simulated("- tea\n", AddLines("- milk"), RemoveLines("- milk"))
    assert outcome(simulation, NAME) == DocumentOutcome(text="- tea\n")


def test_a_text_does_not_outgrow_its_budget() -> None:
    """What has no room waits; what makes room first is done. MEMORY.md has an archive and takes all of it."""
    operations: list[Operation] = [AddLines("- " + "x" * 50), RemoveLines("- tea"), AddLines("- milk")]
    simulation = EditSimulation({"USER.md": "- tea\n", NAME: "- tea\n"}, budget=20)
    simulation.do([DocumentEdit("USER.md", each) for each in operations])
    assert fates(simulation) == [EditOutcome.WAITS, EditOutcome.LOSES, EditOutcome.DONE]
    assert list(outcome(simulation, "USER.md").waiting) == ["over budget"]
    assert [each.fate for each in simulation.do([DocumentEdit(NAME, operations[0])])] == [EditOutcome.DONE]


def test_what_stands_below_a_line_is_named_with_it() -> None:
    """Then the whole of it can be changed."""
    below = "- is allergic to\n  - nuts\n"
    change = ReplaceLines(below, "- may eat\n  - nuts again")
    assert simulated(below, change, has_evidence=True).texts[NAME] == "- may eat\n  - nuts again\n"


def test_what_may_only_be_proposed_all_waits() -> None:
    """The reason is the caller's; nothing is done."""
    simulation = simulated("- tea\n", AddLines("- milk"), RemoveLines("- tea"))
    assert outcome(simulation, NAME, only_propose="soul") == DocumentOutcome(
        text="- tea\n", waiting={"soul": (AddLines("- milk"), RemoveLines("- tea"))}
    )


lines = st.sampled_from(
    [
        *(f"- fact number {n}" for n in range(8)),
        "# Head",
        "plain words",
        "```",
        "- [ ] task",
        "  - deeper",
        "---",
        "",
        "é",
    ]
)
texts = st.lists(lines, max_size=12).map("\n".join)
operations = st.one_of(
    st.builds(AddLines, texts, st.sampled_from(["", "Head", "None"]), lines | st.just("")),
    st.builds(ReplaceLines, texts, texts, st.sampled_from(["", "Head"])),
    st.builds(RemoveLines, texts, st.sampled_from(["", "Head"])),
)


@given(texts, st.lists(operations, max_size=8))
def test_whatever_is_wanted_no_entry_is_lost(base: str, wanted: list[Operation]) -> None:
    """Every entry lives on, or was named by an operation that was done within the limits; what waits can be done."""
    simulation = simulated(base, *wanted)
    result = outcome(simulation, NAME)
    old = parse(base)
    stated, heirs = statements(old), match_entries(old, parse(result.text))
    lost = [n for n in stated if n not in heirs]
    assert len(lost) <= max(3, len(stated) // 4)
    done = [each.edit.operation for each in simulation.results if each.fate is EditOutcome.LOSES]
    named = {
        line.strip() for each in done if isinstance(each, ReplaceLines | RemoveLines) for line in each.old.splitlines()
    }
    for n in lost:
        assert any(line.strip() in named for line in old[n].raw.splitlines())
    assert not lost or statements(parse(result.text))
    if result.waiting:
        assert apply(next(iter(result.waiting.values())), result.text) is not None
    again = simulated(base, *wanted)
    assert outcome(again, NAME) == result
