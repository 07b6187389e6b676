"""A whole internet in a network namespace: every IP address is ours, names come from our DNS, pages from our server.

Run as a program inside the namespace (`run_in_namespace`); it prints one JSON object: what each fetch gave, and which
local addresses were dialled for it. Nothing leaves the namespace.
"""

from __future__ import annotations

import asyncio
import functools
import gzip
import json
import os
import shutil
import socket
import struct
import subprocess
import sys
import tempfile
import unicodedata
import zlib
from collections import Counter
from collections.abc import Callable
from contextlib import AsyncExitStack
from datetime import timedelta
from ipaddress import ip_address
from pathlib import Path
from urllib.parse import SplitResult, parse_qs, urlsplit

ENDLESS = ("drip", "silent")
ROOT = Path(__file__).parents[2]
PUBLIC, PUBLIC_SIX = "93.184.216.34", "2606:2800:220:1::1"
DNS = "9.9.9.9"

# Names with the successive answers of our DNS, v4 and v6 alike; the last one stays. TTL is always 0.
NAMES = {
    "public.test": [PUBLIC],
    "other.test": ["1.1.1.1"],
    "six.test": [PUBLIC_SIX],
    "loop.test": ["127.0.0.1"],
    "metadata.test": ["169.254.169.254"],
    "nat64.test": ["64:ff9b::7f00:1"],
    "mapped.test": ["::ffff:10.1.2.3"],
    "rebind.test": [PUBLIC, "127.0.0.1"],
    "rebind6.test": [PUBLIC_SIX, "::1"],
}

# Every way to write an address that is not public (`NOT_PUBLIC_FORMS` of the unit test names the classes).
FORMS = (
    *("127.0.0.1", "localhost", "127.1", "2130706433", "0x7f000001", "0177.0.0.1", "0.0.0.0", "0", "localhost."),  # noqa: S104
    *("[::1]", "[::]", "[::ffff:127.0.0.1]", "[64:ff9b::7f00:1]", "[64:ff9b::10.1.2.3]", "[::127.0.0.1]"),
    *("169.254.169.254", "[::ffff:169.254.169.254]", "10.1.2.3", "172.16.0.1", "192.168.1.1", "100.64.0.1"),
    *("198.18.0.1", "192.0.2.1", "192.88.99.1", "224.0.0.1", "240.0.0.1", "255.255.255.255"),
    *("[fe80::1]", "[fec0::1]", "[fd00::1]", "[ff02::1]", "[2002:7f00:1::]", "[2001::1]", "[2001:db8::1]"),
    *("[3fff::1]", "[5f00::1]", "①②⑦.⓪.⓪.①", "[64:ff9b:1::1]", "[100::1]"),
)


def _address_of(form: str) -> str:
    """Return the IP address that *form* means."""
    plain = unicodedata.normalize("NFKC", form.strip("[]"))
    if plain.startswith("localhost"):
        return "127.0.0.1"
    return plain if ":" in plain else socket.inet_ntoa(socket.inet_aton(plain))


# A name for each form: public when it is looked up first, the form's address from then on.
REBOUND = {f"r{n}.test": _address_of(form) for n, form in enumerate(FORMS)}
NAMES_OF_FORMS = dict(zip(FORMS, REBOUND, strict=True))
ANSWERS = {
    **NAMES,
    **{name: [PUBLIC_SIX if ":" in address else PUBLIC, address] for name, address in REBOUND.items()},
    "both.test": [f"{PUBLIC} ::1"],
    "both6.test": [f"127.0.0.1 {PUBLIC_SIX}"],
}


def why_unavailable() -> str:
    """Return why no namespace can be made here; "" if one can."""
    if sys.platform != "linux" or not (shutil.which("unshare") and shutil.which("ip")):
        return "needs Linux with unshare and ip"
    probe = subprocess.run([*_unshare(), "ip", "link", "set", "lo", "up"], capture_output=True, check=False)  # noqa: S603
    return "" if probe.returncode == 0 else f"no network namespace here: {probe.stderr.decode()[:100].strip()}"


def _unshare() -> list[str]:
    return ["unshare", "--net", "--mount", *([] if os.geteuid() == 0 else ["--map-root-user"])]


