"""Events by HTTP: a request is answered with 200 once it is durable, and refused without Slack's signature.

https://docs.slack.dev/authentication/verifying-requests-from-slack
"""

from __future__ import annotations

import json
import time
from collections.abc import Awaitable, Callable, Mapping
from typing import Any
from urllib.parse import parse_qsl

import structlog
from cachetools import TTLCache
from slack_sdk.signature import SignatureVerifier
from starlette.requests import ClientDisconnect, Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Route

from channels.kit.webhook import read_body

log = structlog.get_logger(__name__)

Receive = Callable[[dict[str, Any]], Awaitable[bool]]

BODY_LIMIT = 512 * 1024  # bytes; Slack's own bodies are far smaller
_FRESH = 300  # seconds for which a signature is valid
_SEEN_FOR = 2.0 * _FRESH  # by the monotonic clock
_SEEN = 20_000
_LOG_INTERVAL = 60.0  # seconds between two log lines on forgeries
_TIMEOUT = 10.0  # seconds for a body to arrive


class SlackWebhook:
    """The route `/hooks/<channel>`."""

    def __init__(self, name: str, secret: str, receive: Receive) -> None:
        """Pass bodies that Slack signed with *secret* to *receive*, which returns True if they are durable."""
        self._name = name
        self._verifier = SignatureVerifier(secret)
        self._receive = receive
        self._forged = 0
        self._logged_at = -_LOG_INTERVAL
        self._seen: TTLCache[str, None] = TTLCache(_SEEN, _SEEN_FOR)  # signatures of accepted requests

    def route(self) -> Route:
        """Return the route to mount."""
        return Route(f"/hooks/{self._name}", self._answer, methods=["POST"], name=f"{self._name} hook")

    async def _answer(self, request: Request) -> Response:
        at = request.headers.get("X-Slack-Request-Timestamp", "")
        signature = request.headers.get("X-Slack-Signature", "")
        if not _is_fresh(at) or not signature.isascii():
            return self._refuse("stale or unsigned")
        try:
            raw = await read_body(request, limit=BODY_LIMIT, timeout=_TIMEOUT)
        except (TimeoutError, ClientDisconnect):
            return PlainTextResponse("", 408)
        if raw is None:
            return PlainTextResponse("", 413)
        if not self._is_signed(raw, at, signature):
            return self._refuse("wrong signature")
        if signature in self._seen:
            return PlainTextResponse("")  # a replay of an accepted request
        return await self._accept(raw, request.headers.get("Content-Type", ""), signature)

    async def _accept(self, raw: bytes, kind: str, signature: str) -> Response:
        body = _body(raw, kind)
        if body is None:
            log.warning("slack.unreadable", channel=self._name, reason="a signed body that is no JSON and no form")
            return PlainTextResponse("", 400)
        if body.get("type") == "url_verification":
            return PlainTextResponse(str(body.get("challenge") or ""))
        if not await self._receive(body):
            return PlainTextResponse("", 503)  # without X-Slack-No-Retry, so that Slack repeats it
        self._seen[signature] = None
        return PlainTextResponse("")

    def _is_signed(self, raw: bytes, at: str, signature: str) -> bool:
        try:
            return self._verifier.is_valid(raw, at, signature)
        except ValueError:  # a body that is not UTF-8
            return False

    def _refuse(self, reason: str) -> Response:
        self._forged += 1
        if time.monotonic() - self._logged_at >= _LOG_INTERVAL:  # or forgeries could fill the log
            self._logged_at = time.monotonic()
            log.warning("slack.forged", channel=self._name, reason=reason, times=self._forged)
        return PlainTextResponse("", 401)


def _is_fresh(at: str) -> bool:
    return at.isascii() and at.isdigit() and len(at) <= 12 and abs(time.time() - int(at)) <= _FRESH


def _body(raw: bytes, kind: str) -> dict[str, Any] | None:
    """Return the payload: an event is JSON, a slash command a form, a press JSON in a form."""
    try:
        if not kind.startswith("application/x-www-form-urlencoded"):
            return _object(json.loads(raw))
        form: Mapping[str, str] = dict(parse_qsl(raw.decode(), keep_blank_values=True))
        return _object(json.loads(form["payload"])) if "payload" in form else dict(form)
    except (ValueError, RecursionError):
        return None


def _object(value: object) -> dict[str, Any] | None:
    return value if isinstance(value, dict) else None
