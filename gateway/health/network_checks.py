"""Checks by real calls: proxy, platforms, clock, monitoring, addresses of web pages, database and object store."""

from __future__ import annotations

import asyncio
import base64
import secrets
import ssl
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote, urlsplit

import structlog

from gateway.errors import ParlourError, StoreUnavailable
from gateway.health.checks import CheckContext, HealthCheck
from gateway.installation import HOW_TO_INSTALL, load_entry_points
from gateway.net import clock_ahead, clock_line, time_servers
from gateway.net.addresses import ProxyAddress, hide_password
from gateway.ports.setup import Finding, SupportsSetup, fail, ok, warn

if TYPE_CHECKING:
    from gateway.store.objects import ObjectStore


log = structlog.get_logger(__name__)

WITHIN = 15.0  # seconds for one platform
_WITHIN = 5.0  # seconds for one call of ours
_PASSWORDS, _REFUSED = 2, 0xFF  # RFC 1928, section 3
_NOWHERE = "parlour.invalid:443"
_NO_PROXY = frozenset({400, 404, 405, 501})  # what web servers that are no proxies answer to CONNECT
_ENDPOINT = "OTEL_EXPORTER_OTLP_ENDPOINT"
_TRACES_ENDPOINT = "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT"  # is used as it is
_TRACES_PATH = "/v1/traces"  # is appended to the other
# One form for each rule: the address, and where it would lead.
_FORMS = {
    "127.0.0.1": "loopback",
    "2130706433": "loopback as a number",
    "[::1]": "loopback of IPv6",
    "[::ffff:127.0.0.1]": "loopback, mapped",
    "[64:ff9b::7f00:1]": "loopback through NAT64",
    "[2002:7f00:1::]": "loopback through 6to4",
    "0.0.0.0": "this machine",  # noqa: S104 - an address to refuse
    "10.1.2.3": "a private network",
    "[fd00::1]": "a private network of IPv6",
    "100.64.0.1": "a provider's network",
    "169.254.169.254": "the metadata service of clouds",
    "[fe80::1]": "this link",
    "192.88.99.1": "a relay",
    "224.0.0.1": "a group",
    "240.0.0.1": "a reserved address",
    "[2001:db8::1]": "an address of documentation",
}


async def check_platforms(context: CheckContext) -> list[Finding]:
    """Ask every platform that supports it, concurrently; nothing is changed there."""
    entry_points = {entry.name: entry for entry in load_entry_points("parlour.channels")}
    environment = {**context.environment, "PARLOUR_PROXY": context.settings.proxy_address}
    blocks = {
        name: block for name, block in context.settings.channels.items() if block.enabled and block.kind in entry_points
    }
    calls = (_check_channel(entry_points[block.kind], block, environment) for block in blocks.values())
    found = await asyncio.gather(*calls)
    return [replace(each, name=f"channel {name}") for name, lines in zip(blocks, found, strict=True) for each in lines]


def installed_setups() -> dict[str, SupportsSetup]:
    """Return every installed platform that can be set up by questions. Blocks: it imports them."""
    found: dict[str, SupportsSetup] = {}
    for point in load_entry_points("parlour.channels"):
        try:
            plugin: Any = point.load()
        except ImportError:  # its library is not installed; the doctor says so
            continue
        if isinstance(plugin, SupportsSetup):
            found[point.name] = plugin
    return found


async def check_proxy(context: CheckContext) -> list[Finding]:
    """Check that the proxy answers and accepts us, so that its error is not taken for the platform's."""
    if not context.settings.proxy:
        return []
    address = context.settings.proxy_address
    if wrong := await probe_proxy(address):
        return [fail(f"{wrong}. Until this is fixed, nothing is received or sent; answers stay queued", "proxy")]
    return [ok(f"outgoing connections use {ProxyAddress.parse(address)}", "proxy")]


async def check_network_clock(context: CheckContext) -> list[Finding]:
    """Compare this machine's clock with the servers that it uses."""
    settings = context.settings
    servers = time_servers(settings.channels.values(), settings.llm.api_base)
    ahead = await clock_ahead(servers, datetime.now(UTC), proxy=settings.proxy_address)
    return [fail(clock_line(ahead), "clock")] if ahead else []


async def _check_channel(entry: Any, block: Any, environment: Mapping[str, str]) -> Sequence[Finding]:
    try:
        kind = entry.load()
    except ImportError:
        return ()  # the check of the block says so
    return await verify(kind, block, environment) if isinstance(kind, SupportsSetup) else ()


