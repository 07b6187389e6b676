"""Checks Host and Origin before any other code sees a request.

Host, because only a name that an attacker's DNS points at us (rebinding) lets a foreign page share our origin;
Origin, because browsers send WebSockets and posts with cookies from any page. Platforms' webhooks (HOOKS) may omit
the Origin.

Client address, host name and base path are resolved first. Forwarding headers count if the connection comes from a
trusted network, and only as far back as each address that names the one before it is in a trusted network too.
"""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_address, ip_network
from urllib.parse import quote, unquote, urlsplit

from starlette.datastructures import Headers, MutableHeaders
from starlette.requests import ClientDisconnect, Request
from starlette.responses import PlainTextResponse, RedirectResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send
from starlette.websockets import WebSocket

_HOPS = 32  # entries of X-Forwarded-For that are looked at
_SECURE = {"http": "https", "ws": "wss"}


@dataclass(frozen=True, slots=True)
class ResolvedRequest:
    """One request, as its sender meant it."""

    address: str  # whose it is, as far as we can know; "" where there is none
    host: str  # the name that was asked for; "" = none, or several
    path: str  # within us: what stands before it in our public address is gone
    base: str  # what stands before it for the browser: "/chat", or ""
    is_secure: bool  # it came by TLS, at least the first part of its way
    is_bare: bool  # it is the public address without its last slash, from which no relative link leads on

    def scope(self, scope: Scope) -> Scope:
        """Return *scope* for the application: routes match `path`, redirects keep `base`."""
        state = {"address": self.address, "base": self.base, "is_secure": self.is_secure}
        scheme = _SECURE.get(scope["scheme"], scope["scheme"]) if self.is_secure else scope["scheme"]
        found = {"path": f"{self.base}{self.path}", "root_path": self.base, "scheme": scheme}
        return {**scope, **found, "state": {**scope.get("state", {}), **state}}


@dataclass(frozen=True, slots=True)
class TrustedProxies:
    """The server's public address and the proxies in front of it."""

    base: str = ""  # path of the public address, without the last slash
    public_host: str = ""
    trusted: tuple[IPv4Network | IPv6Network, ...] = ()

    @classmethod
    def resolve(cls, public_url: str | None, trusted_proxies: Iterable[str] = ()) -> TrustedProxies:
        """Return the way to a server with this public address, behind these networks."""
        parts = urlsplit(public_url or "")
        networks = tuple(ip_network(each, strict=False) for each in trusted_proxies)
        return cls(unquote(parts.path).rstrip("/"), (parts.hostname or "").lower(), networks)

    def arrival(self, scope: Scope) -> ResolvedRequest:
        """Return the resolved request of *scope*. A proxy may have removed our base path, or kept it."""
        headers = Headers(scope=scope)
        peer = str((scope.get("client") or ("",))[0])
        is_trusted = self.is_proxy(peer)
        host = _forwarded_host(headers, is_trusted=is_trusted)
        path: str = scope["path"]
        has_base = bool(self.base) and (path == self.base or path.startswith(f"{self.base}/"))
        return ResolvedRequest(
            address=self._visitor(peer, headers.getlist("x-forwarded-for")),
            host=host,
            path=(path.removeprefix(self.base) or "/") if has_base else path,
            base=self.base if has_base or self._is_public(host, headers.get("origin", "")) else "",
            is_secure=_is_secure(headers, is_trusted=is_trusted),
            is_bare=has_base and path == self.base,
        )

    def is_proxy(self, peer: str) -> bool:
        """Return True if the address *peer* is a proxy's that the operator named."""
        return self._trusts(_address(peer))

    def _visitor(self, peer: str, forwarded: list[str]) -> str:
        """Walk back from the connection: each address may name the one before it, if it is trusted itself."""
        address = peer
        for entry in reversed(",".join(forwarded).split(",")[-_HOPS:]):
            before = _address(entry)
            if before is None or not self._trusts(_address(address)):
                break
            address = str(before)
        return address

    def _trusts(self, address: IPv4Address | IPv6Address | None) -> bool:
        return address is not None and any(
            address.version == network.version and address in network for network in self.trusted
        )

    def _is_public(self, host: str, origin: str) -> bool:
        """Return True if the browser shows our public address, by Host or, if a proxy changed that, by Origin."""
        try:
            names = {urlsplit(f"//{host}").hostname, urlsplit(origin).hostname}
        except ValueError:
            return False
        return bool(self.public_host) and self.public_host in names


