"""Which entry may stand for which: the table that explains the rule."""

from __future__ import annotations

import pytest

from agent.memory.editing.memory_entries import EntryKind, MemoryEntry, is_inflection, replaces


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


REORDERED = [
    ("Ann's dog is Rex", "Rex is Ann's dog"),
    ("The dog of Ann is Rex", "Rex is the dog of Ann"),
    ("Ann's dog is Rex, a poodle", "Rex, a poodle, is Ann's dog"),
    ("Annas Chefin ist Frau Weber", "Frau Weber ist Annas Chefin"),
    ("Le chien d'Anne est Rex", "Rex est le chien d'Anne"),
    ("El perro de Ana es Rex", "Rex es el perro de Ana"),
    ("Room 12 is Bob's office since 2024", "Bob's office since 2024 is room 12"),
    ("Ann and Bob are married", "Bob and Ann are married"),
    ("The twins of Eva are Tim and Tom", "The twins of Eva are Tom and Tim"),
    ("On Tuesdays Ann visits Bob", "Ann visits Bob on Tuesdays"),
    ("Since 2019 Ann works for Siemens", "Ann works for Siemens since 2019"),
]
REARRANGED = [
    ("Ann owes Bob", "Bob owes Ann"),
    ("Ann owes Bob 5 euros", "Bob owes Ann 5 euros"),
    ("Ann is Bob's boss", "Bob is Ann's boss"),
    ("Rex is the dog of Ann", "Ann is the dog of Rex"),
    ("Bob is taller than Ann", "Ann is taller than Bob"),
    ("Ann: son Bob", "Bob: son Ann"),
    ("Ann's dog is Rex", "Bob's dog is Rex"),
    ("Ann's dog was Rex", "Rex is Ann's dog"),
    ("Ann's dog is not Rex", "Rex is not Ann's dog"),
    ("Ann's cat is Tom, Bob's dog is Rex", "Ann's cat is Rex, Bob's dog is Tom"),
    ("Ann and Bob are 3 and 4", "Bob and Ann are 3 and 4"),
    ("Ann and Bob are 34 and 43", "Ann and Bob are 43 and 34"),
    ("Room 12 is floor 3", "Room 3 is floor 12"),
    ("Ann loves Bob and Cem hates Dan", "Ann loves Cem and Bob hates Dan"),
    ("Flies from Rome to Oslo", "Flies from Oslo to Rome"),
    ("Prefers Bach, then Mozart", "Prefers Mozart, then Bach"),
    ("Ann schuldet Bob Geld", "Bob schuldet Ann Geld"),
    ("Ann ist die Chefin von Eva", "Eva ist die Chefin von Ann"),
]


@pytest.mark.parametrize(("one", "other"), REORDERED)
def test_another_order_of_words_may_be_the_same_fact(one: str, other: str) -> None:
    """Where the order of names cannot change who does what: both stand for each other."""
    assert replaces(item(one), item(other))
    assert replaces(item(other), item(one))


def test_a_naming_word_says_a_little_more() -> None:
    """The sentence with "called" stands for the one without it, not the other way round."""
    assert replaces(item("Ann's dog is called Rex"), item("Rex is Ann's dog"))
    assert not replaces(item("Rex is Ann's dog"), item("Ann's dog is called Rex"))


@pytest.mark.parametrize(("one", "other"), REARRANGED)
def test_an_order_of_names_that_tells_who_does_what_is_another_fact(one: str, other: str) -> None:
    """Who owes, who is whose, which number: a swap is never taken for a rewording."""
    assert not replaces(item(one), item(other))
    assert not replaces(item(other), item(one))


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