async def verify(kind: SupportsSetup, block: Any, environment: Mapping[str, str]) -> Sequence[Finding]:
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
    return [fail(text, about="reached")]


async def probe_proxy(address: str) -> str:
    """Say in a line for the operator what is wrong with the proxy at *address*; "" when it takes us."""
    proxy = ProxyAddress.parse(address)
    try:
        async with asyncio.timeout(_WITHIN):
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


async def check_webhook(context: CheckContext) -> list[Finding]:
    """Call the alert webhook, if one is set; any answer will do."""
    if context.settings.alert_url is None:
        return []
    # A service may take every GET, HEAD or POST for a sign of life; OPTIONS asks for nothing.
    result = await _call("OPTIONS", context.settings.alert_url.get_secret_value(), context.settings.proxy_address)
    if isinstance(result, str):
        line = (
            f"the server of PARLOUR_ALERT_URL cannot be reached ({result}), so alerts are posted nowhere; correct the"
            " address, or remove it"
        )
        return [warn(line, "alerts", "webhook")]
    return [ok("the server of PARLOUR_ALERT_URL answers", "alerts", "webhook")]


async def check_collector(context: CheckContext) -> list[Finding]:
    """Export nothing to the collector of OpenTelemetry, as the exporter exports spans."""
    if not context.settings.otel.enabled:
        return []
    environment, proxy = context.environment, context.settings.proxy_address
    name = _TRACES_ENDPOINT if environment.get(_TRACES_ENDPOINT) else _ENDPOINT
    base = environment.get(name) or "http://localhost:4318"
    url = base if name == _TRACES_ENDPOINT else f"{base.rstrip('/')}{_TRACES_PATH}"
    shown = hide_password(base)
    if not _is_address(base):
        line = f"{name}={shown} is not an address; write it with http:// or https://, such as http://localhost:4318"
        return [warn(line, "otel", "collector")]
    headers = {"Content-Type": "application/x-protobuf"}
    for pair in environment.get("OTEL_EXPORTER_OTLP_HEADERS", "").split(","):
        field, has_value, value = pair.partition("=")
        headers |= {unquote(field.strip()): unquote(value.strip())} if has_value else {}
    result = await _call("POST", url, proxy, headers, environment.get("OTEL_EXPORTER_OTLP_CERTIFICATE", ""))
    if result == 200:
        return [ok(f"the collector at {shown} accepts traces", "otel", "collector")]
    wrong = f"answers with status {result}" if isinstance(result, int) else f"cannot be reached ({result})"
    mend = "OTEL_EXPORTER_OTLP_HEADERS" if result in (401, 403) else f"{name}: OTLP over HTTP, by default port 4318"
    line = f"the collector at {shown} {wrong}, so traces and metrics are lost; correct {mend}"
    return [warn(line, "otel", "collector")]


def _is_address(text: str) -> bool:
    try:
        parts = urlsplit(text)
        return parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:
        return False


async def _call(
    method: str, url: str, proxy: str, headers: Mapping[str, str] | None = None, certificate: str = ""
) -> int | str:
    """Return the status of the answer, or the error in a word. It contains no part of *url*."""
    import aiohttp

    from gateway.net import trusted_certificates
    from gateway.net.connector import connector

    try:
        verify = ssl.create_default_context(cafile=certificate) if certificate else trusted_certificates()
        # The body of the response is not needed, and may be endless.
        async with (
            asyncio.timeout(_WITHIN),
            aiohttp.ClientSession(connector=connector(proxy, ssl=verify)) as session,
            session.request(method, url, headers=headers, data=b"", allow_redirects=False) as answer,
        ):
            return answer.status
    except TimeoutError:
        return f"no answer within {_WITHIN:.0f} s"
    except (aiohttp.ClientError, OSError, ValueError) as error:
        return type(error).__name__


