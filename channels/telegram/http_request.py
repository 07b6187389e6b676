"""python-telegram-bot's requests over aiohttp, which take less CPU than its own over httpx.

Methods, objects and errors stay the library's. aiohttp has no time limit for writing, so a file is handed over in
pieces. Nothing is logged, and errors hold the kind of failure only: the address of every call contains the token.
"""

from __future__ import annotations

import asyncio
import json
import secrets
from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import IO, Any
from urllib.parse import urlencode
from urllib.request import getproxies

import aiohttp
from telegram.error import NetworkError, TelegramError, TimedOut
from telegram.request import BaseRequest, RequestData
from yarl import URL

from gateway.net.certificates import trusted_certificates

_READ_SECONDS = 20.0  # without a byte of an answer
_CONNECT_SECONDS = 10.0
_QUEUE_SECONDS = 30.0  # until a call has a connection, new or free
_FILE_SECONDS = 90.0  # without a byte taken, of a file on its way out
_PIECE = 64 * 1024
_FORM = "application/x-www-form-urlencoded"

# Errors of a request that never left: a retry cannot double anything.
NEVER_SENT = (
    aiohttp.ClientConnectorError,
    aiohttp.ConnectionTimeoutError,
    aiohttp.ClientHttpProxyError,
    aiohttp.InvalidURL,
)


class AiohttpRequest(BaseRequest):
    """Requests over at most *connections* connections, which stay open until `shutdown` and open again when used."""

    def __init__(self, connections: int, *, proxy: str = "") -> None:
        self._connections = connections
        self._proxy = proxy
        self._session: aiohttp.ClientSession | None = None

    @property
    def read_timeout(self) -> float:
        """The default, in seconds."""
        return _READ_SECONDS

    async def initialize(self) -> None:
        """Do nothing: the first request connects."""

    async def shutdown(self) -> None:
        """Close the connections."""
        session, self._session = self._session, None
        if session is not None:
            await session.close()

    @staticmethod
    def parse_json_payload(payload: bytes) -> Any:
        """Return the object of a response; raise TelegramError for any other body, without its words."""
        try:
            answer = json.loads(payload.decode("utf-8", "replace"))
        except (ValueError, RecursionError):
            raise TelegramError("the answer is no JSON") from None
        if not isinstance(answer, dict):
            raise TelegramError("the answer is no JSON object")
        if answer.get("ok") is True and "result" not in answer:
            raise TelegramError("the answer has no result")
        return answer

    async def do_request(
        self,
        url: str,
        method: str,
        request_data: RequestData | None = None,
        read_timeout: Any = BaseRequest.DEFAULT_NONE,
        write_timeout: Any = BaseRequest.DEFAULT_NONE,  # noqa: ARG002 - the library's signature
        connect_timeout: Any = BaseRequest.DEFAULT_NONE,  # noqa: ARG002 - the library's signature
        pool_timeout: Any = BaseRequest.DEFAULT_NONE,  # noqa: ARG002 - the library's signature
    ) -> tuple[int, bytes]:
        """Return status and body of the answer; only *read_timeout* differs from call to call. Raises NetworkError."""
        if request_data is not None and request_data.contains_files:
            kind, body = _multipart(request_data)
        else:
            fields = request_data.json_parameters if request_data is not None else {}
            kind, body = _FORM, [urlencode(fields, errors="replace").encode()]
        seconds = _READ_SECONDS if read_timeout is BaseRequest.DEFAULT_NONE else read_timeout
        try:
            async with (
                asyncio.timeout(None) as silence,
                self._open_session().request(
                    method,
                    url,
                    data=body[0] if kind is _FORM else _pieces(body, silence),
                    headers={"Content-Type": kind, "Content-Length": str(sum(map(len, body)))},
                    timeout=_limits(seconds),
                    allow_redirects=False,
                ) as response,
            ):
                return response.status, _readable(response.status, await response.read())
        except TimeoutError as error:
            raise TimedOut from error
        except aiohttp.ClientError as error:
            raise NetworkError(type(error).__name__) from error

    @asynccontextmanager
    async def download(self, address: str) -> AsyncIterator[aiohttp.ClientResponse]:
        """Open the file at *address*, which is encoded. Raises aiohttp.ClientError or TimeoutError."""
        url = URL(address, encoded=True)
        async with self._open_session().get(url, timeout=_limits(_READ_SECONDS), allow_redirects=False) as response:
            yield response

    def _open_session(self) -> aiohttp.ClientSession:
        if self._session is None:
            options: dict[str, Any] = {"limit": self._connections, "ssl": trusted_certificates()}
            if self._proxy:
                from gateway.net.aiohttp_proxy import connector  # brings two more packages

                way = connector(self._proxy, **options)
            else:
                way = aiohttp.TCPConnector(**options)
            self._session = aiohttp.ClientSession(
                connector=way,
                cookie_jar=aiohttp.DummyCookieJar(),
                headers={"User-Agent": self.USER_AGENT},
                # aiohttp would look for proxies at each request, where there are none too.
                trust_env=not self._proxy and bool(getproxies()),
            )
        return self._session


def _readable(status: int, payload: bytes) -> bytes:
    """Return *payload*, or an empty object for an error that is not the Bot API's: the library would quote it."""
    if status not in range(200, 300):
        try:
            AiohttpRequest.parse_json_payload(payload)
        except TelegramError:
            return b"{}"
    return payload


def _limits(read_seconds: float) -> aiohttp.ClientTimeout:
    return aiohttp.ClientTimeout(connect=_QUEUE_SECONDS, sock_connect=_CONNECT_SECONDS, sock_read=read_seconds)


def _multipart(request_data: RequestData) -> tuple[str, list[bytes]]:
    """Return the content type of a form with files, and its body with no file copied."""
    boundary = secrets.token_hex(16)
    body: list[bytes] = []
    for name, value in request_data.json_parameters.items():
        head = f'--{boundary}\r\nContent-Disposition: form-data; name="{name}"\r\n\r\n'
        body += [head.encode(), value.encode("utf-8", "replace"), b"\r\n"]
    for name, (file_name, data, kind) in request_data.multipart_data.items():
        # As in browsers (HTML, "multipart form data"); names hold no line breaks.
        quoted = file_name.replace("\\", "\\\\").replace('"', "%22")
        head = f'--{boundary}\r\nContent-Disposition: form-data; name="{name}"; filename="{quoted}"\r\n'
        body += [f"{head}Content-Type: {kind}\r\n\r\n".encode("utf-8", "replace"), _bytes(data), b"\r\n"]
    return f"multipart/form-data; boundary={boundary}", [*body, f"--{boundary}--\r\n".encode()]


def _bytes(data: bytes | IO[bytes]) -> bytes:
    return data if isinstance(data, bytes) else data.read()


async def _pieces(body: Sequence[bytes], silence: asyncio.Timeout) -> AsyncGenerator[memoryview, None]:
    """Yield *body* in pieces; *silence* ends the call if one of them is not taken in time."""
    loop = asyncio.get_running_loop()
    for part in body:
        for start in range(0, len(part), _PIECE):
            silence.reschedule(loop.time() + _FILE_SECONDS)
            yield memoryview(part)[start : start + _PIECE]
    silence.reschedule(None)  # the time of the answer has its own limit
