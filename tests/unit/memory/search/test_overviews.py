"""Questions about everything: which they are, and results of many days instead of the best of one."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from agent.memory.search.query import parse_query
from agent.memory.search.result_selection import SearchResult, rank_candidates, select_results
from agent.memory.search.scope_index import ScopeIndex
from agent.memory.search.search_unit import SearchUnit, UnitSource

DAYS, MESSAGES = 12, 20
FIRST = datetime(2026, 3, 2, 9, tzinfo=UTC)


@pytest.mark.parametrize(
    "text",
    [
        "What have we worked on, and in which order?",
        "Summarize our conversations about the garden",
        "How has my plan for the garden changed?",
        "Fasse zusammen, was wir über den Garten gesagt haben",
        "Wie hat sich der Garten entwickelt?",
        "¿En qué orden plantamos las cosas?",
        "Haz un resumen de todo lo que dijimos del jardín",
        "总结一下我们聊过的话题",
    ],
)
def test_questions_about_everything(text: str) -> None:
    """They ask for a summary, an order or a development."""
    assert parse_query(text).asks_overview


@pytest.mark.parametrize(
    "text",
    [
        "When did we plant the roses?",
        "What did I buy in order to repair the fence?",
        "Was haben wir gestern gepflanzt?",
        "¿Dónde compramos las rosas?",
        "How much have I saved so far?",
    ],
)
def test_questions_for_one_thing(text: str) -> None:
    """They ask for one thing, whatever little words they have."""
    assert not parse_query(text).asks_overview


@pytest.fixture
def index(tmp_path: Path) -> Iterator[ScopeIndex]:
    """An index of days in the garden, the first with an entry of the history, each with long messages."""
    found = ScopeIndex(tmp_path / "index.db", is_new=True)
    messages = [
        SearchUnit(
            text=f"garden message {n} of day {day} " + "about the garden and its roses " * (30 - 2 * day),
            line=100 * day + n,
            at=FIRST + timedelta(days=day, minutes=n),
            who="Ann",
            role="user",
            group=str(day),
        )
        for day in range(DAYS)
        for n in range(MESSAGES)
    ]
    found.put(UnitSource(name="sessions/web"), messages)
    found.put(UnitSource(name="memory/history.jsonl"), [SearchUnit(text="The garden was dug", line=1, at=FIRST)])
    yield found
    found.close()


def ask(index: ScopeIndex, text: str, *, page: int = 1) -> list[SearchResult]:
    """Return the results of *text*."""
    question = parse_query(text)
    matches = [index.query(question)]
    is_overview = question.asks_overview
    ranked = rank_candidates(matches, question)
    return select_results(matches, ranked, limit=40, page=page, is_overview=is_overview)[0]


def test_an_overview_has_short_results_of_every_day(index: ScopeIndex) -> None:
    """Each day comes once before any comes twice, cut to 240 characters; a history entry is before its messages."""
    found = ask(index, "summarize what we said about the garden")
    days = [each.passage.at.date() for each in found if each.passage.at]
    assert len(set(days[:DAYS])) == DAYS
    assert all(len(each.passage.text) <= 241 for each in found)
    (entry,) = [each.passage for each in found[:DAYS] if each.passage.at and each.passage.at.date() == FIRST.date()]
    assert entry.source.name == "memory/history.jsonl"
    assert sum(each.tokens for each in found) <= 1_500
    second = ask(index, "summarize what we said about the garden", page=2)
    assert {each.passage.id for each in second}.isdisjoint(each.passage.id for each in found)


def test_an_overview_of_a_time_is_of_that_time(index: ScopeIndex) -> None:
    """Everything from the named day comes before other days."""
    now = FIRST + timedelta(days=5, hours=4)
    question = parse_query("summarize what we said about the garden yesterday", now=now)
    matches = [index.query(question)]
    found, _ = select_results(matches, rank_candidates(matches, question), limit=15, is_overview=True)
    assert {each.passage.at.date() for each in found if each.passage.at} == {(now - timedelta(days=1)).date()}


def test_other_questions_are_answered_as_ever(index: ScopeIndex) -> None:
    """Without such words the best results come first and whole."""
    found = ask(index, "which roses are in the garden")
    assert any(len(each.passage.text) > 241 for each in found)
