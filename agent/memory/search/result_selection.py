"""Rank the matches of several indexes together, and select results within a token budget."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta, tzinfo
from typing import TYPE_CHECKING

from agent.memory.search.query import QueryCue, SearchQuery, TimeRange, UnitTrait, is_standing_wish
from agent.memory.search.search_unit import MEMORY, MissingTime, RankedCandidate, UnitSource, tokens

if TYPE_CHECKING:
    from agent.memory.search.scope_index import IndexedPassage, IndexMatches, ScopeIndex

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
            scored = rank(one.candidates, question, names=one.names, zone=zone, best=tops)
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


# -- ranks -----------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class RankingWeights:
    """Weights of the parts of a score."""

    unit: float = 0.7  # the unit's own words
    context: float = 0.7  # the words of the unit and its neighbours
    block: float = 0.4  # the words of its block of the conversation
    own: float = 0.4  # similarity of its vector
    smooth: float = 0.5  # similarity of its and its neighbours' vectors
    reliance: float = 0.6  # share of the query below which words count less; 0: they always count in full
    speaker: float = 0.6  # the query names its speaker
    fact: float = 0.6  # the query asks for the asker's own, and the unit is no message: a remembered fact
    person: float = 0.3  # the query names nobody, and the unit is not an answer of the bot
    # A fact, or a person speaks of themselves, unless the bot's words are asked for; without vectors, a tenth.
    statement: float = 0.3
    date: float = 0.5  # the query names its time
    said: float = 1.5  # the query asks what was said at its time
    when: float = 0.3  # the query asks "when", and the unit contains a time
    latest: float = 0.4  # the query asks for the latest, and the unit is newer
    short: float = -0.3  # a few words, such as "yes"
    question: float = -0.3  # only asks: says nothing of its author; half as much without vectors


DEFAULT = RankingWeights()


def rank(
    candidates: Sequence[RankedCandidate],
    question: SearchQuery,
    weights: RankingWeights = DEFAULT,
    *,
    names: frozenset[str] = frozenset(),
    zone: tzinfo = UTC,
    best: Mapping[str, float] | None = None,
) -> list[RankedCandidate]:
    """Score *candidates* and return them, best first, newer ones first among equals.

    *best* contains the best parts of all indexes, if several indexes are searched.
    """
    tops = best or best_scores(candidates)
    cue = int(question.cue)
    reliance = 1.0
    if has_vectors := any(each.own for each in candidates):
        if weights.reliance:
            reliance = min(1.0, tops["unit"] / weights.reliance)
    else:
        weights = replace(weights, statement=weights.statement / 10, question=weights.question / 2)
    for each in candidates:
        each.score = (
            reliance * weights.unit * each.unit / tops["unit"]
            + reliance * weights.context * each.context / tops["context"]
            + reliance * weights.block * each.block_score / tops["block_score"]
            + weights.own * max(0.0, each.own) / tops["own"]
            + weights.smooth * max(0.0, each.smooth) / tops["smooth"]
            + _cues(each, cue, weights, names, has_vectors=has_vectors)
        )
    for each in candidates:
        if each.is_then:
            each.score += weights.said if question.asks_conversation else weights.date
        elif question.times and each.at is not None and _is_about(each.at, question.times, zone):
            each.score += weights.date
    if QueryCue.LATEST in question.cue and weights.latest:
        _prefer_newer(candidates, weights.latest)
    return sorted(candidates, key=lambda each: (-each.score, -(each.at or 0.0), each.id))


def best_scores(candidates: Sequence[RankedCandidate]) -> dict[str, float]:
    """Return the best value of each part, 1 for a part that no candidate has."""
    return {
        "unit": max([each.unit for each in candidates], default=0.0) or 1.0,
        "context": max([each.context for each in candidates], default=0.0) or 1.0,
        "block_score": max([each.block_score for each in candidates], default=0.0) or 1.0,
        "own": max([each.own for each in candidates], default=0.0) or 1.0,
        "smooth": max([each.smooth for each in candidates], default=0.0) or 1.0,
    }


def _cues(
    each: RankedCandidate, cue: int, weights: RankingWeights, names: frozenset[str], *, has_vectors: bool
) -> float:
    # Plain integers instead of flags, because this runs for a thousand candidates.
    score = 0.0
    if names:
        score += weights.speaker * (each.who in names)
    elif cue & _OTHER:
        score += weights.speaker * (each.role == "assistant")
    elif not cue & _SELF:
        score += weights.person * (each.role != "assistant")
    elif each.role != "assistant":
        score += weights.speaker if each.role else weights.fact
    if each.role != "assistant" and not cue & _OTHER and (each.traits & _STATEMENT or not each.role):
        score += weights.statement
    if cue & _WHEN and each.traits & _TIME:
        score += weights.when
    if each.role:
        if each.traits & _SHORT:
            score += weights.short
        # By words alone, even a question with a fact in it is less than its answer, which repeats the words.
        if each.traits & _QUESTION and not (has_vectors and each.traits & _STATEMENT):
            score += weights.question
    return score


_TIME, _SHORT, _QUESTION = int(UnitTrait.TIME), int(UnitTrait.SHORT), int(UnitTrait.QUESTION)
_STATEMENT = int(UnitTrait.STATEMENT)
_WHEN, _SELF, _OTHER = int(QueryCue.WHEN), int(QueryCue.SELF), int(QueryCue.OTHER)


def best_of_messages(ranked: Sequence[RankedCandidate], question: SearchQuery) -> list[RankedCandidate]:
    """Return *ranked* with the best piece of each message; passages of documents are kept.

    Two pieces are kept if the question asks for the bot's words, because the answer is in a certain piece.
    """
    most = 2 if QueryCue.OTHER in question.cue else 1
    counts: Counter[tuple[int, int]] = Counter()
    kept = []
    for each in ranked:
        counts[each.message] += 1
        if not each.role or counts[each.message] <= most:
            kept.append(each)
    return kept


def _is_about(at: float, dates: Sequence[TimeRange], zone: tzinfo) -> bool:
    local = datetime.fromtimestamp(at, zone)
    return any(date.covers(local) for date in dates)


def _prefer_newer(candidates: Sequence[RankedCandidate], weight: float) -> None:
    """Add up to *weight* to candidates with a good score, most to the newest and none to the oldest."""
    good = max((each.score for each in candidates), default=0.0) / 2
    times = sorted({each.at for each in candidates if each.at is not None and each.score >= good})
    if len(times) < 2:
        return
    place = {at: n / (len(times) - 1) for n, at in enumerate(times)}
    for each in candidates:
        if each.at is not None and each.score >= good:
            each.score += weight * place[each.at]


# -- the seed profile -------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class SeedProfile:
    """Settings of the seed profile, a simpler ranking of chunks; a half-life of None disables decay."""

    vector_weight: float = 0.7
    text_weight: float = 0.3
    chunk_tokens: int = 512
    chunk_overlap: int = 64
    memory_half_life: timedelta | None = None
    docs_half_life: timedelta | None = None
    evergreen: tuple[str, ...] = ("MEMORY.md", "USER.md", "SOUL.md")  # file names without decay

    def half_life(self, source: UnitSource) -> timedelta | None:
        """Return the half-life of a source's chunks, None if they do not decay."""
        if source.name.rpartition("/")[2] in self.evergreen:
            return None
        return self.memory_half_life if source.project == MEMORY else self.docs_half_life


def rank_seed(
    candidates: Sequence[RankedCandidate],
    seed: SeedProfile,
    *,
    now: datetime,
    source_of: Callable[[int], UnitSource],
    best: dict[str, float],
) -> list[RankedCandidate]:
    """Score *candidates* and return them, best first. Units without a date do not decay. *best* as in `rank`."""
    for each in candidates:
        score = seed.vector_weight * max(0.0, each.own) / best["own"] + seed.text_weight * each.unit / best["unit"]
        if seed.memory_half_life or seed.docs_half_life:
            score *= _decay(each.at, now, seed.half_life(source_of(each.id)))
        each.score = score
    return sorted(candidates, key=lambda each: (-each.score, -(each.at or 0.0), each.id))


def _decay(at: float | None, now: datetime, half_life: timedelta | None) -> float:
    if at is None or half_life is None:
        return 1.0
    age = max(0.0, now.timestamp() - at)
    return math.exp(-math.log(2) * age / half_life.total_seconds())
