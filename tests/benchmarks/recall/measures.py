"""What is measured of a list of results. A result counts by the gold turns it holds; tokens are characters / 4."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

RANKS = (1, 5, 10, 20)
BUDGETS = (512, 1024, 2048, 4096)


@dataclass(frozen=True, slots=True)
class RecallItem:
    """One thing that a system returned."""

    holds: frozenset[str]  # turns
    sessions: frozenset[str]
    tokens: float


@dataclass(slots=True)
class RunningSums:
    """Running sums over questions."""

    questions: int = 0
    figures: dict[str, float] = field(default_factory=dict)

    def add(self, found: dict[str, float]) -> None:
        """Count one question."""
        self.questions += 1
        for name, value in found.items():
            self.figures[name] = self.figures.get(name, 0.0) + value

    def means(self) -> dict[str, float]:
        """Return the mean of every figure."""
        return {name: value / max(1, self.questions) for name, value in self.figures.items()}


def judge(results: Sequence[RecallItem], gold: frozenset[str], gold_sessions: frozenset[str]) -> dict[str, float]:
    """Return the figures of one question, shares from 0 to 100."""
    seen: set[str] = set()
    gains: list[int] = []
    for result in results:
        fresh = (result.holds & gold) - seen
        gains.append(len(fresh))
        seen |= fresh
    figures: dict[str, float] = {f"R@{k}": 100 * sum(gains[:k]) / len(gold) for k in RANKS}
    figures["nDCG@10"] = 100 * _ndcg(results, gold)
    figures["MRR"] = 100 * next((1 / n for n, result in enumerate(results, 1) if result.holds & gold), 0.0)
    figures["sR@5"] = 100 * _sessions(results, gold_sessions)
    for budget in BUDGETS:
        figures[f"R@{budget}t"] = 100 * _within(results, gains, budget) / len(gold)
    figures["tok@10"] = sum(result.tokens for result in results[:10])
    return figures


def _ndcg(results: Sequence[RecallItem], gold: frozenset[str]) -> float:
    hits = [bool(result.holds & gold) for result in results[:10]]
    got = sum(1 / math.log2(n + 1) for n, hit in enumerate(hits, 1) if hit)
    best = sum(1 / math.log2(n + 1) for n in range(1, min(10, max(len(gold), sum(hits))) + 1))
    return got / best


def _sessions(results: Sequence[RecallItem], gold: frozenset[str]) -> float:
    first: list[str] = []
    for result in results:
        first += [session for session in sorted(result.sessions) if session not in first]
        if len(first) >= 5:
            break
    return len(gold & set(first[:5])) / len(gold)


def _within(results: Sequence[RecallItem], gains: Sequence[int], budget: int) -> int:
    """Return how many gold turns the results hold that fit into *budget* whole, in their order."""
    used, got = 0.0, 0
    for result, gain in zip(results, gains, strict=True):
        used += result.tokens
        if used > budget:
            break
        got += gain
    return got


def paired_interval(before: Sequence[float], after: Sequence[float], *, rounds: int = 2_000) -> tuple[float, float]:
    """Return the 95 % interval of the mean difference of paired figures, by bootstrap; the same on every call."""
    differences = np.asarray(after) - np.asarray(before)
    chance = np.random.default_rng(11)
    means = differences[chance.integers(0, len(differences), (rounds, len(differences)))].mean(axis=1)
    low, high = np.percentile(means, (2.5, 97.5))
    return float(low), float(high)
