"""Calls of models: retries, back-off, fallback models and usage records."""

from __future__ import annotations

import asyncio
import copy
import json
import random
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any, Protocol

import structlog

from agent.llm.chat_model import (
    ChatModel,
    ChatReply,
    ChatRequest,
    Price,
    Sink,
    SupportsContextWindow,
    SupportsFacts,
    SupportsPrice,
    SupportsVision,
    TokenUsage,
    estimate,
    usage_of_error,
)
from agent.llm.model_abilities import CALLS_AS_TEXT, ContextWindows, LearnedModels, is_comparable, reduce_request
from agent.llm.request_messages import lacks_data
from gateway.errors import (
    AbilityMissing,
    ContextOverflow,
    EmptyModelReply,
    ModelAbility,
    ModelFailed,
    ModelRateLimited,
    ModelRefused,
    exponential_delay,
)
from gateway.ports.memory import ModelFact
from gateway.ports.metrics import MetricsRecorder, TraceSpan

if TYPE_CHECKING:
    from gateway.alerts.alert_sources import ModelSource

log = structlog.get_logger(__name__)

LONGEST_WAIT = timedelta(seconds=20)  # a provider that asks for more is passed over
# What the conventions for generative AI call a provider, where litellm calls it otherwise.
_PROVIDERS = {
    "azure": "azure.ai.openai",
    "azure_ai": "azure.ai.inference",
    "bedrock": "aws.bedrock",
    "gemini": "gcp.gemini",
    "mistral": "mistral_ai",
    "moonshot": "moonshot_ai",
    "vertex_ai": "gcp.vertex_ai",
    "watsonx": "ibm.watsonx.ai",
    "xai": "x_ai",
}
_NO_PROVIDER = "_OTHER"  # the conventions' word for a value that is not known
FIRST_WAIT = timedelta(seconds=1)  # doubled at each further attempt, and jittered by half


