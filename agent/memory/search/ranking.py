"""Rank search results by a weighted sum of text match, similarity, speaker and time.

Each part is divided by its best value, which makes the weights comparable; a weight of 0 disables a part. The weights
were measured (docs/recall.md).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta, tzinfo

from agent.memory.search.query import QueryCue, SearchQuery, TimeRange, UnitTrait
from agent.memory.search.search_unit import MEMORY, UnitSource


@dataclass(frozen=True, slots=True, kw_only=True)
class RankingWeights:
    """Weights of the parts of a score."""

    unit: float = 0.7  # the unit's own words
    context: float = 0.7  # the words of the unit and its neighbours
    block: float = 0.4  # the words of its block of the conversation
    own: float = 0.6  # similarity of its vector
    smooth: float = 0.7  # similarity of its and its neighbours' vectors
    speaker: float = 0.6  # the query names its speaker
    date: float = 0.4  # the query names its time
    when: float = 0.3  # the query asks "when", and the unit contains a time
    latest: float = 0.4  # the query asks for the latest, and the unit is newer
    short: float = -0.3  # a few words, such as "yes"
    question: float = -0.15  # ends with a question mark


DEFAULT = RankingWeights()


@dataclass(slots=True)
class RankedCandidate:
    """A unit with the parts of its score."""

    id: int
    at: float | None  # seconds since 1970
    traits: int
    who: str
    role: str
    block: int
    unit: float = 0.0
    context: float = 0.0
    block_score: float = 0.0
    own: float = 0.0
    smooth: float = 0.0
    score: float = 0.0


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
    for each in candidates:
        each.score = (
            weights.unit * each.unit / tops["unit"]
            + weights.context * each.context / tops["context"]
            + weights.block * each.block_score / tops["block_score"]
            + weights.own * max(0.0, each.own) / tops["own"]
            + weights.smooth * max(0.0, each.smooth) / tops["smooth"]
            + _cues(each, cue, weights, names)
        )
    if question.times and weights.date:
        for each in candidates:
            if each.at is not None and _is_then(each.at, question.times, zone):
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


def _cues(each: RankedCandidate, cue: int, weights: RankingWeights, names: frozenset[str]) -> float:
    # Plain integers instead of flags, because this runs for a thousand candidates.
    score = 0.0
    if each.who in names or (not names and each.role in _ASKED[cue & _ROLES]):
        score += weights.speaker
    if cue & _WHEN and each.traits & _TIME:
        score += weights.when
    if each.role:
        if each.traits & _SHORT:
            score += weights.short
        if each.traits & _QUESTION:
            score += weights.question
    return score


_TIME, _SHORT, _QUESTION = int(UnitTrait.TIME), int(UnitTrait.SHORT), int(UnitTrait.QUESTION)
_WHEN, _ROLES = int(QueryCue.WHEN), int(QueryCue.SELF | QueryCue.OTHER)
# Roles of the speakers that a query without a name asks for.
_ASKED: Mapping[int, tuple[str, ...]] = {
    0: (),
    int(QueryCue.SELF): ("user",),
    int(QueryCue.OTHER): ("assistant",),
    _ROLES: ("user", "assistant"),
}


def _is_then(at: float, times: Sequence[TimeRange], zone: tzinfo) -> bool:
    local = datetime.fromtimestamp(at, zone)
    return any(time.covers(local) for time in times)


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
