"""Addresses of clients, the headers that proxies add, and addresses that cannot be bound."""

from __future__ import annotations

import errno
from ipaddress import ip_address, ip_network

# A request with one of these came through a proxy, and its sender may be anywhere.
FORWARDING_HEADERS = ("forwarded", "via", "x-forwarded-for", "x-forwarded-host", "x-forwarded-proto", "x-real-ip")


def network_of(address: str) -> str:
    """Return the network that counts as one client: an IPv4 address, or an IPv6 /64."""
    try:
        found = ip_address(address)
    except ValueError:
        return address
    return str(ip_network((found, 64), strict=False)) if found.version == 6 else address


def cannot_listen(host: str, port: int, error: OSError) -> str:
    """Return the line for an address that cannot be listened on."""
    where = f"{host}:{port}"
    if error.errno == errno.EADDRINUSE:
        return f"port {port} is taken: stop what listens on {where}, or set PARLOUR_WEB__PORT to a free port"
    if error.errno == errno.EACCES:
        return f"port {port} may not be opened by this user: set PARLOUR_WEB__PORT to one above 1023"
    return f"cannot listen on {where} ({error.strerror}): set PARLOUR_WEB__HOST to an address of this machine"
