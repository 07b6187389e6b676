"""What makes one answer better than another: who spoke, when, what is newest; and the seed's own rule."""

from __future__ import annotations

import time
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import numpy as np
import pytest
import regex
from hypothesis import given
from hypothesis import strategies as st

from agent.memory.search.query import QueryCue, TimeRange, UnitTrait, cues, find_time_ranges, parse_query, traits
from agent.memory.search.result_selection import rank_candidates
from agent.memory.search.scope_index import ScopeIndex
from agent.memory.search.search_unit import SearchUnit, UnitSource
from agent.memory.search.tokenizer import words

NOW = datetime(2024, 6, 15, 12, tzinfo=UTC)


def unit(text: str, *, days: int = 0, who: str = "", role: str = "", line: int = 1) -> SearchUnit:
    """Return a unit of so many days ago, in a sitting of its own."""
    return SearchUnit(
        text=text, line=line, at=NOW - timedelta(days=days), who=who, role=role, group=str((text, days, who))
    )


def best(folder: Path, question: str, *units: SearchUnit) -> list[str]:
    """Return the texts of *units* as the question ranks them."""
    index = ScopeIndex(folder / "index.db", is_new=True)
    index.put(UnitSource(name="talk"), units)
    asked = parse_query(question, now=NOW)
    ranked = [each.id for _, each in rank_candidates([index.query(asked)], asked)]
    texts = index.passages(ranked)
    index.close()
    return [f"{texts[each].who} {texts[each].text}".strip() for each in ranked]


def test_who_is_named_is_who_said_it(tmp_path: Path) -> None:
    """Of two lines alike the one of the speaker whom the question names comes first."""
    lines = [unit("I had soup for lunch", who=who, role="user") for who in ("Bob", "Ann Lee", "Cleo")]
    assert best(tmp_path, "What did Ann have for lunch?", *lines)[0] == "Ann Lee I had soup for lunch"


@pytest.mark.parametrize(
    ("question", "first"),
    [("What did I say about the soup?", "user"), ("What did you say about the soup?", "assistant")],
)
def test_pronouns_name_a_side(tmp_path: Path, question: str, first: str) -> None:
    """What I said is the person's, what you said the assistant's."""
    lines = [unit("the soup needs salt", who=role, role=role) for role in ("assistant", "user")]
    if first == "assistant":
        lines.reverse()
    assert best(tmp_path, question, *lines)[0].startswith(first)


@pytest.mark.parametrize(
    "question",
    [
        "What was your suggestion for the soup?",
        "Which salt did you say the soup needs?",
        "Welches Salz hast du für die Suppe soup empfohlen?",
        "Was war dein Tipp für die soup?",
        "Quel était ton conseil pour la soup?",
        "¿Qué sal me recomendaste para la soup?",
    ],
)
def test_bot_is_asked_about_its_answers(tmp_path: Path, question: str) -> None:
    """A question about what the bot said prefers its answers, in four languages."""
    lines = [unit("the soup needs smoked salt from Maldon", who=role, role=role) for role in ("user", "assistant")]
    assert best(tmp_path, question, *lines)[0].startswith("assistant")


def test_statement_counts_more_than_answer(tmp_path: Path) -> None:
    """Asked for a fact, what a person said of themselves stands above the bot's answer with the same words."""
    lines = [
        unit("A flight to Lisbon is best taken early, as most leave at seven or eight.", role="assistant"),
        unit("My flight LH 440 to Lisbon leaves at seven, can you remind me?", who="Ann", role="user", days=3),
        unit("Is there a flight to Lisbon that leaves at seven, do you think?", who="Ann", role="user"),
    ]
    assert best(tmp_path, "When does the flight to Lisbon leave?", *lines)[0].startswith("Ann My flight LH 440")


def test_long_message_is_one_hit(tmp_path: Path) -> None:
    """The best piece stands for a message; a question about the bot's words may get two; paragraphs are all kept."""
    pieces = [unit(f"tomato plants, part {n}, need tomato feed", role="assistant") for n in range(4)]
    other = unit("I grow one tomato", who="Ann", role="user", line=9)
    assert len(best(tmp_path, "tomato feed", *pieces, other)) == 2
    assert len(best(tmp_path / "asked", "which tomato feed did you recommend?", *pieces, other)) == 3
    paragraphs = [unit(f"tomato plants, part {n}, need tomato feed") for n in range(4)]
    assert len(best(tmp_path / "document", "tomato feed", *paragraphs)) == 4


