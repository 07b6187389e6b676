"""Rank the matches of several indexes together, and select results within a token budget."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime, tzinfo

from agent.memory.search.query import SearchQuery, is_standing_wish
from agent.memory.search.ranking import (
    DEFAULT,
    RankingWeights,
    SeedProfile,
    best_of_messages,
    best_scores,
    rank,
    rank_seed,
)
from agent.memory.search.scope_index import IndexedPassage, IndexMatches, ScopeIndex
from agent.memory.search.search_hits import MissingTime
from agent.memory.search.search_unit import RankedCandidate, tokens

BUILDING = "building"  # in `RecallAnswer.note`: the index is being built; search again later
RESULT_TOKENS = 1_500
_BATCH = 24  # passages read at a time
_NEIGHBOURS = 1  # on each side
_NEIGHBOUR_TOKENS = 60
_HEADER_TOKENS = 6  # of a result's place and time
_WISHES = 2  # results of a page that standing wishes may take at its end
_WISH_CANDIDATES = 96  # the best candidates, among which wishes are looked for
_BEARS = 0.2  # least coverage, or similarity, of a wish that bears on the query
_OVERVIEW_CHARACTERS = 240  # of a result, where the query asks for an overview


@dataclass(frozen=True, slots=True, kw_only=True)
class SearchResult:
    """A matching passage with its score; the first results have neighbours."""

    place: int  # position of its index among those searched, from 0
    passage: IndexedPassage
    score: float
    coverage: float = 0.0  # as in `SearchHit`, like the one below
    similarity: float = 0.0
    before: tuple[IndexedPassage, ...] = ()
    after: tuple[IndexedPassage, ...] = ()

    @property
    def tokens(self) -> int:
        """Estimated number of tokens, with neighbours."""
        return cost(self.passage) + sum(min(cost(each), _NEIGHBOUR_TOKENS) for each in (*self.before, *self.after))


@dataclass(frozen=True, slots=True, kw_only=True)
class RecallAnswer:
    """Results of a search. *note* is `BUILDING`, the reason for not using vectors, or "" for a complete search."""

    results: tuple[SearchResult, ...] = ()
    note: str = ""
    has_more: bool = False  # on the next page
    missing: tuple[MissingTime, ...] = ()  # times that the query names and from which nothing is stored


def find_missing_times(matches: Sequence[IndexMatches]) -> tuple[MissingTime, ...]:
    """Return the times that the query names and from which no index has anything, with what is nearest in any."""
    held = {time for each in matches for time, missing in each.times.items() if missing is None}
    missing: dict[object, MissingTime] = {}
    for each in matches:
        for time, other in each.times.items():
            if other is None or time in held:
                continue
            one = missing.get(time, other)
            moments = {*one.nearest, *other.nearest}
            before = [at for at in moments if one.start is not None and at < one.start]
            after = [at for at in moments if one.end is not None and at >= one.end]
            count = None if one.conversations is None else max(one.conversations, other.conversations or 0)
            nearest = (*([max(before)] if before else []), *([min(after)] if after else []))
            missing[time] = replace(one, nearest=nearest, conversations=count)
    return tuple(missing.values())


def cost(passage: IndexedPassage) -> int:
    """Return the estimated number of tokens of a passage with its place, time and speaker."""
    return _HEADER_TOKENS + tokens(f"{passage.who}: {passage.text}" if passage.who else passage.text)


def rank_candidates(
    matches: Sequence[IndexMatches],
    question: SearchQuery,
    *,
    weights: RankingWeights = DEFAULT,
    seed: SeedProfile | None = None,
    now: datetime | None = None,
    zone: tzinfo = UTC,
) -> list[tuple[int, RankedCandidate]]:
    """Return the candidates of every index, best first, each with the position of its index; one of each message.

    Text scores are relative to the maximum score of the query in the index, which makes indexes comparable.
    """
    tops = best_scores([each for one in matches for each in one.candidates])
    merged: list[tuple[int, RankedCandidate]] = []
    for n, one in enumerate(matches):
        if seed is not None:
            sources = one.index.sources([each.id for each in one.candidates])
            ranked = rank_seed(
                one.candidates, seed, now=now or datetime.now(UTC), source_of=sources.__getitem__, best=tops
            )
        else:
            scored = rank(one.candidates, question, weights, names=one.names, zone=zone, best=tops)
            ranked = best_of_messages(scored, question)
        merged += [(n, each) for each in ranked]
    return sorted(merged, key=lambda each: (-each[1].score, -(each[1].at or 0.0), each[0], each[1].id))


def select_results(
    matches: Sequence[IndexMatches],
    ranked: Sequence[tuple[int, RankedCandidate]],
    *,
    limit: int = 10,
    budget: int = RESULT_TOKENS,
    around: int = 0,
    page: int = 1,
    is_overview: bool = False,
    has_wishes: bool = False,
    zone: tzinfo = UTC,
) -> tuple[list[SearchResult], bool]:
    """Return the results of *page*, best first, and whether there are more pages.

    A page has at most *limit* results, and *budget* tokens together, but always its first result. A result that does
    not fit is left for the next page. Results with equal texts are returned once. The first *around* results have the
    neighbours that are not results themselves, if these fit. For an overview results are short, and of as many days in
    *zone* as there are. *has_wishes* ends the first page with up to two standing wishes that bear on the query.
    """
    results: list[SearchResult] = []
    left = list(ranked)
    if is_overview:  # of the time that the query names first
        left = [
            each
            for is_then in (True, False)
            for each in _spread_over_days([one for one in ranked if one[1].is_then is is_then], zone)
        ]
    most = _OVERVIEW_CHARACTERS if is_overview else None
    texts: set[str] = set()
    for n in range(page):
        results, left = _take_page(matches, left, texts, limit, budget, most)
        if not n and has_wishes and not is_overview:
            taken = _with_wishes(matches, results, left, limit, budget)
            gone = {(each.place, each.passage.id) for each in results} - {
                (each.place, each.passage.id) for each in taken
            }
            kept = {(each.place, each.passage.id) for each in taken}
            texts -= {_normalized(each.passage) for each in results if (each.place, each.passage.id) in gone}
            displaced = [each for each in ranked if (each[0], each[1].id) in gone]
            left = [*displaced, *(each for each in left if (each[0], each[1].id) not in kept)]
            results = taken
    budget -= sum(each.tokens for each in results)
    hits = {(each.place, each.passage.id) for each in results}
    for n, result in enumerate(results[:around]):
        wider = _with_neighbours(matches[result.place].index, result, hits)
        if wider.tokens - result.tokens <= budget:
            budget -= wider.tokens - result.tokens
            results[n] = wider
    return results, bool(left)


def _with_wishes(
    matches: Sequence[IndexMatches],
    results: list[SearchResult],
    rest: list[tuple[int, RankedCandidate]],
    limit: int,
    budget: int,
) -> list[SearchResult]:
    """Return *results* with the best wishes of *rest* at the end, which take the places of the last results.

    As a weight in the ranking, wishes cost other questions up to eight points: they are like every question a little.
    """
    wishes: list[SearchResult] = []
    asked = [each for each in rest[:_WISH_CANDIDATES] if each[1].role == "user"]
    for place, candidate, passage in _passages([each.index for each in matches], asked):
        coverage = matches[place].coverage(passage)
        if len(wishes) < _WISHES and max(coverage, candidate.own) >= _BEARS and is_standing_wish(passage.text):
            result = SearchResult(
                place=place, passage=passage, score=candidate.score, coverage=coverage, similarity=candidate.own
            )
            wishes.append(result)
    kept = list(results)
    needed = sum(each.tokens for each in wishes)
    while len(kept) > 1 and (len(kept) + len(wishes) > limit or sum(each.tokens for each in kept) + needed > budget):
        kept.pop()
    if len(results) - len(kept) > 2 * _WISHES or len(kept) + len(wishes) > limit:
        return results  # long wishes, or a page of few lines: not at the cost of what was asked for
    return [*kept, *wishes]


def _spread_over_days(ranked: Sequence[tuple[int, RankedCandidate]], zone: tzinfo) -> list[tuple[int, RankedCandidate]]:
    """Return *ranked* with the best of each day first, of a day with an entry of the memory this entry."""
    first: dict[object, tuple[int, RankedCandidate]] = {}
    for place, each in ranked:
        day = datetime.fromtimestamp(each.at, zone).date() if each.at is not None else (place, each.id)
        if day not in first or (first[day][1].role and not each.role):
            first[day] = place, each
    chosen = {(place, each.id) for place, each in first.values()}
    return [*first.values(), *(each for each in ranked if (each[0], each[1].id) not in chosen)]


def _take_page(
    matches: Sequence[IndexMatches],
    ranked: Sequence[tuple[int, RankedCandidate]],
    texts: set[str],
    limit: int,
    budget: int,
    most: int | None,
) -> tuple[list[SearchResult], list[tuple[int, RankedCandidate]]]:
    """Return the results of one page and the candidates after it; *texts* are those returned, *most* their length."""
    indexes = [each.index for each in matches]
    results: list[SearchResult] = []
    left: list[tuple[int, RankedCandidate]] = []
    for start in range(0, len(ranked), _BATCH):
        if len(results) >= limit or budget <= 0:
            return results, [*left, *ranked[start:]]
        for place, candidate, passage in _passages(indexes, ranked[start : start + _BATCH]):
            text = _normalized(passage)
            if text in texts:
                continue
            is_long = most is not None and len(passage.text) > most
            result = SearchResult(
                place=place,
                passage=replace(passage, text=f"{passage.text[:most]}…") if is_long else passage,
                score=candidate.score,
                coverage=matches[place].coverage(passage),
                similarity=candidate.own,
            )
            if len(results) >= limit or (results and result.tokens > budget):
                left.append((place, candidate))
                continue
            texts.add(text)
            budget -= result.tokens
            results.append(result)
    return results, left


def _normalized(passage: IndexedPassage) -> str:
    return " ".join(passage.text.split()).casefold()


def _passages(
    indexes: Sequence[ScopeIndex], ranked: Sequence[tuple[int, RankedCandidate]]
) -> list[tuple[int, RankedCandidate, IndexedPassage]]:
    texts = {
        place: indexes[place].passages([each.id for n, each in ranked if n == place])
        for place in {n for n, _ in ranked}
    }
    # Units that were deleted since the search are skipped.
    return [(n, each, texts[n][each.id]) for n, each in ranked if each.id in texts[n]]


def _with_neighbours(index: ScopeIndex, result: SearchResult, hits: Collection[tuple[int, int]]) -> SearchResult:
    """Return *result* with the neighbours that are not among *hits*."""
    around = index.around(result.passage.id, _NEIGHBOURS)
    here = next((n for n, each in enumerate(around) if each.id == result.passage.id), len(around))
    before, after = (
        tuple(each for each in part if (result.place, each.id) not in hits)
        for part in (around[:here], around[here + 1 :])
    )
    return replace(result, before=before, after=after)
