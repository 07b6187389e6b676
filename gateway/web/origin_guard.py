"""Checks Host and Origin before any other code sees a request.

Host, because only a name that an attacker's DNS points at us (rebinding) lets a foreign page share our origin;
Origin, because browsers send WebSockets and posts with cookies from any page. Platforms' webhooks (HOOKS) may omit
the Origin. gateway/web/forwarded.py resolves requests behind proxies.
"""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass
from urllib.parse import quote, urlsplit

from starlette.datastructures import Headers, MutableHeaders
from starlette.requests import ClientDisconnect, Request
from starlette.responses import PlainTextResponse, RedirectResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send
from starlette.websockets import WebSocket

from gateway.web.forwarded import ResolvedRequest, TrustedProxies

LOOPBACK_NAMES = frozenset({"localhost", "127.0.0.1", "::1"})
_WILDCARDS = frozenset({"", "0.0.0.0", "::"})  # noqa: S104 - compared with, never bound to
_SAFE = frozenset({"GET", "HEAD", "OPTIONS"})
# Under this path platforms call us: they have no page and no cookie, and prove themselves by a secret of their own.
HOOKS = "/hooks/"
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
            is_harmless = scope["type"] == "http" and (scope["method"] in _SAFE or arrival.path.startswith(HOOKS))
            return bool(origins) or is_harmless
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
