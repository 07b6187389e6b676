"""Abilities that models lack: requests are made smaller after a refusal, and facts about models are kept.

A provider's refusal names a field or an ability (`AbilityMissing`). The same request follows without it, in the same
call. Only an answer to the smaller request proves that the refusal was true, so only then is it learned.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

import structlog

from agent.llm.chat_model import ChatRequest
from gateway.errors import ModelAbility, StoreUnavailable
from gateway.ports.model_facts import FACTS_EXPIRE, ModelFact, ModelFactStore

log = structlog.get_logger(__name__)

CALLS_AS_TEXT = "calls_as_text"  # the fact that a model writes its calls into its answer

NO_TOOLS = "No tools can be called in this conversation, whatever this text says of them: answer from what you know."
_CALLED = "(called {name} with {arguments})"
_RESULT = "(result of {name}: {text})"


class LearnedModels:
    """Facts about every model from its own answers, read from memory. A fact expires after 30 days."""

    def __init__(
        self, store: ModelFactStore | None = None, *, now: Callable[[], datetime] = lambda: datetime.now(UTC)
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
        return frozenset(each for each in ModelAbility if self.find(model, each) is not None)

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
        case ModelAbility.TOOL_CHOICE:
            return bool(request.tool_choice)
        case ModelAbility.REASONING:
            return any(message.get("thinking") for message in request.messages)
        case ModelAbility.EFFORT:
            return True


def is_comparable(request: ChatRequest) -> bool:
    """Return True if the provider's figure for the prompt is about all that the weight of *request* counts."""
    left_out = request.without & {ModelAbility.TOOLS, ModelAbility.PICTURES}
    return not any(uses_ability(request, each, is_streamed=False) for each in left_out)


def reduced_messages(request: ChatRequest) -> Sequence[Mapping[str, Any]]:
    """Return the messages of *request* without what it is sent without. Equal messages come out as equal bytes."""
    messages, without = request.messages, request.without
    if ModelAbility.REASONING in without:
        messages = [{name: value for name, value in each.items() if name != "thinking"} for each in messages]
    if ModelAbility.TOOLS in without:
        messages = _calls_as_text(messages)
        if request.tools and messages and messages[0].get("role") == "system":
            messages = [{**messages[0], "content": _join_contents(messages[0].get("content"), NO_TOOLS)}, *messages[1:]]
    if ModelAbility.SYSTEM in without:
        messages = _system_in_user(messages)
    return messages


def _has_picture(message: Mapping[str, Any]) -> bool:
    content = message.get("content")
    return isinstance(content, list) and any(
        isinstance(part, Mapping) and part.get("type") == "image_url" for part in content
    )


def _calls_as_text(messages: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """Return *messages* with calls in the assistant's words, and all results of a message in one of the user's."""
    told: list[Mapping[str, Any]] = []
    names: dict[str, str] = {}
    is_result = False
    for message in messages:
        if message.get("role") == "tool":
            name = names.get(str(message.get("tool_call_id")), "a tool")
            text = _RESULT.format(name=name, text=message.get("content") or "")
            if is_result:
                told[-1] = {**told[-1], "content": f"{told[-1]['content']}\n{text}"}
            else:
                told.append({"role": "user", "content": text})
            is_result = True
            continue
        if is_result and message.get("role") == "user":
            told[-1] = {**message, "content": _join_contents(told[-1]["content"], message.get("content"))}
            is_result = False
            continue
        is_result = False
        calls = message.get("tool_calls") or ()
        if calls:
            functions = [call["function"] for call in calls]
            names |= {str(call["id"]): call["function"]["name"] for call in calls}
            words = [_CALLED.format(name=each["name"], arguments=each["arguments"]) for each in functions]
            kept = {name: value for name, value in message.items() if name not in ("tool_calls", "thinking")}
            told.append({**kept, "content": _join_contents(message.get("content") or "", "\n".join(words))})
        else:
            told.append(message)
    return told


def _system_in_user(messages: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """Return *messages* with each system text at the beginning of the user's message that follows it."""
    told: list[Mapping[str, Any]] = []
    waiting: list[object] = []
    for message in messages:
        if message.get("role") == "system":
            waiting.append(message.get("content"))
            continue
        if waiting and message.get("role") == "user":
            content = waiting[0]
            for each in (*waiting[1:], message.get("content")):
                content = _join_contents(content, each)
            told.append({**message, "content": content})
            waiting = []
        else:
            told.append(message)
    return [*told, *({"role": "user", "content": each} for each in waiting)]


def _join_contents(first: object, second: object) -> str | list[Any]:
    """Return two contents, each a text or a list of parts, as one."""
    if isinstance(first, str) and isinstance(second, str):
        return "\n\n".join(filter(None, (first, second)))
    return [*_parts(first), *_parts(second)]


def _parts(content: object) -> list[Any]:
    if isinstance(content, list):
        return content
    return [{"type": "text", "text": str(content)}] if content else []
