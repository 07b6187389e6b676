"""HTTP to addresses that a model or a page named: public ones only, and bounded in size, time and rate.

The address that a socket dials is checked, for every attempt and redirect. A check of names would miss DNS rebinding,
and a check of literals would miss the forms that only the system's resolver understands (`127.1`, `2130706433`).
"""

from __future__ import annotations

import asyncio
import ipaddress
import socket
import zlib
from collections import Counter
from collections.abc import AsyncIterator, Callable, Collection, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Final

import aiohttp
from aiohttp.abc import AbstractResolver
from yarl import URL

from gateway.errors import ParlourError
from gateway.installation import package_version
from gateway.net.addresses import is_direct
from gateway.net.connector import connector

WEB_PORTS: Final = frozenset({80, 443})
MOST_BYTES: Final = 5 << 20  # of a response, unpacked
NOT_PUBLIC: Final = "this address is not on the public internet"

_URL_CHARS = 2_000
_REDIRECTS = 5
_FIRST_BYTE = 10.0  # seconds until a response begins, from the name's lookup on
_TOTAL = 20.0  # seconds of one fetch with its redirects
_RATIO = 100  # bytes unpacked for each one received
_RATIO_ALLOWANCE = 100_000  # bytes: small pages of one repeated line are no bombs
_PER_HOST, _AT_ONCE = 2, 8
_INTERVAL = 1.0  # seconds between two fetches from one host
_PIECE = 1 << 16
_REDIRECT_STATUS = frozenset({301, 302, 303, 307, 308})
_ENCODINGS = {"": 0, "identity": 0, "gzip": 31, "x-gzip": 31, "deflate": 15}  # window bits of zlib; 0 = as it is

_NAT64 = ipaddress.ip_network("64:ff9b::/96")
_GLOBAL_V6 = ipaddress.ip_network("2000::/3")
# IPv6 networks that carry IPv4 addresses or other protocols, and those for documentation.
_SPECIAL_V6 = tuple(map(ipaddress.ip_network, ("2001::/23", "2001:db8::/32", "2002::/16", "3fff::/20")))
_RELAYS_V4 = ipaddress.ip_network("192.88.99.0/24")  # 6to4 relays


class FetchFailed(ParlourError):
    """A response cannot be had. The text is a short phrase that holds no address a name resolved to."""


