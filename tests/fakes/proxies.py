"""Proxies: a SOCKS5 and an HTTP one over asyncio that know names nobody else knows, and the real servers.

A name such as `slack.example` resolves nowhere but here, so that a connection which goes round the proxy fails.
"""

from __future__ import annotations

import asyncio
import base64
import os
import re
import shutil
import ssl
import subprocess
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from ipaddress import ip_address
from pathlib import Path
from urllib.parse import urlsplit

import pytest

Names = Mapping[str, tuple[str, int]]  # a name that only the proxy knows, and where it leads
Streams = tuple[asyncio.StreamReader, asyncio.StreamWriter]


@dataclass
class FakeProxy:
    """One proxy: who may pass, which names it knows, and where it was asked to connect."""

    names: Names
    user: str = ""
    password: str = ""
    port: int = 0
    asked: list[tuple[str, int]] = field(default_factory=list)
    refused: int = 0  # connections without the right user and password
    is_down: bool = False  # takes connections and breaks them off
    _open: set[asyncio.Task[None]] = field(default_factory=set)
    _turned_away: asyncio.Event = field(default_factory=asyncio.Event)

    def url(self, scheme: str, *, password: str = "") -> str:
        """Return its address as it stands in PARLOUR_PROXY."""
        who = f"{self.user}:{password or self.password}@" if self.user else ""
        return f"{scheme}://{who}127.0.0.1:{self.port}"

    def hosts(self) -> set[str]:
        """Return every host it was asked for."""
        return {host for host, _ in self.asked}

    def drop(self) -> None:
        """Break off every connection that stands."""
        self._turned_away.clear()
        for task in self._open:
            task.cancel()

    async def knocked(self) -> None:
        """Return when somebody has come in vain since the last drop."""
        await self._turned_away.wait()

    async def reach(self, host: str, port: int) -> Streams:
        """Connect to what *host* leads to; OSError for a name that it does not know."""
        self.asked.append((host, port))
        if host in self.names:
            return await asyncio.open_connection(*self.names[host])
        raise OSError(f"no name {host}")


@asynccontextmanager
async def open_socks(names: Names = {}, *, user: str = "", password: str = "") -> AsyncIterator[FakeProxy]:  # noqa: B006 - never changed
    """Serve SOCKS5 (RFC 1928, and 1929 where a *user* is given)."""
    proxy = FakeProxy(names, user, password)
    async with _serving(proxy, _socks):
        yield proxy


@asynccontextmanager
async def open_http_proxy(
    names: Names = {},  # noqa: B006 - never changed
    *,
    user: str = "",
    password: str = "",
    tls: ssl.SSLContext | None = None,
) -> AsyncIterator[FakeProxy]:
    """Serve CONNECT, and requests with whole addresses as http:// ones may be sent."""
    proxy = FakeProxy(names, user, password)
    async with _serving(proxy, _http, tls):
        yield proxy


@asynccontextmanager
async def _serving(
    proxy: FakeProxy, serve: Callable[[FakeProxy, Streams], Awaitable[None]], tls: ssl.SSLContext | None = None
) -> AsyncIterator[None]:
    tasks = proxy._open

    async def one(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        tasks.add(task)
        try:
            if proxy.is_down:
                proxy._turned_away.set()
            else:
                await serve(proxy, (reader, writer))
        except (OSError, EOFError, asyncio.CancelledError):
            pass  # either side has gone, or we have
        finally:
            tasks.discard(task)
            await _closed(writer)

    server = await asyncio.start_server(one, "127.0.0.1", proxy.port, ssl=tls)
    proxy.port = server.sockets[0].getsockname()[1]
    try:
        yield
    finally:
        server.close()
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def _socks(proxy: FakeProxy, streams: Streams) -> None:
    reader, writer = streams
    _, count = await reader.readexactly(2)
    offered = await reader.readexactly(count)
    wanted = 2 if proxy.user else 0
    if wanted not in offered:
        proxy.refused += 1
        writer.write(b"\x05\xff")
        return
    writer.write(bytes([5, wanted]))
    if proxy.user and not await _knows(proxy, reader, writer):
        return
    _, command, _, kind = await reader.readexactly(4)
    assert command == 1, "only CONNECT is asked for"
    host = await _address(reader, kind)
    port = int.from_bytes(await reader.readexactly(2), "big")
    try:
        there = await proxy.reach(host, port)
    except OSError:
        writer.write(b"\x05\x04\x00\x01" + bytes(6))  # host unreachable
        await writer.drain()
        return
    writer.write(b"\x05\x00\x00\x01" + bytes(6))
    await _splice(streams, there)


async def _knows(proxy: FakeProxy, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
    await reader.readexactly(1)
    said = [await reader.readexactly((await reader.readexactly(1))[0]) for _ in range(2)]
    is_known = said == [proxy.user.encode(), proxy.password.encode()]
    proxy.refused += not is_known
    writer.write(b"\x01\x00" if is_known else b"\x01\x01")
    await writer.drain()
    return is_known


async def _address(reader: asyncio.StreamReader, kind: int) -> str:
    if kind == 3:
        return (await reader.readexactly((await reader.readexactly(1))[0])).decode()
    return str(ip_address(await reader.readexactly(4 if kind == 1 else 16)))


async def _http(proxy: FakeProxy, streams: Streams) -> None:
    reader, writer = streams
    head = await reader.readuntil(b"\r\n\r\n")
    first, *lines = head.decode("latin-1").split("\r\n")
    method, target, version = first.split(" ")
    headers = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in lines if line)}
    proof = "Basic " + base64.b64encode(f"{proxy.user}:{proxy.password}".encode()).decode()
    if proxy.user and headers.get("proxy-authorization") != proof:
        proxy.refused += 1
        writer.write(b"HTTP/1.1 407 Proxy Authentication Required\r\nContent-Length: 0\r\n\r\n")
        await writer.drain()
        return
    url = urlsplit(f"//{target}" if method == "CONNECT" else target)
    try:
        there = await proxy.reach(url.hostname or "", url.port or 80)
    except OSError:
        writer.write(b"HTTP/1.1 502 Bad Gateway\r\nContent-Length: 0\r\n\r\n")
        await writer.drain()
        return
    if method == "CONNECT":
        writer.write(b"HTTP/1.1 200 Connection established\r\n\r\n")
    else:
        path = f"{url.path or '/'}{'?' + url.query if url.query else ''}"
        kept = [line for line in lines if line and not line.lower().startswith(("proxy-", "connection:"))]
        there[1].write(
            "\r\n".join([f"{method} {path} {version}", *kept, "Connection: close", "", ""]).encode("latin-1")
        )
    await _splice(streams, there)


