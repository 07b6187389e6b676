"""What becomes of MEMORY.md when a model returns another one."""

from __future__ import annotations

import pytest

from agent.memory.editing.merge import MergeResult, ReviewReason, merge

MEMORY = """# Preferences

- likes green tea
- Favorite color: blue
- allergic to peanuts and shellfish

## Family

- Kids:
  - Ann, born 2012
  - Bob, born 2015
- wife: Eve

# Skills

- Python
- Go
"""


def merged(proposed: str, current: str = MEMORY, budget: int = 4_000) -> MergeResult:
    """Merge with a budget that does not matter."""
    return merge(current, proposed, budget=budget)


def test_additions_and_rewordings_are_taken_as_they_are() -> None:
    """Where nothing is lost, the new text is the text."""
    proposed = MEMORY.replace("Favorite color: blue", "The user's favorite color is blue").replace(
        "- Go\n", "- Go\n- Rust\n"
    )
    result = merged(proposed)
    assert result == MergeResult(
        text=proposed,
        added=("- Rust",),
        reworded=(("- Favorite color: blue", "- The user's favorite color is blue"),),
    )


def test_what_was_returned_unchanged_is_not_written_again() -> None:
    """Other blank lines are no change, so that nothing is written for them."""
    assert merged("\n" + MEMORY.replace("\n\n", "\n").strip()) == MergeResult(text=MEMORY)


def test_an_entry_without_a_successor_is_put_back_in_its_place() -> None:
    """Under its heading, behind the one that stood before it; a nested one under its parent."""
    result = merged(MEMORY.replace("- Favorite color: blue\n", "").replace("  - Ann, born 2012\n", ""))
    assert result.text == MEMORY
    assert result.put_back == ("- Favorite color: blue", "  - Ann, born 2012")
    assert result.staged is None


def test_a_heading_comes_back_with_what_stood_under_it() -> None:
    """In its place among the others; a section that moved as a whole needs none."""
    start = MEMORY.index("## Family")
    without = MEMORY[:start] + MEMORY[MEMORY.index("# Skills") :]
    assert merged(without).text == MEMORY
    moved = "# Skills\n\n- Python\n- Go\n\n" + MEMORY[: MEMORY.index("# Skills")].rstrip() + "\n"
    assert merged(moved).text == moved


def test_a_shortened_entry_gets_its_words_back() -> None:
    """And does not stand twice: the piece says nothing that the whole does not say."""
    result = merged(MEMORY.replace(" and shellfish", ""))
    assert result.text == MEMORY
    assert result.added == ()
    assert result.put_back == ("- allergic to peanuts and shellfish",)


def test_a_corrected_entry_stands_beside_the_old_one() -> None:
    """A consolidation only adds and rewords; Dream and people remove, and say what."""
    result = merged(MEMORY.replace("color: blue", "color: green"))
    assert "- Favorite color: blue\n- Favorite color: green\n" in result.text
    assert result.added == ("- Favorite color: green",)


def test_two_entries_may_become_one() -> None:
    """It says what both said."""
    result = merged("- Uses Python and Go for backends\n", "- Uses Python for backends\n- Uses Go for backends\n")
    assert result.text == "- Uses Python and Go for backends\n"
    assert len(result.reworded) == 2


@pytest.mark.parametrize("proposed", ["", " \n\n", "(empty)"])
def test_an_empty_text_removes_nothing(proposed: str) -> None:
    """All of it waits for review, and what was there stays, byte for byte."""
    result = merged(proposed)
    assert result.text == MEMORY
    assert result.staged is not None
    assert result.staged.why is ReviewReason.EMPTY
    assert len(result.staged.removals) == 9


def test_nothing_for_an_empty_memory_is_nothing() -> None:
    """What the prompt shows in place of an empty memory is no fact."""
    assert merged("(empty)", current="") == MergeResult(text="")


def test_removals_beyond_a_quarter_and_three_entries_wait() -> None:
    """Three of nine are put back, four of nine are put back and said; a quarter of a hundred is not too many."""
    nine = "".join(f"- fact number {n}\n" for n in range(9))
    for gone, staged in ((3, None), (4, ReviewReason.MANY)):
        result = merged("".join(f"- fact number {n}\n" for n in range(gone, 9)), nine)
        assert result.text == nine
        assert (result.staged.why if result.staged else None) is staged
    hundred = "".join(f"- fact number {n}\n" for n in range(100))
    assert merged("".join(f"- fact number {n}\n" for n in range(25, 100)), hundred).staged is None
    assert merged("".join(f"- fact number {n}\n" for n in range(26, 100)), hundred).staged is not None


def test_additions_stand_when_the_removal_waits() -> None:
    """Whatever the rest of the answer was worth."""
    result = merged("# Skills\n\n- Rust\n")
    assert result.added == ("- Rust",)
    assert "- Python\n- Go\n- Rust\n" in result.text
    assert result.staged is not None
    assert [left.raw for left in result.staged.removals][-2:] == ["- Python", "- Go"]
    assert result.staged.removals[0].context == ("Preferences",)


def test_over_budget_nothing_is_removed_and_additions_stand() -> None:
    """The removal waits; a person's facts are not what the budget is saved on."""
    proposed = "# Skills\n\n" + "".join(f"- new skill {n}\n" for n in range(30))
    result = merged(proposed, budget=300)
    assert result.staged is not None
    assert result.staged.why is ReviewReason.OVER_BUDGET
    assert "- likes green tea" in result.text
    assert result.added[:2] == ("- new skill 0", "- new skill 1")
    # Even so there is an end to it: what is beyond twice the budget waits, and is not lost.
    assert len(result.text) <= max(300, len(MEMORY)) + 300
    assert (*result.added, *result.staged.additions) == tuple(f"- new skill {n}" for n in range(30))


def test_a_memory_without_lists_is_safe_too() -> None:
    """Paragraphs and code are entries."""
    current = "Ann lives in Bern.\n\nShe plays the cello.\n\n```\nssh home\n```\n"
    assert merged("Ann lives in Bern.\n", current).text == current


def test_a_title_that_says_something_by_itself_is_kept() -> None:
    """A heading with nothing under it is a statement; one whose entries all moved away is not."""
    assert (
        merged("- tea is nice\n", "- tea is nice\n\n# Allergic to nuts\n").text
        == "- tea is nice\n\n# Allergic to nuts\n"
    )
    moved = "# Everything\n\n- likes green tea very much\n"
    assert merged(moved, "# Taste\n\n- likes green tea very much\n").text == moved


def test_windows_line_ends_are_read() -> None:
    """A model that writes them changes nothing."""
    assert merged(MEMORY.replace("\n", "\r\n")).text == MEMORY