def _address(text: str) -> IPv4Address | IPv6Address | None:
    """Parse an address with or without a port; None if it is not one."""
    text = text.strip()
    if text.startswith("["):
        text = text[1:].partition("]")[0]
    elif text.count(":") == 1:
        text = text.partition(":")[0]
    try:
        address = ip_address(text)
    except ValueError:
        return None
    mapped = address.ipv4_mapped if isinstance(address, IPv6Address) else None
    return mapped or address


def _forwarded_host(headers: Headers, *, is_trusted: bool) -> str:
    forwarded = headers.getlist("x-forwarded-host") if is_trusted else []
    hosts = [each.strip() for each in ",".join(forwarded).split(",")] if forwarded else headers.getlist("host")
    return hosts[0] if len(hosts) == 1 else ""


def _is_secure(headers: Headers, *, is_trusted: bool) -> bool:
    if is_trusted and "x-forwarded-proto" in headers:
        # The first proxy of several says how the browser came; each appends, if it does not replace.
        return headers["x-forwarded-proto"].partition(",")[0].strip().lower() in ("https", "wss")
    # The browser's own word for how it came. Only our own page passes the guard.
    return headers.get("origin", "").startswith("https:")


LOOPBACK_NAMES = frozenset({"localhost", "127.0.0.1", "::1"})
_WILDCARDS = frozenset({"", "0.0.0.0", "::"})  # noqa: S104 - compared with, never bound to
_SAFE = frozenset({"GET", "HEAD", "OPTIONS"})
# Under this path platforms call us: they have no page and no cookie, and prove themselves by a secret of their own.
HOOKS = "/hooks/"
# Programs call us under this one, with a key in a header that no browser adds by itself. They may do so by any name
# that leads here, such as a container's.
API = "/v1/"
# Probes and scrapers ask by an address or a service name. These routes judge the name themselves (`is_known_host`).
_ANY_NAME = frozenset({"/healthz", "/readyz", "/metrics"})
_NAME_REFUSED = "This server does not go by that name. Its public address is set by PARLOUR_WEB__PUBLIC_URL.\n"
_DEFAULT_PORTS = {"http": 80, "https": 443}
_HEADERS = {
    "Content-Security-Policy": "default-src 'none'; frame-ancestors 'none'",
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Permissions-Policy": "camera=(), geolocation=(), microphone=()",
    "Cache-Control": "no-store",
}


@dataclass(frozen=True, slots=True)
class OriginPolicy:
    """Which names we answer to, and of which page we take orders."""

    names: frozenset[str]
    public: tuple[str, int | None] | None = None  # the public page's name and port

    @classmethod
    def of(cls, host: str, public_url: str | None = None) -> OriginPolicy:
        """Return the policy of a server bound to *host*: loopback, its own address, and the public one."""
        names = set(LOOPBACK_NAMES)
        if host not in _WILDCARDS:
            names.add(host.strip("[]").lower())
        public = _page(public_url) if public_url else None
        return cls(frozenset({*names, public[0] if public else ""} - {""}), public)

    def knows(self, host: str) -> bool:
        """Return True if a Host header names us, with any port (a container publishes any)."""
        name, _ = _host(host)
        return name in self.names

    def admits(self, origin: str, host: str) -> bool:
        """Return True if a page of *origin* may act on *host*: only our own page may.

        The port counts, because other programs on that machine share its name and the browser's cookies.
        """
        page = _page(origin)
        if page is None:
            return False
        if page == self.public:
            return True  # a proxy may have rewritten Host
        asked, port = _host(host)
        return page == (asked, port or _DEFAULT_PORTS[urlsplit(origin).scheme])


