"""What is measured of a list of results. A result counts by the wanted things it holds; tokens are characters / 4."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

BUDGET = 2_048  # tokens


@dataclass(frozen=True, slots=True)
class RecallItem:
    """One result: the wanted things in it, and its tokens."""

    holds: frozenset[str]
    tokens: float


@dataclass(frozen=True, slots=True)
class RecallFigures:
    """The figures of one question, from 0 to 100; `shown` is of one page of `memory_search`."""

    ten: float
    hundred: float
    budget: float
    shown: float
    tokens: float  # of that page


def judge(ranked: Sequence[RecallItem], page: frozenset[str], page_tokens: float, wanted: int) -> RecallFigures:
    """Return the figures of a question for which *wanted* things are to be found, of which the page has *page*."""
    seen: set[str] = set()
    used, within = 0.0, 0.0
    counts: list[float] = []
    for item in ranked:
        used += item.tokens
        seen |= item.holds
        counts.append(len(seen))
        if used <= BUDGET:
            within = len(seen)
    ten, hundred = (counts[min(most, len(counts)) - 1] if counts else 0 for most in (10, 100))
    ten, hundred, within, shown = (100 * each / wanted for each in (ten, hundred, within, len(page)))
    return RecallFigures(ten, hundred, within, shown, page_tokens)


def paired_interval(before: Sequence[float], after: Sequence[float], *, rounds: int = 2_000) -> tuple[float, float]:
    """Return the 95 % interval of the mean difference of paired figures, by bootstrap; the same on every call."""
    differences = np.asarray(after) - np.asarray(before)
    chance = np.random.default_rng(11)
    means = differences[chance.integers(0, len(differences), (rounds, len(differences)))].mean(axis=1)
    low, high = np.percentile(means, (2.5, 97.5))
    return float(low), float(high)
