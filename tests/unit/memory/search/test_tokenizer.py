"""From text to terms: languages are told apart, words folded and stemmed, texts cut where it hurts least."""

from __future__ import annotations

import itertools
import string
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent.memory.search.query import parse_query
from agent.memory.search.scope_index import ScopeIndex
from agent.memory.search.search_unit import (
    SearchUnit,
    UnitSource,
    chunk_markdown,
    chunk_message,
    chunks,
    group_by_silence,
    split_text,
)
from agent.memory.search.tokenizer import detect, expand_query_word, fold, index_terms, words
from tests.benchmarks.recall import twins


@pytest.mark.parametrize(
    ("text", "language"),
    [
        ("When did we move to the coast?", "en"),
        ("Wann sind wir an die Küste gezogen?", "de"),
        ("Quand est-ce que nous avons déménagé ?", "fr"),
        ("¿Cuándo nos mudamos a la costa?", "es"),
        ("Когда мы переехали к морю?", "ru"),
        ("Коли ми переїхали до моря?", ""),
        ("我们什么时候搬家的？", "zh"),
        ("いつ引っ越しましたか", "ja"),
        ("언제 이사했어요", "ko"),
    ],
)
def test_languages_are_told_apart(text: str, language: str) -> None:
    """A sentence's language is known by its script and its function words."""
    assert detect(words(text)) == language


def test_a_word_without_a_language_has_that_of_the_talk() -> None:
    """What nobody can tell is taken for what was spoken before."""
    assert detect(words("Apfelkuchen"), before="de") == "de"
    assert detect(words("Apfelkuchen")) == ""


@pytest.mark.parametrize(
    ("said", "question"),
    [
        ("die alten Häuser am Fluss", "Haus"),
        ("мы купили новую машину", "машины"),
        ("les chevaux étaient fatigués", "cheval fatigué"),
        ("las canciones de mi abuela", "canción"),
        ("the ponies were running", "pony run"),
        ("Łódź and Ærø and Müller", "lodz aero muller"),
        ("ёлка стоит в углу", "елка"),
        ("我养了一只猫", "猫"),
        ("東京で寿司を食べました", "寿司"),
        ("서울에 갔어요", "서울"),
        ("ผมชอบกินข้าวผัด", "ข้าวผัด"),
        ("ＡＢＣ１２３", "abc123"),
    ],
)
def test_other_forms_are_found(tmp_path: Path, said: str, question: str) -> None:
    """Inflected, folded and unspaced words are found by the form somebody asks with."""
    index = ScopeIndex(tmp_path / "index.db", is_new=True)
    changes = index.put(UnitSource(name="talk"), [SearchUnit(text=said, line=1), SearchUnit(text="zzz", line=2)])
    found = index.query(parse_query(question)).candidates
    assert [each.id for each in found if each.unit > 0] == changes.came[:1]
    index.close()


@pytest.mark.parametrize("is_mixed", [False, True])
def test_no_language_falls_behind(tmp_path: Path, is_mixed: bool) -> None:
    """Of sixty questions in German, Russian and Chinese no fewer are answered than of their English twins, by 15 %."""
    found = twins.measure(tmp_path, is_mixed=is_mixed)
    assert found["en"].ten > 90
    for language in twins.LANGUAGES:
        assert found[language].ten >= found["en"].ten - 15
        assert found[language].first >= found["en"].first - 15


@given(st.text())
def test_terms_are_plain(text: str) -> None:
    """Whatever is said, terms hold nothing that the index's tokenizer would split or its queries would read."""
    for term in index_terms(text, detect(words(text))).split(" "):
        assert not set(term) & set(string.punctuation + string.whitespace)


@given(st.text(alphabet="aäöüßéèłøñйёçَ", max_size=12))
def test_folding_twice_is_folding_once(word: str) -> None:
    """A folded word stays as it is."""
    assert fold(fold(word)) == fold(word)


def test_a_question_stems_as_the_text_did() -> None:
    """A question's word reaches the stems of every language of the index."""
    assert "haus" in expand_query_word("häuser", ["en", "de"])
    assert expand_query_word("猫", ["en"]) == ("猫",)


@given(st.text(max_size=3_000), st.integers(min_value=8, max_value=60))
def test_pieces_hold_everything_and_are_short(text: str, limit: int) -> None:
    """Pieces are within the limit and lose nothing but blanks."""
    cut = list(split_text(text, limit=limit))
    assert all(len(piece) <= limit * 4 for piece in cut)
    assert "".join("".join(cut).split()) == "".join(text.split())


def test_markdown_is_cut_by_bullet_with_its_headings() -> None:
    """Each bullet and paragraph is a unit with its lines; headings are searched with what they head."""
    text = "# Ann\n\n## Work\n\n- Acme since 2020\n- speaks Danish\n  and Dutch\n\nA paragraph\nof two lines.\n\n"
    text += "# Home\n```\n# no heading\n\nx\n```\n"
    found = [(each.line, each.end, each.about, each.text) for each in chunk_markdown(text)]
    assert found == [
        (5, 5, "Ann / Work", "- Acme since 2020"),
        (6, 7, "Ann / Work", "- speaks Danish\n  and Dutch"),
        (9, 10, "Ann / Work", "A paragraph\nof two lines."),
        (13, 17, "Home", "```\n# no heading\n\nx\n```"),
    ]


def test_a_long_silence_ends_a_sitting() -> None:
    """Messages hours apart are no context of each other, also across two readings."""
    start = datetime(2024, 1, 1, tzinfo=UTC)
    said = [
        chunk_message(str(n), line=n, at=start + timedelta(hours=hours), who="Ann", role="user")[0]
        for n, hours in enumerate((0, 1, 9, 9), start=1)
    ]
    whole = group_by_silence(said)
    assert [each.group for each in whole] == ["1", "1", "3", "3"]
    assert group_by_silence(said[1:], last=whole[0]) == whole[1:]


@given(st.lists(st.text(alphabet="ab ", max_size=60), max_size=40))
def test_chunks_cover_every_line_and_overlap(lines: list[str]) -> None:
    """Chunks hold each line, in order, within their size; each begins at or before the end of the one before."""
    cut = chunks(lines, tokens=20, overlap=4)
    assert {n for each in cut for n in range(each.line, each.end + 1)} == set(range(1, len(lines) + 1))
    assert all(len(each.text) <= 80 for each in cut)
    assert all(one.line <= other.line <= one.end + 1 for one, other in itertools.pairwise(cut))
