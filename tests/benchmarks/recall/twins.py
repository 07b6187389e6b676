"""Sixty facts and questions in English, German, Russian and Chinese, written for this: no language may fall behind.

`twins.tsv` has a fact and its question for each language in a row; every language is an index of its own, and one
index holds all four.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path

from agent.memory.search.query import parse_query
from agent.memory.search.result_selection import rank_candidates
from agent.memory.search.scope_index import ScopeIndex
from agent.memory.search.search_unit import SearchUnit, UnitSource
from tests.benchmarks.recall.sets import Embed, fill_index

LANGUAGES = ("en", "de", "ru", "zh")
_START = datetime(2024, 1, 1, tzinfo=UTC)


@dataclass(frozen=True, slots=True)
class LanguageRecall:
    """Of the questions of one language, the share whose fact is among the first 1, 3 and 10, in percent."""

    first: float
    three: float
    ten: float


def rows() -> list[tuple[tuple[str, str], ...]]:
    """Return for each row the fact and the question of each language."""
    text = Path(__file__).with_suffix(".tsv").read_text("utf-8")
    cells = [line.split("\t") for line in text.splitlines()]
    return [tuple(zip(row[::2], row[1::2], strict=True)) for row in cells]


def measure(folder: Path, embed: Embed | None = None, *, is_mixed: bool = False) -> dict[str, LanguageRecall]:
    """Index the facts, ask the questions, and return what was found by language."""
    return dict(_measure(folder, embed, is_mixed=is_mixed))


def _measure(folder: Path, embed: Embed | None, *, is_mixed: bool) -> Iterator[tuple[str, LanguageRecall]]:
    index = ScopeIndex(folder / "mixed.db", is_new=True) if is_mixed else None
    for column, language in enumerate(LANGUAGES):
        facts = [row[column][0] for row in rows()]
        if not is_mixed:
            index = ScopeIndex(folder / f"{language}.db", is_new=True)
        if index is not None:
            fill_index(index, UnitSource(name=language), _units(facts), embed)
    for column, language in enumerate(LANGUAGES):
        one = index if is_mixed else ScopeIndex(folder / f"{language}.db")
        if one is not None:
            yield language, _ask(one, language, [row[column][1] for row in rows()], embed)
            if not is_mixed:
                one.close()
    if is_mixed and index is not None:
        index.close()


def _units(facts: list[str]) -> list[SearchUnit]:
    # Days apart, so that no fact is another's context.
    return [
        SearchUnit(text=fact, line=n, at=_START + timedelta(days=n), who="Ann", role="user", group=str(n))
        for n, fact in enumerate(facts, start=1)
    ]


def _ask(index: ScopeIndex, language: str, questions: list[str], embed: Embed | None) -> LanguageRecall:
    places = []
    for n, text in enumerate(questions, start=1):
        question = parse_query(text)
        vector = embed([text])[text] if embed else None
        ranked = [each.id for _, each in rank_candidates([index.query(question, vector)], question)[:10]]
        passages = index.passages(ranked)
        found = [passages[each].line for each in ranked if passages[each].source.name == language]
        places.append(found.index(n) + 1 if n in found else 99)
    shares = [100 * sum(place <= most for place in places) / len(places) for most in (1, 3, 10)]
    return LanguageRecall(*shares)


def print_table(embed: Embed | None) -> None:
    """Print the table."""
    print("\n**Sixty hand-written questions, alone and in one index of all four languages: R@1 / R@3 / R@10**\n")
    ways = {"by words": None, **({"with the model": embed} if embed else {})}
    heads = [f"{way}, {place}" for way in ways for place in ("alone", "in one index")]
    print(f"| language | {' | '.join(heads)} |\n|{'---|' * (len(heads) + 1)}")
    found: dict[str, list[LanguageRecall]] = {}
    for model in ways.values():
        for is_mixed in (False, True):
            with tempfile.TemporaryDirectory() as folder:
                for language, recall in measure(Path(folder), model, is_mixed=is_mixed).items():
                    found.setdefault(language, []).append(recall)
    for language, row in found.items():
        cells = [f"{each.first:.0f} / {each.three:.0f} / {each.ten:.0f}" for each in row]
        print(f"| {language} | {' | '.join(cells)} |", flush=True)
