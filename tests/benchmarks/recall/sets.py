"""A set of questions over one index, and what our engine finds for them, with an embedding model or by words alone."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any
from zoneinfo import ZoneInfo

from agent.memory.search.query import parse_query
from agent.memory.search.result_selection import RecallAnswer, rank_candidates, select_results
from agent.memory.search.scope_index import IndexedPassage, ScopeIndex
from agent.memory.search.scope_recall import AROUND, to_search_hits
from agent.memory.search.search_unit import SearchUnit, UnitSource
from agent.tools.memory_tools import format_lines
from tests.benchmarks.recall.measures import RecallFigures, RecallItem, judge

Vector = Any
Embed = Callable[[Sequence[str]], Mapping[str, Vector]]
_RANKED = 300  # results that are judged
_HITS = 40  # of a page of `memory_search`


@dataclass(frozen=True, slots=True)
class RecallQuestion:
    """A question, and the things that answer it by the source and line that hold them.

    Two places of one thing are as good as each other. A place counts if its text has *words*.
    """

    text: str
    gold: Mapping[tuple[str, int], str]
    kind: str
    now: datetime
    words: str = ""


@dataclass(frozen=True, slots=True)
class RecallSet:
    """What one index holds, and the questions about it."""

    units: Mapping[UnitSource, Sequence[SearchUnit]]
    questions: Sequence[RecallQuestion]

    def of(self, kind: str) -> RecallSet:
        """Return the set with the questions of *kind* alone."""
        return RecallSet(self.units, [each for each in self.questions if each.kind == kind])

    def without(self, kind: str) -> RecallSet:
        """Return the set without the questions of *kind*."""
        return RecallSet(self.units, [each for each in self.questions if each.kind != kind])


def measure(chats: RecallSet, embed: Embed | None) -> Iterator[RecallFigures]:
    """Index the set and yield the figures of each question."""
    with tempfile.TemporaryDirectory() as folder:
        index = ScopeIndex(Path(folder) / "index.db", is_new=True)
        try:
            for source, units in chats.units.items():
                fill_index(index, source, units, embed)
            if embed is not None:
                embed([each.text for each in chats.questions])  # many at once
            for question in chats.questions:
                yield _ask(index, question, embed)
        finally:
            index.close()


def fill_index(index: ScopeIndex, source: UnitSource, units: Sequence[SearchUnit], embed: Embed | None) -> None:
    """Put *units* into *index*, with their vectors if there is a model."""
    index.use_model("benchmark" if embed else "")
    changes = index.put(source, units)
    if embed is not None:
        vectors = embed([unit.embedding_text for unit in units])
        rows = zip(changes.came, units, strict=True)
        index.embed("benchmark", {id_: vectors[unit.embedding_text] for id_, unit in rows})


def _ask(index: ScopeIndex, question: RecallQuestion, embed: Embed | None) -> RecallFigures:
    """Search as `RecallEngine` does, and judge the ranking and the page that a model is shown."""
    parsed = parse_query(question.text, now=question.now)
    matches = [index.query(parsed, embed([question.text])[question.text] if embed else None)]
    ranked = rank_candidates(matches, parsed)
    results, _ = select_results(
        matches, ranked, limit=_HITS, around=AROUND, is_overview=parsed.asks_overview, has_wishes=True
    )
    shown = [passage for each in results for passage in (each.passage, *each.before, *each.after)]
    page = format_lines(to_search_hits(RecallAnswer(results=tuple(results)), [""], ZoneInfo("UTC")))
    found = [each.id for _, each in ranked[:_RANKED]]
    passages = index.passages(found)
    items = [
        RecallItem(_held(question, passages[each]), len(f"{passages[each].who}: {passages[each].text}") / 4)
        for each in found
    ]
    held = frozenset[str]().union(*(_held(question, passage) for passage in shown))
    return judge(items, held, len(page) / 4, len(set(question.gold.values())))


def _held(question: RecallQuestion, passage: IndexedPassage) -> frozenset[str]:
    thing = question.gold.get((passage.source.name, passage.line))
    return frozenset({thing}) if thing is not None and question.words in passage.text else frozenset()
