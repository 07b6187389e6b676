"""What is forgotten is gone, and nothing else is."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent.base import transcript_lines as build
from agent.base.transcript_lines import FORGOTTEN, decode, encode
from agent.memory.erasure.word_match import ErasurePattern, without_entries, without_sentences, without_words
from gateway.ports.journal import Line

AT = datetime(2026, 11, 22, tzinfo=UTC)
TEA = ErasurePattern("green tea")
CALL = {"id": "1", "function": {"name": "f", "arguments": '{"x":"green tea"}'}}


@pytest.mark.parametrize("text", ["Green  Tea", "I like\ngreen tea.", "GREEN\u00a0TEA", "ｇｒｅｅｎ tea"])
def test_words_are_found_as_people_write_them(text: str) -> None:
    """Case, blanks and wide letters make no difference."""
    assert TEA.in_text(text)


@pytest.mark.parametrize("text", ["", "  ", "ab", " a b"[:3]])
def test_what_is_too_short_means_nothing(text: str) -> None:
    """Two letters would take half of a memory with them."""
    assert ErasurePattern.of(text) is None


def test_of_a_document_only_the_entries_go() -> None:
    """Bullets, paragraphs over several lines, code; a heading keeps its place."""
    text = (
        "# Green tea\n\n- likes green tea\n- likes coffee\n\nShe said that green\ntea is best.\n\nElse.\n\n"
        "```\nbuy green tea\n```\n"
    )
    left, gone = without_entries(text, TEA)
    assert gone == 4
    assert not TEA.in_text(left)
    assert left.startswith(f"# {FORGOTTEN}\n")
    assert "- likes coffee" in left
    assert "Else." in left
    assert without_entries("- coffee\n", TEA) == ("- coffee\n", 0)


def test_who_may_not_forget_a_line_does_not() -> None:
    """In a group a member takes back what they had kept themselves."""
    text = "- Ann: green tea\n- Bob: green tea\n"
    assert without_entries(text, TEA, lambda line: "Ann" in line) == ("- Bob: green tea\n", 1)


@pytest.mark.parametrize(
    ("text", "left"),
    [
        ("[2026-11-22 10:00] They met. She likes green tea. They left.", "[2026-11-22 10:00] They met. They left."),
        ("She likes green tea.", FORGOTTEN),
        ("- green tea\n- coffee", "- coffee"),
        ("It was green. Tea was there.", "It was green. Tea was there."),
        ("nothing of it", "nothing of it"),
    ],
)
def test_of_a_summary_the_sentence_goes(text: str, left: str) -> None:
    """The rest of what happened stays known."""
    assert without_sentences(text, TEA) == left


def line(**fields: object) -> Line:
    """Return a transcript's message."""
    return build.message(7, "t1", "user", "I like green tea", AT, mid="m1", by={"id": "42", "name": "Ann"}, **fields)


@pytest.mark.parametrize(
    "said",
    [
        line(),
        {**line(), "content": "green tea"},
        {**line(quoted="> green tea"), "content": "what?"},
        {**line(files=[{"name": "green tea.pdf"}]), "content": ""},
        build.message(
            8,
            "t1",
            "assistant",
            "",
            AT,
            tool_calls=[{"id": "1", "function": {"name": "f", "arguments": '{"x":"green tea"}'}}],
        ),
        build.command("t1", "/remember green tea", "I will remember that.", AT),
        build.notice("t1", "no", AT, asked="green tea?"),
        build.notice("t1", "Sources: tea", AT, footnotes=[{"url": "https://example.org/", "title": "green tea"}]),
    ],
)
def test_a_line_says_nothing_any_more_and_keeps_its_place(said: Line) -> None:
    """The same index, so that pointers stand."""
    raw = encode(said)
    left = without_words(raw, TEA, lambda _: True)
    assert not TEA.in_text(left.decode())
    after = decode(left)
    assert after is not None
    assert (after.get("i"), after["turn"]) == (said.get("i"), said["turn"])
    assert without_words(left, TEA, lambda _: True) == left
    assert without_words(raw, TEA, lambda _: False) == raw


@given(st.text(max_size=300), st.text(min_size=3, max_size=10))
def test_whatever_is_wanted_nothing_of_it_is_left(text: str, words: str) -> None:
    """For any document, summary and words: gone from each, and no error."""
    wanted = ErasurePattern.of(words)
    if wanted is None or wanted.in_text(FORGOTTEN) or wanted.in_text(f"# {FORGOTTEN}"):
        return
    assert not wanted.in_text(without_sentences(text, wanted))
    left, gone = without_entries(text, wanted)
    assert gone or left == text
