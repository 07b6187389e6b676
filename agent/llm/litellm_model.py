"""Every provider there is, through litellm.

litellm takes seconds to import, so that happens in a thread, with everything switched off that would
reach for the network or print on its own. One call here is one HTTP request: retries and fallbacks
are the client's business (agent/llm/model_client.py), and behind its back nothing is repeated.

litellm reads proxies only from the environment, and its default transport (aiohttp) ignores even those. Every client
of its asynchronous calls, OpenAI's SDK included, gets its transport from `AsyncHTTPHandler.create_async_transport`,
which `route_through_proxy` replaces (docs/network.md). The replacement fails closed: no request bypasses the proxy.
"""

from __future__ import annotations

import asyncio
import importlib
import logging
import os
import ssl
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, contextmanager
from contextvars import ContextVar
from datetime import UTC, datetime
from functools import cache
from importlib.util import find_spec
from typing import Any

import structlog

from agent.llm.chat_model import ChatModel, ChatRequest, ModelConfig, TokenUsage
from agent.llm.completion_stream import HEADER_BYTES, AnswerClock, CompletionStream
from agent.llm.provider_model import LONGEST_STREAM, ProviderModel, ProviderStream
from agent.llm.reply_builder import ReplyBuilder
from agent.llm.request_messages import arguments_of_litellm, fields_of_address, stream_options
from gateway.errors import InvalidModelReply, ModelAbility, SettingsError
from gateway.installation import HOW_TO_INSTALL
from gateway.net.addresses import split_credentials

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
# Providers that refuse a model's reasoning in the history, or have a form of their own for it.
_NO_REASONING = ("groq/", "mistral/", "anthropic/", "bedrock/", "gemini/", "vertex_ai/", "ollama/", "ollama_chat/")
_NO_KEY = "none"  # OpenAI-compatible servers without a key; the SDK insists on one
_loading = threading.Lock()
_KEPT = "_parlour_own"  # where litellm's own function waits while ours stands in its place
_LED = "_parlour_proxy"
_one_at_a_time = threading.Lock()  # models, embedder and transcriber load litellm in separate threads
_call_limit: ContextVar[CallLimit | None] = ContextVar("call_limit", default=None)


def open_model(config: ModelConfig) -> ChatModel:
    """Return the model; nothing is loaded before `warm` or the first call. Raises SettingsError without litellm."""
    require_litellm(config.model)
    return LitellmModel(config)


def require_litellm(model: str) -> None:
    """Raise SettingsError if litellm, which calls *model*, is not installed."""
    if find_spec("litellm") is None:
        raise SettingsError(
            f"the model {model!r} is called with litellm, which is not installed; {HOW_TO_INSTALL}, "
            "or use a model on an OpenAI-compatible server"
        )


