"""Context windows: configured, looked up or learned, and the ratio of our token estimates to the provider's counts.

Limits learned from refused prompts are kept in a small file, so that each is learned once.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import structlog

from agent.memory.storage.disk import Disk
from agent.memory.storage.transcript_lines import format_time, parse_time

log = structlog.get_logger(__name__)

DEFAULT_WINDOW = 65_536  # tokens; of a model that nobody knows and that has refused nothing yet
SMALLEST_WINDOW = 1_000
LARGEST_RESERVE = 8_192  # tokens kept free for the answer, at most
LAPSES = timedelta(days=30)  # what was learned is tried anew then: providers change
_LEAST = 200  # tokens: a smaller prompt teaches nothing
_PLAUSIBLE = (0.2, 5.0)  # figures outside of it are a proxy's fancy, or a test's
_UP, _DOWN = 0.3, 0.1  # how quickly the factor follows
_LARGEST_FACTOR = 4.4  # a token is at least a byte, and we reckon four to one
_CREDIBLE = 2_000  # tokens: that less is too long for a large window is believed only with a limit
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


@dataclass(frozen=True, slots=True)
class _LearnedWindow:
    window: int
    factor: float  # tokens of the provider for one of ours
    at: str


class ContextWindows:
    """Known limits of every model. Call it on the event loop; it writes its file in a thread."""

    def __init__(self, path: Path | None, *, now: Callable[[], datetime], disk: Disk | None = None) -> None:
        """Keep what is learned in the file *path*; None = in memory alone."""
        self._path = path
        self._now = now
        self._disk = disk or Disk()
        self._known: dict[str, int] = {}
        self._factors: dict[str, float] = {}
        self._learned = self._load()

    def set_window(self, model: str, window: int | None) -> None:
        """Set the window that the settings or litellm's table have for *model*."""
        self._known[model] = window or DEFAULT_WINDOW

    def is_known(self, model: str) -> bool:
        """Return True if `set_window` was called for *model*."""
        return model in self._known

    def window(self, model: str) -> int:
        """Return the context window of *model* in tokens, prompt and answer together."""
        window = self._known.get(model, DEFAULT_WINDOW)
        learned = self._learned.get(model)
        return min(window, learned.window) if learned is not None and self._is_fresh(learned) else window

    def budget(self, model: str) -> int:
        """Return the prompt budget of *model*, in the units of agent/memory/messages/token_estimate.py."""
        return max(int(PromptBudget(self.window(model)).tokens / self.factor(model)), 1)

    def factor(self, model: str) -> float:
        """Return the provider's tokens per estimated token."""
        learned = self._learned.get(model)
        return self._factors.get(model, learned.factor if learned is not None else 1.0)

    def calibrate(self, model: str, weight: int, tokens: int) -> None:
        """Say that a prompt reckoned at *weight* was *tokens* by the provider's own figures."""
        if weight < _LEAST or not _PLAUSIBLE[0] <= tokens / weight <= _PLAUSIBLE[1]:
            return
        before, seen = self.factor(model), tokens / weight
        self._factors[model] = before + (seen - before) * (_UP if seen > before else _DOWN)

    async def note_refusal(self, model: str, weight: int, limit: int = 0) -> None:
        """Record that *model* refused a prompt estimated at *weight* as too long; *limit* is the window it named.

        The budget is smaller than *weight* afterwards, unless the refusal cannot be true.
        """
        factor, window = self.factor(model), self.window(model)
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
        self._learned[model] = _LearnedWindow(window, round(factor, 3), format_time(self._now()))
        log.warning("model.window_learned", model=model, window=window, factor=round(factor, 2), told=bool(limit))
        if self._path is not None:
            try:
                await asyncio.to_thread(self._save, self._path)
            except OSError as error:
                log.warning("model.window_not_kept", error=error.strerror)

    def _load(self) -> dict[str, _LearnedWindow]:
        data = self._disk.load(self._path) if self._path is not None else None
        try:
            found = json.loads(data or b"{}")
            return {str(name): _read(each) for name, each in found.items()}
        except (ValueError, TypeError, KeyError, AttributeError):
            return {}  # it is learned again, at the cost of a refused request

    def _is_fresh(self, entry: _LearnedWindow) -> bool:
        at = parse_time(entry.at)
        return at is not None and self._now() - at < LAPSES

    def _save(self, path: Path) -> None:
        text = json.dumps({name: asdict(each) for name, each in self._learned.items()}, indent=1)
        self._disk.replace(path, text.encode() + b"\n")


def _read(line: Mapping[str, Any]) -> _LearnedWindow:
    factor = min(max(float(line["factor"]), _PLAUSIBLE[0]), _LARGEST_FACTOR)
    return _LearnedWindow(max(int(line["window"]), SMALLEST_WINDOW), factor, str(line["at"]))
