"""The account behind a local connection: a person's browser, or a service."""

from __future__ import annotations

import asyncio
import os
from ipaddress import IPv4Address, ip_address
from pathlib import Path

_TABLES = (Path("/proc/net/tcp"), Path("/proc/net/tcp6"))
_PEOPLE_FROM = 1_000  # user ids below are the system's own (login.defs, UID_MIN)
_ADDRESS, _UID = 1, 7  # columns


async def is_system_account(host: str, port: int, *, tables: tuple[Path, ...] = _TABLES) -> bool:
    """Return True if the connection from *host*:*port* was opened by a system account other than ours.

    nginx, Caddy and HAProxy run under such accounts. Returns False if the system does not tell.
    """
    uid = await asyncio.to_thread(_uid_of, host, port, tables)
    return uid is not None and 0 < uid < _PEOPLE_FROM and uid != os.geteuid()


def _uid_of(host: str, port: int, tables: tuple[Path, ...]) -> int | None:
    try:
        wanted = {f"{_as_kernel(form)}:{port:04X}" for form in _forms(host)}
    except ValueError:
        return None
    for table in tables:
        try:
            lines = table.read_text("ascii").splitlines()[1:]
        except OSError:
            continue
        for line in lines:
            columns = line.split()
            if columns[_ADDRESS] in wanted:
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
