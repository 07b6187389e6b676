"""Abilities that models lack: requests are made smaller after a refusal, and facts about models are kept.

A provider's refusal names a field or an ability (`AbilityMissing`). The same request follows without it, in the same
call. Only an answer to the smaller request proves that the refusal was true, so only then is it learned.

Refusals also teach the context windows of models, and so the budgets of prompts.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import structlog

from agent.base.disk import Disk
from agent.base.transcript_lines import parse_time
from agent.llm.chat_model import ChatRequest
from gateway.errors import ModelAbility, StoreUnavailable
from gateway.ports.memory import FACTS_EXPIRE, ModelFact

if TYPE_CHECKING:
    from gateway.store.shared_caches import SqlModelFacts


log = structlog.get_logger(__name__)

CALLS_AS_TEXT = "calls_as_text"  # the fact that a model writes its calls into its answer


class LearnedModels:
    """Facts about every model from its own answers, read from memory. A fact expires after 30 days."""

    def __init__(
        self, store: SqlModelFacts | None = None, *, now: Callable[[], datetime] = lambda: datetime.now(UTC)
    ) -> None:
        """Keep facts in *store*; None = in memory alone."""
        self._store = store
        self._now = now
        self._unstored: dict[tuple[str, str], ModelFact | None] = {}  # None = is to be removed

    def facts(self) -> list[ModelFact]:
        """Return every fact that has not expired, in the order of models and names."""
        return sorted(self._fresh(), key=lambda fact: (fact.model, fact.name))

    def find(self, model: str, name: str) -> ModelFact | None:
        """Return a fact about *model*, as `SupportsFacts.kept_as` has its name; None if it is not known."""
        place = (model, name)
        stored = self._store.facts().get(place) if self._store is not None else None
        found = self._unstored.get(place, stored)
        return found if found is not None and self._is_fresh(found) else None

    def missing(self, model: str) -> frozenset[ModelAbility]:
        """Return the abilities that *model* lacks."""
        stored = self._store.facts() if self._store is not None else ()
        if not self._unstored and not stored:
            return frozenset()  # as nearly always, and at every message
        names = {name for owner, name in (*stored, *self._unstored) if owner == model}
        return frozenset(each for each in ModelAbility if each in names and self.find(model, each) is not None)

    async def learn(
        self, model: str, facts: Mapping[str, str], *, forget: Collection[str] = (), at: datetime | None = None
    ) -> None:
        """Keep *facts*, values by name, learned *at* (now), and remove those called *forget*.

        While the store is down, they are in memory alone, and are stored with the next ones.
        """
        gone = [(model, name) for name in forget if self.find(model, name) is not None]
        put = [ModelFact(model=model, name=name, value=value, at=at or self._now()) for name, value in facts.items()]
        if not put and not gone:
            return
        log.warning("model.learned", model=model, facts=sorted(facts), forgotten=sorted(name for _, name in gone))
        changes: dict[tuple[str, str], ModelFact | None] = {(each.model, each.name): each for each in put}
        changes |= dict.fromkeys(gone)
        self._unstored |= changes
        if self._store is None:
            return
        changes = dict(self._unstored)
        try:
            await self._store.change(
                [each for each in changes.values() if each is not None],
                [place for place, each in changes.items() if each is None],
            )
        except StoreUnavailable as error:
            log.warning("model.learned_not_stored", reason=str(error))
            return
        # Other gateways may change what is stored from now on; newer facts of ours are still to be stored.
        self._unstored = {
            place: each for place, each in self._unstored.items() if place not in changes or changes[place] is not each
        }

    def _fresh(self) -> Iterator[ModelFact]:
        stored: Mapping[tuple[str, str], ModelFact | None] = self._store.facts() if self._store is not None else {}
        for fact in {**stored, **self._unstored}.values():
            if fact is not None and self._is_fresh(fact):
                yield fact

    def _is_fresh(self, fact: ModelFact) -> bool:
        return self._now() - fact.at < FACTS_EXPIRE


def reduce_request(request: ChatRequest, ability: ModelAbility, *, is_streamed: bool) -> ChatRequest | None:
    """Return *request* without *ability*, which was refused; None if nothing smaller can be asked.

    A refusal of tools may mean that a call cannot be forced: that is left out first. A request whose purpose is a call
    is not sent without tools; its caller has another question for such models.
    """
    if ability is ModelAbility.TOOLS and request.tool_choice:
        if ModelAbility.TOOL_CHOICE in request.without:
            return None
        ability = ModelAbility.TOOL_CHOICE
    if ability in request.without or not uses_ability(request, ability, is_streamed=is_streamed):
        return None
    return replace(request, without=request.without | {ability})


def uses_ability(request: ChatRequest, ability: ModelAbility, *, is_streamed: bool) -> bool:
    """Return True if *request* would need *ability*, apart from what it is sent `without`."""
    match ability:
        case ModelAbility.STREAM:
            return is_streamed
        case ModelAbility.STREAM_OPTIONS:
            return is_streamed and ModelAbility.STREAM not in request.without
        case ModelAbility.SYSTEM:
            return any(message.get("role") == "system" for message in request.messages)
        case ModelAbility.PICTURES:
            return any(_has_picture(message) for message in request.messages)
        case ModelAbility.TOOLS:
            return bool(request.tools) or any(message.get("tool_calls") for message in request.messages)
        case ModelAbility.FOREIGN_CALLS:
            return any(message.get("tool_calls") for message in request.messages)
        case ModelAbility.TOOL_CHOICE:
            return bool(request.tool_choice)
        case ModelAbility.REASONING:
            return any(message.get("thinking") for message in request.messages)
        case ModelAbility.EFFORT:
            return bool(request.effort)


def is_comparable(request: ChatRequest) -> bool:
    """Return True if the provider's figure for the prompt is about all that the weight of *request* counts."""
    left_out = request.without & {ModelAbility.TOOLS, ModelAbility.PICTURES}
    return not any(uses_ability(request, each, is_streamed=False) for each in left_out)


def _has_picture(message: Mapping[str, Any]) -> bool:
    content = message.get("content")
    return isinstance(content, list) and any(
        isinstance(part, Mapping) and part.get("type") == "image_url" for part in content
    )


# -- context windows -------------------------------------------------------------------------------

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


def prompt_share(window: int) -> int:
    """Return the tokens of a context window for the prompt; the rest is for the answer and the error of an estimate."""
    reserve, safety = min(LARGEST_RESERVE, window // 4), window // 20
    return window - reserve - safety


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
        """Return the prompt budget of *model*, in the units of agent/base/transcript_lines.py."""
        window, factor = self._limits(model)
        return max(int(prompt_share(window) / factor), 1)

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
            if prompt_share(window) / factor >= weight and seen <= _LARGEST_FACTOR:
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