class LitellmModel(ProviderModel):
    """A `ChatModel` over litellm's `acompletion`."""

    def __init__(self, config: ModelConfig, *, now: Callable[[], datetime] = lambda: datetime.now(UTC)) -> None:
        super().__init__(config, now=now)
        self._litellm: Any = None  # the module, once it is loaded
        self._has_price = True

    def _look_up_vision(self) -> bool:
        try:
            return bool(self._litellm.supports_vision(model=self.name))
        except Exception:  # noqa: BLE001 - litellm raises whatever it likes for a model that is not in its table
            return False

    def _look_up_window(self) -> int | None:
        try:
            # Only Ollama is asked for it; elsewhere the address changes nothing.
            base = self._config.api_base if self.name.startswith("ollama") else ""
            info = self._litellm.get_model_info(model=self.name, api_base=base or None)
            found = info.get("max_input_tokens")
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
            await close_litellm()

    def _builder(self) -> ReplyBuilder:
        keeps = not self.name.startswith(_NO_REASONING)
        return ReplyBuilder(self.name, keeps_reasoning=keeps, is_hidden=self._is_hidden)

    async def _fetch(self, request: ChatRequest, clock: AnswerClock) -> Sequence[Any]:  # noqa: ARG002 - litellm's is whole
        return (await self._call(request),)

    @asynccontextmanager
    async def _open_stream(self, request: ChatRequest, clock: AnswerClock) -> AsyncIterator[ProviderStream]:
        stream = await self._call(request, stream=True, **stream_options(request))
        try:
            own = await _plain_stream(stream, self.name, clock)
            yield own or _LitellmStream(stream, clock)
        finally:
            await stream.aclose()

    async def _call(self, request: ChatRequest, **extra: Any) -> Any:
        if request.tools and ModelAbility.TOOLS not in request.without:
            extra["tools"] = [dict(each) for each in request.tools]
            # Or litellm imports its MCP proxy for every call with tools, which needs a package that is not there.
            extra["_skip_mcp_handler"] = True
            if request.tool_choice and ModelAbility.TOOL_CHOICE not in request.without:
                extra["tool_choice"] = request.tool_choice
        if request.max_tokens is not None:
            extra["max_tokens"] = request.max_tokens
        if ModelAbility.EFFORT not in request.without:
            extra |= self._effort_arguments(request.effort)
        # Its own mark of a call that is part of another: nothing is collected for callbacks and spending, which nobody
        # reads here. Ours are the usage records of each call.
        _internal_call().set(True)
        return await self._litellm.acompletion(
            model=self.name,
            messages=await self._messages(request),
            **address_for(self._config.api_base),
            api_key=key_for(self.name, self._config.api_base, self._config.api_key),
            # Ours is the limit that counts; this one only has to be there, and constant, for the pool's sake.
            timeout=self._config.timeout * (LONGEST_STREAM + 1),
            num_retries=0,
            max_retries=0,
            **extra,
        )

    def _effort_arguments(self, effort: str) -> Mapping[str, Any]:
        if self.name.startswith("openai/") and self._config.api_base:
            fields = fields_of_address(effort, self._config.api_base, self.name.removeprefix("openai/"))
            return {"extra_body": fields} if fields else {}
        return arguments_of_litellm(effort, self.name)

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
                usage_object=None if tokens.is_estimate else self._usage(builder.usage),
            )
        except Exception:  # noqa: BLE001 - litellm raises a bare Exception for a model that is not in its table
            log.debug("model.no_price", model=self.name)
            self._has_price = False
            return None
        return float(sum(paid))

    def _usage(self, usage: Any) -> Any:
        """Return *usage* of an answer, which may be plain JSON, as litellm's own object."""
        return self._litellm.Usage(**usage) if isinstance(usage, Mapping) else usage


class _LitellmStream:
    """A stream in a protocol of the provider's own, in litellm's chunks."""

    body = None
    ends_unmarked = False  # these protocols mark it

    def __init__(self, stream: Any, clock: AnswerClock) -> None:
        self._stream = stream
        self._clock = clock
        self._watched: _WatchedChunks | None = None
        if stream.completion_stream is not None:
            self._watch()
        else:  # litellm sends the request with the first chunk that it is asked for
            self._fetch = stream.fetch_stream
            stream.fetch_stream = self._fetch_watched

    @property
    def is_finished(self) -> bool:
        # litellm makes a proper end of its own where the provider's is missing, and for some providers (Gemini) does
        # not keep the provider's: only the provider's chunks tell.
        if self._watched is not None:
            return self._watched.is_finished
        return getattr(self._stream, "received_finish_reason", "") is not None

    def __aiter__(self) -> AsyncIterator[Any]:
        return aiter(self._stream)

    async def _fetch_watched(self) -> Any:
        await self._fetch()
        self._watch()
        return self._stream.completion_stream

    def _watch(self) -> None:
        source = self._stream.completion_stream
        if hasattr(source, "__aiter__"):  # Bedrock's is read in a thread, and its end is kept
            self._stream.completion_stream = self._watched = _WatchedChunks(source, self._clock)


