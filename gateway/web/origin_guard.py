"""The door of the web server: Host and Origin are checked before anything else sees a request.

Host, because a name that an attacker's DNS points at us (rebinding) is the only way for a foreign page to
share our origin; Origin, because browsers send WebSockets and posts with cookies from any page. What platforms
call (HOOKS) may leave the Origin out. How a request came through proxies is gateway/web/forwarded.py's to say.
"""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass
from ipaddress import ip_address
from urllib.parse import quote, urlsplit

from starlette.datastructures import Headers, MutableHeaders
from starlette.requests import ClientDisconnect
from starlette.responses import PlainTextResponse, RedirectResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send
from starlette.websockets import WebSocket

from gateway.web.forwarded import ResolvedRequest, TrustedProxies

LOOPBACK_NAMES = frozenset({"localhost", "127.0.0.1", "::1"})
_WILDCARDS = frozenset({"", "0.0.0.0", "::"})  # noqa: S104 - compared with, never bound to
_SAFE = frozenset({"GET", "HEAD", "OPTIONS"})
# Under this path platforms call us: they have no page and no cookie, and prove themselves by a secret of their own.
HOOKS = "/hooks/"
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


def is_loopback(host: str) -> bool:
    """Say whether *host*, as it stands in the settings, is reached from this machine only."""
    if host.lower() == "localhost":
        return True
    try:
        return ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return False


@dataclass(frozen=True, slots=True)
class OriginPolicy:
    """Which names we answer to, and of which page we take orders."""

    names: frozenset[str]
    public: tuple[str, int | None] | None = None  # the public page's name and port

    @classmethod
    def of(cls, host: str, public_url: str | None = None) -> OriginPolicy:
        """Return the door of a server bound to *host*: loopback, its own address, and the public one."""
        names = set(LOOPBACK_NAMES)
        if host not in _WILDCARDS:
            names.add(host.strip("[]").lower())
        public = _page(public_url) if public_url else None
        return cls(frozenset({*names, public[0] if public else ""} - {""}), public)

    def knows(self, host: str) -> bool:
        """Say whether a Host header names us; the port may be another one (a container publishes any)."""
        name, _ = _host(host)
        return name in self.names

    def admits(self, origin: str, host: str) -> bool:
        """Say whether a page of *origin* may act on *host*: only our own page may.

        The port counts: what else runs on that machine has the same name, and the browser's cookies with it.
        """
        page = _page(origin)
        if page is None:
            return False
        if page == self.public:
            return True  # a proxy may have rewritten Host
        asked, port = _host(host)
        return page == (asked, port or _DEFAULT_PORTS[urlsplit(origin).scheme])


def _page(address: str) -> tuple[str, int | None] | None:
    """Return name and port of a page's address or origin; None for what is none."""
    parts = urlsplit(address)
    if parts.scheme not in _DEFAULT_PORTS:
        return None
    name, port = _host(parts.netloc)
    return name, port or _DEFAULT_PORTS[parts.scheme]


def _host(netloc: str) -> tuple[str, int | None]:
    """Return name and port of ``name[:port]``; a netloc that is none has the name ""."""
    if "@" in netloc:
        return "", None
    try:
        parts = urlsplit(f"//{netloc}")
        return (parts.hostname or "").lower(), parts.port
    except ValueError:
        return "", None


class OriginGuardMiddleware:
    """ASGI middleware: the way to us, the door, and the headers that every answer carries."""

    def __init__(self, app: ASGIApp, door: OriginPolicy, way: TrustedProxies) -> None:
        self._app = app
        self._door = door
        self._way = way

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Refuse with 421 or 403, or hand on."""
        if scope["type"] not in ("http", "websocket"):
            await self._app(scope, receive, send)
            return
        arrival = self._way.arrival(scope)
        refusal = self._refusal(scope, arrival)
        if refusal is None:
            with suppress(ClientDisconnect):  # whoever leaves in the middle of a body costs no traceback
                await self._app(arrival.scope(scope), receive, _with_headers(send))
        elif scope["type"] == "websocket":
            await WebSocket(scope, receive, _with_headers(send)).send_denial_response(refusal)
        else:
            await refusal(scope, receive, _with_headers(send))

    def _refusal(self, scope: Scope, arrival: ResolvedRequest) -> Response | None:
        if not self._door.knows(arrival.host):
            line = "This server does not go by that name. Its public address is set by PARLOUR_WEB__PUBLIC_URL.\n"
            return PlainTextResponse(line, 421)
        if not self._may_act(scope, arrival):
            line = "Only this server's own page may do that. Its whole address is set by PARLOUR_WEB__PUBLIC_URL.\n"
            return PlainTextResponse(line, 403)
        if arrival.is_bare and scope["type"] == "http":
            return RedirectResponse(f"{quote(self._way.base)}/", 308)
        return None

    def _may_act(self, scope: Scope, arrival: ResolvedRequest) -> bool:
        origins: Iterable[str] = Headers(scope=scope).getlist("origin")
        if all(self._door.admits(origin, arrival.host) for origin in origins):
            # Browsers name the origin of every post and WebSocket; whatever leaves it out is no page of ours.
            is_harmless = scope["type"] == "http" and (scope["method"] in _SAFE or arrival.path.startswith(HOOKS))
            return bool(origins) or is_harmless
        return False


def _with_headers(send: Send) -> Send:
    async def sending(message: Message) -> None:
        if message["type"] in ("http.response.start", "websocket.http.response.start"):
            headers = MutableHeaders(scope=message)
            for name, value in _HEADERS.items():
                headers.setdefault(name, value)
        await send(message)

    return sending
