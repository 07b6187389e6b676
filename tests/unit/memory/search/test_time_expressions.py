"""Times in questions: the phrases of four languages, ranges and limits, and what only looks like a time."""

from __future__ import annotations

import itertools
from datetime import UTC, datetime, timedelta
from pathlib import Path
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent.memory.search import text_query
from agent.memory.search.query import parse_query
from agent.memory.search.result_selection import find_missing_times, rank_candidates
from agent.memory.search.scope_index import ScopeIndex
from agent.memory.search.search_unit import MissingTime, SearchUnit, UnitSource
from agent.memory.search.time_grammar import find_time_expressions
from agent.memory.search.time_spans import TimeSpan

NOW = datetime(2024, 6, 12, 15, tzinfo=ZoneInfo("Europe/Berlin"))  # a Wednesday
THANKSGIVING = datetime(2026, 11, 26, 12, tzinfo=ZoneInfo("Europe/Berlin"))  # a Thursday


def read_table(name: str) -> list[list[str]]:
    """Return the rows of a table of phrases beside this file."""
    return [line.split("\t") for line in Path(__file__).with_name(name).read_text("utf-8").splitlines()]


PHRASES = read_table("time_expressions.tsv")
COMPOSED = read_table("time_phrases.tsv")


def at(text: str) -> datetime | None:
    """Return a local time of a table."""
    return datetime.fromisoformat(text).replace(tzinfo=NOW.tzinfo) if text else None


def is_about(moment: datetime | None, expected: datetime | None) -> bool:
    """Return True for equal times; those that end now may do so a second later."""
    if moment is None or expected is None:
        return moment is expected
    return abs(moment - expected) <= timedelta(seconds=1)


@pytest.mark.parametrize(("text", "start", "end"), PHRASES, ids=[row[0] for row in PHRASES])
def test_phrases_in_four_languages(text: str, start: str, end: str) -> None:
    """Each phrase of the table is one time: a span, or a conversation by its place."""
    check_phrase(text, start, end, NOW)


@pytest.mark.parametrize(("text", "start", "end"), COMPOSED, ids=[row[0] for row in COMPOSED])
def test_phrases_of_several_times(text: str, start: str, end: str) -> None:
    """A time in a longer one, an uncounted one, one to come and a numbered conversation are one time each."""
    check_phrase(text, start, end, THANKSGIVING)


def check_phrase(text: str, start: str, end: str, now: datetime) -> None:
    """Assert that *text* is one time, from *start* to *end*, or one conversation to another."""
    (found,) = find_time_expressions(text, now)
    if found.conversation is not None:
        assert (found.conversation.first, found.conversation.last) == (int(start), int(end or start))
        return
    assert found.span is not None
    assert is_about(found.span.start, at(start))
    assert is_about(found.span.end, at(end))


@pytest.mark.parametrize(
    "text",
    [
        "may I ask",
        "May I ask",
        "we march on",
        "room 7 of 31",
        "I sat in the sun",
        "version 3.11",
        "一起",
        "99月",
        "morgens um acht",
        "I bought 12 may bugs",
        "may 5 people come",
        "python 3.11.14",
        "what is on the 3rd floor",
        "am 3. Tag der Reise",
        "el 20 por ciento",
        "I fall asleep",
        "spring onions",
        "the second time I fell",
        "guten Morgen",
        "call 911",
        "the end of the story",
        "half of it",
    ],
)
def test_other_words_are_no_times(text: str) -> None:
    """What only looks like a month, a weekday or a date is none."""
    assert find_time_expressions(text, NOW) == ()


def test_dates_that_do_not_exist_are_no_days() -> None:
    """There is no 31 June, and no 29 February in 2023; 29 February without a year is in a leap year."""
    assert all(
        each.span is None or each.span.end != at("2024-07-01T01:00") for each in find_time_expressions("31 June", NOW)
    )
    (leap,) = find_time_expressions("on 29 February", NOW)
    assert leap.span == TimeSpan(at("2024-02-29"), at("2024-03-01"))
    assert [each.span for each in find_time_expressions("29 February 2023", NOW)] != [leap.span]


def test_a_day_begins_at_midnight_of_the_reader() -> None:
    """Half past midnight in Tokyo, yesterday is a day that has not ended in Berlin."""
    (found,) = find_time_expressions("yesterday", datetime(2024, 6, 15, 0, 30, tzinfo=ZoneInfo("Asia/Tokyo")))
    assert found.span is not None
    assert found.span.covers(datetime(2024, 6, 13, 15, 0, tzinfo=UTC))
    assert not found.span.covers(datetime(2024, 6, 14, 15, 0, tzinfo=UTC))