def test_words_count_less_where_they_say_little(tmp_path: Path) -> None:
    """If no unit has more of the query than a common word, similarity decides."""
    index = ScopeIndex(tmp_path / "index.db", is_new=True)
    index.use_model("m")
    texts = ["Friday was rainy all day long", "I cannot stand seafood any more"]
    near = [unit(text, who="Ann", role="user", line=n) for n, text in enumerate(texts, start=1)]
    far = [unit(f"number {n} is blue", who="Ann", role="user", line=n) for n in range(3, 60)]
    changes = index.put(UnitSource(name="talk"), [*near, *far])
    rows = np.array([[0.2, 0.98], [0.9, 0.44], *([[0, 1]] * len(far))], dtype=np.float32)
    index.embed("m", dict(zip(changes.came, rows, strict=True)))
    asked = parse_query("Which restaurant shall we take for dinner on Friday?")
    found = index.query(asked, np.array([1, 0], dtype=np.float32))
    assert rank_candidates([found], asked)[0][1].id == changes.came[1]
    passages = index.passages(changes.came[:2])
    assert found.coverage(passages[changes.came[0]]) > found.coverage(passages[changes.came[1]]) == 0
    index.close()


def test_keys_of_a_line_count_as_its_words(tmp_path: Path) -> None:
    """Automatic recall shows a hit that has half of the words: those that a line is found by are among them."""
    index = ScopeIndex(tmp_path / "index.db", is_new=True)
    line = "Cannot eat nuts"
    changes = index.put(
        UnitSource(name="MEMORY.md"), [replace(unit(line), about="dinner, restaurant"), unit(line, line=2)]
    )
    found = index.query(parse_query("Which restaurant for dinner?"))
    passages = index.passages(changes.came)
    with_keys, without = (found.coverage(passages[each]) for each in changes.came)
    assert with_keys >= 0.5 > without == 0
    index.close()


def test_what_all_texts_share_tells_nothing(tmp_path: Path) -> None:
    """A text that is similar to everything is not similar to a query: the mean of the index is subtracted."""
    index = ScopeIndex(tmp_path / "index.db", is_new=True)
    index.use_model("m")
    changes = index.put(UnitSource(name="talk"), [unit(f"text {n}", role="user", line=n) for n in range(60)])
    rows = np.array([[1, 0, 0], [0.8, 0.6, 0], *([[0.9, 0, 0.44]] * 58)], dtype=np.float32)
    index.embed("m", dict(zip(changes.came, rows, strict=True)))
    question = np.array([0.95, 0.31, 0], dtype=np.float32)
    found = {each.id: each.own for each in index.query(parse_query("zeppelin"), question).candidates}
    plain = index.query(parse_query("zeppelin"), question, center=np.zeros(3, dtype=np.float32)).candidates
    assert found[changes.came[1]] > 0.8 > 0.3 > max(found.get(each, 0.0) for each in changes.came[2:])
    assert min(each.own for each in plain) > 0.8
    index.close()


def test_remark_is_a_candidate_among_long_answers(tmp_path: Path) -> None:
    """Hundreds of answers that are more similar do not keep what a person said out of the list."""
    index = ScopeIndex(tmp_path / "index.db", is_new=True)
    index.use_model("m")
    answers = [unit(f"dinner, answer {n}", role="assistant", line=n) for n in range(900)]
    changes = index.put(UnitSource(name="talk"), [*answers, unit("No seafood", who="Ann", role="user", line=901)])
    rows = np.array([*([[1, 0, 0]] * 450), *([[0.9, 0.44, 0]] * 450), [0.5, 0, 0.87]], dtype=np.float32)
    index.embed("m", dict(zip(changes.came, rows, strict=True)))
    found = index.query(parse_query("Where shall we eat?"), np.array([0.7, 0, 0.71], dtype=np.float32))
    assert changes.came[-1] in {each.id for each in found.candidates}
    index.close()


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("I never eat fish.", UnitTrait.STATEMENT),
        ("Write me a checklist for my 3 bicycles.", UnitTrait.QUESTION),
        ("Könntest du mir 3 Namen für meinen Hund nennen?", UnitTrait.QUESTION | UnitTrait.STATEMENT),
        ("Nenne mir fünf Fragen zu meinem Thema.", UnitTrait.QUESTION),
        ("Escríbeme una lista. Tengo tres hijos.", UnitTrait.STATEMENT),
        ("Can you write a poem? I have three children.", UnitTrait.QUESTION | UnitTrait.STATEMENT),
        ("My flight leaves at 7, can you remind me?", UnitTrait.QUESTION | UnitTrait.STATEMENT),
        ("Da war ich 3 Jahre alt.", UnitTrait.STATEMENT),
    ],
)
def test_task_is_no_statement(text: str, expected: UnitTrait) -> None:
    """What the bot is told to do tells nothing about the person, even with "my" or a number in it."""
    both = UnitTrait.QUESTION | UnitTrait.STATEMENT
    assert traits(text, words(text)) & both == expected


def test_patterns_of_sentences_are_fast() -> None:
    """Marks without end cost no more than a long text."""
    for text in ("?!" * 50_000, "a." * 50_000, "a... " * 20_000, " " * 100_000):
        started = time.thread_time()
        traits(text, [])
        assert time.thread_time() - started < 2


