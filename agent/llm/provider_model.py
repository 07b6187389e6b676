"""Base of the models behind an HTTP API: one request per call, time limits, the reply, and errors mapped to our own."""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import replace
from datetime import UTC, datetime
from hashlib import blake2b
from typing import Any, Protocol

import structlog

from agent.llm.answer_text import find_written_calls
from agent.llm.chat_model import (
    ChatReply,
    ChatRequest,
    ModelConfig,
    ReplyEnding,
    Sink,
    TokenUsage,
    attach_usage,
    estimate,
)
from agent.llm.completion_stream import AnswerClock, error_in_body
from agent.llm.provider_errors import map_provider_error
from agent.llm.reply_builder import ReplyBuilder
from agent.llm.request_messages import CACHED_PURPOSE, outgoing, without_pictures
from gateway.errors import (
    EmptyModelReply,
    FailureCause,
    InvalidModelReply,
    ModelAbility,
    ModelFailed,
    ModelRefused,
    ModelServerFailed,
    ModelTimeout,
)

log = structlog.get_logger(__name__)

_SINK_PACE = 0.03  # seconds; a preview shows less often than that
LONGEST_STREAM = 5  # times the timeout: a stream that keeps coming may take longer than a plain answer


class ProviderStream(Protocol):
    """The answer to a request that asked for a stream."""

    body: Any  # what a provider answers without a stream, for `ReplyBuilder.take`; None = iterate

    @property
    def is_finished(self) -> bool:
        """Return True if the provider ended the stream itself, rather than the connection."""

    @property
    def ends_unmarked(self) -> bool:
        """Return True if the response ended properly between two chunks; the end of an answer may be unmarked."""

    def __aiter__(self) -> AsyncIterator[Any]:
        """Iterate over the chunks; None = a sign of life."""


