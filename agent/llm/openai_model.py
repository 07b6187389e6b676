"""Models behind servers that speak OpenAI's chat completions, without litellm.

litellm takes seconds to import, 180 MB, and ten times the CPU of the request itself (ADR 73).
"""

from __future__ import annotations

import asyncio
import json
import os
import re
import time
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

import structlog
from cachetools import LRUCache

from agent.llm.chat_model import ChatModel, ChatRequest, ModelConfig, TokenUsage
from agent.llm.completion_stream import AnswerClock
from agent.llm.effort_fields import fields_of_address
from agent.llm.model_table import ModelFacts, read_model_facts
from agent.llm.provider_model import ProviderModel, ProviderStream
from agent.llm.reply_builder import ReplyBuilder
from agent.llm.request_messages import stream_options
from gateway.errors import ModelAbility

if TYPE_CHECKING:
    from agent.llm.openai_http import OpenAIConnection

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
