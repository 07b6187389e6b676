"""The ranking of seed 002 to the letter: chunks, 0.7 of likeness and 0.3 of text, decay by age where it is wanted."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from agent.memory.search.ranking import RankedCandidate
from agent.memory.search.search_unit import MEMORY, UnitSource


@dataclass(frozen=True, slots=True, kw_only=True)
class SeedProfile:
    """The settings of the seed profile; a half-life of None means no decay."""

    vector_weight: float = 0.7
    text_weight: float = 0.3
    chunk_tokens: int = 512
    chunk_overlap: int = 64
    memory_half_life: timedelta | None = None
    docs_half_life: timedelta | None = None
    evergreen: tuple[str, ...] = ("MEMORY.md", "USER.md", "SOUL.md")  # file names that never age

    def half_life(self, source: UnitSource) -> timedelta | None:
        """Return the half-life of a source's chunks, None when they do not age."""
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
    """Score *candidates* and return them, best first. What has no date does not age. *best* as in `ranking.rank`."""
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