@given(st.text(max_size=60), st.sampled_from([row[0] for row in (*PHRASES, *COMPOSED)]), st.text(max_size=60))
def test_any_text_may_stand_around_a_time(before: str, phrase: str, after: str) -> None:
    """Whatever surrounds it: nothing is raised, times do not overlap, and each is where it says."""
    text = f"{before} {phrase} {after}"
    found = find_time_expressions(text, NOW)
    assert all(0 <= each.begin < each.end <= len(text) for each in found)
    assert all(one.end <= other.begin for one, other in itertools.pairwise(found))
    for each in found:
        assert each.span is None or each.span.start is None or each.span.end is None or each.span.start < each.span.end


_WORDS = sorted(
    {word for row in (*PHRASES, *COMPOSED) for word in row[0].split()} | {"few", "back", "durante", "letzte"}
)


@given(st.lists(st.sampled_from(_WORDS), max_size=9))
def test_words_of_times_in_any_order_raise_nothing(words: list[str]) -> None:
    """Words of times that make no sense together are some time or none, and each time ends after it begins."""
    for each in find_time_expressions(" ".join(words), NOW):
        assert each.span is None or each.span.start is None or each.span.end is None or each.span.start < each.span.end


def test_a_count_that_is_no_number_is_no_error() -> None:
    """The words between an article and "before" may be any."""
    assert find_time_expressions("what did we eat the last week before Christmas?", NOW)


# -- through an index ------------------------------------------------------------------------------

TALKS = (
    (datetime(2024, 1, 8, 10, tzinfo=UTC), ("hello there", "we planned the wedding of Tom", "and the band for it")),
    (
        datetime(2024, 5, 3, 18, tzinfo=UTC),
        ("the tomatoes are planted", "the fence of the garden leans", "I bought a rake"),
    ),
    (
        datetime(2024, 6, 8, 9, tzinfo=UTC),
        ("my train to Ghent was late", "the hotel lost our booking", "the waffles were good"),
    ),
    (
        datetime(2024, 6, 11, 20, tzinfo=UTC),
        ("the dentist moved to Thursday", "the garden hose is broken", "buy stamps"),
    ),
)


@pytest.fixture
def index(tmp_path: Path) -> ScopeIndex:
    """An index of four conversations."""
    units = [
        SearchUnit(text=text, line=10 * n + m, at=start + timedelta(minutes=m), who="Ann", role="user", group=str(n))
        for n, (start, texts) in enumerate(TALKS, 1)
        for m, text in enumerate(texts)
    ]
    found = ScopeIndex(tmp_path / "index.db", is_new=True)
    found.put(UnitSource(name="talks"), units)
    return found


