"""Models behind servers that speak OpenAI's chat completions, without litellm.

litellm takes seconds to import, 180 MB, and ten times the CPU of the request itself (ADR 73).

Prices, context windows and vision are those of litellm's table of models, read as a file of 3 MB; only the entry that
is asked for is decoded, and nothing else is kept.
"""

from __future__ import annotations

import asyncio
import json
import os
import re
import time
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

import structlog
from cachetools import LRUCache

from agent.llm.chat_model import ChatModel, ChatRequest, ModelConfig, TokenUsage
from agent.llm.completion_stream import AnswerClock
from agent.llm.provider_model import ProviderModel, ProviderStream
from agent.llm.reply_builder import ReplyBuilder
from agent.llm.request_messages import fields_of_address, stream_options
from gateway.errors import ModelAbility

if TYPE_CHECKING:
    from agent.llm.openai_http import OpenAIConnection


_FILE = "model_prices_and_context_window_backup.json"
_LONGEST_ENTRY = 65_536  # bytes; the longest have 5,000
_INPUT, _OUTPUT, _CACHED = "input_cost_per_token", "output_cost_per_token", "cache_read_input_token_cost"
_ABOVE = re.compile(rf"(?:{_INPUT}|{_OUTPUT}|{_CACHED})_above_(\d+)(k?)_tokens\Z")


@dataclass(frozen=True, slots=True)
class ModelFacts:
    """The table's entry of one model; without an entry, nothing is known."""

    entry: Mapping[str, Any] = field(default_factory=dict)

    @property
    def window(self) -> int | None:
        """The tokens that a prompt may have."""
        found = self.entry.get("max_input_tokens")
        return found if isinstance(found, int) and found > 0 else None

    @property
    def sees(self) -> bool:
        """The model accepts pictures."""
        return self.entry.get("supports_vision") is True

    def cost(self, tokens: TokenUsage) -> float | None:
        """Return US dollars; None if the model has no price.

        A prompt above a threshold costs the rate of that threshold, all of it.
        """
        if self._rate(_INPUT) is None and self._rate(_OUTPUT) is None:
            return None
        above = ""
        for size, suffix in sorted({_threshold(match) for key in self.entry if (match := _ABOVE.match(key))}):
            if tokens.input > size:
                above = suffix
        sent = self._rate(_INPUT, above) or 0.0
        cached = self._rate(_CACHED, above)
        answered = self._rate(_OUTPUT, above) or 0.0
        return (
            (tokens.input - tokens.cached) * sent
            + tokens.cached * (sent if cached is None else cached)
            + tokens.output * answered
        )

    def _rate(self, name: str, above: str = "") -> float | None:
        for key in (name + above, name):
            found = self.entry.get(key)
            if isinstance(found, int | float):
                return float(found)
        return None


def read_model_facts(provider: str, model: str) -> ModelFacts:
    """Return the facts about *provider*'s *model* in litellm's table. Blocks for some milliseconds."""
    table = _read_table()
    if model.startswith("ft:"):  # ft:gpt-4o-2024-08-06:company::id
        model = ":".join(model.split(":")[:2])
    for name in (f"{provider}/{model}", model):
        entry = _find_entry(table, name)
        if entry.get("litellm_provider") == provider:
            return ModelFacts(entry)
    return ModelFacts()


def is_priced(model: str) -> bool:
    """Return True if the table has a price for *model* as litellm names it. Blocks for some milliseconds."""
    provider, has_provider, name = model.partition("/")
    table = _read_table()
    for key in (model, name) if has_provider else (model,):
        entry = _find_entry(table, key)
        # A provider's name may go on: vertex_ai-language-models, bedrock_converse.
        is_provider = str(entry.get("litellm_provider", "")).startswith(provider if has_provider else "")
        if is_provider and ModelFacts(entry).cost(TokenUsage(1, 1)) is not None:
            return True
    return False


