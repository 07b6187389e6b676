"""Context windows of models, the budgets of prompts that fit them, and what refusals teach about both."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import structlog

from agent.base.disk import Disk
from agent.base.transcript_lines import parse_time
from agent.llm.model_abilities import LearnedModels

log = structlog.get_logger(__name__)

DEFAULT_WINDOW = 65_536  # tokens; of a model that nobody knows and that has refused nothing yet
SMALLEST_WINDOW = 1_000
LARGEST_RESERVE = 8_192  # tokens kept free for the answer, at most
_LEAST = 200  # tokens: a smaller prompt teaches nothing
_PLAUSIBLE = (0.5, 5.0)  # figures outside of it are wrong, or those of a server that counts only new tokens
_LEAST_FACTOR = 1.0  # by our own estimate a prompt never exceeds the budget: a server may count only new tokens
_UP, _DOWN = 0.3, 0.1  # how quickly the factor follows
_LARGEST_FACTOR = 4.4  # a token is at least a byte, and we reckon four to one
_CREDIBLE = 2_000  # tokens: that less is too long for a large window is believed only with a limit
WINDOW = "window"  # the fact
_HARDER = 0.8  # of what was refused is tried next, where the model did not say its limit


@dataclass(frozen=True, slots=True)
class PromptBudget:
    """The prompt's share of a context window; the rest is for the answer and the error of an estimate."""

    window: int

    @property
    def reserve(self) -> int:
        """Tokens kept for the answer."""
        return min(LARGEST_RESERVE, self.window // 4)

    @property
    def safety(self) -> int:
        """Tokens kept for the error of an estimate."""
        return self.window // 20

    @property
    def tokens(self) -> int:
        """Tokens for the prompt."""
        return self.window - self.reserve - self.safety


class ContextWindows:
    """Known limits of every model. A window that a refusal has shown is kept as a fact about the model."""

    def __init__(self, facts: LearnedModels) -> None:
        self._facts = facts
        self._known: dict[str, int] = {}
        self._kept_as: dict[str, str] = {}
        self._factors: dict[str, float] = {}

    def set_window(self, model: str, window: int | None, *, kept_as: str = "") -> None:
        """Set the window that the settings or litellm's table have for *model*, and the name of its facts."""
        self._known[model] = window or DEFAULT_WINDOW
        self._kept_as[model] = kept_as or model

    def is_known(self, model: str) -> bool:
        """Return True if `set_window` was called for *model*."""
        return model in self._known

    def window(self, model: str) -> int:
        """Return the context window of *model* in tokens, prompt and answer together."""
        return self._limits(model)[0]

    def budget(self, model: str) -> int:
        """Return the prompt budget of *model*, in the units of agent/base/token_estimate.py."""
        window, factor = self._limits(model)
        return max(int(PromptBudget(window).tokens / factor), 1)

    def factor(self, model: str) -> float:
        """Return the provider's tokens per estimated token."""
        return self._limits(model)[1]

    def calibrate(self, model: str, weight: int, tokens: int) -> None:
        """Say that a prompt estimated at *weight* was *tokens* by the provider's own figures, cached ones included.

        The factor never falls below 1, and a figure below half of it is ignored.
        """
        if weight < _LEAST or not _PLAUSIBLE[0] <= tokens / weight <= _PLAUSIBLE[1]:
            return
        before, seen = self.factor(model), tokens / weight
        if seen < _PLAUSIBLE[0] * before:
            return
        self._factors[model] = max(before + (seen - before) * (_UP if seen > before else _DOWN), _LEAST_FACTOR)

    async def note_refusal(self, model: str, weight: int, limit: int = 0) -> None:
        """Record that *model* refused a prompt estimated at *weight* as too long; *limit* is the window it named.

        The budget is smaller than *weight* afterwards, unless the refusal cannot be true.
        """
        window, factor = self._limits(model)
        if limit:
            window = max(min(window, limit), SMALLEST_WINDOW)
            seen = 1.1 * window / max(weight, 1)  # at least so many of its tokens is one of ours
            if PromptBudget(window).tokens / factor >= weight and seen <= _LARGEST_FACTOR:
                factor = max(factor, seen)
        elif weight * factor >= min(_CREDIBLE, window // 2):
            window = max(min(window, int(weight * factor * _HARDER)), SMALLEST_WINDOW)
        else:
            log.warning("model.refused_little", model=model, weight=weight)
            return
        self._factors[model] = factor
        log.warning("model.window_learned", model=model, window=window, factor=round(factor, 2), told=bool(limit))
        await self._facts.learn(self._kept_as.get(model, model), {WINDOW: format_window(window, factor)})

    def _limits(self, model: str) -> tuple[int, float]:
        """Return the window and the factor of *model*, as far as it has shown them."""
        window, fact = self._known.get(model, DEFAULT_WINDOW), self._facts.find(self._kept_as.get(model, model), WINDOW)
        if fact is None:
            return window, self._factors.get(model, 1.0)
        learned, factor = parse_window(fact.value)
        return min(window, learned), self._factors.get(model, factor)


def format_window(window: int, factor: float) -> str:
    """Return the value of the fact: window and factor, within their bounds."""
    factor = min(max(factor, _PLAUSIBLE[0]), _LARGEST_FACTOR)
    return f"{max(window, SMALLEST_WINDOW)} {factor:.3f}"


def parse_window(value: str) -> tuple[int, float]:
    """Return the window and the factor of the value of the fact."""
    window, _, factor = value.partition(" ")
    return int(window), float(factor)


async def take_over_windows(path: Path, facts: LearnedModels, kept_as: Mapping[str, str]) -> None:
    """Keep the windows in the file *path*, which earlier versions wrote, as facts, and remove the file.

    *kept_as* has the names of facts by the names that the file uses. A file that cannot be read is left out: a window
    is learned again, at the cost of a refused request.
    """
    disk = Disk()
    data = await asyncio.to_thread(disk.load, path)
    if data is None:
        return
    try:
        for name, line in json.loads(data).items():
            at = parse_time(str(line["at"]))
            if name in kept_as and at is not None and facts.find(kept_as[name], WINDOW) is None:
                value = format_window(int(line["window"]), float(line["factor"]))
                await facts.learn(kept_as[name], {WINDOW: value}, at=at)
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        log.warning("model.windows_unreadable", error=type(error).__name__)
    await asyncio.to_thread(path.unlink, missing_ok=True)