class ProviderModel(ABC):
    """A `ChatModel`, except for how a request is sent and where prices and context windows come from."""

    def __init__(self, config: ModelConfig, *, now: Callable[[], datetime] = lambda: datetime.now(UTC)) -> None:
        self.name = config.model
        self._config = config
        self._now = now
        self.writes_calls_as_text = False  # see `SupportsFacts`
        self._ends_unmarked = False  # the last stream ended properly, without a mark of its end
        self._is_hidden = False  # in its last complete answer the model ended thinking that it had not begun
        self._sees = {"on": True, "off": False}.get(config.vision)

    @property
    def sized_as(self) -> str:
        """The name under which is kept how much the model takes: the settings' own for it."""
        return self._config.label or self.name

    @property
    def kept_as(self) -> str:
        """The name under which is kept what it has shown: its own, with a digest of its server's address."""
        base = self._config.api_base
        # A digest, because an address may hold a key or a password.
        return f"{self.name} {blake2b(base.encode(), digest_size=6).hexdigest()}" if base else self.name

    async def sees(self) -> bool:
        """Return True if the model accepts pictures: as configured, else as in litellm's table."""
        if self._sees is None:
            await self.warm()
            self._sees = await asyncio.to_thread(self._look_up_vision)
        return self._sees

    async def window(self) -> int | None:
        """Return the model's context window in tokens: as configured, else as in litellm's table."""
        if self._config.context_window:
            return self._config.context_window
        await self.warm()
        return await asyncio.to_thread(self._look_up_window)

    @abstractmethod
    async def warm(self) -> None:
        """See `ChatModel.warm`."""

    @abstractmethod
    async def close(self) -> None:
        """See `ChatModel.close`."""

    @abstractmethod
    def _look_up_vision(self) -> bool:
        """Return True if the table says that the model accepts pictures. Runs in a thread."""

    @abstractmethod
    def _look_up_window(self) -> int | None:
        """Return the table's context window. Runs in a thread."""

    @abstractmethod
    async def _fetch(self, request: ChatRequest, clock: AnswerClock) -> Sequence[Any]:
        """Return the whole answer, OpenAI-shaped, with attributes: one body, or chunks."""

    @abstractmethod
    def _open_stream(self, request: ChatRequest, clock: AnswerClock) -> AbstractAsyncContextManager[ProviderStream]:
        """Return a context manager that sends *request*, and hangs up on exit."""

    @abstractmethod
    def _cost(self, builder: ReplyBuilder, tokens: TokenUsage) -> float | None:
        """Return the price in US dollars by litellm's table; None = unknown."""

    def price(self, tokens: TokenUsage) -> float | None:
        """Return US dollars for *tokens*: as configured, else by litellm's table; None = unknown."""
        return self._cost_of(self._builder(), replace(tokens, is_estimate=True))

    def _cost_of(self, builder: ReplyBuilder, tokens: TokenUsage) -> float | None:
        if self._config.prices is None:
            return self._cost(builder, tokens)
        sent, answered = self._config.prices
        return (tokens.input * sent + tokens.output * answered) / 1_000_000

    def _builder(self) -> ReplyBuilder:
        return ReplyBuilder(self.name, is_hidden=self._is_hidden)

    async def complete(self, request: ChatRequest, *, sink: Sink | None = None) -> ChatReply:
        """See `ChatModel.complete`."""
        await self.warm()
        gathered = self._builder()
        gathered.tools = request.tools
        try:
            if sink is None or ModelAbility.STREAM in request.without:
                async with self._clock(silence=self._config.timeout) as clock:
                    gathered.take(await self._fetch(request, clock))
                if sink is not None and not gathered.is_empty:
                    sink(gathered.shown_text())
            else:
                await self._streamed(request, gathered, sink)
            return self._reply(request, gathered)
        except Exception as error:  # noqa: BLE001 - the provider's boundary: clients raise whatever their providers do
            # Not chained: the provider's text may quote the key or the prompt, and tracebacks are logged.
            raise self._failure(error, request, gathered) from None

    def _failure(self, error: Exception, request: ChatRequest, reply: ReplyBuilder) -> ModelFailed:
        """Return our error for *error*, with the call's usage if the model had started."""
        if isinstance(error, ModelFailed):
            known = error
        elif isinstance(error, TimeoutError):
            known = ModelTimeout(f"{self.name}: no answer in time")
        else:
            known = map_provider_error(error, self.name, self._now())
        log.info("model.failed", model=self.name, error=type(error).__name__, means=type(known).__name__)
        if not reply.is_empty or isinstance(known, InvalidModelReply | ModelTimeout):
            tokens = self._tokens(request, reply)
            cost = self._cost_of(reply, tokens)
            return attach_usage(known, ChatReply(text="", tool_calls=(), model=self.name, tokens=tokens, cost=cost))
        return known

    def _clock(self, *, silence: float) -> AnswerClock:
        timeout = self._config.timeout
        return AnswerClock(timeout, silence, timeout * LONGEST_STREAM)

    async def _streamed(self, request: ChatRequest, builder: ReplyBuilder, sink: Sink) -> None:
        now, shown = asyncio.get_running_loop().time, 0.0
        async with (
            self._clock(silence=self._config.stream_silence) as clock,
            self._open_stream(request, clock) as stream,
        ):
            if stream.body is not None:
                builder.take(stream.body)
            else:
                async for chunk in stream:
                    if chunk is None:
                        continue
                    clock.note_words()
                    if not builder.add(chunk):
                        continue
                    if builder.is_full:
                        break
                    if (at := now()) - shown >= _SINK_PACE:
                        shown = at
                        sink(builder.shown_text())
        builder.close()
        if builder.answer.ended_unopened or (builder.text and builder.ending is ReplyEnding.COMPLETE):
            self._is_hidden = builder.answer.ended_unopened
        if stream.body is None and not builder.is_full and not builder.is_empty:
            self._check_end(stream)
        if not builder.is_empty:
            sink(builder.shown_text())

    def _check_end(self, stream: ProviderStream) -> None:
        """Raise ModelServerFailed for a stream that ended in the middle.

        A server that never marks the end of an answer ends it like a proxy that cuts it off. The first such end is an
        error, after which the request is made again; where the next one is the same, it is the server's way.
        """
        is_usual = self._ends_unmarked and stream.ends_unmarked
        self._ends_unmarked = stream.ends_unmarked and not stream.is_finished
        if not stream.is_finished and not is_usual:
            raise ModelServerFailed(f"{self.name}: the stream ended in the middle")

    async def _messages(self, request: ChatRequest) -> list[dict[str, Any]]:
        """Return the messages of *request* as sent, without pictures for a model that accepts none."""
        marks = request.purpose == CACHED_PURPOSE
        messages = outgoing(
            request.messages, self.name, marks=marks, has_tools=bool(request.tools), lacks=request.without
        )
        in_parts = [each for each in messages if isinstance(each.get("content"), list)]
        if in_parts and not await self._is_shown(request):
            return [without_pictures(message) for message in messages]
        return messages

    async def _is_shown(self, request: ChatRequest) -> bool:
        """Return True if the model gets the pictures of *request*."""
        return ModelAbility.PICTURES not in request.without and await self.sees()

    def _reply(self, request: ChatRequest, builder: ReplyBuilder) -> ChatReply:
        # Its server ended the answer and said why: words are an answer that broke off, which is marked. Without words,
        # or with half a call, it is asked for again.
        if builder.finish == "error" and (builder.called or builder.is_empty):
            raise error_in_body(builder.error or "finish_reason error")
        if builder.is_empty and builder.ending is ReplyEnding.FILTERED:
            raise ModelRefused(f"{self.name}: nothing but {builder.finish}", FailureCause.FILTERED)
        if builder.is_empty:
            raise EmptyModelReply(f"{self.name}: an empty answer ({builder.finish or 'no reason given'})")
        tokens = self._tokens(request, builder)
        calls, text = builder.tool_calls(), builder.final_text()
        written = find_written_calls(
            text, builder.answer.call_at, builder.is_offered, is_expected=self.writes_calls_as_text
        )
        if written is not None:
            text = text[: builder.answer.call_at or 0] if calls else ""
        return ChatReply(
            text=text,
            tool_calls=calls,
            model=self.name,
            tokens=tokens,
            cost=self._cost_of(builder, tokens),
            thinking=builder.thinking(),
            ending=builder.ending,
            written=None if calls else written,
        )

    def _tokens(self, request: ChatRequest, builder: ReplyBuilder) -> TokenUsage:
        return builder.tokens() or estimate(request, builder.text)