class ModelClient:
    """The first of *models* that answers; itself a `ChatModel`.

    Each model is called up to *attempts* times; one that refuses is called once. Each request is recorded
    before it is made and when it ends: answered, failed or cancelled. The stream of a retry starts
    again, which is harmless because a sink always gets the full text so far.

    A request that is refused for an ability which the model lacks is made again without it, and later ones are made
    without it at once (`facts`).
    """

    def __init__(
        self,
        models: Sequence[ChatModel],
        *,
        attempts: int = 2,
        recorder: UsageRecorder,
        meter: MetricsRecorder,
        now: Callable[[], datetime] = lambda: datetime.now(UTC),
        pause: Callable[[float], Awaitable[None]] = asyncio.sleep,
        jitter: Callable[[], float] = random.random,
        windows: ContextWindows | None = None,
        facts: LearnedModels | None = None,
        observer: ModelSource | None = None,
    ) -> None:
        if not models:
            raise ValueError("a client needs at least one model")
        self.name = models[0].name
        self._models = tuple(map(_describe, models))
        self._attempts = max(attempts, 1)
        self._recorder = recorder
        self._meter = meter
        self._now = now
        self._pause = pause
        self._jitter = jitter
        self._observer = observer
        self.facts = facts or LearnedModels(now=now)
        self.windows = windows or ContextWindows(self.facts)

    def with_recorder(self, recorder: UsageRecorder) -> ModelClient:
        """Return a client of the same models and facts whose requests *recorder* records."""
        client = copy.copy(self)
        client._recorder = recorder  # noqa: SLF001 - of our own copy
        return client

    async def prompt_limit(self) -> int:
        """Return the prompt budget of the first model (units: agent/base/transcript_lines.py)."""
        first = self._models[0]
        await self._know(first)
        return self.windows.budget(first.sized_as)

    async def price(self, tokens: TokenUsage) -> float | None:
        """Return the US dollars of one request to the first model; None if its price is not known."""
        first = self._models[0]
        if first.priced is None:
            return None
        await first.model.warm()
        return first.priced.price(tokens)

    async def complete(self, request: ChatRequest, *, sink: Sink | None = None) -> ChatReply:
        """Return the first answer. Raises ContextOverflow and CapReached at once, else the *first* model's error.

        The first model's error names the problem of the installation; a misconfigured fallback must
        not hide it.
        """
        first: ModelFailed | None = None
        faults: list[tuple[str, ModelFailed]] = []
        for each in self._models:
            try:
                reply = await self._ask_for_less(each, request, sink)
            except ContextOverflow as error:
                await self._know(each)
                await self.windows.note_refusal(each.sized_as, request.weight or estimate(request).input, error.window)
                raise
            except ModelFailed as error:
                first = first or error
                faults.append((each.sized_as, error))
                name = each.model.name
                log.warning(
                    "model.gave_up", model=name, turn=request.turn, error=type(error).__name__, reason=str(error)
                )
            else:
                self._note_faults(faults)
                if self._observer is not None:
                    self._observer.record_answer(each.sized_as)
                return reply
        # Whoever asked reads about the first model, since none answered.
        self._note_faults(faults, chat=request.chat if request.purpose == "answer" else "")
        if self._observer is not None:
            self._observer.record_failure()
        assert first is not None  # noqa: S101 - models is not empty
        raise first

    def _note_faults(self, faults: Sequence[tuple[str, ModelFailed]], *, chat: str = "") -> None:
        """Report the permanent *faults*; the first one is shown in *chat*."""
        for n, (sized_as, error) in enumerate(faults):
            if self._observer is not None and error.cause is not None and error.cause.is_permanent:
                self._observer.record_fault(sized_as, error.cause, "" if n else chat)

    async def _know(self, each: _NamedModel) -> None:
        """Look up the model's window, once."""
        if not self.windows.is_known(each.sized_as):
            window = await each.model.window() if isinstance(each.model, SupportsContextWindow) else None
            self.windows.set_window(each.sized_as, window, kept_as=each.kept_as)

    async def sees(self) -> bool:
        """Return True if the first model accepts pictures."""
        first = self._models[0].model
        if self.lacks(ModelAbility.PICTURES):
            return False
        return await first.sees() if isinstance(first, SupportsVision) else False

    def names(self) -> Sequence[tuple[str, str]]:
        """Return of each model the settings' name and the name of its facts."""
        return [(each.sized_as, each.kept_as) for each in self._models]

    def own_facts(self) -> list[ModelFact]:
        """Return the facts about the first model."""
        return [each for each in self.facts.facts() if each.model == self._models[0].kept_as]

    def lacks(self, ability: ModelAbility) -> bool:
        """Return True if the first model has refused *ability*. Served from memory."""
        return ability in self.facts.missing(self._models[0].kept_as)

    async def warm(self) -> None:
        """Warm every model, one after the other: they share what is slow."""
        for each in self._models:
            await each.model.warm()

    async def close(self) -> None:
        """Close every model."""
        for each in self._models:
            await each.model.close()

    async def _ask_for_less(self, each: _NamedModel, request: ChatRequest, sink: Sink | None) -> ChatReply:
        """Ask one model, without what it is known to lack and then without each ability that it refuses.

        Each step leaves out another ability, so there are at most as many as abilities. A refusal is believed
        when the model takes the smaller request: with another error it may not have been the reason.
        """
        name, is_streamed = each.model.name, sink is not None
        missing = self.facts.missing(each.kept_as)
        if each.writer is not None:
            each.writer.writes_calls_as_text = self.facts.find(each.kept_as, CALLS_AS_TEXT) is not None
        if request.tool_choice and ModelAbility.TOOLS in missing:
            raise AbilityMissing(f"{name}: it has no tools", ModelAbility.TOOLS)
        kept_back: set[ModelAbility] = set()  # left out of this request alone
        smaller: ChatRequest | None = replace(request, without=request.without | missing) if missing else request
        while smaller is not None:
            request = smaller
            found = dict.fromkeys(map(str, request.without - missing - kept_back), "")
            try:
                reply = await self._persist(each, request, sink)
            except ModelRefused as error:
                ability = _refused_ability(error, request, name)
                smaller = reduce_request(request, ability, is_streamed=is_streamed) if ability is not None else None
                if smaller is None:
                    raise
                if isinstance(error, AbilityMissing) and not error.is_lasting:
                    kept_back |= smaller.without - request.without
                log.info("model.ability_refused", model=name, turn=request.turn, ability=ability)
            except EmptyModelReply:
                await self.facts.learn(each.kept_as, found)
                raise
            else:
                await self.facts.learn(each.kept_as, found)
                return reply
        raise AssertionError("unreachable")

    async def _persist(self, each: _NamedModel, request: ChatRequest, sink: Sink | None) -> ChatReply:
        """Ask one model until it answers, refuses, wants too long a pause, or has failed often enough."""
        for attempt in range(1, self._attempts + 1):
            try:
                return await self._ask(each, request, sink)
            except (ContextOverflow, ModelRefused):
                raise
            except ModelFailed as error:
                wait = self._wait(error, attempt)
                if attempt == self._attempts or wait is None:
                    raise
                name = each.model.name
                log.info("model.again", model=name, turn=request.turn, error=type(error).__name__, wait=wait)
                await self._pause(wait)
        raise AssertionError("unreachable")

    def _wait(self, error: ModelFailed, attempt: int) -> float | None:
        """Return the seconds to wait before the next attempt; None when that would be too long."""
        backoff = exponential_delay(attempt, FIRST_WAIT, LONGEST_WAIT) * (0.5 + self._jitter())
        asked = error.delay if isinstance(error, ModelRateLimited) else None
        if asked is None:
            return min(backoff, LONGEST_WAIT).total_seconds()
        if asked > LONGEST_WAIT:
            return None
        # Never earlier than asked; a little later, or everybody who was told the same comes back at once.
        return asked.total_seconds() + 0.25 * self._jitter()

    async def _ask(self, each: _NamedModel, request: ChatRequest, sink: Sink | None) -> ChatReply:
        """Make one call and account for it, however it ends."""
        model = each.model
        watch = _RecordingSink(sink, self._now, keeps_all=self._meter.records_spans) if sink is not None else None
        begun = self._now()
        price: Price | None = None
        if each.priced is not None:
            await model.warm()
            price = each.priced.price
        call = await self._recorder.begin_call(request, model.name, price)
        spent: ChatReply | None = None
        outcome, was_refused = "cancelled", False
        try:
            spent = await model.complete(request, sink=watch)
            outcome = "answered"
            if request.weight and not spent.tokens.is_estimate and is_comparable(request):
                tokens = spent.tokens
                # Some servers count what was cached apart from the rest.
                apart = tokens.cached if tokens.cached > tokens.input else 0
                self.windows.calibrate(each.sized_as, request.weight, tokens.input + apart)
        except ModelFailed as error:
            spent = usage_of_error(error)
            outcome = type(error).__name__
            was_refused = isinstance(error, ModelRateLimited | ModelRefused | ContextOverflow)
            raise
        except asyncio.CancelledError:
            # /stop: the provider has read the prompt, and bills it although nobody will read the answer.
            tokens = estimate(request, watch.text if watch else "")
            spent = ChatReply(text="", tool_calls=(), model=model.name, tokens=tokens, cost=None)
            raise
        finally:
            chunks = tuple(watch.arrivals) if watch else ()
            self._measure(request.purpose, outcome, begun, chunks[0] if chunks else None, spent)
            if self._meter.records_spans:
                self._trace(request, model.name, outcome, begun, spent, chunks)
            call.end(spent, was_refused=was_refused)
        return spent

    def _trace(
        self,
        request: ChatRequest,
        model: str,
        outcome: str,
        began: datetime,
        reply: ChatReply | None,
        chunks: tuple[datetime, ...],
    ) -> None:
        """Record the call as a span, with the names of OpenTelemetry's conventions for generative AI."""
        provider, has_provider, name = model.partition("/")
        attributes: dict[str, str | int | float | bool] = {
            "gen_ai.operation.name": "chat",
            "gen_ai.provider.name": _PROVIDERS.get(provider, provider) if has_provider else _NO_PROVIDER,
            "gen_ai.request.model": name if has_provider else model,
            "parlour.purpose": request.purpose,
        }
        if request.max_tokens:
            attributes["gen_ai.request.max_tokens"] = request.max_tokens
        if chunks:
            attributes["gen_ai.response.time_to_first_chunk"] = max((chunks[0] - began).total_seconds(), 0.0)
        if reply is not None:
            attributes["gen_ai.response.model"] = reply.model
        if reply is not None and not reply.tokens.is_estimate:
            attributes |= {
                "gen_ai.usage.input_tokens": reply.tokens.input,
                "gen_ai.usage.output_tokens": reply.tokens.output,
                "gen_ai.usage.cache_read.input_tokens": reply.tokens.cached,
            }
        self._meter.span(
            TraceSpan(
                turn=request.turn,
                name=f"chat {attributes['gen_ai.request.model']}",
                began=began,
                ended=max(self._now(), began),
                attributes=attributes,
                error="" if outcome == "answered" else outcome,
                content=lambda: _content_of(request, reply),
                chunks=chunks,
            )
        )

    def _measure(
        self, purpose: str, outcome: str, started: datetime, first: datetime | None, reply: ChatReply | None
    ) -> None:
        # Never below zero: a clock may have been set back.
        self._meter.time("model_seconds", max((self._now() - started).total_seconds(), 0.0), purpose=purpose)
        if first is not None:
            self._meter.time("model_first_token_seconds", max((first - started).total_seconds(), 0.0), purpose=purpose)
        self._meter.count("model_calls", purpose=purpose, outcome=outcome)
        if reply is None:
            return
        tokens = reply.tokens
        for direction, amount in (("in", tokens.input), ("out", tokens.output), ("cached", tokens.cached)):
            if amount:
                self._meter.count("model_tokens", amount, direction=direction)
        if tokens.cached:
            self._meter.count("model_cache_hits")


