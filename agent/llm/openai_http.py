"""Requests to an OpenAI-compatible server over aiohttp, one connection pool per model.

Imported in a thread (agent/llm/openai_model.py): aiohttp takes 0.15 s.
"""

from __future__ import annotations

import asyncio
import io
import json
import ssl
from collections import deque
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager, suppress
from functools import partial
from typing import Any

import aiohttp

from agent.llm.chat_model import ANSWER_CHARS
from agent.llm.event_stream import EventStreamDecoder, EventTooLarge
from agent.llm.provider_errors import ProviderHttpError, is_http_error
from gateway.errors import InvalidModelReply, ModelUnreachable
from gateway.ports.entry_points import package_version

_STREAM_BYTES = 16 * ANSWER_CHARS  # of an event, or of a body where a stream was asked for (agent/llm/litellm_model.py)
MOST_BYTES = 32_000_000  # of any other body
_ERROR_BYTES = 64_000  # of the body of an error, in which only known phrases are searched
_LAST_BYTES = 0.2  # seconds: after [DONE] the connection can be used again if the end of the response comes
_LARGE_BYTES = 1 << 20
_DONE = b"[DONE]"


class JsonObject(dict[str, Any]):
    """A JSON object whose keys are attributes too. Missing attributes read as None."""

    __slots__ = ()

    def __getattr__(self, name: str) -> Any:
        return self.get(name)


class OpenAIConnection:
    """The chat completions of one server. Made in any thread, used on one event loop."""

    def __init__(self, model: str, api_base: str, api_key: str, *, proxy: str, connect_seconds: float) -> None:
        self._model = model
        self._url = f"{api_base.rstrip('/')}/chat/completions"
        self._connector = _connector_for(proxy)
        self._connect_seconds = connect_seconds
        self._headers = {
            "Accept": "application/json",
            "Content-Type": "application/json",
            "User-Agent": f"Parlour/{package_version()}",
        }
        if api_key:
            self._headers["Authorization"] = f"Bearer {api_key}"
        self._ssl = _certificates() if api_base.startswith("https:") else None
        self._session: aiohttp.ClientSession | None = None

    async def close(self) -> None:
        """Close the pooled connections; they reopen when used."""
        session, self._session = self._session, None
        if session is not None:
            await session.close()

    async def fetch(self, body: bytes) -> JsonObject:
        """Send *body* and return the answer. Raises what `map_provider_error` knows, or errors of our own."""
        async with self._post(body) as response:
            return self._parse_body(await self._read(response, MOST_BYTES))

    @asynccontextmanager
    async def stream(self, body: bytes) -> AsyncIterator[OpenAIStream]:
        """Send *body*, which asks for a stream, and yield the answer; leaving the block closes the connection."""
        async with self._post(body) as response:
            kind = response.content_type
            if kind == "text/html":
                raise InvalidModelReply(f"{self._model}: the answer is a web page")
            whole = self._parse_body(await self._read(response, _STREAM_BYTES)) if kind == "application/json" else None
            yield OpenAIStream(response, self._model, whole)

    @asynccontextmanager
    async def _post(self, body: bytes) -> AsyncIterator[aiohttp.ClientResponse]:
        try:
            # aiohttp writes bytes at once, which takes the event loop too long for pictures; a file, in pieces.
            data = body if len(body) < _LARGE_BYTES else io.BytesIO(body)
            response = await self._open_session().post(self._url, data=data, headers=self._headers)
        except aiohttp.ConnectionTimeoutError:
            raise ModelUnreachable(f"{self._model}: no connection within {self._connect_seconds:g} s") from None
        async with response:
            if not 200 <= response.status < 300:
                raise ProviderHttpError(response.status, await _error_text(response), response.headers)
            yield response

    def _open_session(self) -> aiohttp.ClientSession:
        if self._session is None:
            # The time limits are the caller's; only that of a connection, of which there may be several, is not.
            limits = aiohttp.ClientTimeout(total=None, sock_connect=self._connect_seconds)
            options: dict[str, Any] = {"limit": 0} | ({"ssl": self._ssl} if self._ssl is not None else {})
            self._session = aiohttp.ClientSession(
                connector=self._connector(**options), timeout=limits, cookie_jar=aiohttp.DummyCookieJar()
            )
        return self._session

    async def _read(self, response: aiohttp.ClientResponse, limit: int) -> bytes:
        data = await read_at_most(response.content, limit + 1)
        if len(data) > limit:
            raise InvalidModelReply(f"{self._model}: an answer of more than {limit:,} bytes")
        return data

    def _parse_body(self, data: bytes) -> JsonObject:
        body = parse_object(data, self._model)
        if body.error and not body.choices:
            raise error_in_body(body.error)
        return body


