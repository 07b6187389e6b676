"""Two changes of one text: both survive, or it is said that they could not."""

from __future__ import annotations

import pytest

from agent.memory.editing.three_way_merge import MergeConflict, ThreeWayResult, revert_change, three_way

BASE = "# A\n\n- one\n- two\n\n# B\n\n- three\n"


ONE_MINE = BASE.replace("one", "one, mine")
AFTER_ONE = BASE.replace("- one\n", "- one\n- mine\n")
AFTER_TWO = BASE.replace("- two\n", "- two\n- mine\n")
CASES = {
    "only theirs": (BASE, BASE + "- four\n", BASE + "- four\n"),
    "only mine": (BASE + "- four\n", BASE, BASE + "- four\n"),
    "both at the end": (BASE + "- mine\n", BASE + "- theirs\n", BASE + "- theirs\n- mine\n"),
    "the same and more": (BASE + "- same\n", BASE + "- same\n- theirs\n", BASE + "- same\n- theirs\n"),
    "neighbours": (ONE_MINE, BASE.replace("two", "two, theirs"), ONE_MINE.replace("two", "two, theirs")),
    "beside a removed one": (AFTER_TWO, BASE.replace("- one\n", ""), AFTER_TWO.replace("- one\n", "")),
    "the same change": (BASE.replace("one", "uno"), BASE.replace("one", "uno"), BASE.replace("one", "uno")),
    "we remove what they change": (BASE.replace("- one\n", ""), ONE_MINE, ONE_MINE),
    "they empty the file": (BASE + "- mine\n", "", "- mine\n"),
    "we empty it": ("", "- theirs\n", "- theirs\n"),
    "elsewhere": (AFTER_ONE, "# C\n\n- new\n\n" + BASE, "# C\n\n- new\n\n" + AFTER_ONE),
}


@pytest.mark.parametrize(("mine", "theirs", "both"), CASES.values(), ids=CASES)
def test_what_only_one_touched_is_as_that_one_has_it(mine: str, theirs: str, both: str) -> None:
    """Added, changed, removed; and once, when it is the same."""
    assert three_way(BASE, mine, theirs) == ThreeWayResult(both)


def test_the_same_entry_changed_in_two_ways_is_a_conflict() -> None:
    """The person's text stands, ours is told; everything else of both is there."""
    mine = BASE.replace("one", "one, mine").replace("- three", "- three\n- more")
    theirs = BASE.replace("one", "one, theirs")
    result = three_way(BASE, mine, theirs)
    assert result.text == theirs.replace("- three", "- three\n- more")
    assert result.conflicts == (MergeConflict("- one", "- one, mine", "- one, theirs"),)


def test_a_person_who_removes_what_we_reword_is_told() -> None:
    """It stays removed, and our words are in the conflict."""
    result = three_way(BASE, BASE.replace("- one", "- one, mine"), BASE.replace("- one\n", ""))
    assert "one" not in result.text
    assert [conflict.mine for conflict in result.conflicts] == ["- one, mine"]


def test_doing_it_again_changes_nothing() -> None:
    """After a crash the same answer meets the text that it made."""
    once = three_way(BASE, BASE + "- mine\n", BASE + "- theirs\n").text
    assert three_way(BASE, BASE + "- mine\n", once) == ThreeWayResult(once)


def test_what_we_took_out_is_out_while_others_write_beside_it() -> None:
    """A removal of ours counts where they left that entry alone; where they reworded it, theirs stays."""
    base = "- tea\n- coffee\n"
    assert three_way(base, "- coffee\n", "- tea\n- coffee\n- milk\n").text == "- coffee\n- milk\n"
    assert three_way("- tea\n", "", "- tea\n- milk\n").text == "- milk\n"
    assert three_way(base, "- coffee\n", "- green tea\n- coffee\n").text == "- green tea\n- coffee\n"


def test_a_change_is_taken_back_alone_or_not_at_all() -> None:
    """Later changes beside it stay; one that stands on it keeps it from being taken back."""
    before, after = "- tea\n", "- tea\n- dog\n"
    assert revert_change(before, after, "- tea\n- dog\n- cat\n") == "- tea\n- cat\n"
    assert revert_change(before, after, "- tea\n- dog called Bello\n") is None
    assert revert_change(before, after, "- tea\n") is None
    assert revert_change(after, before, "- tea\n- cat\n") in ("- tea\n- dog\n- cat\n", "- tea\n- cat\n- dog\n")