@dataclass(frozen=True, slots=True)
class _NamedModel:
    """A model, the names under which its window and its facts are kept, and what it supports.

    All are looked up once: a class is compared with a Protocol by each of its names.
    """

    model: ChatModel
    sized_as: str
    kept_as: str
    writer: SupportsFacts | None
    priced: SupportsPrice | None


def _describe(model: ChatModel) -> _NamedModel:
    writer = model if isinstance(model, SupportsFacts) else None
    return _NamedModel(
        model,
        sized_as=model.sized_as if isinstance(model, SupportsContextWindow) else model.name,
        kept_as=model.name if writer is None else writer.kept_as,
        writer=writer,
        priced=model if isinstance(model, SupportsPrice) else None,
    )


def _refused_ability(error: ModelRefused, request: ChatRequest, model: str) -> ModelAbility | None:
    """Return the ability to leave out after *error*; None if the request cannot be made smaller."""
    if isinstance(error, AbilityMissing):
        return error.ability
    # A call without the server's own data is refused in words that say nothing: "Provider returned error".
    is_possible = error.is_unexplained and lacks_data(request.messages, model)
    return ModelAbility.FOREIGN_CALLS if is_possible else None


def _content_of(request: ChatRequest, reply: ChatReply | None) -> dict[str, str]:
    """Return prompt and answer as the conventions have them; pictures are left out."""
    sent = [{"role": each.get("role"), "parts": _text_parts(each.get("content"))} for each in request.messages]
    content = {"gen_ai.input.messages": json.dumps(sent, ensure_ascii=False)}
    if reply is not None:
        parts: list[dict[str, Any]] = _text_parts(reply.text)
        parts += [{"type": "tool_call", **asdict(call)} for call in reply.tool_calls]
        content["gen_ai.output.messages"] = json.dumps([{"role": "assistant", "parts": parts}], ensure_ascii=False)
    return content