class _WatchedChunks:
    """The chunks of a provider as litellm parsed them, before it makes its own of them."""

    def __init__(self, source: Any, clock: AnswerClock) -> None:
        self.is_finished = False
        self._clock = clock
        self._source = source
        self._chunks = aiter(source)
        self._has_candidates = False
        # litellm's parser says of each of Gemini's chunks that it is the last one.
        self._parse = getattr(source, "chunk_parser", None)
        if self._parse is not None:
            source.chunk_parser = self._parse_watched

    def __aiter__(self) -> _WatchedChunks:
        return self

    async def __anext__(self) -> Any:
        chunk = await anext(self._chunks)
        self._clock.note_bytes()  # also of an event that litellm makes nothing of
        if not self._has_candidates:
            self.is_finished = self.is_finished or _ends(chunk)
        return chunk

    def _parse_watched(self, chunk: Any) -> Any:
        candidates = chunk.get("candidates") if isinstance(chunk, Mapping) else None
        if isinstance(candidates, list):
            self._has_candidates = True
            self.is_finished = self.is_finished or any(each.get("finishReason") for each in candidates)
        return self._parse(chunk)  # type: ignore[misc]

    async def aclose(self) -> None:
        """Close the provider's response."""
        if (close := getattr(self._source, "aclose", None)) is not None:
            await close()


def _ends(chunk: Any) -> bool:
    """Return True if *chunk* ends the answer: litellm has two kinds, one of them a dictionary without choices."""
    if isinstance(chunk, Mapping):
        return bool(chunk.get("is_finished") or chunk.get("finish_reason"))
    choices = getattr(chunk, "choices", None) or ()
    return any(getattr(each, "finish_reason", None) is not None for each in choices)


async def _plain_stream(stream: Any, model: str, clock: AnswerClock) -> CompletionStream | None:
    """Return the chat completion behind litellm's *stream*; None if the provider speaks another protocol.

    OpenAI's SDK shows its response. It makes thirty objects of each chunk and litellm eight more: 0.5 ms, twenty times
    what reading it ourselves takes. Raises InvalidModelReply, or ProviderHttpError for an error with status 200.
    """
    from httpx import HTTPError
    from openai import AsyncStream

    source = getattr(stream, "completion_stream", None)
    if not isinstance(source, AsyncStream):
        return None
    response = source.response
    pieces = response.aiter_bytes()

    async def read() -> bytes:
        piece: bytes = await anext(pieces, b"")
        clock.note_bytes()
        return piece

    own = CompletionStream(read, model, HTTPError)
    await own.open(str(response.headers.get("content-type") or "").partition(";")[0].strip().lower())
    return own


class CallLimit:
    """Limits of one call: one HTTP request, which libraries would repeat, and so many bytes of its answer."""

    def __init__(self, most: int) -> None:
        """Read at most *most* bytes."""
        self._most = most
        self._is_answered = False
        self._error: Exception | None = None
        self.fault = ""  # of an answer that was not read to its end

    @contextmanager
    def applied(self) -> Iterator[None]:
        """Limit the call that is made within."""
        token = _call_limit.set(self)
        try:
            yield
        finally:
            _call_limit.reset(token)

    def check_request(self, method: str) -> None:
        """Raise the error of the request that is repeated. A GET asks some providers whether a picture is ready."""
        if self._is_answered and method != "GET":
            raise self._error or InvalidModelReply("the request was repeated")

    def note_answer(self, *, is_redirect: bool) -> None:
        """Note that an answer came; after a redirect there is another request."""
        self._is_answered = not is_redirect

    async def bound(self, pieces: AsyncIterator[bytes], encoding: str) -> AsyncIterator[bytes]:
        """Yield *pieces*; raise InvalidModelReply beyond the limit, and for a body that would have to be unpacked."""
        try:
            async for piece in self._count(pieces, encoding):
                yield piece
        except Exception as error:
            self._error = error
            raise

    async def _count(self, pieces: AsyncIterator[bytes], encoding: str) -> AsyncIterator[bytes]:
        size = 0
        if encoding not in ("", "identity"):  # a few bytes can be packed that become gigabytes
            self.fault = "the answer is compressed, although that was not asked for"
            raise InvalidModelReply(self.fault)
        async for piece in pieces:
            size += len(piece)
            if size > self._most:
                self.fault = f"the answer has more than {self._most // 1_000_000} MB"
                raise InvalidModelReply(self.fault)
            yield piece


def address_for(api_base: str) -> dict[str, Any]:
    """Return litellm's arguments for *api_base*, whose user and password go into a header."""
    address, basic = split_credentials(api_base)
    return {"api_base": address or None} | ({"extra_headers": {"Authorization": basic}} if basic else {})