@functools.cache
def run_in_namespace() -> dict[str, dict[str, object]]:
    """Play every scenario in a namespace of its own; return the results by name."""
    done = subprocess.run(  # noqa: S603
        [*_unshare(), sys.executable, "-m", "tests.fakes.fake_internet"],
        capture_output=True,
        check=False,
        timeout=100,
        cwd=ROOT,
    )
    assert done.returncode == 0, done.stderr.decode()[-3000:]
    results: dict[str, dict[str, object]] = json.loads(done.stdout)
    return results


class DnsServer(asyncio.DatagramProtocol):
    """Answers A and AAAA from `ANSWERS`; every other name does not exist."""

    def __init__(self) -> None:
        self.asked: Counter[tuple[str, int]] = Counter()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport

    def datagram_received(self, data: bytes, addr: tuple[str, int]) -> None:
        labels, at = [], 12
        while data[at]:
            labels.append(data[at + 1 : at + 1 + data[at]].decode())
            at += 1 + data[at]
        name, (kind,) = ".".join(labels).lower(), struct.unpack("!H", data[at + 1 : at + 3])
        question = data[12 : at + 5]
        answers = ANSWERS.get(name)
        found = b""
        if answers:
            n = self.asked[name, kind]
            self.asked[name, kind] += 1
            for address in map(ip_address, answers[min(n, len(answers) - 1)].split()):
                if (address.version == 4) == (kind == 1) and kind in (1, 28):
                    found = b"\xc0\x0c" + struct.pack("!HHIH", kind, 1, 0, len(address.packed)) + address.packed
        code = 0 if answers else 3
        head = data[:2] + struct.pack("!HHHHH", 0x8180 | code, 1, 1 if found else 0, 0, 0)
        self._transport.sendto(head + question + found, addr)  # type: ignore[attr-defined]


class WebServer:
    """Serves hostile and ordinary pages on every address; records the address that each client dialled."""

    def __init__(self) -> None:
        self.dialled: list[str] = []

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.dialled.append(str(writer.get_extra_info("sockname")[0]))
        try:
            target = (await reader.readline()).split()[1].decode()
            while (await reader.readline()).strip():
                pass
            await self._respond(urlsplit(target), writer)
        except (OSError, asyncio.IncompleteReadError):
            pass
        finally:
            writer.close()

    async def _respond(self, target: SplitResult, writer: asyncio.StreamWriter) -> None:
        path = target.path.strip("/")
        if path == "redirect":
            to = parse_qs(target.query)["to"][0]
            writer.write(f"HTTP/1.1 302 Found\r\nLocation: {to}\r\nContent-Length: 0\r\n\r\n".encode())
        elif path == "drip":
            writer.write(_OK + b"Content-Length: 1000\r\n\r\n")
            while True:
                writer.write(b".")
                await writer.drain()
                await asyncio.sleep(0.1)
        elif path == "silent":
            await asyncio.sleep(60)
        elif path in ("huge", "unsized"):
            writer.write(
                _OK + (b"Content-Length: 300000000\r\n\r\n" if path == "huge" else b"Connection: close\r\n\r\n")
            )
            for _ in range(4_800):
                writer.write(bytes(62_500))
                await writer.drain()
        else:
            writer.write(_PAGES.get(path, _page(b"hello"))())
        await writer.drain()


_OK = b"HTTP/1.1 200 OK\r\nContent-Type: text/html\r\n"


def _page(body: bytes, head: bytes = b"", length: int | None = None) -> Callable[[], bytes]:
    return lambda: _OK + head + f"Content-Length: {len(body) if length is None else length}\r\n\r\n".encode() + body


def _bomb() -> bytes:
    packed = zlib.compressobj(1, zlib.DEFLATED, 31)
    piece = bytes(1 << 20)
    body = b"".join(packed.compress(piece) for _ in range(300)) + packed.flush()
    return _page(body, b"Content-Encoding: gzip\r\n")()


_PAGES: dict[str, Callable[[], bytes]] = {
    "around": lambda: b"HTTP/1.1 302 Found\r\nLocation: /around\r\nContent-Length: 0\r\n\r\n",
    "bomb": _bomb,
    "five": _page((b"<p>" + b"a readable word " * 30) * 10_300),
    "short": _page(b"only this", length=1_000),
    "long": _page(b"only this", length=4),
    "packed": _page(gzip.compress(b"unpacked"), b"Content-Encoding: gzip\r\n"),
    "brotli": _page(b"xx", b"Content-Encoding: br\r\n"),
}


