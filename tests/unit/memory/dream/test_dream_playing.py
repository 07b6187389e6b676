"""What a Dream's edits may do to a document, and what waits for a person."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agent.memory.consolidation.entries import parse
from agent.memory.consolidation.merge import find_heirs, statements
from agent.memory.consolidation.operations import Add, Operation, Remove, Replace, apply
from agent.memory.dream.edits import Edit
from agent.memory.dream.playing import Fate, Outcome, Play, outcome

NAME = "MEMORY.md"


def played(base: str, *operations: Operation, budget: int = 32_000) -> Play:
    """Return the play of the operations on *base*."""
    play = Play({NAME: base}, budget=budget)
    play.do([Edit(NAME, each) for each in operations])
    return play


def fates(play: Play) -> Sequence[Fate]:
    """Return what became of each."""
    return [each.fate for each in play.played]


def test_small_edits_are_done() -> None:
    """Add, replace, remove: each names what it changes, and no more."""
    wanted = (Add("- dog"), Replace("- uses MySQL", "- uses SQL"), Remove("- old"))
    play = played("- tea\n- uses MySQL\n- old\n", *wanted)
    assert fates(play) == [Fate.DONE, Fate.LOSES, Fate.LOSES]
    assert outcome(play, NAME) == Outcome(text="- tea\n- uses SQL\n- dog\n", done=wanted)


def test_what_stands_there_already_changes_nothing() -> None:
    """The no-op that ends the edits."""
    assert fates(played("- tea\n", Add("- tea"))) == [Fate.NOTHING]


@pytest.mark.parametrize(
    ("base", "operation"),
    [
        ("- a b c\n- d e f\n", Add("```", after="- a b c")),  # a fence swallows what follows
        ("# Allergies\n\n- nuts\n", Remove("# Allergies")),  # nuts are what, now?
        ("# Likes\n\n- nuts\n- milk\n", Add("# Hates", after="- nuts")),  # milk changes sides
        ("- is allergic to\n  - nuts\n", Replace("- is allergic to", "- likes")),
        ("- tea\n", Remove("- coffee")),
        ("- tea\n", Replace("- tea", "")),
        ("# A\n\n- x\n\n# B\n\n- x\n", Remove("- x")),  # which one?
    ],
)
def test_what_an_operation_does_not_name_does_not_vanish(base: str, operation: Operation) -> None:
    """An edit that would take other lines with it, or fits nowhere, is refused, and the model hears why."""
    play = played(base, operation)
    assert fates(play) == [Fate.REFUSED]
    assert play.played[0].why
    assert play.texts[NAME] == base


def facts(count: int) -> str:
    """Return so many lines."""
    return "".join(f"- fact number {n}\n" for n in range(count))


@pytest.mark.parametrize(
    ("there", "gone", "waits"),
    [(12, 3, False), (12, 4, True), (16, 4, False), (16, 5, True), (4, 4, True), (3, 3, True)],
)
def test_removals_beyond_a_quarter_and_three_wait(there: int, gone: int, waits: bool) -> None:
    """25 % and 3 entries, as for consolidation; and a text is never emptied unasked."""
    operations = [Remove(f"- fact number {n}") for n in range(gone)]
    result = outcome(played(facts(there), *operations), NAME)
    if waits:
        assert result == Outcome(text=facts(there), waiting={"empty" if there == gone else "many": tuple(operations)})
    else:
        assert result.text == "".join(facts(there).splitlines(keepends=True)[gone:])


def test_replacing_everything_by_something_else_is_removing_it() -> None:
    """A rewording that keeps no word of what stood there counts as a loss, by whatever name it goes."""
    operations = [Replace(f"- fact number {n}", f"- {word}") for n, word in enumerate(("ab", "cd", "ef", "gh", "ij"))]
    result = outcome(played(facts(6), *operations), NAME)
    assert result.text == facts(6)
    assert result.waiting == {"many": tuple(operations)}


def test_what_is_added_stands_although_the_removals_wait() -> None:
    """Also where an addition hangs on a line that was not made: that one waits with the rest, and is not lost."""
    removals = [Remove(f"- fact number {n}") for n in range(4)]
    other = "- entirely different"
    hanging: list[Operation] = [Replace("- fact number 5", other), Add("- behind it", after=other)]
    result = outcome(played(facts(6), *removals, Add("- new"), *hanging), NAME)
    assert result.text == facts(6) + "- new\n"
    assert result.waiting == {"many": (*removals, *hanging)}


def test_what_lived_on_in_a_line_that_was_not_made_stays() -> None:
    """A removal was harmless because another line said the same; that line waits, so the removal waits too."""
    moved = [Replace(f"- fact number {n + 5}", f"- fact number {n}, as we know") for n in range(5)]
    harmless = [Remove(f"- fact number {n}") for n in range(5)]
    play = played(facts(10), *moved, *harmless)
    assert fates(play) == [Fate.LOSES] * 5 + [Fate.DONE] * 5
    result = outcome(play, NAME)
    assert result.text == facts(10)
    assert result.waiting == {"many": (*moved, *harmless)}


def test_a_section_that_is_not_there_is_begun() -> None:
    """The first line under a heading brings it along, the next one finds it; elsewhere nothing changes."""
    play = played("- tea\n", Add("- a cat", under="## Pets"), Add("- a dog", under="Pets"))
    assert play.texts[NAME] == "- tea\n\n## Pets\n\n- a cat\n- a dog\n"
    assert fates(played("- tea\n", Add("- x", under="Pets", after="- y"))) == [Fate.REFUSED]


def test_what_is_done_and_undone_is_no_change() -> None:
    """A model that changes its mind leaves no version."""
    play = played("- tea\n", Add("- milk"), Remove("- milk"))
    assert outcome(play, NAME) == Outcome(text="- tea\n")


def test_a_text_does_not_outgrow_its_budget() -> None:
    """What has no room waits; what makes room first is done."""
    play = played("- tea\n", Add("- " + "x" * 50), Remove("- tea"), Add("- milk"), budget=20)
    assert fates(play) == [Fate.WAITS, Fate.LOSES, Fate.DONE]
    assert list(outcome(play, NAME).waiting) == ["over budget"]


def test_what_stands_below_a_line_is_named_with_it() -> None:
    """Then the whole of it can be changed."""
    below = "- is allergic to\n  - nuts\n"
    assert played(below, Replace(below, "- may eat\n  - nuts again")).texts[NAME] == "- may eat\n  - nuts again\n"


def test_what_may_only_be_proposed_all_waits() -> None:
    """The reason is the caller's; nothing is done."""
    play = played("- tea\n", Add("- milk"), Remove("- tea"))
    assert outcome(play, NAME, only_propose="soul") == Outcome(
        text="- tea\n", waiting={"soul": (Add("- milk"), Remove("- tea"))}
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
    st.builds(Add, texts, st.sampled_from(["", "Head", "None"]), lines | st.just("")),
    st.builds(Replace, texts, texts, st.sampled_from(["", "Head"])),
    st.builds(Remove, texts, st.sampled_from(["", "Head"])),
)


@settings(max_examples=80)
@given(texts, st.lists(operations, max_size=8))
def test_whatever_is_wanted_no_entry_is_lost(base: str, wanted: list[Operation]) -> None:
    """Every entry lives on, or was named by an operation that was done within the limits; what waits can be done."""
    play = played(base, *wanted)
    result = outcome(play, NAME)
    old = parse(base)
    stated, heirs = statements(old), find_heirs(old, parse(result.text))
    lost = [n for n in stated if n not in heirs]
    assert len(lost) <= max(3, len(stated) // 4)
    done = [each.edit.operation for each in play.played if each.fate is Fate.LOSES]
    named = {line.strip() for each in done if not isinstance(each, Add) for line in each.old.splitlines()}
    for n in lost:
        assert any(line.strip() in named for line in old[n].raw.splitlines())
    assert not lost or statements(parse(result.text))
    if result.waiting:
        assert apply(next(iter(result.waiting.values())), result.text) is not None
    again = played(base, *wanted)
    assert outcome(again, NAME) == result
