"""Standing wishes: which messages they are, and the last lines of a page that are theirs."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from agent.memory.search.query import is_standing_wish, parse_query
from agent.memory.search.result_selection import rank_candidates, select_results
from agent.memory.search.scope_index import ScopeIndex
from agent.memory.search.search_unit import SearchUnit, UnitSource

WISH = "From now on put the prices of trains into every plan for a journey"
FIRST = datetime(2026, 3, 2, 9, tzinfo=UTC)


@pytest.mark.parametrize(
    "text",
    [
        WISH,
        "Please never suggest fish",
        "Always answer in short sentences.",
        "I'd like you to call me Ann",
        "Antworte mir bitte immer auf Deutsch",
        "Ab jetzt nur noch vegetarisch",
        "De ahora en adelante sin azúcar",
        "Siempre respóndeme en español",
        "以后请用中文回答",
    ],
)
def test_wishes(text: str) -> None:
    """A person asks for something for all that follows."""
    assert is_standing_wish(text)


@pytest.mark.parametrize("text", ["I always loved the sea", "She never came", "Das war immer so", "Nunca llovió"])
def test_other_remarks(text: str) -> None:
    """The same little words about the world ask for nothing."""
    assert not is_standing_wish(text)


def test_a_wish_that_bears_on_the_query_ends_the_page(tmp_path: Path) -> None:
    """It takes a last place though others match better, and what it displaces begins the next page."""
    index = ScopeIndex(tmp_path / "index.db", is_new=True)
    plans = [f"my journey plan number {n} by train and ship" for n in range(60)]
    texts = [*plans, WISH, "Never suggest fish for dinner", *(f"the garden has {n} roses" for n in range(300))]
    index.put(
        UnitSource(name="sessions/web"),
        [
            SearchUnit(text=text, line=n, at=FIRST + timedelta(days=n), who="Ann", role="user", group=str(n))
            for n, text in enumerate(texts)
        ],
    )
    question = parse_query("which journey plan by train and ship did I make")
    matches = [index.query(question)]
    ranked = rank_candidates(matches, question)
    plain, _ = select_results(matches, ranked, limit=40)
    found, _ = select_results(matches, ranked, limit=40, has_wishes=True)
    assert WISH not in [each.passage.text for each in plain]
    assert found[-1].passage.text == WISH
    assert [each.passage.id for each in found[:-1]] == [each.passage.id for each in plain][: len(found) - 1]
    assert len(plain) - len(found) <= 1
    assert sum(each.tokens for each in found) <= 1_500
    after, _ = select_results(matches, ranked, limit=40, has_wishes=True, page=2)
    shown = [each.passage.text for each in (*found, *after)]
    assert len(shown) == len(set(shown))
    assert {each.passage.text for each in plain} <= set(shown)
    index.close()