class Scenes:
    """The scenarios, each with a client of its own: rates do not delay the next."""

    def __init__(self, web: WebServer, proxy: str) -> None:
        self._web = web
        self._proxy = proxy
        self.results: dict[str, dict[str, object]] = {}

    async def fetch(self, name: str, url: str, *, proxied: bool = False) -> None:
        from gateway.net.public_http import FetchFailed, PublicHttpClient

        # Only servers that never end are waited for in vain: on a busy machine all others have their time.
        total = timedelta(seconds=2 if name in ENDLESS else 20)
        client = PublicHttpClient(proxy=self._proxy if proxied else "", total=total)
        before = len(self._web.dialled)
        loop = asyncio.get_running_loop()
        start = loop.time()
        try:
            response = await client.fetch(url)
            outcome = f"{response.status} {len(response.body)} {response.body[:20].decode(errors='replace')}"
        except FetchFailed as error:
            outcome = str(error)
        self.results[name] = {
            "outcome": outcome,
            "dialled": self._web.dialled[before:],
            "seconds": loop.time() - start,
        }

    async def play(self) -> None:
        for form in FORMS:
            await self.fetch(f"form {form}", f"http://{form}/")
            await self.fetch(f"redirect {form}", f"http://public.test/redirect?to=http://{form}/")
            await self.fetch(f"proxied {form}", f"http://{form}/", proxied=True)
            name = NAMES_OF_FORMS[form]
            await self.fetch(f"rebound {form}", f"http://{name}/redirect?to=http://{name}/")
        for name in ("both.test", "both6.test"):
            await self.fetch(name, f"http://{name}/")
        for name in NAMES:
            await self.fetch(f"name {name}", f"http://{name}/")
        for name in ("rebind.test", "rebind6.test"):
            await self.fetch(f"again {name}", f"http://{name}/")
        for path in (
            "drip",
            "silent",
            "huge",
            "unsized",
            "bomb",
            "five",
            "short",
            "long",
            "packed",
            "brotli",
            "around",
        ):
            await self.fetch(path, f"http://public.test/{path}")
        await self.fetch("hop", "http://public.test/redirect?to=http://other.test/")
        await self.fetch("file", "http://public.test/redirect?to=file:///etc/passwd")
        await self.fetch("port", "http://public.test/redirect?to=http://public.test:6379/")
        await self.fetch("proxied public", "http://public.test/", proxied=True)
        await self.fetch("proxied service", "http://searxng/", proxied=True)
        await self.fetch("proxied internal", "http://host.docker.internal/", proxied=True)


def _prepare(folder: Path) -> None:
    """Bring up a loopback that owns every address, and point the system's resolver at our DNS."""
    for words in (
        "ip link set lo up",
        "ip route add local 0.0.0.0/0 dev lo",
        "ip -6 route add local ::/0 dev lo",
    ):
        subprocess.run(words.split(), check=True)  # noqa: S603
    conf = folder / "resolv.conf"
    conf.write_text(f"nameserver {DNS}\noptions timeout:1 attempts:1\n")
    subprocess.run(["mount", "--bind", str(conf), str(Path("/etc/resolv.conf").resolve())], check=True)  # noqa: S603, S607


async def _play() -> dict[str, dict[str, object]]:
    from tests.fakes.proxies import open_http_proxy

    loop = asyncio.get_running_loop()
    web = WebServer()
    async with AsyncExitStack() as stack:
        await loop.create_datagram_endpoint(DnsServer, local_addr=(DNS, 53))
        v4 = await asyncio.start_server(web.serve, "0.0.0.0", 80)  # noqa: S104
        v6 = socket.socket(socket.AF_INET6)
        v6.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
        v6.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        v6.bind(("::", 80))
        for server in (v4, await asyncio.start_server(web.serve, sock=v6)):
            stack.push_async_callback(_close, server)
        proxy = await stack.enter_async_context(open_http_proxy({"public.test": (PUBLIC, 80)}))
        scenes = Scenes(web, proxy.url("http"))
        await scenes.play()
        return scenes.results


async def _close(server: asyncio.Server) -> None:
    server.close()


def main() -> None:
    """Prepare the namespace, play, and print the results."""
    with tempfile.TemporaryDirectory() as folder:
        _prepare(Path(folder))
        results = asyncio.run(_play())
        subprocess.run(["umount", str(Path("/etc/resolv.conf").resolve())], check=False)  # noqa: S603, S607
    json.dump(results, sys.stdout)
    sys.stdout.flush()
    os._exit(0)  # the hostile pages' handlers never end


if __name__ == "__main__":
    main()
