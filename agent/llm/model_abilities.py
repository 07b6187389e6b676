"""Abilities that models lack: requests are made smaller after a refusal, and facts about models are kept.

A provider's refusal names a field or an ability (`AbilityMissing`). The same request follows without it, in the same
call. Only an answer to the smaller request proves that the refusal was true, so only then is it learned.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import replace
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import structlog

from agent.llm.chat_model import ChatRequest
from gateway.errors import ModelAbility, StoreUnavailable
from gateway.ports.memory import FACTS_EXPIRE, ModelFact

if TYPE_CHECKING:
    from gateway.store.model_facts import SqlModelFacts


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