@pytest.mark.parametrize(
    "question", ["Where do I live now?", "Wo wohne ich jetzt?", "我现在住在哪里？", "Где я живу сейчас?"]
)
def test_now_prefers_the_newer_of_two(tmp_path: Path, question: str) -> None:
    """Asked for the present, the newer of two contradicting facts comes first; else age counts for nothing."""
    lines = [
        unit("I live wohne 住在 живу in Old Town", days=900, who="Ann", role="user"),
        unit("I live wohne 住在 живу in New Town", days=9, who="Ann", role="user"),
    ]
    assert best(tmp_path, question, *lines)[0].endswith("New Town")


def test_age_alone_is_no_fault(tmp_path: Path) -> None:
    """An old line that answers better stands above a new one: there is no decay by default."""
    lines = [unit("the violin teacher is called Baker", days=3000), unit("the teacher was here", days=1)]
    assert best(tmp_path, "what is the violin teacher called?", *lines)[0] == "the violin teacher is called Baker"


@pytest.mark.parametrize(
    "question", ["What did we cook in March?", "Was haben wir im März gekocht (cook)?", "3月 cook"]
)
def test_a_question_about_march_finds_march(tmp_path: Path, question: str) -> None:
    """A month that is named lifts what was said in it."""
    lines = [unit(f"we did cook dish {n}", days=30 * n) for n in range(6)]
    assert best(tmp_path, question, *lines)[0] == "we did cook dish 3"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("on 7 May 2023", TimeRange(2023, 5, 7)),
        ("May 7th, 2023", TimeRange(2023, 5, 7)),
        ("am 7. Mai 2023", TimeRange(2023, 5, 7)),
        ("7 мая 2023 года", TimeRange(2023, 5, 7)),
        ("2023-05-07", TimeRange(2023, 5, 7)),
        ("2023年5月7日", TimeRange(2023, 5, 7)),
        ("in July", TimeRange(None, 7)),
        ("in 2022", TimeRange(2022)),
    ],
)
def test_dates_are_read(text: str, expected: TimeRange) -> None:
    """Days, months and years are understood in several languages."""
    assert expected in find_time_ranges(f"what happened {text}")


@pytest.mark.parametrize("text", ["may I ask", "march on", "room 7 of 31", "31.12", "99月"])
def test_other_words_are_no_dates(text: str) -> None:
    """What only looks like a month or a day is none."""
    assert find_time_ranges(text) == ()


def test_a_time_covers_what_was_told_soon_after() -> None:
    """What is told the day after still belongs to the day."""
    day = TimeRange(2023, 5, 7)
    assert day.covers(datetime(2023, 5, 8, tzinfo=UTC))
    assert not day.covers(datetime(2023, 5, 6, tzinfo=UTC))
    assert not day.covers(datetime(2023, 5, 20, tzinfo=UTC))


@pytest.mark.parametrize(
    ("question", "cue"),
    [
        ("When is the exam?", QueryCue.WHEN),
        ("Wann ist die Prüfung?", QueryCue.WHEN),
        ("Когда экзамен?", QueryCue.WHEN),
        ("什么时候考试？", QueryCue.WHEN),
        ("the latest price", QueryCue.LATEST),
        ("the price", QueryCue.NONE),
    ],
)
def test_cues_are_heard(question: str, cue: QueryCue) -> None:
    """What a question wants is heard in several languages."""
    assert cues(question) == cue


_MARKS = regex.compile(r"[?？؟][\s\p{So}\p{P}\p{Sk}]*(?:\[[^\[\]]*\]\s*)*$")  # what it means to end by asking


@given(st.text(alphabet="?？a[] !😀\n", max_size=16))
def test_a_line_ends_by_asking_however_many_signs_follow(text: str) -> None:
    """A question mark, then signs, then notes of files in brackets: the meaning of this expression."""
    assert bool(traits(text, ["x"] * 9) & UnitTrait.QUESTION) == bool(_MARKS.search(text))


@pytest.mark.parametrize("text", ["?" * 20_000 + "x", "? " * 10_000 + "x", "x" + "[.]" * 7_000, "1" * 20_000 + "x"])
def test_no_line_costs_more_than_its_length(text: str) -> None:
    """Marks without end are read once: the expression took twelve seconds of CPU for the first."""
    begun = time.thread_time()
    traits(text, ["x"] * 9)
    assert time.thread_time() - begun < 2


def test_traits_tell_what_a_line_is_good_for() -> None:
    """A line that tells a time, that is hardly a word, that only asks, that tells of its author: each is noticed."""
    assert traits("We met yesterday at the pier", words("We met yesterday at the pier")) == (
        UnitTrait.TIME | UnitTrait.STATEMENT
    )
    assert traits("Thanks!", words("Thanks!")) == UnitTrait.SHORT
    assert traits("And how was the opera for all of you? 😀 [photo: a hall]", ["x"] * 9) == UnitTrait.QUESTION
    assert traits("上周我们去了山里玩得非常开心", words("上周我们去了山里玩得非常开心")) == (
        UnitTrait.TIME | UnitTrait.STATEMENT
    )
