"""The account behind a local connection: a person's browser, or a service."""

from __future__ import annotations

import asyncio
import os
from ipaddress import IPv4Address, ip_address
from pathlib import Path

_TABLES = (Path("/proc/net/tcp"), Path("/proc/net/tcp6"))
_PEOPLE_FROM = 1_000  # user ids below are the system's own (login.defs, UID_MIN)
_LOCAL, _REMOTE, _UID = 1, 2, 7  # columns
_READS = 3  # a table that changes while it is read may leave a row out

Address = tuple[str, int]  # host and port


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