class NotPublicAddress(OSError):
    """A socket would have dialled an address that is not on the public internet."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HttpResponse:
    """A whole response."""

    url: str  # after the redirects
    status: int
    media_type: str  # lower case, without parameters
    charset: str  # as the server names it; "" = it does not
    body: bytes


def is_public(address: str) -> bool:
    """Return True if the IP *address* is on the public internet.

    `is_global` is not enough: it accepts translated forms of private addresses and networks that are reserved.
    """
    try:
        found = ipaddress.ip_address(address)
    except ValueError:
        return False
    if isinstance(found, ipaddress.IPv6Address):
        if found.ipv4_mapped is not None:
            found = found.ipv4_mapped
        elif found in _NAT64:
            found = ipaddress.IPv4Address(int(found) & 0xFFFF_FFFF)
        else:
            return found in _GLOBAL_V6 and found.is_global and not any(found in network for network in _SPECIAL_V6)
    return found.is_global and not found.is_multicast and not found.is_reserved and found not in _RELAYS_V4


def parse_public_url(text: str, *, ports: Collection[int] = WEB_PORTS) -> URL:
    """Return the address that *text* names, its host in ASCII, without fragment. Raises FetchFailed."""
    if len(text) > _URL_CHARS:
        raise FetchFailed(f"the address is longer than {_URL_CHARS} characters")
    # Parsers disagree about these, and a line break would end a header.
    if not text.isprintable() or any(sign in text for sign in ' \\<>"'):
        raise FetchFailed("the address holds characters that no address has")
    try:
        url = URL(text).with_fragment(None)
        port = url.port
    except (ValueError, TypeError):
        raise FetchFailed("this is no web address") from None
    if url.scheme not in {"http", "https"}:
        raise FetchFailed("only http and https addresses can be opened")
    if not url.raw_host or "%" in url.raw_host:
        raise FetchFailed("this is no web address")
    if "@" in url.raw_authority:
        raise FetchFailed("an address with a user name in it is not opened")
    if port not in ports:
        raise FetchFailed(f"port {port} is not opened")
    return url


def is_public_name(url: str) -> bool:
    """Return True if *url* may lead to the public internet, as far as its text tells. Nothing is looked up."""
    try:
        host = (parse_public_url(url).raw_host or "").rstrip(".")
    except FetchFailed:
        return False
    literal = _literal_of(host)
    return is_public(literal) if literal else not is_direct(host)


class PublicHttpClient:
    """Fetches over HTTP. One per gateway: rates and limits are counted in it. Holds no connection between fetches."""

    def __init__(
        self,
        *,
        proxy: str = "",
        ports: Collection[int] = (),
        total: timedelta = timedelta(seconds=_TOTAL),
        resolver: Callable[[], AbstractResolver] = aiohttp.ThreadedResolver,
    ) -> None:
        """*ports* may be opened besides 80 and 443. *proxy* resolves names itself: then only literals are checked."""
        self._proxy = proxy
        self._ports = WEB_PORTS | frozenset(ports)
        self._total = total.total_seconds()
        self._resolver = resolver
        self._rates = HostRates()

    async def fetch(self, url: str, *, accept: str = "*/*", most: int = MOST_BYTES) -> HttpResponse:
        """GET a public address with at most five redirects; each target is checked like the address itself.

        *most* are the bytes of the response, unpacked.

        Raises FetchFailed, also for an address that is not public. Any status is a response.
        """
        target, previous, left = parse_public_url(url, ports=self._ports), "", self._total
        headers = {"Accept": accept, "Accept-Language": "en, *;q=0.5"}
        clock = asyncio.get_running_loop().time
        async with self.open_session(is_checked=True, force_close=True, limit=1) as session:
            for _ in range(_REDIRECTS + 1):
                self.check_host(target)
                host = target.raw_host or ""
                # Waiting for the host's turn does not count as its time.
                async with self._rates.open_slot(host, is_paced=host != previous):
                    start = clock()
                    found = await self._request(session, "GET", target, left, most=most, headers=headers)
                    left -= clock() - start
                if isinstance(found, HttpResponse):
                    return found
                target, previous = parse_public_url(str(found), ports=self._ports), host
        raise FetchFailed(f"more than {_REDIRECTS} redirects")

    async def call_api(
        self,
        method: str,
        url: str,
        *,
        is_public: bool = False,
        most: int = MOST_BYTES,
        headers: Mapping[str, str] | None = None,
        **body: Any,
    ) -> HttpResponse:
        """Call the API at *url*. No redirects. *body* is `json` or `data`, *most* the bytes of the response.

        An address that the operator configured may be private; one that somebody else named *is_public*, or refused.
        Raises FetchFailed.
        """
        try:
            target = URL(url)
        except ValueError:
            raise FetchFailed("this is no web address") from None
        if is_public:
            self.check_host(target)
        async with self._rates.open_slot(""), self.open_session(is_checked=is_public, force_close=True) as session:
            found = await self._request(session, method, target, self._total, most=most, headers=headers or {}, **body)
        if isinstance(found, URL):
            raise FetchFailed("the service redirects elsewhere")
        return found

    async def post_status(self, url: str, *, headers: Mapping[str, str], data: bytes) -> tuple[int, str]:
        """POST *data* to a public address; return status and Retry-After. No redirects, and no body is read.

        It is not counted to the limits of `fetch`. Raises FetchFailed.
        """
        target = self.check_url(url)
        async with (
            self.open_session(is_checked=True, force_close=True) as session,
            _failures_as_text(self._total),
            asyncio.timeout(_FIRST_BYTE),
        ):
            response = await session.post(target, headers=headers, data=data, allow_redirects=False)
            response.close()
            return response.status, response.headers.get("Retry-After", "")[:100]

    def check_url(self, text: str) -> URL:
        """Return the address that *text* names. Raises FetchFailed for one that is not public; looks no name up."""
        url = parse_public_url(text, ports=self._ports)
        self.check_host(url)
        return url

    def check_host(self, url: URL) -> None:
        """Refuse what the proxy would resolve, or what would bypass it; sockets of our own are checked anyway.

        Raises FetchFailed.
        """
        host = (url.raw_host or "").rstrip(".")
        literal = _literal_of(host)
        if literal and not is_public(literal):
            raise FetchFailed(NOT_PUBLIC)
        if self._proxy and not literal and is_direct(host):
            raise FetchFailed(NOT_PUBLIC)

    def open_session(
        self, *, is_checked: bool, timeout: aiohttp.ClientTimeout | None = None, **options: Any
    ) -> aiohttp.ClientSession:
        """Return a session whose sockets, if *is_checked*, connect to public addresses only (`NotPublicAddress`).

        Without *timeout* none is set. *options* are those of the connector. Call `check_host` before each request.
        """
        if is_checked:
            options["socket_factory"] = _open_public_socket
        if not self._proxy:
            options |= {"resolver": self._resolver(), "use_dns_cache": False}
        return aiohttp.ClientSession(
            connector=connector(self._proxy, **options),
            cookie_jar=aiohttp.DummyCookieJar(),
            headers={"User-Agent": f"Parlour/{package_version()}", "Accept-Encoding": "gzip, deflate"},
            trust_env=False,
            auto_decompress=False,
            timeout=timeout or aiohttp.ClientTimeout(total=None),  # ours includes the reading of the body
        )

    async def _request(
        self,
        session: aiohttp.ClientSession,
        method: str,
        url: URL,
        seconds: float,
        *,
        most: int = MOST_BYTES,
        **options: Any,
    ) -> HttpResponse | URL:
        """Return the response, or the address it redirects to, within *seconds*."""
        async with _failures_as_text(self._total), asyncio.timeout(seconds):
            async with asyncio.timeout(_FIRST_BYTE):
                response = await session.request(method, url, allow_redirects=False, **options)
            return await _read_response(response, url, most)


@asynccontextmanager
async def _failures_as_text(total: float) -> AsyncIterator[None]:
    """Raise FetchFailed for the errors of a request."""
    try:
        yield
    except TimeoutError:
        raise FetchFailed(f"no response within {total:.0f} seconds") from None
    except aiohttp.ClientConnectorCertificateError:
        raise FetchFailed("the server's certificate is not valid for this address") from None
    except aiohttp.ClientConnectorError as error:
        is_refused = isinstance(error.os_error, NotPublicAddress)
        raise FetchFailed(NOT_PUBLIC if is_refused else "the server cannot be reached") from None
    except aiohttp.ClientPayloadError:
        raise FetchFailed("the response broke off") from None
    except (aiohttp.ClientError, OSError, ValueError):
        raise FetchFailed("the server does not answer as a web server does") from None


class HostRates:
    """At most two fetches at once from a host, one a second, and eight in all. Remembers a host for a second."""

    def __init__(self) -> None:
        self._all = asyncio.Semaphore(_AT_ONCE)
        self._hosts: dict[str, asyncio.Semaphore] = {}
        self._users: Counter[str] = Counter()  # waiting ones included
        self._next: dict[str, float] = {}  # loop time from which a host may be asked again

    @asynccontextmanager
    async def open_slot(self, host: str, *, is_paced: bool = True) -> AsyncIterator[None]:
        """Hold a slot of *host* while the context is open; "" = no host's limits apply.

        Without *is_paced*, as for a redirect within a host, no second passes before the next request.
        """
        if not host:
            async with self._all:
                yield
            return
        self._users[host] += 1
        try:
            # The host's slot first: those who wait for a slow host must not take all slots.
            async with self._hosts.setdefault(host, asyncio.Semaphore(_PER_HOST)):
                if is_paced:
                    await self._wait_interval(host)
                async with self._all:
                    yield
        finally:
            self._users[host] -= 1
            if not self._users[host]:
                del self._users[host], self._hosts[host]

    async def _wait_interval(self, host: str) -> None:
        now = asyncio.get_running_loop().time()
        self._next = {each: at for each, at in self._next.items() if at > now}
        start = self._next.get(host, now)
        self._next[host] = start + _INTERVAL
        await asyncio.sleep(start - now)


def _open_public_socket(info: tuple[Any, ...]) -> socket.socket:
    """Return a socket for the address that is dialled next; raise NotPublicAddress for one that is not public."""
    family, kind, protocol, _, address = info
    if not is_public(str(address[0])):
        raise NotPublicAddress(NOT_PUBLIC)
    return socket.socket(family, kind, protocol)


def _literal_of(host: str) -> str:
    """Return the IP address that *host* is, in any form that a resolver accepts; "" if it is a name."""
    try:
        return str(ipaddress.ip_address(host))
    except ValueError:
        pass
    if not host or not host[0].isdigit():
        return ""
    try:
        return socket.inet_ntoa(socket.inet_aton(host))
    except OSError:
        return ""


def _redirect_target(url: URL, location: str) -> URL:
    try:
        return url.join(URL(location))
    except ValueError:
        raise FetchFailed("the page redirects to something that is no web address") from None


async def _read_response(response: aiohttp.ClientResponse, url: URL, most: int) -> HttpResponse | URL:
    async with response:
        location = response.headers.get("Location", "")
        if response.status in _REDIRECT_STATUS and location:
            return _redirect_target(url, location)
        return HttpResponse(
            url=str(url),
            status=response.status,
            media_type=response.content_type.lower(),
            charset=response.charset or "",
            body=await _read_body(response, most),
        )


async def _read_body(response: aiohttp.ClientResponse, most: int) -> bytes:
    """Return the unpacked body; raise FetchFailed as soon as it is too large, packed too tightly, or broken."""
    encoding = response.headers.get("Content-Encoding", "").strip().lower()
    if encoding not in _ENCODINGS:
        raise FetchFailed("the response is packed in a way that was not asked for")
    if (response.content_length or 0) > most:
        raise _too_long(most)
    unpacker = _BodyUnpacker(_ENCODINGS[encoding], most)
    async for piece in response.content.iter_chunked(_PIECE):
        unpacker.feed(piece)
    return unpacker.finish()


def _too_long(most: int) -> FetchFailed:
    return FetchFailed(f"more than {most >> 20} MB" if most >= 1 << 20 else f"more than {most >> 10} KB")


class _BodyUnpacker:
    """Unpacks a body piece by piece within its limits."""

    def __init__(self, window_bits: int, most: int) -> None:
        self._most = most
        self._inflate = zlib.decompressobj(window_bits) if window_bits else None
        self._window_bits = window_bits
        self._received = 0
        self._body = bytearray()

    def feed(self, piece: bytes) -> None:
        if not self._received and self._window_bits == 15 and piece[:1] and piece[0] & 0x0F != 8:
            self._inflate = zlib.decompressobj(-15)  # servers that mean raw deflate
        self._received += len(piece)
        if self._inflate is None:
            self._add(piece)
            return
        try:
            while piece:
                self._add(self._inflate.decompress(piece, _PIECE))
                piece = self._inflate.unconsumed_tail
        except zlib.error:
            raise FetchFailed("the response is packed wrongly") from None

    def _add(self, piece: bytes) -> None:
        self._body += piece
        if max(len(self._body), self._received) > self._most:
            raise _too_long(self._most)
        if len(self._body) > self._received * _RATIO + _RATIO_ALLOWANCE:
            raise FetchFailed(f"the response unpacks to more than {_RATIO} times its size")

    def finish(self) -> bytes:
        if self._inflate is not None and self._received:
            self._add(self._inflate.flush(_PIECE))
            if not self._inflate.eof:
                raise FetchFailed("the response broke off")
        return bytes(self._body)
