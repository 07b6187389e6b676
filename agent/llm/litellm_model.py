"""Every provider there is, through litellm.

litellm takes seconds to import, so that happens in a thread, with everything switched off that would
reach for the network or print on its own. One call here is one HTTP request: retries and fallbacks
are the client's business (agent/llm/model_client.py), and behind its back nothing is repeated.
"""

from __future__ import annotations

import asyncio
import importlib
import json
import logging
import os
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from functools import cache
from typing import Any

import structlog

from agent.llm.chat_model import (
    ANSWER_CHARS,
    ChatModel,
    ChatReply,
    ChatRequest,
    ModelConfig,
    Sink,
    TokenUsage,
    attach_usage,
    estimate,
)
from agent.llm.litellm_proxy import route_through_proxy
from agent.llm.provider_errors import map_provider_error
from agent.llm.reply_builder import ReplyBuilder, clean
from gateway.errors import EmptyModelReply, InvalidModelReply, ModelFailed, ModelTimeout, ModelUnreachable

log = structlog.get_logger(__name__)

# Read while litellm is being imported: no price map and no tokenizer from the web, no .env file.
_GUARDS = {
    "LITELLM_LOCAL_MODEL_COST_MAP": "True",
    "LITELLM_MODE": "PRODUCTION",
    "HF_HUB_OFFLINE": "1",
    "DO_NOT_TRACK": "1",
}
# httpx logs request URLs at INFO, and litellm request bodies at DEBUG.
_CHATTY = ("LiteLLM", "LiteLLM Router", "LiteLLM Proxy", "httpx", "httpcore", "openai", "aiohttp")
# Providers read a cached prefix only up to a mark when they are of this family.
_MARKED = ("claude",)
_CACHED_PURPOSE = "answer"  # of prompts that the next turn, or the next step, sends again
# Providers that refuse a history with calls beside no tools, as where a chat has none any more.
_WANTS_A_TOOL = ("bedrock/",)
_NO_TOOL = {
    "type": "function",
    "function": {
        "name": "no_tool",
        "description": "There are no tools in this chat. Never call this.",
        "parameters": {"type": "object", "properties": {}},
    },
}
_SINK_PACE = 0.03  # seconds; a preview shows less often than that
_LONGEST_STREAM = 5  # times the timeout: a stream that keeps coming may take longer than a plain answer
_NO_KEY = "none"  # OpenAI-compatible servers without a key; the SDK insists on one
_loading = threading.Lock()


def open_model(config: ModelConfig) -> ChatModel:
    """Return the model; nothing is loaded or checked before `warm` or the first call."""
    return LitellmModel(config)