def key_for(model: str, api_base: str, api_key: str) -> str | None:
    """Return the configured key; without one, litellm reads the provider's environment variable.

    At an address of the operator's choice OPENAI_API_KEY is not sent along by itself.
    """
    return api_key or (_NO_KEY if api_base and model.startswith("openai/") else None)


def load_litellm(proxy: str = "") -> Any:
    """Return litellm, whose connections go through *proxy*; importing it takes seconds, so this runs in a thread.

    Safe to call from several threads: one imports, the others wait for it.
    """
    with _loading:  # `cache` alone lets a message that comes while the start is importing do all of it again
        litellm = _load()
    route_through_proxy(litellm, proxy)
    return litellm


async def close_litellm() -> None:
    """Close litellm's pooled connections, if it was loaded: those of models, embeddings and transcriptions alike."""
    if not _load.cache_info().currsize:
        return
    litellm = _load()
    await litellm.close_litellm_async_clients()
    litellm.in_memory_llm_clients_cache.flush_cache()


@cache
def _internal_call() -> ContextVar[bool]:
    try:
        found: ContextVar[bool] = importlib.import_module("litellm._internal_context").is_internal_call
    except (ImportError, AttributeError):  # another version of litellm: calls cost more
        return ContextVar("is_internal_call", default=False)
    return found


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
    _send_as_given()
    _raise_refusals()
    _leave_out_metadata(litellm)
    _keep_off_the_loop()
    _allow_large_headers()
    _bound_bodies()
    log.info("model.library_loaded", seconds=round(time.monotonic() - started, 3))
    return litellm


def _allow_large_headers() -> None:
    """Have litellm's sessions read headers as long as our own client does; aiohttp's bound is 8,190 bytes."""
    transport = importlib.import_module("litellm.llms.custom_httpx.aiohttp_transport").LiteLLMAiohttpTransport
    build = transport._rebuild_session  # noqa: SLF001 - the one place where it makes a session

    def rebuild(self: Any) -> Any:
        session = build(self)
        session._max_line_size = session._max_field_size = HEADER_BYTES  # noqa: SLF001 - it takes no options
        return session

    transport._rebuild_session = rebuild  # noqa: SLF001


def _bound_bodies() -> None:
    """Have the transport of litellm's clients keep to the `CallLimit` of a call; the libraries read bodies whole."""
    transport = importlib.import_module("litellm.llms.custom_httpx.aiohttp_transport").LiteLLMAiohttpTransport
    byte_stream = importlib.import_module("httpx").AsyncByteStream
    handle = transport.handle_async_request

    class BoundedBody(byte_stream):  # type: ignore[misc, valid-type]
        def __init__(self, body: Any, limit: CallLimit, encoding: str) -> None:
            self._body = body
            self._pieces = limit.bound(aiter(body), encoding)

        def __aiter__(self) -> AsyncIterator[bytes]:
            return self._pieces

        async def aclose(self) -> None:
            await self._body.aclose()

    async def handle_bounded(self: Any, request: Any) -> Any:
        if (limit := _call_limit.get()) is None:
            return await handle(self, request)
        limit.check_request(request.method)
        request.headers["Accept-Encoding"] = "identity"
        response = await handle(self, request)
        limit.note_answer(is_redirect=response.has_redirect_location)
        response.headers["X-Should-Retry"] = "false"  # read by OpenAI's SDK
        encoding = response.headers.get("Content-Encoding", "").strip().lower()
        response.stream = BoundedBody(response.stream, limit, encoding)
        return response

    transport.handle_async_request = handle_bounded


def _keep_off_the_loop() -> None:
    """Have litellm ask an Ollama server about a model only in a thread.

    It does so for each call, synchronously, with a time limit of ten minutes, and answers by itself if that fails.
    """
    info = importlib.import_module("litellm.llms.ollama.common_utils").OllamaModelInfo
    fetch = info.get_runtime_model_info
    known: dict[tuple[str, str | None], Mapping[str, Any]] = {}

    def find(self: Any, model: str, api_base: str | None = None, api_key: str | None = None) -> dict[str, Any]:
        name = (model.rpartition("/")[2], api_base)
        try:
            asyncio.get_running_loop()
        except RuntimeError:
            known[name] = fetch(self, model=model, api_base=api_base, api_key=api_key)
        return dict(known.get(name, _UNKNOWN_OLLAMA | {"key": name[0]}))

    info.get_runtime_model_info = find


