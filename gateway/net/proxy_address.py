"""Proxy addresses, and the hosts that bypass a proxy. Pure."""

from __future__ import annotations

import ipaddress
import ssl
import time
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import unquote, urlsplit

import structlog

log = structlog.get_logger(__name__)

_PORTS = {"http": 80, "https": 443, "socks5": 1080, "socks5h": 1080}
_LONGEST = 255  # characters of a user or a password in SOCKS5, which has neither empty (RFC 1929)
_SHAPE = (
    "must be http://, https://, socks5:// or socks5h://, then [user:password@]host[:port] and nothing after it;"
    " in a password write / as %2F, # as %23, ? as %3F, @ as %40, : as %3A and % as %25"
)
_NEAR = (".localhost", ".local", ".internal", ".home.arpa")  # RFC 6761, 6762, 8375; ICANN for .internal
_AGAIN = 60.0  # seconds between two lines about the same proxy: every retry of every connection meets it


@dataclass(frozen=True, slots=True)
class ProxyAddress:
    """A proxy. `str` of it, its repr included, never shows user and password."""

    scheme: str  # http, https, socks5, socks5h
    host: str
    port: int
    user: str = field(default="", repr=False)
    password: str = field(default="", repr=False)

    @classmethod
    def parse(cls, address: str) -> ProxyAddress:
        """Parse ``scheme://[user:password@]host[:port]``; raise a ValueError that quotes nothing."""
        try:
            parts = urlsplit(address)
            port = parts.port
        except ValueError:  # its text holds what stands behind the colon, which may be part of a password
            raise ValueError(_SHAPE) from None
        # With a bare / # or ? in a password, part of it would be taken for host and port, and sent and logged as such.
        has_more = bool(parts.path.strip("/") or parts.query or parts.fragment)
        if parts.scheme not in _PORTS or not parts.hostname or port == 0 or has_more or " " in address:
            raise ValueError(_SHAPE)
        user, password = unquote(parts.username or ""), unquote(parts.password or "")
        if not f"{user}{password}".isascii() or max(len(user), len(password)) > _LONGEST:
            raise ValueError(f"has a user or password that is not ASCII, or is longer than {_LONGEST} characters")
        if (password and not user) or (user and not password and parts.scheme.startswith("socks")):
            raise ValueError("needs both user and password, or neither; only an HTTP proxy may have a user alone")
        return cls(parts.scheme, parts.hostname, port or _PORTS[parts.scheme], user, password)

    @property
    def is_socks(self) -> bool:
        """Return True for SOCKS5, False for HTTP."""
        return self.scheme.startswith("socks")

    def dialler_options(self) -> dict[str, Any]:
        """Return the arguments by which python-socks and aiohttp-socks connect through the proxy; secret."""
        from python_socks import ProxyType  # needed where there is a proxy

        return {
            "proxy_type": ProxyType.SOCKS5 if self.is_socks else ProxyType.HTTP,
            "host": self.host,
            "port": self.port,
            "username": self.user or None,
            "password": self.password if self.user else None,
            "rdns": True,
            "proxy_ssl": ssl.create_default_context() if self.scheme == "https" else None,
        }

    def __str__(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{self.scheme}://{host}:{self.port}"


def is_direct(host: str) -> bool:
    """Return True if *host* is reached without the proxy: this machine, its own networks, and local names.

    Local names have no dot (a service of the same compose file) or a domain that exists only here
    (host.docker.internal): no proxy could resolve them. Any other name goes through the proxy.
    """
    name = host.strip("[]").rstrip(".").lower()
    try:
        address = ipaddress.ip_address(name.partition("%")[0])
    except ValueError:
        return "." not in name or name.endswith(_NEAR)
    mapped = getattr(address, "ipv4_mapped", None)
    return (mapped or address).is_loopback or (mapped or address).is_private or (mapped or address).is_link_local


_told: dict[str, float] = {}


def log_proxy_failure(proxy: ProxyAddress, error: BaseException) -> None:
    """Log that nothing gets through *proxy*, at most once a minute; the text of *error* is the library's own."""
    now = time.monotonic()
    if now - _told.get(str(proxy), -_AGAIN) < _AGAIN:
        return
    _told[str(proxy)] = now
    log.warning(
        "proxy.failed",
        proxy=str(proxy),
        reason=f"{type(error).__name__}: {error}",
        mend="start the proxy, or correct PARLOUR_PROXY; `parlour doctor` checks it. Until then, messages stay queued",
    )