class LitellmModel:
    """A `ChatModel` over litellm's `acompletion`."""

    def __init__(self, config: ModelConfig, *, now: Callable[[], datetime] = lambda: datetime.now(UTC)) -> None:
        self.name = config.model
        self._config = config
        self._now = now
        self._litellm: Any = None  # the module, once it is loaded
        self._has_price = True
        self._sees = {"on": True, "off": False}.get(config.vision)

    @property
    def sized_as(self) -> str:
        """The name under which is kept how much the model takes: the settings' own for it."""
        return self._config.label or self.name

    async def sees(self) -> bool:
        """Return True if the model accepts pictures: as configured, else as in litellm's table."""
        if self._sees is None:
            await self.warm()
            self._sees = await asyncio.to_thread(self._ask_table)
        return self._sees

    def _ask_table(self) -> bool:
        try:
            return bool(self._litellm.supports_vision(model=self.name))
        except Exception:  # noqa: BLE001 - litellm raises whatever it likes for a model that is not in its table
            return False

    async def window(self) -> int | None:
        """Return the model's context window in tokens: as configured, else as in litellm's table."""
        if self._config.context_window:
            return self._config.context_window
        await self.warm()
        return await asyncio.to_thread(self._look_up_window)

    def _look_up_window(self) -> int | None:
        try:
            found = self._litellm.get_model_info(model=self.name).get("max_input_tokens")
        except Exception:  # noqa: BLE001 - litellm raises whatever it likes for a model that is not in its table
            return None
        return found if isinstance(found, int) and found > 0 else None

    async def warm(self) -> None:
        """Import litellm in a thread and let it build what its first call needs."""
        if self._litellm is None:
            self._litellm = await asyncio.to_thread(load_litellm, self._config.proxy)

    async def close(self) -> None:
        """Close litellm's pooled connections, those of other models included; they reopen when used."""
        if self._litellm is not None:
            await self._litellm.close_litellm_async_clients()
            self._litellm.in_memory_llm_clients_cache.flush_cache()

    async def complete(self, request: ChatRequest, *, sink: Sink | None = None) -> ChatReply:
        """See `ChatModel.complete`."""
        await self.warm()
        gathered = ReplyBuilder(self.name)
        try:
            if sink is None:
                await self._whole(request, gathered)
            else:
                await self._streamed(request, gathered, sink)
            return self._reply(request, gathered)
        except Exception as error:  # noqa: BLE001 - the provider's boundary: litellm raises whatever its providers do
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
        if reply.text or isinstance(known, InvalidModelReply | ModelTimeout):
            tokens = self._tokens(request, reply)
            cost = self._cost(reply, tokens)
            return attach_usage(known, ChatReply(text="", tool_calls=(), model=self.name, tokens=tokens, cost=cost))
        return known

    async def _whole(self, request: ChatRequest, builder: ReplyBuilder) -> None:
        async with asyncio.timeout(self._config.timeout):
            builder.take(await self._call(request))

    async def _streamed(self, request: ChatRequest, builder: ReplyBuilder, sink: Sink) -> None:
        loop = asyncio.get_running_loop()
        end = loop.time() + self._config.timeout * _LONGEST_STREAM
        shown = 0.0
        async with asyncio.timeout(self._config.timeout) as limit:
            stream = await self._call(request, stream=True, stream_options={"include_usage": True})
            try:
                body = await read_unstreamed(stream, self.name)
                if body is not None:
                    builder.take(self._litellm.ModelResponse(**body))
                    sink(builder.final_text())
                    return
                async for chunk in stream:
                    now = loop.time()
                    limit.reschedule(min(now + self._config.stream_silence, end))
                    if not builder.add(chunk):
                        continue
                    if builder.is_full:
                        break
                    if now - shown >= _SINK_PACE:
                        shown = now
                        sink(clean(builder.text))
            finally:
                await stream.aclose()
        is_whole = builder.is_full or builder.is_empty or getattr(stream, "received_finish_reason", "") is not None
        if not is_whole:
            # litellm makes a proper end of its own where the provider's is missing.
            raise ModelUnreachable(f"{self.name}: the stream ended in the middle")
        if not builder.is_empty:
            sink(builder.final_text())

    async def _call(self, request: ChatRequest, **extra: Any) -> Any:
        if tools := offered_tools(request, self.name):
            extra["tools"] = tools
            # Or litellm imports its MCP proxy for every call with tools, which needs a package that is not there.
            extra["_skip_mcp_handler"] = True
            if request.tool_choice:
                extra["tool_choice"] = request.tool_choice
        if request.max_tokens is not None:
            extra["max_tokens"] = request.max_tokens
        messages = outgoing(request.messages, self.name, marks=request.purpose == _CACHED_PURPOSE)
        if any(isinstance(message.get("content"), list) for message in messages) and not await self.sees():
            messages = [without_pictures(message) for message in messages]
        return await self._litellm.acompletion(
            model=self.name,
            messages=messages,
            api_base=self._config.api_base or None,
            api_key=key_for(self.name, self._config.api_base, self._config.api_key),
            # Ours is the limit that counts; this one only has to be there, and constant, for the pool's sake.
            timeout=self._config.timeout * (_LONGEST_STREAM + 1),
            num_retries=0,
            max_retries=0,
            **extra,
        )

    def _reply(self, request: ChatRequest, builder: ReplyBuilder) -> ChatReply:
        if builder.is_empty:
            raise EmptyModelReply(f"{self.name}: an empty answer ({builder.finish or 'no reason given'})")
        tokens = self._tokens(request, builder)
        return ChatReply(
            text=builder.final_text(),
            tool_calls=builder.tool_calls(),
            model=self.name,
            tokens=tokens,
            cost=self._cost(builder, tokens),
            thinking=builder.thinking(),
            is_cut=builder.is_cut,
        )

    def _tokens(self, request: ChatRequest, builder: ReplyBuilder) -> TokenUsage:
        usage = builder.usage
        if usage is None or not (usage.prompt_tokens or usage.completion_tokens):
            return estimate(request, builder.text)
        details = getattr(usage, "prompt_tokens_details", None)
        cached = getattr(details, "cached_tokens", None) or 0
        return TokenUsage(input=usage.prompt_tokens or 0, output=usage.completion_tokens or 0, cached=cached)

    def _cost(self, builder: ReplyBuilder, tokens: TokenUsage) -> float | None:
        """Price by litellm's bundled table; None when it does not know the model."""
        if not self._has_price or self._litellm is None:
            return None
        try:
            paid = self._litellm.cost_per_token(
                model=self.name,
                prompt_tokens=tokens.input,
                completion_tokens=tokens.output,
                cache_read_input_tokens=tokens.cached,
                usage_object=None if tokens.is_estimate else builder.usage,
            )
        except Exception:  # noqa: BLE001 - litellm raises a bare Exception for a model that is not in its table
            log.debug("model.no_price", model=self.name)
            self._has_price = False
            return None
        return float(sum(paid))