# What litellm itself returns where the server does not answer.
_UNKNOWN_OLLAMA = {
    "litellm_provider": "ollama",
    "mode": "chat",
    "input_cost_per_token": 0.0,
    "output_cost_per_token": 0.0,
    "max_tokens": None,
    "max_input_tokens": None,
    "max_output_tokens": None,
}


def _send_as_given() -> None:
    """Have OpenAI's SDK send a chat as it is.

    It compares each message with the type of every kind of message, to rename keys and encode files: four fifths of
    the CPU of a call with sixty messages. A chat completion has no such key.
    """
    try:
        completions: Any = importlib.import_module("openai.resources.chat.completions.completions")
        is_given = importlib.import_module("openai._utils").is_given
    except (ImportError, AttributeError):  # another version of the SDK: calls cost more
        log.info("model.library_as_it_is", library="openai")
        return

    async def as_given(data: Mapping[str, Any], _kind: object) -> dict[str, Any]:
        return {name: value for name, value in data.items() if is_given(value)}

    completions.async_maybe_transform = as_given


def _raise_refusals() -> None:
    """Have litellm raise an HTTP 422 of a server as it does other errors.

    It sends the request again by itself, without fields that it believes were refused, and returns None after that.
    """
    try:
        handler: Any = importlib.import_module("litellm.llms.openai.openai")
    except ImportError:  # another version of litellm: such a refusal is an unreadable answer
        log.info("model.library_as_it_is", library="litellm")
        return

    def raise_refusal(error: Exception, _data: object) -> dict[str, Any]:
        raise error

    handler.drop_params_from_unprocessable_entity_error = raise_refusal


def _leave_out_metadata(litellm: Any) -> None:
    """Have litellm add no cost and no times to a chat's answer: a tenth of the CPU of a turn, for what nobody reads.

    The costs of embeddings, transcriptions, speech and pictures are read from there.
    """
    try:
        utils: Any = importlib.import_module("litellm.utils")
        add = utils.update_response_metadata
    except (ImportError, AttributeError):  # another version of litellm: calls cost more
        log.info("model.library_as_it_is", library="litellm")
        return

    def add_unless_chat(result: object, *arguments: object, **named: object) -> None:
        if not isinstance(result, litellm.ModelResponse):
            add(result, *arguments, **named)

    utils.update_response_metadata = add_unless_chat


def route_through_proxy(litellm: Any, proxy: str) -> None:
    """Let clients that *litellm* makes from now on connect through *proxy*; "" = as it does by itself.

    A process has one proxy. Where it becomes another one (tests), the clients of before are dropped.
    """
    handler = litellm.AsyncHTTPHandler
    with _one_at_a_time:
        if getattr(handler, _LED, "") == proxy:
            return
        if not hasattr(handler, _KEPT):
            setattr(handler, _KEPT, staticmethod(handler.create_async_transport))
        made = staticmethod(_maker(proxy)) if proxy else handler.__dict__[_KEPT]
        handler.create_async_transport = handler._create_async_transport = made  # noqa: SLF001 - its other name there
        setattr(handler, _LED, proxy)
        litellm.in_memory_llm_clients_cache.flush_cache()


def _maker(proxy: str) -> Any:
    def create(ssl_context: ssl.SSLContext | None = None, ssl_verify: bool | None = None, **_: object) -> Any:
        import aiohttp
        from litellm.llms.custom_httpx.aiohttp_transport import LiteLLMAiohttpTransport

        from gateway.net.connector import connector

        class ProxiedTransport(LiteLLMAiohttpTransport):
            """litellm's transport, which adds no proxy of the environment to ours."""

            async def _get_proxy_settings(self, request: object) -> None:  # noqa: ARG002 - the library's signature
                return None

        verify = ssl_context if ssl_context is not None else ssl_verify is not False
        return ProxiedTransport(lambda: aiohttp.ClientSession(connector=connector(proxy, ssl=verify)))

    return create
