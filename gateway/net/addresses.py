"""Addresses of clients and the accounts behind them, the headers of proxies, and addresses that cannot be bound."""

from __future__ import annotations

import asyncio
import errno
import os
from ipaddress import IPv4Address, ip_address, ip_network
from pathlib import Path

# A request with one of these came through a proxy, and its sender may be anywhere.
FORWARDING_HEADERS = ("forwarded", "via", "x-forwarded-for", "x-forwarded-host", "x-forwarded-proto", "x-real-ip")
_TABLES = (Path("/proc/net/tcp"), Path("/proc/net/tcp6"))
_PEOPLE_FROM = 1_000  # user ids below are the system's own (login.defs, UID_MIN)
_LOCAL, _REMOTE, _UID = 1, 2, 7  # columns
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
    uid = await asyncio.to_thread(_uid_of, client, server, tables)
    return uid is not None and 0 < uid < _PEOPLE_FROM and uid != os.geteuid()


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
