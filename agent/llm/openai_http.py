"""Requests to an OpenAI-compatible server over aiohttp, one connection pool per model.

Imported in a thread (agent/llm/openai_model.py): aiohttp takes 0.15 s.
"""

from __future__ import annotations

import io
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from functools import partial
from typing import Any
from urllib.parse import urlsplit
from urllib.request import getproxies_environment, proxy_bypass

import aiohttp

from agent.llm.completion_stream import HEADER_BYTES, AnswerClock, CompletionStream, JsonObject, parse_answer
from agent.llm.provider_errors import ProviderHttpError
from gateway.errors import FailureCause, InvalidModelReply, ModelUnreachable
from gateway.installation import package_version
from gateway.net import trusted_certificates
from gateway.net.addresses import is_direct, split_credentials

MOST_BYTES = 32_000_000  # of any other body
_ERROR_BYTES = 64_000  # of the body of an error, in which only known phrases are searched
_LARGE_BYTES = 1 << 20


class OpenAIConnection:
    """The chat completions of one server. Made in any thread, used on one event loop."""

    def __init__(self, model: str, api_base: str, api_key: str, *, proxy: str, connect_seconds: float) -> None:
        self._model = model
        address, basic = split_credentials(api_base)
        self._url = f"{address.rstrip('/')}/chat/completions"
        self._connector = _connector_for(proxy)
        self._ignores_proxy = not proxy and _has_unused_proxy(address)
        self._connect_seconds = connect_seconds
        self._headers = {
            "Accept": "application/json",
            "Content-Type": "application/json",
            "User-Agent": f"Parlour/{package_version()}",
        }
        if basic or api_key:
            self._headers["Authorization"] = basic or f"Bearer {api_key}"
        self._ssl = trusted_certificates() if api_base.startswith("https:") else None
        self._session: aiohttp.ClientSession | None = None

    async def close(self) -> None:
        """Close the pooled connections; they reopen when used."""
        session, self._session = self._session, None
        if session is not None:
            await session.close()

    async def fetch(self, body: bytes, clock: AnswerClock) -> list[JsonObject]:
        """Send *body* and return the answer. Raises what `map_provider_error` knows, or errors of our own."""
        async with self._post(body) as response:
            return parse_answer(await self._read(response, MOST_BYTES, clock), self._model)

    @asynccontextmanager
    async def stream(self, body: bytes, clock: AnswerClock) -> AsyncIterator[CompletionStream]:
        """Send *body*, which asks for a stream, and yield the answer; leaving the block closes the connection."""
        async with self._post(body) as response:

            async def read() -> bytes:
                piece = await response.content.readany()
                clock.note_bytes()
                return piece

            stream = CompletionStream(read, self._model, aiohttp.ClientError)
            await stream.open(response.content_type)
            yield stream

    @asynccontextmanager
    async def _post(self, body: bytes) -> AsyncIterator[aiohttp.ClientResponse]:
        try:
            # aiohttp writes bytes at once, which takes the event loop too long for pictures; a file, in pieces.
            data = body if len(body) < _LARGE_BYTES else io.BytesIO(body)
            response = await self._open_session().post(self._url, data=data, headers=self._headers)
        except aiohttp.ConnectionTimeoutError:
            cause = FailureCause.PROXY_UNUSED if self._ignores_proxy else None
            raise ModelUnreachable(f"{self._model}: no connection within {self._connect_seconds:g} s", cause) from None
        except aiohttp.ClientConnectorError as error:
            if not self._ignores_proxy or isinstance(error, aiohttp.ClientSSLError):
                raise
            raise ModelUnreachable(f"{self._model}: no connection", FailureCause.PROXY_UNUSED) from None
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
                connector=self._connector(**options),
                timeout=limits,
                cookie_jar=aiohttp.DummyCookieJar(),
                max_line_size=HEADER_BYTES,
                max_field_size=HEADER_BYTES,
            )
        return self._session

    async def _read(self, response: aiohttp.ClientResponse, limit: int, clock: AnswerClock) -> bytes:
        data = bytearray()
        while piece := await response.content.readany():
            clock.note_bytes()
            data += piece
            if len(data) > limit:
                raise InvalidModelReply(f"{self._model}: an answer of more than {limit:,} bytes")
        return bytes(data)


def _has_unused_proxy(address: str) -> bool:
    """Return True if the environment names a proxy for *address*, which only PARLOUR_PROXY makes us use."""
    parts = urlsplit(address)
    host = parts.hostname or ""
    has_proxy = bool(getproxies_environment().get(parts.scheme))
    return has_proxy and not is_direct(host) and not proxy_bypass(host)


def _connector_for(proxy: str) -> Callable[..., aiohttp.TCPConnector]:
    """Return what makes a connector on the event loop: through *proxy*, or direct if that is empty."""
    if not proxy:
        return aiohttp.TCPConnector
    from gateway.net.connector import connector

    return partial(connector, proxy)


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
