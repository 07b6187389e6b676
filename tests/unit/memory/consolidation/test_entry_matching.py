"""Which entry may stand for which: the table that explains the rule."""

from __future__ import annotations

import pytest

from agent.memory.editing.entry_matching import is_inflection, replaces
from agent.memory.editing.memory_entries import EntryKind, MemoryEntry


def item(text: str, *headings: str) -> MemoryEntry:
    """Return a list item under headings."""
    return MemoryEntry(kind=EntryKind.ITEM, raw=f"- {text}", headings=headings)


REWORDED = [
    ("User's favorite color is blue", "Favorite color: blue"),
    ("likes tea", "Likes tea and coffee"),
    ("The user prefers Python", "Preferred: Python 3.11"),
    ("studies medicine", "Study: medicine since 2024"),
    ("Flight LH123 at 10:30", "flight LH123, 10:30"),
    ("does not eat meat", "Does not eat meat or fish"),
    ("Uses C++ and https://a.example/x", "Uses C++ (see https://a.example/x)"),
    ("用户住在北京", "用户现在住在北京市"),
    ("[ ] buy milk", "[x] buy milk"),
]
LOST = [
    ("User is allergic to peanuts", "User is allergic to penicillin"),
    ("Allergic to peanuts and shellfish", "Allergic to peanuts"),
    ("Favorite color: blue", "Favorite color: green"),
    ("Ann reports to Bob", "Bob reports to Ann"),
    ("Meets Ann at 10:30, Bob at 11:30", "Meets Ann at 11:30, Bob at 10:30"),
    ("Age: 33", "Age: 34"),
    ("does not eat meat", "eats meat"),
    ("eats meat", "does not eat meat"),
    ("isst Fleisch", "isst kein Fleisch"),
    ("Uses C++", "Uses C"),
    ("lives in Bern", "lives in Berlin"),
    ("用户住在北京", "用户住在上海"),
    ("[x] buy milk", "[ ] buy milk"),
    ("anything", ""),
]


@pytest.mark.parametrize(("old", "new"), REWORDED)
def test_a_rewording_keeps_every_word(old: str, new: str) -> None:
    """Articles may go, endings may change, more may be said."""
    assert replaces(item(new), item(old))


@pytest.mark.parametrize(("old", "new"), LOST)
def test_what_loses_or_swaps_a_word_is_another_statement(old: str, new: str) -> None:
    """Names and numbers, their order, a `not`: each of them makes it another one."""
    assert not replaces(item(new), item(old))


def test_a_word_may_move_into_the_heading() -> None:
    """It is still said there."""
    assert replaces(item("Python", "Programming languages"), item("Programming languages: Python"))


def test_a_word_or_two_mean_nothing_without_their_heading() -> None:
    """`tea` under Dislikes does not live on as `tea` under Likes; a whole statement may move."""
    assert not replaces(item("tea", "Likes"), item("tea", "Dislikes"))
    assert replaces(item("tea", "Dislikes, strongly"), item("tea", "Dislikes"))
    assert replaces(item("Favorite color: blue", "Taste"), item("Favorite color: blue", "Preferences"))


def test_a_wall_of_text_succeeds_nobody() -> None:
    """Else one paragraph with every word of the memory in it would pass for all of its entries."""
    wall = " ".join(["likes tea", *(f"word{n}" for n in range(40))])
    assert not replaces(item(wall), item("likes tea"))


def test_code_is_the_same_or_another() -> None:
    """No word of it can be reworded."""
    code = MemoryEntry(kind=EntryKind.FENCE, raw="```\nrm -r build\n```")
    assert replaces(MemoryEntry(kind=EntryKind.FENCE, raw="```\nrm -r build  \n```"), code)
    assert not replaces(MemoryEntry(kind=EntryKind.FENCE, raw="```\nrm -rf build\n```"), code)
    assert not replaces(item("rm -r build"), code)


@pytest.mark.parametrize(
    ("one", "other", "expected"),
    [
        ("prefers", "preferred", True),
        ("cat", "cats", True),
        ("studies", "study", True),
        ("like", "likes", True),
        ("tea", "team", False),
        ("car", "card", False),
        ("eight", "eighty", False),
        ("thirteen", "thirty", False),
        ("married", "carried", False),
        ("contract", "contact", False),
        ("internal", "interval", False),
        ("v10", "v1", False),
    ],
)
def test_endings_alone_may_differ(one: str, other: str, *, expected: bool) -> None:
    """In both directions."""
    assert is_inflection(one, other) is expected
    assert is_inflection(other, one) is expected