def _text_parts(content: object) -> list[dict[str, Any]]:
    texts = content if isinstance(content, list) else [{"type": "text", "text": content}] if content else []
    return [{"type": "text", "content": str(each.get("text"))} for each in texts if each.get("type") == "text"]


class _RecordingSink:
    """A sink that keeps what went through it, and when the first piece arrived; with *keeps_all*, when each did."""

    def __init__(self, sink: Sink, now: Callable[[], datetime], *, keeps_all: bool) -> None:
        self._sink = sink
        self._now = now
        self._keeps_all = keeps_all
        self.arrivals: list[datetime] = []
        self.text = ""

    def __call__(self, text: str) -> None:
        if self._keeps_all or not self.arrivals:
            self.arrivals.append(self._now())
        self.text = text
        self._sink(text)


class CallRecord(Protocol):
    """The open usage record of one call."""

    def end(self, usage: ChatReply | None, *, was_refused: bool = False) -> None:
        """Close the record with its usage; None = unknown usage.

        Unknown usage costs an unknown amount, unless the request *was_refused*: the provider bills nothing for it.
        """


class UsageRecorder(Protocol):
    """Records every request to every model, once per request that is sent."""

    async def begin_call(self, request: ChatRequest, model: str, price: Price | None = None) -> CallRecord:
        """Open the record of a call to *model*. Raises CapReached if a usage cap would be exceeded, StoreUnavailable.

        *price* is what its tokens cost, for caps in money.

        It waits only where several gateways count.
        """

    def note_call(self, request: ChatRequest, model: str, usage: ChatReply) -> None:
        """Record a call that has ended and that no cap limits."""
