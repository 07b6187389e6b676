"""Sends the HTTP requests of the child process that speaks MCP.

A request goes to the address of the child's server and nowhere else, and only to a public one unless the operator has
said that the server is private. A child that a server has taken over reaches nothing beyond that.
"""

from __future__ import annotations

import base64
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from typing import Any

import aiohttp
from yarl import URL

from agent.mcp.client import McpFailed, ServerAddress
from gateway.net.public_http import NOT_PUBLIC, FetchFailed, NotPublicAddress, PublicHttpClient

MOST_BYTES = 4 << 20  # of one response
_PIECE = 1 << 16
_CONNECT_WITHIN = 10.0
_PASSED_TO_SERVER = frozenset({"accept", "content-type", "last-event-id", "user-agent"})
_PASSED_TO_CHILD = frozenset({"content-type", "location", "mcp-session-id", "retry-after"})
_OF_PROTOCOL = "mcp-"  # headers of the protocol, in either direction
_UNAUTHORIZED = 401
_METHODS = frozenset({"POST", "DELETE"})

Frame = Mapping[str, Any]


class HttpRelay:
    """Sends requests, and keeps connections to the servers."""

    def __init__(self, *, proxy: str) -> None:
        self._http = PublicHttpClient(proxy=proxy)
        self._sessions: dict[bool, aiohttp.ClientSession] = {}  # by whether private addresses are allowed

    async def close(self) -> None:
        """Close the connections."""
        sessions, self._sessions = self._sessions, {}
        for session in sessions.values():
            await session.close()

    async def send(
        self,
        frame: Frame,
        server: ServerAddress,
        token: str,
        write: Callable[[Frame], None],
        drain: Callable[[], Awaitable[None]],
    ) -> bool:
        """Send the request of *frame* to *server*, with *token* if there is one; *write* the response as it arrives.

        Return True if the server has refused it because it wants a login, or another one: then it has not acted.
        """
        number, is_sent = frame["http"], False
        try:
            async with self._request(frame, server, token) as response:
                if response.status == _UNAUTHORIZED:
                    write({"http": number, "failed": "it wants a login", "is_sent": False})
                    return True
                is_sent = True
                headers = [
                    [name, value]
                    for name, value in response.headers.items()
                    if name.lower() in _PASSED_TO_CHILD or name.lower().startswith(_OF_PROTOCOL)
                ]
                write({"http": number, "status": response.status, "headers": headers})
                left = MOST_BYTES
                async for piece in response.content.iter_chunked(_PIECE):
                    left -= len(piece)
                    if left < 0:
                        break
                    write({"http": number, "data": base64.b64encode(piece).decode()})
                    await drain()
            too_long = f"the server sent more than {MOST_BYTES >> 20} MB"
            write({"http": number, **({"end": True} if left >= 0 else {"failed": too_long, "is_sent": True})})
        except McpFailed as error:
            write({"http": number, "failed": str(error), "is_sent": is_sent or error.is_sent})
        except (aiohttp.ClientError, OSError, TimeoutError, ValueError, KeyError, TypeError) as error:
            write({"http": number, "failed": _reason(error), "is_sent": is_sent or not _is_unsent(error)})
        return False

    @asynccontextmanager
    async def _request(self, frame: Frame, server: ServerAddress, token: str) -> AsyncIterator[aiohttp.ClientResponse]:
        """Send the request of *frame*. Raises McpFailed, aiohttp.ClientError, OSError, and ValueError for a bad one."""
        method, target = frame["method"], URL(frame["url"])
        # A slash at the end is the one redirect that many servers make.
        if method not in _METHODS or str(target).rstrip("/") != str(URL(server.url)).rstrip("/"):
            raise McpFailed("the server named another address than its own", "broken")
        if not server.is_private:
            try:
                self._http.check_host(target)
            except FetchFailed as error:
                raise McpFailed(str(error), "down") from None
        headers = {
            name: value
            for name, value in frame["headers"]
            if name.lower() in _PASSED_TO_SERVER or name.lower().startswith(_OF_PROTOCOL)
        }
        # Packed bodies are not asked for: what a small one unpacks to has no bound.
        headers["Accept-Encoding"] = "identity"
        if token:
            headers["Authorization"] = f"Bearer {token}"
        session = self._session(is_private=server.is_private)
        async with session.request(
            method, target, headers=headers, data=base64.b64decode(frame["body"]) or None, allow_redirects=False
        ) as response:
            if response.headers.get("Content-Encoding", "identity").lower() != "identity":
                raise McpFailed("the server packs its answers, which was not asked for", "broken", is_sent=True)
            yield response

    def _session(self, *, is_private: bool) -> aiohttp.ClientSession:
        if is_private not in self._sessions:
            timeout = aiohttp.ClientTimeout(total=None, sock_connect=_CONNECT_WITHIN)
            # Each server has its own limit of requests.
            self._sessions[is_private] = self._http.open_session(is_checked=not is_private, timeout=timeout, limit=0)
        return self._sessions[is_private]


def _is_unsent(error: Exception) -> bool:
    """Return True if *error* was raised before the request left."""
    return isinstance(error, aiohttp.ClientConnectorError | aiohttp.ConnectionTimeoutError)


def _reason(error: Exception) -> str:
    """Return the reason in words, without any address that a name resolved to."""
    if isinstance(error, aiohttp.ClientConnectorCertificateError):
        return "its certificate is not valid for this address"
    if isinstance(error, aiohttp.ClientConnectorError) and isinstance(error.os_error, NotPublicAddress):
        return NOT_PUBLIC
    return "it cannot be reached" if _is_unsent(error) else "the connection broke"
