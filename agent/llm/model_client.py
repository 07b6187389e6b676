"""Calls models with retries, back-off and fallback models, and records the usage of every request."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable, Sequence
from datetime import UTC, datetime, timedelta

import structlog

from agent.llm.chat_model import (
    ChatModel,
    ChatReply,
    ChatRequest,
    Sink,
    SupportsContextWindow,
    SupportsVision,
    estimate,
    usage_of_error,
)
from agent.llm.context_windows import ContextWindows
from agent.llm.usage_recorder import UsageRecorder
from gateway.backoff import exponential_delay
from gateway.errors import ContextOverflow, ModelFailed, ModelRateLimited, ModelRefused
from gateway.ports import MetricsRecorder

log = structlog.get_logger(__name__)

LONGEST_WAIT = timedelta(seconds=20)  # a provider that asks for more is passed over
FIRST_WAIT = timedelta(seconds=1)  # doubled at each further attempt, and jittered by half


class ModelClient:
    """The first of *models* that answers; itself a `ChatModel`.

        Each model is called up to *attempts* times; one that refuses is called once. Each request is recorded
    before it is made and when it ends: answered, failed or cancelled. The stream of a retry starts
    again, which is harmless because a sink always gets the full text so far.
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
        on_end: Callable[[bool], None] = lambda _: None,
    ) -> None:
        """*on_end* is called after each call: True when a model answered it."""
        if not models:
            raise ValueError("a client needs at least one model")
        self.name = models[0].name
        self._models = tuple(models)
        self._attempts = max(attempts, 1)
        self._recorder = recorder
        self._meter = meter
        self._now = now
        self._pause = pause
        self._jitter = jitter
        self._on_end = on_end
        self.windows = windows or ContextWindows(None, now=now)

    async def prompt_limit(self) -> int:
        """Return the prompt budget of the first model (units: token_estimate.py)."""
        await self._know(self._models[0])
        return self.windows.budget(_sized(self._models[0]))

    async def complete(self, request: ChatRequest, *, sink: Sink | None = None) -> ChatReply:
        """Return the first answer. Raises ContextOverflow and CapReached at once, else the *first* model's error.

        The first model's error names the problem of the installation; a misconfigured fallback must
        not hide it.
        """
        first: ModelFailed | None = None
        for model in self._models:
            try:
                reply = await self._persist(model, request, sink)
            except ContextOverflow as error:
                await self._know(model)
                await self.windows.note_refusal(_sized(model), request.weight or estimate(request).input, error.window)
                raise
            except ModelFailed as error:
                first = first or error
                log.warning(
                    "model.gave_up", model=model.name, turn=request.turn, error=type(error).__name__, reason=str(error)
                )
            else:
                self._on_end(True)
                return reply
        self._on_end(False)
        assert first is not None  # noqa: S101 - models is not empty
        raise first

    async def _know(self, model: ChatModel) -> None:
        """Look up the model's window, once."""
        if not self.windows.is_known(_sized(model)):
            self.windows.set_window(
                _sized(model), await model.window() if isinstance(model, SupportsContextWindow) else None
            )

    async def sees(self) -> bool:
        """Return True if the first model accepts pictures."""
        first = self._models[0]
        return await first.sees() if isinstance(first, SupportsVision) else False

    async def warm(self) -> None:
        """Warm every model, one after the other: they share what is slow."""
        for model in self._models:
            await model.warm()

    async def close(self) -> None:
        """Close every model."""
        for model in self._models:
            await model.close()

    async def _persist(self, model: ChatModel, request: ChatRequest, sink: Sink | None) -> ChatReply:
        """Ask one model until it answers, refuses, wants too long a pause, or has failed often enough."""
        for attempt in range(1, self._attempts + 1):
            try:
                return await self._ask(model, request, sink)
            except (ContextOverflow, ModelRefused):
                raise
            except ModelFailed as error:
                wait = self._wait(error, attempt)
                if attempt == self._attempts or wait is None:
                    raise
                log.info("model.again", model=model.name, turn=request.turn, error=type(error).__name__, wait=wait)
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

    async def _ask(self, model: ChatModel, request: ChatRequest, sink: Sink | None) -> ChatReply:
        """Make one call and account for it, however it ends."""
        watch = _RecordingSink(sink, self._now) if sink is not None else None
        begun = self._now()
        call = self._recorder.begin_call(request, model.name)
        spent: ChatReply | None = None
        outcome, was_refused = "cancelled", False
        try:
            spent = await model.complete(request, sink=watch)
            outcome = "answered"
            if request.weight and not spent.tokens.is_estimate:
                self.windows.calibrate(_sized(model), request.weight, spent.tokens.input)
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
            self._measure(request.purpose, outcome, begun, watch.first if watch else None)
            if spent is not None:
                self._account(spent)
            call.end(spent, was_refused=was_refused)
        return spent

    def _measure(self, purpose: str, outcome: str, started: datetime, first: datetime | None) -> None:
        # Never below zero: a clock may have been set back.
        self._meter.time("model_seconds", max((self._now() - started).total_seconds(), 0.0), purpose=purpose)
        if first is not None:
            self._meter.time("model_first_token_seconds", max((first - started).total_seconds(), 0.0), purpose=purpose)
        self._meter.count("model_calls", purpose=purpose, outcome=outcome)

    def _account(self, usage: ChatReply) -> None:
        tokens = usage.tokens
        for direction, amount in (("in", tokens.input), ("out", tokens.output), ("cached", tokens.cached)):
            if amount:
                self._meter.count("model_tokens", amount, direction=direction)
        if tokens.cached:
            self._meter.count("model_cache_hits")


def _sized(model: ChatModel) -> str:
    """Return the name under which is kept how much *model* takes."""
    return model.sized_as if isinstance(model, SupportsContextWindow) else model.name


class _RecordingSink:
    """A sink that keeps what went through it, and when it began."""

    def __init__(self, sink: Sink, now: Callable[[], datetime]) -> None:
        self._sink = sink
        self._now = now
        self.first: datetime | None = None
        self.text = ""

    def __call__(self, text: str) -> None:
        self.first = self.first or self._now()
        self.text = text
        self._sink(text)
