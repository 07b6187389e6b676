"""httpx through the proxy: one transport, whose connections are pooled on both ways."""

from __future__ import annotations

import ssl

import httpx

from gateway.net.proxy import Proxy, complain, is_direct


def transport(
    proxy: str, *, verify: ssl.SSLContext | bool = True, limits: httpx.Limits | None = None
) -> httpx.AsyncBaseTransport:
    """Return what an AsyncClient sends by: through *proxy*, or as usual where that is "".

    A client with a transport of its own leaves the environment's proxies aside. A proxy that is down, or refuses,
    is httpx.ConnectError or httpx.ProxyError: nothing was sent.
    """
    bounds = limits or httpx.Limits(max_connections=100, max_keepalive_connections=20)
    direct = httpx.AsyncHTTPTransport(verify=verify, limits=bounds)
    return _Through(proxy, direct, verify, bounds) if proxy else direct


class _Through(httpx.AsyncBaseTransport):
    """Sends a request past the proxy or through it, by its host."""

    def __init__(
        self, proxy: str, direct: httpx.AsyncHTTPTransport, verify: ssl.SSLContext | bool, limits: httpx.Limits
    ) -> None:
        self._way = Proxy.read(proxy)
        self._direct = direct
        named = httpx.Proxy(str(self._way), auth=(self._way.user, self._way.password) if self._way.user else None)
        self._proxied = httpx.AsyncHTTPTransport(verify=verify, limits=limits, proxy=named)

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        """Send *request*."""
        if is_direct(request.url.host):
            return await self._direct.handle_async_request(request)
        try:
            return await self._proxied.handle_async_request(request)
        except (httpx.ConnectError, httpx.ConnectTimeout, httpx.ProxyError) as wrong:
            complain(self._way, wrong)
            raise

    async def aclose(self) -> None:
        """Close what is open on either way."""
        await self._direct.aclose()
        await self._proxied.aclose()