def picture_price(model: str, size: str, quality: str) -> float | None:
    """Return the most US dollars of a picture in the table; None if it has no price. Blocks for some milliseconds.

    Without a *quality* a provider may choose its best one.
    """
    provider, _, name = model.rpartition("/")
    shown = (size or "1024x1024").replace("x", "-x-")
    width, height = map(int, (size or "1024x1024").split("x"))
    qualities = (quality,) if quality else ("", "standard", "low", "medium", "high")
    beginnings = [f"{each}/{shown}/" if each else f"{shown}/" for each in qualities]
    table, found = _read_table(), list[float]()
    for key in (*(f"{each}{name}" for each in beginnings), model, name):
        entry = _find_entry(table, f"{provider}/{key}" if provider not in ("", "openai") and key != model else key)
        amounts = {"input_cost_per_image": 1, "output_cost_per_image": 1, "input_cost_per_pixel": width * height}
        prices = [entry[each] * amount for each, amount in amounts.items() if isinstance(entry.get(each), int | float)]
        found += [max(prices)] if any(prices) else []
    return max(found, default=None)


def _read_table() -> bytes:
    spec = find_spec("litellm")  # finds it without running it
    if spec is None or spec.origin is None:
        return b""
    try:
        return Path(spec.origin).with_name(_FILE).read_bytes()
    except OSError:
        return b""  # as for a model that is not in it: the price is unknown, the context window is learned


def _find_entry(table: bytes, name: str) -> Mapping[str, Any]:
    found = re.search(re.escape(json.dumps(name).encode()) + rb"\s*:\s*(?=\{)", table)
    if found is None:
        return {}
    start = found.end()
    try:
        entry, _ = json.JSONDecoder().raw_decode(table[start : start + _LONGEST_ENTRY].decode(errors="replace"))
    except ValueError:
        return {}
    return entry if isinstance(entry, dict) else {}


def _threshold(match: re.Match[str]) -> tuple[int, str]:
    size, thousand = match.groups()
    return int(size) * (1_000 if thousand else 1), f"_above_{size}{thousand}_tokens"


# -- model -----------------------------------------------------------------------------------------

log = structlog.get_logger(__name__)

_OPENAI = "openai"
_OPENAI_BASE = "https://api.openai.com/v1"
_OPENAI_HOST = "api.openai.com"
# litellm's names for servers of the operator's that speak this protocol and no other.
_OWN_SERVERS = frozenset({_OPENAI, "custom_openai", "litellm_proxy", "llamafile", "lm_studio"})
# OpenAI itself answers newer models with tools, and some others, only at its Responses API, which litellm speaks.
_CHAT_COMPLETIONS = re.compile(
    r"(?:ft:)?(?:chatgpt-4o|gpt-(?:3\.5-turbo|4|4o|4\.1|5|5\.[1-3])(?![\d.o]))(?!.*(?:audio|codex|image|instruct|pro"
    r"|realtime|research|search|transcribe|tts))"
)
# They change what litellm does with OpenAI's models, or how it trusts a server.
_LITELLM_VARIABLES = ("SSL_VERIFY", "SSL_CERTIFICATE", "SSL_SECURITY_LEVEL", "SSL_ECDH_CURVE")
_OPENAI_VARIABLES = ("OPENAI_BASE_URL", "OPENAI_API_BASE", "OPENAI_ORGANIZATION", "OPENAI_ORG_ID", "OPENAI_PROJECT_ID")
_COMPLETION_TOKENS = re.compile(r"(?:.*/)?(?:gpt-[5-9]|o\d)")  # they refuse `max_tokens`
_NO_KEY = "none"  # servers without a key accept any; those behind a proxy may insist on one
_CONNECT_SECONDS = 10.0
_MOST_TOOLBOXES = 16  # whose JSON is kept


def open_model(config: ModelConfig) -> ChatModel:
    """Return the model; nothing is loaded or checked before `warm` or the first call."""
    return OpenAIModel(config)


def is_openai_compatible(config: ModelConfig, environment: Mapping[str, str] = os.environ) -> bool:
    """Return True if the server of *config* is known to answer chat completions as `OpenAIModel` asks for them."""
    provider, _, name = config.model.partition("/")
    if provider not in _OWN_SERVERS or not name or any(map(environment.get, _LITELLM_VARIABLES)):
        return False
    host = urlsplit(config.api_base).hostname or ""
    if host and host != _OPENAI_HOST and not host.endswith(f".{_OPENAI_HOST}"):
        return not name.startswith("responses/")
    is_usual = provider == _OPENAI and not (not host and any(map(environment.get, _OPENAI_VARIABLES)))
    return is_usual and _CHAT_COMPLETIONS.match(name) is not None


