"""Addresses of clients, and the headers that proxies add."""

from __future__ import annotations

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