class OpenAIStream:
    """A streamed answer; see `ProviderStream`."""

    def __init__(self, response: aiohttp.ClientResponse, model: str, body: JsonObject | None) -> None:
        self.body = body
        self.is_finished = False
        self._content = response.content
        self._model = model
        self._decoder = EventStreamDecoder(limit=_STREAM_BYTES)
        self._chunks: deque[JsonObject] = deque()
        self._is_over = False

    def __aiter__(self) -> OpenAIStream:
        return self

    async def __anext__(self) -> JsonObject:
        while not self._chunks:
            if self._is_over:
                raise StopAsyncIteration
            await self._read()
        chunk = self._chunks.popleft()
        if chunk.error:
            raise error_in_body(chunk.error)
        choices = chunk.choices
        if isinstance(choices, list) and choices and getattr(choices[0], "finish_reason", None):
            self.is_finished = True
        return chunk

    async def _read(self) -> None:
        try:
            piece = await self._content.readany()
        except aiohttp.ClientPayloadError:
            if not self.is_finished:
                raise
            piece = b""  # the model had ended its answer; only the end of the response is missing
        try:
            events = self._decoder.feed(piece) if piece else self._decoder.close()
        except EventTooLarge as error:
            raise InvalidModelReply(f"{self._model}: {error}") from None
        for event in events:
            if event.data.strip() == _DONE:
                self.is_finished = self._is_over = True
                await self._read_end()
                return
            if piece:
                self._chunks.append(parse_object(event.data, self._model, is_error=event.name == b"error"))
            else:
                self._take_last(event.data)
        self._is_over = not piece

    def _take_last(self, data: bytes) -> None:
        """Take an event that has no end: it is a whole chunk, or a part of one, which is dropped."""
        with suppress(InvalidModelReply):
            self._chunks.append(parse_object(data, self._model))

    async def _read_end(self) -> None:
        with suppress(TimeoutError, aiohttp.ClientError):
            async with asyncio.timeout(_LAST_BYTES):
                while await self._content.readany():
                    pass


def parse_object(data: bytes, model: str, *, is_error: bool = False) -> JsonObject:
    """Return *data* as an object. Raises InvalidModelReply. *is_error*: it is the object of an error."""
    try:
        body = json.loads(data, object_hook=JsonObject)
    except (ValueError, RecursionError):
        raise InvalidModelReply(f"{model}: the answer is not JSON") from None
    if not isinstance(body, JsonObject):
        raise InvalidModelReply(f"{model}: the answer is not a JSON object")
    return JsonObject(error=body) if is_error and not body.error else body


def error_in_body(error: object) -> ProviderHttpError:
    """Return the error in the body of an answer with status 200; one without a code counts as HTTP 500."""
    code = error.get("code") if isinstance(error, Mapping) else None
    status = int(code) if isinstance(code, int | str) and str(code).isascii() and str(code).isdigit() else 500
    return ProviderHttpError(status if is_http_error(status) else 500, json.dumps(error), {})


def _connector_for(proxy: str) -> Callable[..., aiohttp.TCPConnector]:
    """Return what makes a connector on the event loop: through *proxy*, or direct if that is empty."""
    if not proxy:
        return aiohttp.TCPConnector
    from gateway.net.aiohttp_proxy import connector  # brings two more packages

    return partial(connector, proxy)


def _certificates() -> ssl.SSLContext:
    """Return the trusted certificates: certifi's, or those of SSL_CERT_FILE and SSL_CERT_DIR, as litellm has them."""
    import httpx  # only for https; not for a server in this network

    return httpx.create_ssl_context()


async def read_at_most(content: aiohttp.StreamReader, limit: int) -> bytes:
    """Return the next *limit* bytes of *content*, or fewer at its end."""
    data = bytearray()
    while len(data) < limit and (piece := await content.read(limit - len(data))):
        data += piece
    return bytes(data)


async def _error_text(response: aiohttp.ClientResponse) -> str:
    """Return the body of an error; "" for a web page, whose words are not the model server's."""
    if response.content_type == "text/html":
        return ""
    try:
        return (await read_at_most(response.content, _ERROR_BYTES)).decode(errors="replace")
    except aiohttp.ClientError:
        return ""  # the status is known
