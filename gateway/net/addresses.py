"""Addresses: of clients and the accounts behind them, of proxies, and of servers with credentials in them."""

from __future__ import annotations

import asyncio
import base64
import errno
import ipaddress
import os
import socket
import ssl
import struct
import time
from dataclasses import dataclass, field
from ipaddress import IPv4Address, ip_address, ip_network
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit, urlunsplit

import structlog

log = structlog.get_logger(__name__)

# A request with one of these came through a proxy, and its sender may be anywhere.
FORWARDING_HEADERS = ("forwarded", "via", "x-forwarded-for", "x-forwarded-host", "x-forwarded-proto", "x-real-ip")
_TABLES = (Path("/proc/net/tcp"), Path("/proc/net/tcp6"))
_PEOPLE_FROM = 1_000  # user ids below are the system's own (login.defs, UID_MIN)
_LOCAL, _REMOTE, _UID = 1, 2, 7  # columns
# Of linux/sock_diag.h and linux/inet_diag.h.
_SOCKET_DIAGNOSIS, _DIAGNOSE_FAMILY, _IS_REQUEST = 4, 20, 1
_EVERY_STATE, _NO_COOKIE, _UID_AT = 0xFFFFFFFF, b"\xff" * 8, 80
_KERNEL_SECONDS = 0.05
_READS = 3  # a table that changes while it is read may leave a row out
Address = tuple[str, int]  # host and port


def network_of(address: str) -> str:
    """Return the network that counts as one client: an IPv4 address, or an IPv6 /64."""
    try:
        found = ip_address(address)
    except ValueError:
        return address
    return str(ip_network((found, 64), strict=False)) if found.version == 6 else address


def is_loopback(host: str) -> bool:
    """Return True if *host*, as configured, is reachable only from this machine."""
    if host.lower() == "localhost":
        return True
    try:
        return ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return False


def cannot_listen(host: str, port: int, error: OSError) -> str:
    """Return the line for an address that cannot be listened on."""
    where = f"{host}:{port}"
    if error.errno == errno.EADDRINUSE:
        return f"port {port} is taken: stop what listens on {where}, or set PARLOUR_WEB__PORT to a free port"
    if error.errno == errno.EACCES:
        return f"port {port} may not be opened by this user: set PARLOUR_WEB__PORT to one above 1023"
    return f"cannot listen on {where} ({error.strerror}): set PARLOUR_WEB__HOST to an address of this machine"


async def is_system_account(client: Address, server: Address, *, tables: tuple[Path, ...] = _TABLES) -> bool:
    """Return True if the connection from *client* to our *server* was opened by a system account other than ours.

    nginx, Caddy and HAProxy run under such accounts. Returns False if the system does not tell.
    """
    uid = _ask_kernel(client, server) if tables == _TABLES else None
    if uid is None:
        uid = await asyncio.to_thread(_uid_of, client, server, tables)
    return uid is not None and 0 < uid < _PEOPLE_FROM and uid != os.geteuid()


def _ask_kernel(client: Address, server: Address) -> int | None:
    """Return who opened the socket with these ends, asked for by itself; None if Linux does not tell.

    It takes 5 µs. The tables take 5 ms of CPU time on a busy machine, for each request.
    """
    try:
        near, far = ip_address(client[0]), ip_address(server[0])
        family = socket.AF_INET if near.version == 4 else socket.AF_INET6
        ends = struct.pack("!HH16s16sI8s", client[1], server[1], near.packed, far.packed, 0, _NO_COOKIE)
        request = struct.pack("=BBBBI", family, socket.IPPROTO_TCP, 0, 0, _EVERY_STATE) + ends
        with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, _SOCKET_DIAGNOSIS) as kernel:
            kernel.settimeout(_KERNEL_SECONDS)
            kernel.send(struct.pack("=IHHII", 16 + len(request), _DIAGNOSE_FAMILY, _IS_REQUEST, 1, 0) + request)
            answer = kernel.recv(4_096)
        _, kind = struct.unpack_from("=IH", answer)
        return int(struct.unpack_from("=I", answer, _UID_AT)[0]) if kind == _DIAGNOSE_FAMILY else None
    except (OSError, AttributeError, ValueError, struct.error):
        return None


