"""Outgoing connections: direct, or through the one proxy that the operator configured (docs/network.md).

Callers pass the proxy's address as a string ("" = none) and get what aiohttp connects with, a connector from
`gateway.net.connector`. No environment variable is read or written here. The proxy resolves host names; local
destinations bypass it (`is_direct`). A local clock that is wrong by days is known from what other servers say.
"""

from __future__ import annotations

import asyncio
import os
import ssl
from collections.abc import Iterable, Sequence
from contextlib import suppress
from datetime import datetime, timedelta
from email.utils import parsedate_to_datetime
from functools import lru_cache
from typing import Any

from gateway.net.addresses import ProxyAddress as ProxyAddress
from gateway.net.addresses import is_direct as is_direct


def trusted_certificates() -> ssl.SSLContext:
    """Return certifi's certificates, or those of SSL_CERT_FILE or SSL_CERT_DIR, as litellm does."""
    return _read(os.environ.get("SSL_CERT_FILE"), os.environ.get("SSL_CERT_DIR"))


@lru_cache(maxsize=1)  # a quarter of a megabyte that all clients share
def _read(file: str | None, folder: str | None) -> ssl.SSLContext:
    if file:
        return ssl.create_default_context(cafile=file)
    if folder:
        return ssl.create_default_context(capath=folder)
    import certifi

    return ssl.create_default_context(cafile=certifi.where())


FAR_AHEAD = timedelta(days=1)  # from there on, what people write now looks too old to be answered
_WITHIN = 5.0  # seconds for all servers


def time_servers(blocks: Iterable[Any], api_base: str | None) -> Sequence[str]:
    """Return the addresses of servers that a gateway talks to anyway: those of channel *blocks*, then the model's."""
    open_blocks = [block for block in blocks if block.enabled]
    found = [getattr(block, "base_url", "") or getattr(block, "api_url", "") for block in open_blocks]
    return tuple(dict.fromkeys(address for address in (*found, api_base or "") if address))


async def ask_time(address: str, *, proxy: str = "") -> datetime | None:
    """Return the time that the server of *address* says it is, from its Date header; None when it does not say.

    Only scheme, host and port of *address* are used: a path may hold a token.
    """
    # Many gateways have no server to ask: their start need not import this.
    import aiohttp
    from yarl import URL

    from gateway.net.connector import connector

    try:
        server = URL(address).origin()
        async with (
            asyncio.timeout(_WITHIN),
            aiohttp.ClientSession(
                connector=connector(proxy, ssl=await asyncio.to_thread(trusted_certificates))
            ) as session,
            session.head(server, allow_redirects=False) as answer,
        ):
            at = parsedate_to_datetime(answer.headers["Date"])
    except (aiohttp.ClientError, OSError, KeyError, ValueError, TypeError):  # TimeoutError is an OSError
        return None
    return at if at.tzinfo is not None else None


async def clock_ahead(addresses: Iterable[str], now: datetime, *, proxy: str = "") -> timedelta:
    """Return the time by which *now* is ahead of the first server that answers; zero for a day or less."""
    with suppress(TimeoutError):
        async with asyncio.timeout(_WITHIN):
            for address in addresses:
                at = await ask_time(address, proxy=proxy)
                if at is not None:
                    return now - at if now - at > FAR_AHEAD else timedelta(0)
    return timedelta(0)


def clock_line(ahead: timedelta) -> str:
    """Return the line for the operator of a machine whose clock is *ahead*."""
    hours = ahead.total_seconds() / 3600
    return (
        f"this machine's clock is {hours:,.0f} hours ahead of other servers; correct it"
        " (sudo timedatectl set-ntp true), or reminders come at the wrong time"
    )