async def _splice(one: Streams, other: Streams) -> None:
    """Carry bytes both ways until a side ends."""

    async def carry(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(OSError):
            while piece := await reader.read(65_536):
                writer.write(piece)
                await writer.drain()
            if writer.can_write_eof():
                writer.write_eof()

    try:
        await asyncio.gather(carry(one[0], other[1]), carry(other[0], one[1]))
    finally:
        await _closed(other[1])


async def _closed(writer: asyncio.StreamWriter) -> None:
    writer.close()
    with suppress(OSError, asyncio.CancelledError):
        await writer.wait_closed()


# The real servers.

FAR, EXIT = "127.0.0.2", "127.0.0.3"
FAR_NAME = "far.example"  # resolves nowhere but in `microsocks`, which is given a resolver of ours
_RESOLVER = f"""
#define _GNU_SOURCE
#include <dlfcn.h>
#include <netdb.h>
#include <string.h>
int getaddrinfo(const char *name, const char *service, const struct addrinfo *hints, struct addrinfo **found) {{
    int (*real)(const char *, const char *, const struct addrinfo *, struct addrinfo **);
    real = dlsym(RTLD_NEXT, "getaddrinfo");
    return real(name && !strcmp(name, "{FAR_NAME}") ? "{FAR}" : name, service, hints, found);
}}
"""


def needed(command: str) -> str:
    """Return the path of a server; in CI a missing one is a failure, elsewhere a skip."""
    path = shutil.which(command) or shutil.which(command, path="/usr/sbin")
    if path is not None:
        return path
    if os.environ.get("CI") == "true":
        pytest.fail(f"CI needs {command}: .ci/run installs it")
    pytest.skip(f"no {command} on this machine (apt install nginx-light microsocks gcc openssl)")


@dataclass(frozen=True)
class HostCertificate:
    """A name's certificate, which whoever trusts it can verify."""

    file: Path
    key: Path

    @classmethod
    def of(cls, name: str, folder: Path) -> HostCertificate:
        """Make one for *name*."""
        made = cls(folder / f"{name}.pem", folder / f"{name}.key")
        words = ["req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-days", "2"]
        where = "IP" if name.replace(".", "").isdigit() else "DNS"
        words += ["-subj", f"/CN={name}", "-addext", f"subjectAltName={where}:{name}"]
        words += ["-keyout", str(made.key), "-out", str(made.file)]
        subprocess.run([needed("openssl"), *words], check=True, capture_output=True)  # noqa: S603 - ours
        return made

    def shown(self) -> ssl.SSLContext:
        """Return what a server proves itself with."""
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(self.file, self.key)
        return context


@asynccontextmanager
async def far_away(port: int) -> AsyncIterator[int]:
    """Show what listens on *port* of this machine at `FAR_NAME` too, to those alone who come by way of `EXIT`."""
    place = FakeProxy({})

    async def pass_on(_: FakeProxy, streams: Streams) -> None:
        if streams[1].get_extra_info("peername")[0] != EXIT:
            return  # it came round the proxy
        await _splice(streams, await asyncio.open_connection("127.0.0.1", port))

    async def one(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            await pass_on(place, (reader, writer))
        except (OSError, EOFError, asyncio.CancelledError):
            pass
        finally:
            await _closed(writer)

    server = await asyncio.start_server(one, FAR, 0)
    try:
        yield server.sockets[0].getsockname()[1]
    finally:
        server.close()


@asynccontextmanager
async def microsocks(folder: Path, port: int, *, user: str, password: str) -> AsyncIterator[str]:
    """Run a real SOCKS5 server that knows `FAR_NAME` and leaves by `EXIT`; yield its address."""
    program, library = needed("microsocks"), folder / "resolver.so"
    words = [needed("gcc"), "-shared", "-fPIC", "-x", "c", "-", "-o", str(library), "-ldl"]
    await asyncio.to_thread(subprocess.run, words, check=True, capture_output=True, input=_RESOLVER.encode())
    words = ["-i", "127.0.0.1", "-p", str(port), "-b", EXIT, "-u", user, "-P", password]
    async with running(program, *words, port=port, LD_PRELOAD=str(library)):
        yield f"socks5h://{user}:{password}@127.0.0.1:{port}"


class ServerProcess:
    """A server of its own, which can be stopped and started again."""

    def __init__(self, *command: str, port: int, **environment: str) -> None:
        self._command = command
        self._port = port
        self._environment = {**os.environ, **environment}
        self._process: asyncio.subprocess.Process | None = None

    async def start(self) -> None:
        """Return when it takes connections on its port; an early end fails with what it said."""
        self._process = process = await asyncio.create_subprocess_exec(
            *self._command,
            stdout=asyncio.subprocess.DEVNULL,
            stderr=asyncio.subprocess.PIPE,
            env=self._environment,
        )
        while True:
            try:
                _, writer = await asyncio.open_connection("127.0.0.1", self._port)
            except OSError:
                if process.returncode is not None:
                    assert process.stderr is not None
                    raise AssertionError((await process.stderr.read()).decode()) from None
                await asyncio.sleep(0.01)
            else:
                await _closed(writer)
                return

    async def stop(self) -> None:
        """End it, if it runs."""
        if self._process is not None:
            with suppress(ProcessLookupError):
                self._process.terminate()
            await self._process.wait()
            self._process = None


@asynccontextmanager
async def running(*command: str, port: int, **environment: str) -> AsyncIterator[ServerProcess]:
    """Run a server until the block ends; it takes connections on *port* when the block begins."""
    process = ServerProcess(*command, port=port, **environment)
    try:
        await process.start()
        yield process
    finally:
        await process.stop()


PUBLIC = "chat.example.org"  # as deploy/nginx.conf has it
_CONF = Path(__file__).resolve().parents[2] / "deploy" / "nginx.conf"


@dataclass(frozen=True)
class NginxFront:
    """An nginx before us: the address people type, and a door without TLS for callers on this machine."""

    url: str
    plain: str
    process: ServerProcess


@asynccontextmanager
async def nginx(
    folder: Path, upstream: int, port: int, plain: int, *, is_cut: bool = False, is_bare: bool = False
) -> AsyncIterator[NginxFront]:
    """Run deploy/nginx.conf, ports and certificate replaced; where it *is_cut*, nginx keeps the path to itself.

    One that *is_bare* says nothing of whom it speaks for, as many people's does, and runs under an account of its own.
    """
    program, made = needed("nginx"), HostCertificate.of(PUBLIC, folder)
    conf = _CONF.read_text("utf-8")
    for before, after in (
        ("listen 443 ssl;", f"listen 127.0.0.1:{port} ssl; listen 127.0.0.1:{plain};"),
        ("/etc/ssl/certs/chat.example.org.pem", str(made.file)),
        ("/etc/ssl/private/chat.example.org.key", str(made.key)),
        ("http://127.0.0.1:8787;", f"http://127.0.0.1:{upstream};"),
    ):
        assert before in conf, before
        conf = conf.replace(before, after)
    if is_cut:
        conf = re.sub(r"(location (?:= )?/chat/(\w*) {[^}]*proxy_pass [^;]*);", r"\1/\2;", conf)
    if is_bare:
        conf = re.sub(r"proxy_set_header (Host|X-Forwarded-\w+) [^;]*;", "", conf)
    places = ("client_body", "proxy", "fastcgi", "uwsgi", "scgi")
    temporary = "".join(f"{each}_temp_path {folder}/{each};" for each in places)
    user = "" if os.geteuid() else "user www-data;" if is_bare else "user root;"
    head = f"{user} pid {folder}/nginx.pid; error_log stderr; worker_processes 1; daemon off; events {{}}"
    (folder / "nginx.conf").write_text(f"{head} http {{ access_log off; {temporary} {conf} }}", "utf-8")
    words = ["-p", str(folder), "-c", str(folder / "nginx.conf"), "-e", "stderr"]
    async with running(program, *words, port=port) as process:
        yield NginxFront(f"https://{PUBLIC}:{port}/chat/", f"http://127.0.0.1:{plain}/chat/", process)