async def check_addresses(context: CheckContext) -> list[Finding]:
    """Try one address for each rule, and localhost as the system resolves it; none is dialled."""
    if not context.settings.tools.web.fetch:
        return []
    from gateway.net.public_http import NOT_PUBLIC, FetchFailed, PublicHttpClient

    client = PublicHttpClient(proxy=context.settings.proxy_address)
    reached: list[str] = []  # forms that were not refused
    for form, target in {**_FORMS, "localhost": "loopback by name"}.items():
        try:
            await client.fetch(f"http://{form}/")
            reached.append(f"{form} ({target})")
        except FetchFailed as error:
            if str(error) != NOT_PUBLIC and form != "localhost":  # a machine may have no such name
                reached.append(f"{form} ({target})")
    line = f"web_fetch refuses private addresses ({len(_FORMS) + 1} of {len(_FORMS) + 1} forms)"
    found = [ok(line, "web", "addresses")]
    if reached:
        line = f"the tool web_fetch does not refuse {', '.join(reached)}; set PARLOUR_TOOLS__WEB__FETCH=false"
        found = [fail(line, "web", "addresses")]
    if context.settings.proxy:
        line = (
            "the proxy resolves the names that web_fetch opens; configure it so that it does not reach internal"
            " networks, or set PARLOUR_TOOLS__WEB__FETCH=false"
        )
        found.append(warn(line, "web", "proxy"))
    return found


_CLOCK_LIMIT = timedelta(seconds=2)
_CROWDED = 0.8  # of the server's connections


def check_database(context: CheckContext) -> Iterator[Finding]:
    """Ask the database of `store.url` whether it can be used, and by several gateways."""
    url = context.settings.store.address
    if not url:
        return
    try:
        from gateway.store.postgres.schema import describe
        from gateway.store.postgres.sessions import read_server_facts

        usable, facts = ok(describe(url), "store"), read_server_facts(url)
    except ModuleNotFoundError as missing:
        yield fail(f"store.url needs {missing.name}: {HOW_TO_INSTALL}", "store")
    except ParlourError as error:
        yield fail(str(error), "store")
    else:
        yield usable
        yield from server_findings(facts.sessions, facts.session_limit, facts.clock_ahead, facts.worker_versions)


def server_findings(
    sessions: int, session_limit: int, clock_ahead: timedelta, versions: tuple[str, ...]
) -> Iterator[Finding]:
    """Yield a warning for each fact of the server that will trouble its gateways.

    *clock_ahead* is how far this machine's clock is before the server's; *versions* are those of its gateways.
    """
    if sessions > session_limit * _CROWDED:
        line = (
            f"{sessions} of the server's {session_limit} connections are in use, and a gateway needs up to three: raise"
            " max_connections, or close other programs' sessions"
        )
        yield warn(line, "store", "connections")
    if abs(clock_ahead) > _CLOCK_LIMIT:
        seconds = round(abs(clock_ahead).total_seconds())
        side = "ahead of" if clock_ahead > timedelta() else "behind"
        line = (
            f"this machine's clock is {seconds} s {side} the database server's: set both by NTP, or reminders and caps"
            " are early or late"
        )
        yield warn(line, "store", "clock")
    if len(versions) > 1:
        line = (
            f"gateways of the versions {', '.join(versions)} share the database: finish the upgrade; one that runs an"
            " older version does not start again"
        )
        yield warn(line, "store", "versions")


async def check_objects(context: CheckContext) -> list[Finding]:
    """Try the object store for large attachments, if one is set."""
    settings = context.settings.store.objects
    if not settings.url:
        return []
    from gateway.store.objects import open_objects

    try:
        objects = open_objects(settings, context.settings.proxy_address)
    except ParlourError as error:
        return [fail(str(error), "store", "objects")]
    return [await probe_objects(objects, settings.url)]


async def probe_objects(objects: ObjectStore, url: str) -> Finding:
    """Write, read and remove a small object; return the finding."""
    name, written = f"probe-{secrets.token_hex(8)}", secrets.token_bytes(64)
    try:
        await objects.put(name, written)
        found = b"".join([data async for data in objects.read(name)])
        await objects.delete(name)
    except StoreUnavailable as error:
        return fail(str(error), "store", "objects")
    if found != written:
        line = f"{url} returns other bytes than were written: large attachments would be refused when they are read"
        return fail(line, "store", "objects")
    return ok(f"large attachments are in {url}, which can be written, read and deleted from", "store", "objects")


DATABASE = HealthCheck("store", check_database)
CHECKS = (
    HealthCheck("proxy", check_proxy, calls_others=True),
    HealthCheck("clock", check_network_clock, calls_others=True),
    HealthCheck("platforms", check_platforms, calls_others=True),
    HealthCheck("alerts", check_webhook, calls_others=True),
    HealthCheck("otel", check_collector, calls_others=True),
    HealthCheck("web", check_addresses, calls_others=True),
    HealthCheck("store", check_objects, calls_others=True),
)
