"""Documents line by line: the bytes of any text come back, and lines keep their identity."""

from __future__ import annotations

import time
from dataclasses import replace
from datetime import UTC, datetime

from hypothesis import example, given, settings
from hypothesis import strategies as st

from gateway.ports.memory import DocumentChange, DocumentState
from gateway.store.document_lines import DocumentLine, build_lines, compare_lines, join_lines, places_between

AT = datetime(2026, 11, 28, tzinfo=UTC)
LINES = st.sampled_from(["", " ", "- tea", "- dog", "# A", "  - nested", "a\r", "b\x0c", "c\u2028d", "\x00", "|x|y|"])
TEXTS = st.one_of(st.text(), st.lists(LINES, max_size=12).map("\n".join))


def state(n: int, text: str, undoes: str = "") -> DocumentState:
    """Return the state after the change *n*."""
    change = DocumentChange(id=f"{n:08x}", number=n, at=AT, why=f"change {n}", undoes=undoes)
    return DocumentState(change=change, texts={"MEMORY.md": text} if text else {})


def text_at(lines: list[DocumentLine], number: int) -> str:
    """Return the document after a change, as rows in the order of their places give it."""
    return join_lines([each for each in sorted(lines, key=lambda each: each.place) if each.is_alive(number)])


@given(st.lists(TEXTS, max_size=8))
def test_every_version_of_a_document_is_its_bytes(texts: list[str]) -> None:
    """Whatever follows what: newlines of any kind, no newline at the end, blank lines, nothing."""
    lines = build_lines([state(n, text) for n, text in enumerate(texts, 1)], 1).get("MEMORY.md", [])
    assert [text_at(lines, n) for n in range(1, len(texts) + 1)] == texts
    assert len({(each.line, each.added) for each in lines}) == len(lines)
    for n in range(1, len(texts) + 1):
        alive = [each for each in lines if each.is_alive(n)]
        assert len({each.line for each in alive}) == len({each.place for each in alive}) == len(alive)


@given(st.lists(st.tuples(st.integers(0, 40), st.integers(1, 4)), max_size=60))
def test_there_is_room_between_any_two_places(insertions: list[tuple[int, int]]) -> None:
    """However often lines come between two others, places stay short, rise, and end in no zero."""
    places: list[str] = []
    for position, count in insertions:
        at = min(position, len(places))
        low, high = places[at - 1] if at else "", places[at] if at < len(places) else ""
        places[at:at] = places_between(low, high, ["x"] * count)
        assert places == sorted(set(places))
        assert not any(each.endswith("0") for each in places)
    assert max(map(len, places), default=0) <= 32


def test_a_document_that_grows_at_its_end_keeps_short_places() -> None:
    """A thousand lines, one by one, before the newline at its end."""
    lines: list[DocumentLine] = []
    text = ""
    for n in range(1, 1_001):
        text += f"- fact {n}\n"
        change = compare_lines(lines, text, n)
        kept = [each for each in lines if each not in change.removed]
        lines = sorted((*kept, *change.added), key=lambda each: each.place)
    assert join_lines(lines) == text
    assert max(len(each.place) for each in lines) <= 8


def test_a_line_that_moves_or_comes_back_is_the_same_line() -> None:
    """By an undo; a line that is written again by another change is a new one."""
    steps = [
        state(1, "- tea\n- dog\n"),
        state(2, "- dog\n- tea\n- cat\n"),
        state(3, "- cat\n"),
        state(4, "- dog\n- tea\n- cat\n", undoes="00000003"),
        state(5, "- cat\n"),
        state(6, "- dog\n- cat\n"),
    ]
    lines = build_lines(steps, 1)["MEMORY.md"]

    def first_added(text: str, number: int) -> int:
        (found,) = [each.line for each in lines if each.text == text and each.is_alive(number)]
        return min(each.added for each in lines if each.line == found)

    assert [first_added("- dog", n) for n in (1, 2, 4, 6)] == [1, 1, 1, 6]
    assert first_added("- cat", 6) == 2


@settings(max_examples=100)
@given(st.lists(st.lists(LINES, max_size=8).map("\n".join), min_size=2, max_size=5))
@example(["\n- tea\n", "- tea\n\n- tea"])  # an equal line came before
def test_an_undone_change_leaves_every_line_as_it_was(texts: list[str]) -> None:
    """Each line that the change removed has its identity again."""
    texts = [texts[n] for n in range(len(texts)) if n == 0 or texts[n] != texts[n - 1]]
    steps = [state(n, text) for n, text in enumerate(texts, 1)]
    last = len(steps)
    steps.append(replace(state(last + 1, texts[-2] if last > 1 else ""), change=undo_of(last)))
    lines = build_lines(steps, 1).get("MEMORY.md", [])

    def identities(number: int) -> list[int]:
        return sorted(each.line for each in lines if each.is_alive(number) and each.text.strip())

    assert identities(last + 1) == identities(last - 1)


def undo_of(n: int) -> DocumentChange:
    """Return the change that undoes the change *n*."""
    return DocumentChange(id=f"{n + 1:08x}", number=n + 1, at=AT, why="undo", undoes=f"{n:08x}")


def test_long_texts_are_compared_fast() -> None:
    """64 KB of any shape: many short lines, equal lines, all lines changed."""
    shapes = [
        ("x\n" * 32_000, "x\n" * 31_999 + "y\n"),
        ("x\ny\n" * 16_000, "y\nx\n" * 16_000),
        ("".join(f"- fact {n} of many\n" for n in range(3_500)), "".join(f"- fact {n} of man\n" for n in range(3_500))),
        ("\n" * 64_000, "a\n" * 32_000),
        ("".join(f"{n % 150}\n" for n in range(3_900)), "".join(f"{n % 149}\n" for n in range(3_900))),
    ]
    for before, after in shapes:
        started = time.process_time()
        lines = sorted(compare_lines([], before, 1).added, key=lambda each: each.place)
        change = compare_lines(lines, after, 2)
        assert time.process_time() - started < 2.0
        gone = {each.line for each in change.removed}
        left = [each for each in lines if each.line not in gone]
        assert join_lines(sorted((*left, *change.added), key=lambda each: each.place)) == after
