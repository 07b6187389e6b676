"""From one question to results: several indexes are asked, compared, and read out within a budget of tokens."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, tzinfo

from agent.memory.search.query import SearchQuery
from agent.memory.search.ranking import (
    DEFAULT,
    RankedCandidate,
    RankingWeights,
    SeedProfile,
    best_scores,
    rank,
    rank_seed,
)
from agent.memory.search.scope_index import IndexedPassage, IndexMatches, ScopeIndex
from agent.memory.search.search_unit import tokens

BUILDING = "building"  # in `RecallAnswer.note`: the index is being built; search again later
RESULT_TOKENS = 1_500
_AT_ONCE = 24  # passages read at a time
_SHOWN_AROUND = 1  # neighbours on each side
_NEIGHBOUR_TOKENS = 60


@dataclass(frozen=True, slots=True, kw_only=True)
class SearchResult:
    """A passage that answers, with its score and, for the first few, what was said around it."""

    place: int  # which of the indexes asked it comes from, from 0
    passage: IndexedPassage
    score: float
    before: tuple[IndexedPassage, ...] = ()
    after: tuple[IndexedPassage, ...] = ()

    @property
    def tokens(self) -> int:
        """About how many tokens it costs to show."""
        return cost(self.passage) + sum(min(cost(each), _NEIGHBOUR_TOKENS) for each in (*self.before, *self.after))


@dataclass(frozen=True, slots=True, kw_only=True)
class RecallAnswer:
    """What was found. *note* says what it lacks: `BUILDING`, or why meaning was not asked; "" when nothing."""

    results: tuple[SearchResult, ...] = ()
    note: str = ""


def cost(passage: IndexedPassage) -> int:
    """Return about how many tokens a passage costs, its speaker included."""
    return tokens(f"{passage.who}: {passage.text}" if passage.who else passage.text)


def rank_candidates(
    gathered: Sequence[IndexMatches],
    question: SearchQuery,
    *,
    weights: RankingWeights = DEFAULT,
    seed: SeedProfile | None = None,
    now: datetime | None = None,
    zone: tzinfo = UTC,
) -> list[tuple[int, RankedCandidate]]:
    """Return the candidates of every index, best first, each with the number of its index.

    Text scores come as shares of what the question could score in that index: a small index and a large one compare.
    """
    tops = best_scores([each for one in gathered for each in one.candidates])
    found: list[tuple[int, RankedCandidate]] = []
    for n, one in enumerate(gathered):
        if seed is not None:
            sources = one.index.sources([each.id for each in one.candidates])
            ranked = rank_seed(
                one.candidates, seed, now=now or datetime.now(UTC), source_of=sources.__getitem__, best=tops
            )
        else:
            ranked = rank(one.candidates, question, weights, names=one.names, zone=zone, best=tops)
        found += [(n, each) for each in ranked]
    return sorted(found, key=lambda each: (-each[1].score, -(each[1].at or 0.0), each[0], each[1].id))


def select_results(
    indexes: Sequence[ScopeIndex],
    ranked: Sequence[tuple[int, RankedCandidate]],
    *,
    limit: int = 10,
    budget: int = RESULT_TOKENS,
    around: int = 0,
) -> list[SearchResult]:
    """Return the first results, at most *limit*, that cost at most *budget* tokens together; the first one always.

    One that does not fit is passed over for shorter ones behind it. The same words twice are one result. The first
    *around* show a neighbour on each side, if these fit.
    """
    found: list[SearchResult] = []
    said: set[str] = set()
    for start in range(0, len(ranked), _AT_ONCE):
        for place, candidate, passage in _passages(indexes, ranked[start : start + _AT_ONCE]):
            if len(found) >= limit or budget <= 0:
                return found
            words = " ".join(passage.text.split()).casefold()
            if words in said:
                continue
            result = SearchResult(place=place, passage=passage, score=candidate.score)
            if len(found) < around and (wider := _with_neighbours(indexes[place], result)).tokens <= budget:
                result = wider
            if found and result.tokens > budget:
                continue
            said.add(words)
            budget -= result.tokens
            found.append(result)
    return found


def _passages(
    indexes: Sequence[ScopeIndex], ranked: Sequence[tuple[int, RankedCandidate]]
) -> list[tuple[int, RankedCandidate, IndexedPassage]]:
    texts = {
        place: indexes[place].passages([each.id for n, each in ranked if n == place])
        for place in {n for n, _ in ranked}
    }
    # What went since it was found is left out.
    return [(n, each, texts[n][each.id]) for n, each in ranked if each.id in texts[n]]


def _with_neighbours(index: ScopeIndex, result: SearchResult) -> SearchResult:
    around = index.around(result.passage.id, _SHOWN_AROUND)
    here = next((n for n, each in enumerate(around) if each.id == result.passage.id), None)
    if here is None:
        return result
    return SearchResult(
        place=result.place,
        passage=result.passage,
        score=result.score,
        before=tuple(around[:here]),
        after=tuple(around[here + 1 :]),
    )
