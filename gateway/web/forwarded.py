"""Resolves a request's client address, host name and base path. Pure over the ASGI scope.

Forwarding headers count if the connection comes from a trusted network, and only as far back as each address that
names the one before it is in a trusted network too.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_address, ip_network
from urllib.parse import unquote, urlsplit

from starlette.datastructures import Headers
from starlette.types import Scope

_HOPS = 32  # entries of X-Forwarded-For that are looked at
_SECURE = {"http": "https", "ws": "wss"}


@dataclass(frozen=True, slots=True)
class ResolvedRequest:
    """One request, as its sender meant it."""

    address: str  # whose it is, as far as we can know; "" where there is none
    host: str  # the name that was asked for; "" = none, or several
    path: str  # within us: what stands before it in our public address is gone
    base: str  # what stands before it for the browser: "/chat", or ""
    is_secure: bool  # it came by TLS, at least the first part of its way
    is_bare: bool  # it is the public address without its last slash, from which no relative link leads on

    def scope(self, scope: Scope) -> Scope:
        """Return *scope* for the application: routes match `path`, redirects keep `base`."""
        state = {"address": self.address, "base": self.base, "is_secure": self.is_secure}
        scheme = _SECURE.get(scope["scheme"], scope["scheme"]) if self.is_secure else scope["scheme"]
        found = {"path": f"{self.base}{self.path}", "root_path": self.base, "scheme": scheme}
        return {**scope, **found, "state": {**scope.get("state", {}), **state}}


@dataclass(frozen=True, slots=True)
class TrustedProxies:
    """The server's public address and the proxies in front of it."""

    base: str = ""  # path of the public address, without the last slash
    public_host: str = ""
    trusted: tuple[IPv4Network | IPv6Network, ...] = ()

    @classmethod
    def resolve(cls, public_url: str | None, trusted_proxies: Iterable[str] = ()) -> TrustedProxies:
        """Return the way to a server with this public address, behind these networks."""
        parts = urlsplit(public_url or "")
        networks = tuple(ip_network(each, strict=False) for each in trusted_proxies)
        return cls(unquote(parts.path).rstrip("/"), (parts.hostname or "").lower(), networks)

    def arrival(self, scope: Scope) -> ResolvedRequest:
        """Return the resolved request of *scope*. A proxy may have removed our base path, or kept it."""
        headers = Headers(scope=scope)
        peer = str((scope.get("client") or ("",))[0])
        is_trusted = self.is_proxy(peer)
        host = _host(headers, is_trusted=is_trusted)
        path: str = scope["path"]
        has_base = bool(self.base) and (path == self.base or path.startswith(f"{self.base}/"))
        return ResolvedRequest(
            address=self._visitor(peer, headers.getlist("x-forwarded-for")),
            host=host,
            path=(path.removeprefix(self.base) or "/") if has_base else path,
            base=self.base if has_base or self._is_public(host, headers.get("origin", "")) else "",
            is_secure=_is_secure(headers, is_trusted=is_trusted),
            is_bare=has_base and path == self.base,
        )

    def is_proxy(self, peer: str) -> bool:
        """Return True if the address *peer* is a proxy's that the operator named."""
        return self._trusts(_address(peer))

    def _visitor(self, peer: str, forwarded: list[str]) -> str:
        """Walk back from the connection: each address may name the one before it, if it is trusted itself."""
        address = peer
        for entry in reversed(",".join(forwarded).split(",")[-_HOPS:]):
            before = _address(entry)
            if before is None or not self._trusts(_address(address)):
                break
            address = str(before)
        return address

    def _trusts(self, address: IPv4Address | IPv6Address | None) -> bool:
        return address is not None and any(
            address.version == network.version and address in network for network in self.trusted
        )

    def _is_public(self, host: str, origin: str) -> bool:
        """Return True if the browser shows our public address, by Host or, if a proxy changed that, by Origin."""
        try:
            names = {urlsplit(f"//{host}").hostname, urlsplit(origin).hostname}
        except ValueError:
            return False
        return bool(self.public_host) and self.public_host in names


def _address(text: str) -> IPv4Address | IPv6Address | None:
    """Parse an address with or without a port; None if it is not one."""
    text = text.strip()
    if text.startswith("["):
        text = text[1:].partition("]")[0]
    elif text.count(":") == 1:
        text = text.partition(":")[0]
    try:
        address = ip_address(text)
    except ValueError:
        return None
    mapped = address.ipv4_mapped if isinstance(address, IPv6Address) else None
    return mapped or address


def _host(headers: Headers, *, is_trusted: bool) -> str:
    forwarded = headers.getlist("x-forwarded-host") if is_trusted else []
    hosts = [each.strip() for each in ",".join(forwarded).split(",")] if forwarded else headers.getlist("host")
    return hosts[0] if len(hosts) == 1 else ""


def _is_secure(headers: Headers, *, is_trusted: bool) -> bool:
    if is_trusted and "x-forwarded-proto" in headers:
        # The first proxy of several says how the browser came; each appends, if it does not replace.
        return headers["x-forwarded-proto"].partition(",")[0].strip().lower() in ("https", "wss")
    # The browser's own word for how it came. Only our own page passes the guard.
    return headers.get("origin", "").startswith("https:")