def ask(index: ScopeIndex, text: str, bounds: TimeSpan | None = None) -> list[int]:
    """Return the numbers of the conversations that the results are from, best first."""
    question = parse_query(text, now=NOW, bounds=bounds)
    ranked = rank_candidates([index.query(question)], question, now=NOW, zone=ZoneInfo("Europe/Berlin"))
    passages = index.passages([each.id for _, each in ranked])
    return [passages[each.id].line // 10 for _, each in ranked]


@pytest.mark.parametrize(
    ("question", "talk"),
    [
        ("what did we talk about on 3 May?", 2),
        ("what did we talk about last Saturday?", 3),
        ("worüber haben wir gestern Abend gesprochen?", 4),
        ("¿de qué hablamos hace cuatro días?", 3),
        ("我们第一次聊天说了什么？", 1),
        ("what was our first conversation about?", 1),
        ("what did I say the last time we spoke?", 4),
        ("and in the conversation before that?", 3),
    ],
)
def test_what_was_said_then(index: ScopeIndex, question: str, talk: int) -> None:
    """A question for a time alone finds all that was said at that time, and nothing else."""
    assert ask(index, question) == [talk] * 3


def test_words_and_a_time(index: ScopeIndex) -> None:
    """Of the two conversations about the garden, the one of the named time comes first; the other one follows."""
    found = ask(index, "what did we say about the garden last week?")
    assert found[0] != 2 or found.index(2) > 0
    assert ask(index, "what did I say about the garden on 3 May?")[0] == 2
    assert ask(index, "what did I say about the garden yesterday?")[0] == 4


def test_a_time_without_messages_excludes_nothing(index: ScopeIndex) -> None:
    """Where nothing was said at the time, words are searched as ever."""
    assert ask(index, "what did we say about the garden in March 2021?")[:2] in ([2, 4], [4, 2])


@pytest.mark.parametrize(("question", "talk"), [("what did we say five days ago?", 3), ("on 2 May?", 2)])
def test_a_time_without_messages_is_a_day_longer_on_both_sides(index: ScopeIndex, question: str, talk: int) -> None:
    """Nothing is from the named day: what is from the day before or after it is found."""
    assert ask(index, question) == [talk] * 3


@pytest.mark.parametrize(
    ("question", "numbers"),
    [
        ("what was our second conversation about?", {2}),
        ("what did we say three talks ago?", {2}),
        ("what was said in talks 2 through 3?", {2, 3}),
        ("what did we say in our last two conversations?", {3, 4}),
        ("what have we said since our third talk?", {3, 4}),
        ("worum ging es vor zwei Gesprächen?", {3}),
        ("¿de qué hablamos en la tercera charla?", {3}),
    ],
)
def test_conversations_by_their_number(index: ScopeIndex, question: str, numbers: set[int]) -> None:
    """Conversations are counted from the first, or backwards from the present one."""
    assert set(ask(index, question)) == numbers


def missing_in(index: ScopeIndex, text: str) -> list[MissingTime]:
    """Return the times of *text* from which *index* has nothing."""
    return list(find_missing_times([index.query(parse_query(text, now=NOW))]))


def test_what_holds_nothing_is_said_with_what_is_nearest(index: ScopeIndex) -> None:
    """The last before and the first after a time are named; of a conversation, how many there were."""
    (day,) = missing_in(index, "what did we say on 20 May?")
    assert [each.date().isoformat() for each in day.nearest] == ["2024-05-03", "2024-06-08"]
    assert not day.is_to_come
    (talk,) = missing_in(index, "what did we say in our ninth talk?")
    assert talk.conversations == len(TALKS)
    assert missing_in(index, "what did we say on 3 May?") == []


def test_a_time_to_come_holds_nothing(index: ScopeIndex) -> None:
    """Tomorrow is not made longer, although something was said yesterday, and is said to be still to come."""
    (day,) = missing_in(index, "what did we say about the garden tomorrow?")
    assert day.is_to_come
    assert day.nearest == ()
    assert ask(index, "what did we say about the garden tomorrow?")[0] in {2, 4}


def test_what_another_index_holds_is_not_missing(index: ScopeIndex, tmp_path: Path) -> None:
    """Of several indexes one is enough; what is nearest is so in any of them."""
    other = ScopeIndex(tmp_path / "other.db", is_new=True)
    other.put(
        UnitSource(name="notes"), [SearchUnit(text="mulch", line=1, at=datetime(2024, 5, 19, tzinfo=UTC), role="user")]
    )
    asked = parse_query("on 20 May or on 1 March?", now=NOW)
    (march,) = find_missing_times([each.query(asked) for each in (index, other)])
    assert [each.date().isoformat() for each in march.nearest] == ["2024-01-08", "2024-05-03"]
    other.close()


def test_bounds_exclude(index: ScopeIndex) -> None:
    """Results are from the bounds only, whatever the words say."""
    may = TimeSpan(at("2024-05-01"), at("2024-06-01"))
    assert set(ask(index, "garden hose", may)) == {2}
    assert ask(index, "everything", may) == [2, 2, 2]
    assert ask(index, "garden", TimeSpan(None, at("2023-01-01"))) == []


def test_a_time_does_not_multiply_the_work(tmp_path: Path) -> None:
    """Words within a time are looked up once, not once for every message of that time."""
    large = ScopeIndex(tmp_path / "large.db", is_new=True)
    units = [
        SearchUnit(text=f"message {n} about the garden", line=n, at=TALKS[0][0] + timedelta(minutes=n), role="user")
        for n in range(1, 2_001)
    ]
    large.put(UnitSource(name="talks"), units)

    def count_steps(within: TimeSpan | None) -> int:
        steps = 0

        def step() -> None:
            nonlocal steps
            steps += 1

        large._reader.set_progress_handler(step, 100)
        assert len(ask(large, "garden", within)) >= text_query.TOP
        large._reader.set_progress_handler(None, 0)
        return steps

    assert count_steps(TimeSpan(TALKS[0][0], NOW)) < 2 * count_steps(None)
    large.close()
