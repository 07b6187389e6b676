"""Connections of aiohttp: through the proxy or direct, one connector for requests, WebSockets and downloads alike."""

from __future__ import annotations

import asyncio
import socket
import ssl
from typing import Any

from aiohttp import ClientConnectorCertificateError, ClientConnectorSSLError, ClientProxyConnectionError, TCPConnector
from aiohttp_socks import ProxyConnectionError, ProxyConnector, ProxyError, ProxyTimeoutError

from gateway.net.addresses import ProxyAddress, is_direct, log_proxy_failure


def connector(proxy: str, **options: Any) -> TCPConnector:
    """Return a connector for a ClientSession: through *proxy*, or direct if that is "".

    *options* are TCPConnector's. Must be called on the running loop. A proxy that is down or refuses raises
    `ClientConnectorError`, like any unreachable host: nothing was sent.
    """
    if not proxy:
        return TCPConnector(**options)
    way = ProxyAddress.parse(proxy)
    return _ProxiedConnector(way, **way.dialler_options(), **options)


class _ProxiedConnector(ProxyConnector):
    """The library's connector with a bypass for local destinations and with aiohttp's own errors.

    aiohttp has no public place for it: a resolver gives addresses, a socket factory makes a socket before anything is
    connected, and `proxy=` of a request speaks no SOCKS and is nothing that three libraries would pass on. So it is the
    method that aiohttp-socks overrides too. Should a release rename it, our traffic would go past the proxy, or all of
    it through; tests/unit/net/test_outbound_proxy.py sees both over real connections.
    """

    def __init__(self, way: ProxyAddress, **options: Any) -> None:
        super().__init__(**options)
        self._way = way

    async def _wrap_create_connection(self, *args: Any, addr_infos: Any, req: Any, **options: Any) -> Any:
        host, port = addr_infos[0][4][:2]
        if is_direct(host):
            near: list[Any] = []
            near += await asyncio.get_running_loop().getaddrinfo(host, port, type=socket.SOCK_STREAM)
            return await TCPConnector._wrap_create_connection(  # noqa: SLF001 - past the class between, which is the proxy
                self, *args, addr_infos=near, req=req, **options
            )
        try:
            return await super()._wrap_create_connection(*args, addr_infos=addr_infos, req=req, **options)
        except ssl.SSLCertVerificationError as wrong:
            raise ClientConnectorCertificateError(req.connection_key, wrong) from wrong
        except ssl.SSLError as wrong:
            raise ClientConnectorSSLError(req.connection_key, wrong) from wrong
        except (ProxyConnectionError, ProxyTimeoutError, ProxyError, OSError) as wrong:
            log_proxy_failure(self._way, wrong)
            said = wrong if isinstance(wrong, OSError) else OSError(str(wrong))
            raise ClientProxyConnectionError(req.connection_key, said) from wrong