def key_for(model: str, api_base: str, api_key: str) -> str | None:
    """Return the configured key; without one, litellm reads the provider's environment variable.

    At an address of the operator's choice OPENAI_API_KEY is not sent along by itself.
    """
    return api_key or (_NO_KEY if api_base and model.startswith("openai/") else None)


def offered_tools(request: ChatRequest, model: str) -> list[dict[str, Any]]:
    """Return the tools that *model* is offered: those of *request*, or one in their place where there has to be one."""
    is_wanted = model.startswith(_WANTS_A_TOOL) and any(message.get("tool_calls") for message in request.messages)
    return [dict(tool) for tool in request.tools or ((_NO_TOOL,) if is_wanted else ())]


def outgoing(messages: Sequence[Mapping[str, Any]], model: str, *, marks: bool = True) -> list[dict[str, Any]]:
    """Return *messages* as sent to *model*: with its own reasoning restored, without that of other models.

    Equal messages come out as equal bytes. For providers that cache only what is marked, the system prompt and the
    last message carry a mark; before tool results, which cannot carry one, the last message that can. *marks* is False
    for a prompt that is not sent again: writing a cache costs more than sending the prompt.
    """
    sent = [_with_thinking(message, model) for message in messages]
    if marks and any(name in model.lower() for name in _MARKED) and sent:
        last = next((n for n in range(len(sent) - 1, -1, -1) if _can_carry_mark(sent[n])), 0)
        for index in {0, last}:
            sent[index] = _with_cache_mark(sent[index])
    return sent


def _with_thinking(message: Mapping[str, Any], model: str) -> dict[str, Any]:
    kept = {name: value for name, value in message.items() if name != "thinking"}
    thinking = message.get("thinking")
    if isinstance(thinking, Mapping) and thinking.get("model") == model:
        kept |= thinking["message"]
    return kept


