"""Check that a proxy is reachable and accepts us, over one connection that carries no traffic."""

from __future__ import annotations

import asyncio
import base64
import ssl
from contextlib import suppress

from gateway.net.proxy_address import ProxyAddress

WITHIN = 5.0  # seconds
_PASSWORDS, _REFUSED = 2, 0xFF  # RFC 1928, section 3
_NOWHERE = "parlour.invalid:443"
# What web servers that are no proxies answer to CONNECT.
_NO_PROXY = frozenset({400, 404, 405, 501})


async def probe_proxy(address: str, *, within: float = WITHIN) -> str:
    """Say in a line for the operator what is wrong with the proxy at *address*; "" when it takes us."""
    proxy = ProxyAddress.parse(address)
    try:
        async with asyncio.timeout(within):
            return await _query(proxy)
    except TimeoutError:
        return f"the proxy {proxy} does not answer; check that it is running, or correct PARLOUR_PROXY"
    except ssl.SSLError as wrong:
        return f"the proxy {proxy} has no trusted certificate ({wrong.reason}); check that it is an https:// proxy"
    except ValueError:  # a line without an end
        return f"the server at {proxy} is not a proxy; correct PARLOUR_PROXY"
    except (OSError, EOFError) as wrong:
        reason = getattr(wrong, "strerror", None) or type(wrong).__name__
        return f"the proxy {proxy} cannot be reached ({reason}); start it, or correct PARLOUR_PROXY"


async def _query(proxy: ProxyAddress) -> str:
    tls = ssl.create_default_context() if proxy.scheme == "https" else None
    reader, writer = await asyncio.open_connection(proxy.host, proxy.port, ssl=tls)
    try:
        return await (_socks if proxy.is_socks else _http)(proxy, reader, writer)
    finally:
        writer.close()
        with suppress(OSError):
            await writer.wait_closed()


async def _socks(proxy: ProxyAddress, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> str:
    methods = bytes([0, _PASSWORDS] if proxy.user else [0])
    writer.write(bytes([5, len(methods)]) + methods)
    version, chosen = await reader.readexactly(2)
    if version != 5:
        return f"the server at {proxy} is not a SOCKS5 proxy; correct PARLOUR_PROXY"
    if chosen == _REFUSED:
        return f"the proxy {proxy} requires user and password; set PARLOUR_PROXY to {_shape(proxy)}"
    if chosen != _PASSWORDS:
        return ""
    user, password = proxy.user.encode(), proxy.password.encode()
    writer.write(bytes([1, len(user)]) + user + bytes([len(password)]) + password)
    _, status = await reader.readexactly(2)
    return f"the proxy {proxy} rejects the user or password in PARLOUR_PROXY" if status else ""


async def _http(proxy: ProxyAddress, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> str:
    said = base64.b64encode(f"{proxy.user}:{proxy.password}".encode()).decode()
    proof = f"Proxy-Authorization: Basic {said}\r\n" if proxy.user else ""
    writer.write(f"CONNECT {_NOWHERE} HTTP/1.1\r\nHost: {_NOWHERE}\r\n{proof}\r\n".encode())
    line = await reader.readline()
    words = line.split()
    if not line.startswith(b"HTTP/") or len(words) < 2 or not words[1].isdigit() or int(words[1]) in _NO_PROXY:
        return f"the server at {proxy} is not an HTTP proxy; correct PARLOUR_PROXY"
    if int(words[1]) == 407:
        wrong = "rejects the user or password in PARLOUR_PROXY" if proxy.user else "requires user and password"
        return f"the proxy {proxy} {wrong}; write it as {_shape(proxy)}"
    return ""


def _shape(proxy: ProxyAddress) -> str:
    return f"{proxy.scheme}://user:password@{proxy.host}:{proxy.port}"
