"""Rank search results by a weighted sum of text match, similarity, speaker and time.

Each part is divided by its best value, which makes the weights comparable; a weight of 0 disables a part. The words'
parts count less if even the best unit contains little of the query. The weights were measured (docs/recall.md).
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta, tzinfo

from agent.memory.search.query import QueryCue, SearchQuery, TimeRange, UnitTrait
from agent.memory.search.search_unit import MEMORY, RankedCandidate, UnitSource


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
