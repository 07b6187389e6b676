"""requests through the proxy, for a library that makes its calls by it, in its threads."""

from __future__ import annotations

from dataclasses import replace
from typing import Any
from urllib.parse import quote, urlsplit

from requests import Response, Session
from requests.exceptions import ConnectionError as NoConnection

from gateway.net.addresses import ProxyAddress, is_direct, log_proxy_failure


def open_session(proxy: str) -> Session:
    """Return a session that goes through *proxy*, or direct if that is "". It ignores the environment's proxies."""
    return _ProxiedSession(ProxyAddress.parse(proxy)) if proxy else _DirectSession()


class _DirectSession(Session):
    """A session that reads no variable of the environment, nor ~/.netrc."""

    def __init__(self) -> None:
        super().__init__()
        self.trust_env = False


class _ProxiedSession(_DirectSession):
    """A session whose requests go through a proxy, except those to destinations that are near."""

    def __init__(self, way: ProxyAddress) -> None:
        super().__init__()
        self._way = way
        # The proxy resolves names with socks5 too. Without the colon, requests would send no user who has no password.
        login = f"{quote(way.user, safe='')}:{quote(way.password, safe='')}@" if way.user else ""
        address = str(replace(way, scheme="socks5h") if way.is_socks else way).replace("://", f"://{login}", 1)
        self._addresses = {"http": address, "https": address}

    def request(self, method: str, url: str | bytes, *args: Any, **options: Any) -> Response:
        """Send a request as the library does."""
        if is_direct(urlsplit(str(url)).hostname or ""):
            return super().request(method, url, *args, **options)
        try:
            return super().request(method, url, *args, **(options | {"proxies": self._addresses}))
        except NoConnection as error:
            log_proxy_failure(self._way, error)
            raise
