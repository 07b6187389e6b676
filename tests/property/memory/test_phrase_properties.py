"""Whatever surrounds a word or wraps it: it is found where a reader sees it, and never inside of another word."""

from __future__ import annotations

from hypothesis import assume, given
from hypothesis import strategies as st

from agent.base.transcript_lines import FORGOTTEN
from agent.memory.erasure.word_match import ErasurePattern, without_entries, without_sentences
from agent.memory.search.tokenizer import stem

LETTERS = st.text(alphabet="abcdefghijklmnopqrstuvwxyzäöüßéñабвгд", min_size=1, max_size=8)
WORDS = st.text(alphabet="abcdefghijklmnopqrstuvwxyzéñдеж", min_size=3, max_size=12)
WRAPPINGS = ["{}", "**{}**", "*{}*", "_{}_", "~~{}~~", "`{}`", "[{}](https://example.org/a)", "***{}***", "<b>{}</b>"]
WRAPS = [" ", "  ", "\n", "\n> ", "\u00a0", " \n  "]
SCRIPTS = st.text(alphabet="寿司茶カメラ서울กาแฟ", min_size=2, max_size=6)


@given(WORDS, LETTERS, LETTERS)
def test_no_word_is_found_inside_of_another(word: str, before: str, after: str) -> None:
    """Letters on one or both sides make it another word, unless the stemmer says that it is an inflection."""
    pattern = ErasurePattern(word)
    for text in (f"{before}{word}", f"{word}{after}", f"{before}{word}{after}"):
        assume(stem(text, "en") != stem(word, "en"))
        assume(stem(text, "de") != stem(word, "de"))
        assume(stem(text, "ru") != stem(word, "ru"))
        assert not pattern.in_text(text)
        assert not pattern.in_text(f"- {text}, **{text}**")


@given(st.lists(WORDS, min_size=1, max_size=4), st.data())
def test_a_phrase_is_found_through_any_markup(phrase: list[str], data: st.DataObject) -> None:
    """Each word wrapped in its own way, the blanks between them wrapped as well."""
    pattern = ErasurePattern(" ".join(phrase))
    pieces = []
    for word in phrase:
        case = data.draw(st.sampled_from([str.lower, str.upper, str.title]))
        pieces.append(data.draw(st.sampled_from(WRAPPINGS)).format(case(word)))
    gaps = [data.draw(st.sampled_from(WRAPS)) for _ in pieces[1:]]
    text = pieces[0] + "".join(gap + piece for gap, piece in zip(gaps, pieces[1:], strict=True))
    assert pattern.in_text(f"> Once {text} again")
    assert pattern.in_text(data.draw(st.sampled_from(WRAPPINGS)).format(" ".join(phrase)))


@given(SCRIPTS, st.text(alphabet="天地人は을ท", max_size=5), st.text(alphabet="天地人は을ท", max_size=5))
def test_scripts_without_blanks_are_found_in_a_run(word: str, before: str, after: str) -> None:
    """A run of signs has no blanks, so its words are found inside of it."""
    assert ErasurePattern(word).in_text(f"{before}{word}{after}")


@given(st.text(max_size=300), st.text(min_size=1, max_size=20), st.sampled_from(["", "en", "de", "es", "zh"]))
def test_nothing_that_matches_is_left(text: str, request: str, language: str) -> None:
    """For any text and any request: after the removal it does not match, and no error is raised."""
    pattern = ErasurePattern.of(request, language)
    if pattern is None or pattern.in_text(FORGOTTEN):
        return
    assert not pattern.in_text(without_sentences(text, pattern))
    left, count = without_entries(text, pattern)
    assert count or left == text