class OpenAIModel(ProviderModel):
    """A `ChatModel` over HTTP, without a library between."""

    def __init__(
        self,
        config: ModelConfig,
        *,
        now: Callable[[], datetime] = lambda: datetime.now(UTC),
        connect_seconds: float = _CONNECT_SECONDS,
    ) -> None:
        super().__init__(config, now=now)
        self._provider, _, self._sent_name = config.model.partition("/")
        self._connect_seconds = connect_seconds
        self._connection: OpenAIConnection | None = None
        self._facts = ModelFacts()
        self._loading = asyncio.Lock()
        self._tools_as_json: LRUCache[int, tuple[Sequence[Mapping[str, Any]], str]] = LRUCache(_MOST_TOOLBOXES)

    async def warm(self) -> None:
        """Import the HTTP library and read the model's entry in litellm's table, in a thread."""
        async with self._loading:
            if self._connection is None:
                self._connection, self._facts = await asyncio.to_thread(self._load)

    def _load(self) -> tuple[OpenAIConnection, ModelFacts]:
        started = time.monotonic()
        from agent.llm.openai_http import OpenAIConnection

        connection = OpenAIConnection(
            self.name,
            self._config.api_base or _OPENAI_BASE,
            self._key(),
            proxy=self._config.proxy,
            connect_seconds=self._connect_seconds,
        )
        facts = read_model_facts(self._provider, self._sent_name)
        log.info("model.library_loaded", library="aiohttp", seconds=round(time.monotonic() - started, 3))
        return connection, facts

    def _key(self) -> str:
        """Return the configured key; else that of the environment, unless it would be sent to another server."""
        if self._config.api_key:
            return self._config.api_key
        if self._provider == _OPENAI and self._config.api_base:
            return _NO_KEY
        return os.environ.get(f"{self._provider.upper()}_API_KEY") or _NO_KEY

    async def close(self) -> None:
        """Close this model's connections; they reopen when used."""
        if self._connection is not None:
            await self._connection.close()

    def _look_up_vision(self) -> bool:
        return self._facts.sees

    def _look_up_window(self) -> int | None:
        return self._facts.window

    def _builder(self) -> ReplyBuilder:
        return ReplyBuilder(self.name, keeps_reasoning=True, is_hidden=self._is_hidden)

    def _cost(self, builder: ReplyBuilder, tokens: TokenUsage) -> float | None:  # noqa: ARG002 - the base's signature
        return self._facts.cost(tokens)

    async def _fetch(self, request: ChatRequest, clock: AnswerClock) -> Sequence[Any]:
        return await self._get_connection().fetch(await self._body(request), clock)

    @asynccontextmanager
    async def _open_stream(self, request: ChatRequest, clock: AnswerClock) -> AsyncIterator[ProviderStream]:
        body = await self._body(request, stream=True, **stream_options(request))
        async with self._get_connection().stream(body, clock) as stream:
            yield stream

    def _get_connection(self) -> OpenAIConnection:
        assert self._connection is not None  # noqa: S101 - `complete` warms first
        return self._connection

    async def _body(self, request: ChatRequest, **extra: Any) -> bytes:
        """Return the request as JSON, the messages first: equal histories are equal bytes."""
        body: dict[str, Any] = {"messages": await self._messages(request), "model": self._sent_name}
        if request.max_tokens is not None:
            is_new = _COMPLETION_TOKENS.match(self._sent_name) is not None
            body["max_completion_tokens" if is_new else "max_tokens"] = request.max_tokens
        body |= extra
        if ModelAbility.EFFORT not in request.without:
            body |= fields_of_address(request.effort, self._config.api_base, self._sent_name)
        has_tools = bool(request.tools) and ModelAbility.TOOLS not in request.without
        if has_tools and request.tool_choice and ModelAbility.TOOL_CHOICE not in request.without:
            body["tool_choice"] = request.tool_choice
        text = _to_json(body)
        if has_tools:
            text = f'{text[:-1]},"tools":{self._write_tools(request.tools)}}}'
        return text.encode(errors="replace")

    def _write_tools(self, tools: Sequence[Mapping[str, Any]]) -> str:
        """Return *tools* as JSON, made once for each toolbox: they are a third of the body."""
        known = self._tools_as_json.get(id(tools))
        if known is None:
            known = (tools, _to_json(tools))
            if isinstance(tools, tuple):  # the toolbox's, which is kept, so that its id is no other's
                self._tools_as_json[id(tools)] = known
        return known[1]


def _to_json(value: object) -> str:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))