def without_pictures(message: dict[str, Any]) -> dict[str, Any]:
    """Return *message* for a model that cannot see: a fallback may be another kind than the model it stands in for."""
    content = message.get("content")
    if not isinstance(content, list) or not any(_is_picture(part) for part in content):
        return message
    words = [part for part in content if not _is_picture(part)]
    return {**message, "content": [*words, {"type": "text", "text": "(pictures that you cannot see)"}]}


def _is_picture(part: object) -> bool:
    return isinstance(part, Mapping) and part.get("type") == "image_url"


_MARK = {"type": "ephemeral"}


def _can_carry_mark(message: Mapping[str, Any]) -> bool:
    content = message.get("content")
    return isinstance(content, str | list) and bool(content) and message.get("role") != "tool"


def _with_cache_mark(message: dict[str, Any]) -> dict[str, Any]:
    content = message.get("content")
    if not _can_carry_mark(message):
        return message
    if isinstance(content, list):
        return {**message, "content": [*content[:-1], {**content[-1], "cache_control": _MARK}]}
    return {**message, "content": [{"type": "text", "text": content, "cache_control": _MARK}]}


def load_litellm(proxy: str = "") -> Any:
    """Return litellm, whose connections go through *proxy*; importing it takes seconds, so this runs in a thread.

    Safe to call from several threads: one imports, the others wait for it.
    """
    with _loading:  # `cache` alone lets a message that comes while the start is importing do all of it again
        litellm = _load()
    route_through_proxy(litellm, proxy)
    return litellm


@cache
def _load() -> Any:
    """Import litellm with its guards up."""
    started = time.monotonic()
    for name, value in _GUARDS.items():
        os.environ.setdefault(name, value)
    litellm: Any = importlib.import_module("litellm")
    litellm.disable_hf_tokenizer_download = True
    litellm.telemetry = False
    litellm.suppress_debug_info = True
    litellm.disable_streaming_logging = True  # assembles each stream a second time, for callbacks we do not have
    litellm.drop_params = True  # what a provider does not know (stream_options) is left out
    litellm.REPEATED_STREAMING_CHUNK_LIMIT = 1 << 30  # a long row of dashes is no fault; our own bound holds
    for logger in _CHATTY:
        logging.getLogger(logger).setLevel(logging.WARNING)
    # The first call would import and compile the rest on the event loop: 0.6 s in which nobody is served.
    importlib.import_module("openai.resources")
    importlib.import_module("anyio._backends._asyncio")
    own = {"model": "openai/warm", "messages": [{"role": "user", "content": "."}], "mock_response": ".", "api_key": "x"}
    litellm.completion(**own)
    list(litellm.completion(**own, stream=True))
    litellm.token_counter(model="openai/warm", text=".")
    log.info("model.library_loaded", seconds=round(time.monotonic() - started, 3))
    return litellm


_MOST_BYTES = 16 * ANSWER_CHARS  # a character is at most 12 bytes of JSON; the rest holds tool calls and usage


async def read_unstreamed(stream: Any, model: str) -> dict[str, Any] | None:
    """Return the body behind litellm's *stream* when it is plain JSON; None when it is a stream.

    Raises InvalidModelReply if it is not a JSON object, or larger than an answer can be.
    """
    # Only the OpenAI SDK shows its response here; other providers' protocols know no such answer.
    response = getattr(getattr(stream, "completion_stream", None), "response", None)
    kind = str(getattr(response, "headers", {}).get("content-type") or "")
    if response is None or kind.partition(";")[0].strip().lower() != "application/json":
        return None
    data = bytearray()
    async for piece in response.aiter_bytes():
        data += piece
        if len(data) > _MOST_BYTES:
            raise InvalidModelReply(f"{model}: an answer of more than {_MOST_BYTES:,} bytes")
    try:
        body = json.loads(data)
    except ValueError:
        raise InvalidModelReply(f"{model}: the answer is not JSON") from None
    if not isinstance(body, dict):
        raise InvalidModelReply(f"{model}: the answer is not a JSON object")
    return body
