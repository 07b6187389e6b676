"""Whose process has connected: a service of the system is no person before this machine's page."""

from __future__ import annotations

import os
import socket
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest

from gateway.net.addresses import _TABLES, Address, _ask_kernel, _uid_of, is_system_account

TABLE = """\
  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode
   0: 0100007F:2253 00000000:0000 0A 00000000:00000000 00:00000000 00000000  1000        0 11
   1: 0100007F:C350 0100007F:2253 01 00000000:00000000 00:00000000 00000000    33        0 12
   2: 0100007F:C351 0100007F:2253 01 00000000:00000000 00:00000000 00000000  1000        0 13
   3: 0100007F:C352 0100007F:2253 01 00000000:00000000 00:00000000 00000000     0        0 14
   4: 00000000000000000000000001000000:C353 00000000000000000000000001000000:2253 01 0:0 00:0 0  101        0 15
   5: 0000000000000000FFFF00000100007F:C354 0000000000000000FFFF00000100007F:2253 01 0:0 00:0 0  102        0 16
   6: 0100007F:C356 0100007F:0050 06 00000000:00000000 03:00000000 00000000     0        0 0
   7: 0100007F:C356 0100007F:2253 01 00000000:00000000 00:00000000 00000000    33        0 17
"""
CASES = [
    ("127.0.0.1", 50_000, True),  # www-data: nginx
    ("127.0.0.1", 50_001, False),  # a person
    ("127.0.0.1", 50_002, False),  # root may do everything here anyway
    ("::1", 50_003, True),
    ("127.0.0.1", 50_004, True),
    ("127.0.0.1", 50_005, False),  # nobody knows
    ("127.0.0.1", 50_006, True),  # its port was in use to another server before
    ("testclient", 50_000, False),
]


@pytest.mark.parametrize(("host", "port", "expected"), CASES)
async def test_services_are_told_from_people(tmp_path: Path, host: str, port: int, expected: bool) -> None:
    """By the account that opened the connection; what nobody tells takes no right away."""
    table = tmp_path / "tcp"
    table.write_text(TABLE)
    ours = ("::1" if ":" in host else "127.0.0.1", 0x2253)
    assert await is_system_account((host, port), ours, tables=(tmp_path / "absent", table)) is expected


@pytest.mark.parametrize("lookup", [_ask_kernel, partial(_uid_of, tables=_TABLES)], ids=["asked", "tables"])
@pytest.mark.parametrize(("host", "address"), [("127.0.0.1", "127.0.0.1"), ("::1", "::1"), ("::", "::ffff:127.0.0.1")])
def test_this_machine_tells_whose_connection_it_is(
    lookup: Callable[[Address, Address], int | None], host: str, address: str
) -> None:
    """Asked for one connection, or in the kernel's own tables."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    account = 33 if os.geteuid() == 0 else os.geteuid()
    with socket.create_server((host, 0), family=family, dualstack_ipv6=host == "::") as server:
        before = os.geteuid()
        os.seteuid(account)
        try:
            client = socket.socket(family)
        finally:
            os.seteuid(before)
        with client:
            client.connect((address, server.getsockname()[1]))
            near, far = client.getsockname()[:2], client.getpeername()[:2]
            assert lookup(near, far) == account
            assert lookup(near, (far[0], 1)) is None
