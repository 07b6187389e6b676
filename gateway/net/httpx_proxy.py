"""httpx through the proxy: its own pool, over connections that are made here.

httpx speaks SOCKS by itself, but leaves the socket open when a proxy refuses, and sends http:// to an HTTP proxy in
another way than https://. Here both libraries' connections are made by the same one (python-socks).
"""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager, suppress
from typing import Any

import httpcore
import httpx
from python_socks import ProxyConnectionError, ProxyError, ProxyTimeoutError
from python_socks.async_.asyncio.v2 import Proxy as Dialler

from gateway.net.proxy_address import ProxyAddress, is_direct, log_proxy_failure

_KEEP = 30.0  # seconds that an idle connection is kept
_GOODBYE = 1.0  # seconds for the end of TLS


def transport(proxy: str, *, verify: ssl.SSLContext | bool = True) -> httpx.AsyncBaseTransport:
    """Return a transport for an AsyncClient: through *proxy*, or direct if that is "".

    A client with an explicit transport ignores the environment's proxies. A proxy that is down or refuses
    raises httpx.ConnectError or httpx.ConnectTimeout, like any unreachable host: nothing was sent.
    """
    bounds = httpx.Limits(max_connections=100, max_keepalive_connections=20)
    way = httpx.AsyncHTTPTransport(verify=verify, limits=bounds)
    if proxy:
        context = verify if isinstance(verify, ssl.SSLContext) else httpx.create_ssl_context(verify=verify)
        way._pool = httpcore.AsyncConnectionPool(  # noqa: SLF001 - the transport takes no backend, its pool does
            ssl_context=context,
            max_connections=bounds.max_connections,
            max_keepalive_connections=bounds.max_keepalive_connections,
            keepalive_expiry=_KEEP,
            network_backend=_ProxyBackend(ProxyAddress.parse(proxy)),
        )
    return way


class _ProxyBackend(httpcore.AsyncNetworkBackend):
    """Opens connections: near ones as the library does, all others through the proxy."""

    def __init__(self, way: ProxyAddress) -> None:
        self._way = way
        self._near = httpcore.AnyIOBackend()

    async def connect_tcp(
        self,
        host: str,
        port: int,
        timeout: float | None = None,  # noqa: ASYNC109 - the library's signature
        local_address: str | None = None,
        socket_options: Iterable[Any] | None = None,
    ) -> httpcore.AsyncNetworkStream:
        if is_direct(host):
            return await self._near.connect_tcp(host, port, timeout, local_address, socket_options)
        try:
            stream = await Dialler(**self._way.dialler_options()).connect(host, port, timeout=timeout)
        except ProxyTimeoutError as wrong:
            log_proxy_failure(self._way, wrong)
            raise httpcore.ConnectTimeout(str(wrong)) from wrong
        except (ProxyConnectionError, ProxyError, OSError) as wrong:
            log_proxy_failure(self._way, wrong)
            raise httpcore.ConnectError(str(wrong)) from wrong
        return _ProxyStream(stream.reader, stream.writer)

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(seconds)


class _ProxyStream(httpcore.AsyncNetworkStream):
    """A connection through the proxy, as the library's pool takes it."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer

    async def read(self, max_bytes: int, timeout: float | None = None) -> bytes:  # noqa: ASYNC109 - the library's
        async with _as(httpcore.ReadTimeout, httpcore.ReadError, timeout):
            return await self._reader.read(max_bytes)

    async def write(self, buffer: bytes, timeout: float | None = None) -> None:  # noqa: ASYNC109 - the library's
        async with _as(httpcore.WriteTimeout, httpcore.WriteError, timeout):
            self._writer.write(buffer)
            await self._writer.drain()

    async def aclose(self) -> None:
        self._writer.close()
        with suppress(OSError, TimeoutError):  # the other side may never say its own goodbye
            async with asyncio.timeout(_GOODBYE):
                await self._writer.wait_closed()

    async def start_tls(
        self,
        ssl_context: ssl.SSLContext,
        server_hostname: str | None = None,
        timeout: float | None = None,  # noqa: ASYNC109 - the library's signature
    ) -> httpcore.AsyncNetworkStream:
        try:
            async with _as(httpcore.ConnectTimeout, httpcore.ConnectError, timeout):
                await self._writer.start_tls(ssl_context, server_hostname=server_hostname)
        except BaseException:
            await self.aclose()
            raise
        return self

    def get_extra_info(self, info: str) -> Any:
        if info != "is_readable":
            return self._writer.get_extra_info(info)
        # An idle connection with something to read is being closed by the other side. (Nothing public tells.)
        return self._reader.at_eof() or bool(self._reader._buffer)  # type: ignore[attr-defined]  # noqa: SLF001


@asynccontextmanager
async def _as(
    late: type[Exception],
    broken: type[Exception],
    timeout: float | None,  # noqa: ASYNC109 - the library hands it over
) -> AsyncIterator[None]:
    """Wait at most *timeout* seconds; failures raise the library's own errors."""
    try:
        async with asyncio.timeout(timeout):
            yield
    except TimeoutError as wrong:
        raise late(str(wrong)) from wrong
    except (OSError, EOFError) as wrong:
        raise broken(str(wrong)) from wrong
