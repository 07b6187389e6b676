"""Checks by real calls to the platforms: proxy, token, permissions and conflicts of every enabled channel."""

from __future__ import annotations

import asyncio
import base64
import ssl
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import suppress
from typing import Any

import structlog

from gateway.doctor.findings import DoctorFinding, FindingLevel
from gateway.net.proxy_address import ProxyAddress
from gateway.ports import setup
from gateway.ports.entry_points import HOW_TO_INSTALL, load_entry_points
from gateway.settings import Settings

log = structlog.get_logger(__name__)

WITHIN = 15.0  # seconds, all platforms together

_LEVELS = {
    setup.SetupLevel.GOOD: FindingLevel.OK,
    setup.SetupLevel.WARNING: FindingLevel.WARN,
    setup.SetupLevel.WRONG: FindingLevel.FAIL,
}


async def check_platforms(settings: Settings, environment: Mapping[str, str]) -> AsyncIterator[DoctorFinding]:
    """Check every platform that supports it, concurrently; nothing is changed there."""
    entry_points = {entry.name: entry for entry in load_entry_points("parlour.channels")}
    environment = with_proxy(environment, settings)
    checks: dict[str, asyncio.Task[Sequence[setup.SetupFinding]]] = {}
    async with asyncio.TaskGroup() as tasks:
        for name, block in settings.channels.items():
            if block.enabled and block.kind in entry_points:
                check = _check_channel(entry_points[block.kind], block, environment)
                checks[name] = tasks.create_task(check, name=f"check {name}")
    for name, task in checks.items():
        for finding in task.result():
            yield from_platform(f"channel {name}", finding)


def installed_setups() -> dict[str, setup.SupportsSetup]:
    """Return every installed platform that can be set up by questions. Blocks: it imports them."""
    found: dict[str, setup.SupportsSetup] = {}
    for point in load_entry_points("parlour.channels"):
        try:
            plugin: Any = point.load()
        except ImportError:  # its library is not installed; the doctor says so
            continue
        if isinstance(plugin, setup.SupportsSetup):
            found[point.name] = plugin
    return found


async def check_proxy(address: str) -> DoctorFinding:
    """Check that the proxy answers and accepts us, so that its error is not taken for the platform's."""
    wrong = await probe_proxy(address)
    if wrong:
        return DoctorFinding(
            FindingLevel.FAIL,
            "proxy",
            f"{wrong}. Until this is fixed, nothing is received or sent; answers stay queued",
        )
    return DoctorFinding(FindingLevel.OK, "proxy", f"outgoing connections use {ProxyAddress.parse(address)}")


def with_proxy(environment: Mapping[str, str], settings: Settings) -> Mapping[str, str]:
    """Return *environment* as a platform's `verify` takes it: with the proxy, wherever it is set."""
    return {**environment, "PARLOUR_PROXY": settings.proxy_address}


def from_platform(name: str, finding: setup.SetupFinding) -> DoctorFinding:
    """Return a platform's finding as one of the doctor."""
    return DoctorFinding(_LEVELS[finding.level], name, finding.text, finding.id)


async def _check_channel(entry: Any, block: Any, environment: Mapping[str, str]) -> Sequence[setup.SetupFinding]:
    try:
        kind = entry.load()
    except ImportError:
        return ()  # the check of the block says so
    return await verify(kind, block, environment) if isinstance(kind, setup.SupportsSetup) else ()


async def verify(kind: setup.SupportsSetup, block: Any, environment: Mapping[str, str]) -> Sequence[setup.SetupFinding]:
    """Ask one platform whether *block* would work; whatever goes wrong is a finding, and it ends in time."""
    try:
        async with asyncio.timeout(WITHIN):
            return list(await kind.verify(block, environment))
    except TimeoutError:
        text = f"{kind.title} did not answer within {WITHIN:.0f} s; check that this machine is online"
    except ImportError as missing:
        text = f"{kind.title} needs {missing.name}; {HOW_TO_INSTALL}"
    except Exception as error:  # noqa: BLE001 - the channel boundary; its text may hold the token
        log.debug("doctor.verify_failed", kind=kind.title, error=type(error).__name__)
        text = f"{kind.title} could not be checked ({type(error).__name__}); check that this machine is online"
    return [setup.SetupFinding(level=setup.SetupLevel.WRONG, text=text, id="reached")]


PROBE_WITHIN = 5.0  # seconds
_PASSWORDS, _REFUSED = 2, 0xFF  # RFC 1928, section 3
_NOWHERE = "parlour.invalid:443"
# What web servers that are no proxies answer to CONNECT.
_NO_PROXY = frozenset({400, 404, 405, 501})


async def probe_proxy(address: str) -> str:
    """Say in a line for the operator what is wrong with the proxy at *address*; "" when it takes us."""
    proxy = ProxyAddress.parse(address)
    try:
        async with asyncio.timeout(PROBE_WITHIN):
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