def _page(address: str) -> tuple[str, int | None] | None:
    """Return host name and port of a page's address or origin; None if it is neither."""
    parts = urlsplit(address)
    if parts.scheme not in _DEFAULT_PORTS:
        return None
    name, port = _host(parts.netloc)
    return name, port or _DEFAULT_PORTS[parts.scheme]


def _host(netloc: str) -> tuple[str, int | None]:
    """Return name and port of ``name[:port]``; the name is "" if the netloc is invalid."""
    if "@" in netloc:
        return "", None
    try:
        parts = urlsplit(f"//{netloc}")
        return (parts.hostname or "").lower(), parts.port
    except ValueError:
        return "", None


class OriginGuardMiddleware:
    """ASGI middleware: resolves the request, checks Host and Origin, adds the common response headers."""

    def __init__(self, app: ASGIApp, policy: OriginPolicy, way: TrustedProxies) -> None:
        self._app = app
        self._policy = policy
        self._way = way

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Refuse with 421 or 403, or hand on."""
        if scope["type"] not in ("http", "websocket"):
            await self._app(scope, receive, send)
            return
        arrival = self._way.arrival(scope)
        is_known = self._policy.knows(arrival.host)
        scope.setdefault("state", {})["is_known_host"] = is_known
        refusal = self._refusal(scope, arrival, is_known=is_known)
        if refusal is None:
            with suppress(ClientDisconnect):  # a client that disconnects within a body causes no traceback
                await self._app(arrival.scope(scope), receive, _with_headers(send))
        elif scope["type"] == "websocket":
            await WebSocket(scope, receive, _with_headers(send)).send_denial_response(refusal)
        else:
            await refusal(scope, receive, _with_headers(send))

    def _refusal(self, scope: Scope, arrival: ResolvedRequest, *, is_known: bool) -> Response | None:
        has_any_name = scope["type"] == "http" and scope["method"] in ("GET", "HEAD") and arrival.path in _ANY_NAME
        has_any_name = has_any_name or (scope["type"] == "http" and arrival.path.startswith(API))
        if not is_known and not has_any_name:
            return refuse_name()
        if not self._may_act(scope, arrival):
            line = "Only this server's own page may do that. Its whole address is set by PARLOUR_WEB__PUBLIC_URL.\n"
            return PlainTextResponse(line, 403)
        if arrival.is_bare and scope["type"] == "http":
            return RedirectResponse(f"{quote(self._way.base)}/", 308)
        return None

    def _may_act(self, scope: Scope, arrival: ResolvedRequest) -> bool:
        origins: Iterable[str] = Headers(scope=scope).getlist("origin")
        if all(self._policy.admits(origin, arrival.host) for origin in origins):
            # Browsers send the origin with every POST and WebSocket; a request without one is not from our page.
            is_harmless = scope["method"] in _SAFE if scope["type"] == "http" else False
            is_keyed = scope["type"] == "http" and arrival.path.startswith((HOOKS, API))
            return bool(origins) or is_harmless or is_keyed
        return False


def is_known_host(request: Request) -> bool:
    """Return True if the request's Host header names us; always, where no `OriginGuardMiddleware` has looked."""
    return bool(getattr(request.state, "is_known_host", True))


def refuse_name() -> Response:
    """Return the response to a request by a name that is not ours."""
    return PlainTextResponse(_NAME_REFUSED, 421)


def _with_headers(send: Send) -> Send:
    async def sending(message: Message) -> None:
        if message["type"] in ("http.response.start", "websocket.http.response.start"):
            headers = MutableHeaders(scope=message)
            for name, value in _HEADERS.items():
                headers.setdefault(name, value)
        await send(message)

    return sending