def _uid_of(client: Address, server: Address, tables: tuple[Path, ...]) -> int | None:
    try:
        ends = zip(_forms(client[0]), _forms(server[0]), strict=False)
    except ValueError:
        return None
    # Both ends: a port may be in use to several servers, and closed connections are listed as root's.
    wanted = {(f"{_as_kernel(near)}:{client[1]:04X}", f"{_as_kernel(far)}:{server[1]:04X}") for near, far in ends}
    for table in tables * _READS:
        try:
            lines = table.read_text("ascii").splitlines()[1:]
        except OSError:
            continue
        for line in lines:
            columns = line.split()
            if (columns[_LOCAL], columns[_REMOTE]) in wanted:
                return int(columns[_UID])
    return None


def _forms(host: str) -> list[bytes]:
    """Return an address as the two tables may hold it."""
    address = ip_address(host)
    if isinstance(address, IPv4Address):
        return [address.packed, ip_address(f"::ffff:{address}").packed]
    return [address.packed]


def _as_kernel(address: bytes) -> str:
    """Write an address as the kernel prints it: words of four bytes, each the other way round on this machine."""
    words = (address[i : i + 4] for i in range(0, len(address), 4))
    return "".join(f"{int.from_bytes(word, 'little'):08X}" for word in words)


# -- proxy address ---------------------------------------------------------------------------------
# Proxy addresses, and the hosts that bypass a proxy. Pure.

_PROXY_PORTS = {"http": 80, "https": 443, "socks5": 1080, "socks5h": 1080}
_LONGEST = 255  # characters of a user or a password in SOCKS5, which has neither empty (RFC 1929)
_SHAPE = (
    "must be http://, https://, socks5:// or socks5h://, then [user:password@]host[:port] and nothing after it;"
    " in a password write / as %2F, # as %23, ? as %3F, @ as %40, : as %3A and % as %25"
)
_NEAR = (".localhost", ".local", ".internal", ".home.arpa")  # RFC 6761, 6762, 8375; ICANN for .internal
_LOG_INTERVAL = 60.0  # seconds between two lines about the same proxy: every retry of every connection meets it


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
        if parts.scheme not in _PROXY_PORTS or not parts.hostname or port == 0 or has_more or " " in address:
            raise ValueError(_SHAPE)
        user, password = unquote(parts.username or ""), unquote(parts.password or "")
        if not f"{user}{password}".isascii() or max(len(user), len(password)) > _LONGEST:
            raise ValueError(f"has a user or password that is not ASCII, or is longer than {_LONGEST} characters")
        if (password and not user) or (user and not password and parts.scheme.startswith("socks")):
            raise ValueError("needs both user and password, or neither; only an HTTP proxy may have a user alone")
        return cls(parts.scheme, parts.hostname, port or _PROXY_PORTS[parts.scheme], user, password)

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
    if now - _told.get(str(proxy), -_LOG_INTERVAL) < _LOG_INTERVAL:
        return
    _told[str(proxy)] = now
    log.warning(
        "proxy.failed",
        proxy=str(proxy),
        reason=f"{type(error).__name__}: {error}",
        mend="start the proxy, or correct PARLOUR_PROXY; `parlour doctor` checks it. Until then, messages stay queued",
    )


# -- web credentials -------------------------------------------------------------------------------
# User and password in the address of a server: sent as basic authorization, and never shown.

_HIDDEN = "***"


def split_credentials(address: str) -> tuple[str, str]:
    """Return *address* without user and password, and the value of Authorization for them; "" if it has none."""
    parts = urlsplit(address)
    _, has_credentials, host = parts.netloc.rpartition("@")
    if not has_credentials:
        return address, ""
    given = f"{unquote(parts.username or '')}:{unquote(parts.password or '')}"
    return urlunsplit(parts._replace(netloc=host)), f"Basic {base64.b64encode(given.encode()).decode()}"


def hide_password(address: str) -> str:
    """Return *address* with three asterisks in place of its password, if it has one."""
    try:
        parts = urlsplit(address)
    except ValueError:
        return address
    given, has_credentials, host = parts.netloc.rpartition("@")
    if not has_credentials or ":" not in given:
        return address
    return urlunsplit(parts._replace(netloc=f"{given.partition(':')[0]}:{_HIDDEN}@{host}"))


def restore_password(address: str, original: str) -> str:
    """Return *original* if *address* is how `hide_password` shows it, else *address*."""
    return original if original and address == hide_password(original) else address
