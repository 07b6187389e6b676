"""What becomes of MEMORY.md when a model returns another one: edits that add and reword, and never remove."""

from __future__ import annotations

import pytest

from agent.memory.editing.edit_simulation import EditSimulation, outcome
from agent.memory.editing.text_operations import AddLines, DocumentEdit, Operation, ReplaceLines, edits_of_text

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


def merge_edits(proposed: str, current: str = MEMORY) -> str:
    """Return what the edits of a whole text make of *current*."""
    simulation = EditSimulation({"MEMORY.md": current})
    simulation.do([DocumentEdit("MEMORY.md", each) for each in edits_of_text(current, proposed)], is_final=True)
    result = outcome(simulation, "MEMORY.md")
    assert not result.waiting
    return result.text


def edits(proposed: str) -> list[Operation]:
    """Return the edits."""
    return edits_of_text(MEMORY, proposed)


def test_additions_and_rewordings_are_edits() -> None:
    """Each names its line; together they make the new text."""
    proposed = MEMORY.replace("Favorite color: blue", "The user's favorite color is blue").replace(
        "- Go\n", "- Go\n- Rust\n"
    )
    assert edits(proposed) == [
        ReplaceLines("- Favorite color: blue", "- The user's favorite color is blue", "Preferences"),
        AddLines("- Rust", "Skills", "- Go"),
    ]
    assert merge_edits(proposed) == proposed


def test_what_was_returned_unchanged_is_not_written_again() -> None:
    """Other blank lines are no change, so that nothing is written for them."""
    assert edits("\n" + MEMORY.replace("\n\n", "\n").strip()) == []


def test_an_entry_that_is_left_out_stays() -> None:
    """In its place; a nested one under its parent, a section as a whole, and none is moved."""
    assert merge_edits(MEMORY.replace("- Favorite color: blue\n", "").replace("  - Ann, born 2012\n", "")) == MEMORY
    start = MEMORY.index("## Family")
    assert merge_edits(MEMORY[:start] + MEMORY[MEMORY.index("# Skills") :]) == MEMORY
    moved = "# Skills\n\n- Python\n- Go\n\n" + MEMORY[: MEMORY.index("# Skills")].rstrip() + "\n"
    assert merge_edits(moved) == MEMORY


def test_a_shortened_entry_keeps_its_words() -> None:
    """And does not stand twice: the piece says nothing that the whole does not say."""
    assert merge_edits(MEMORY.replace(" and shellfish", "")) == MEMORY


def test_a_corrected_entry_stands_beside_the_old_one() -> None:
    """A whole text only adds and rewords; operations correct, and say what."""
    assert {"- Favorite color: blue", "- Favorite color: green"} <= {
        *merge_edits(MEMORY.replace("color: blue", "color: green")).splitlines()
    }


def test_two_entries_may_become_one() -> None:
    """It says what both said."""
    assert merge_edits(
        "- Uses Python and Go for backends\n", "- Uses Python for backends\n- Uses Go for backends\n"
    ) == ("- Uses Python and Go for backends\n")


@pytest.mark.parametrize("proposed", ["", " \n\n", "(empty)", "# Skills\n"])
def test_an_empty_text_removes_nothing(proposed: str) -> None:
    """What was there stays, byte for byte."""
    assert merge_edits(proposed) == MEMORY


def test_nothing_for_an_empty_memory_is_nothing() -> None:
    """What the prompt shows in place of an empty memory is no fact."""
    assert merge_edits("(empty)", current="") == ""


def test_an_addition_goes_under_its_own_heading() -> None:
    """Also where two sections have the same title, or it has none yet."""
    two = "# Ann\n\n## Allergies\n\n- cats\n\n# Bob\n\n## Allergies\n\n- dogs\n"
    more = two.replace("- dogs", "- dogs\n- horses")
    assert merge_edits(more, two) == more
    assert merge_edits(MEMORY + "\n# Pets\n\n- a very old cat\n").endswith("\n## Pets\n\n- a very old cat\n")


def test_additions_stand_whatever_is_left_out() -> None:
    """Whatever the rest of the answer was worth."""
    assert merge_edits("# Skills\n\n- Rust\n") == MEMORY + "- Rust\n"


def test_an_addition_does_not_come_between_an_item_and_what_is_nested_in_it() -> None:
    """The children were left out of the answer, and stay with their parent."""
    assert "- Kids:\n  - Ann, born 2012\n  - Bob, born 2015\n" in merge_edits("## Family\n\n- Kids:\n- dog: Rex\n")


def test_a_memory_without_lists_is_safe_too() -> None:
    """Paragraphs and code are entries."""
    current = "Ann lives in Bern.\n\nShe plays the cello.\n\n```\nssh home\n```\n"
    assert merge_edits("Ann lives in Bern.\n", current) == current


def test_a_title_that_says_something_by_itself_is_kept() -> None:
    """A heading with nothing under it is a statement."""
    current = "- tea is nice\n\n# Allergic to nuts\n"
    assert merge_edits("- tea is nice\n", current) == current


def test_windows_line_ends_are_read() -> None:
    """A model that writes them changes nothing."""
    assert merge_edits(MEMORY.replace("\n", "\r\n")) == MEMORY
