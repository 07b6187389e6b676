"""Events by HTTP: what is not signed by Slack is refused before it is read, and 200 is said once it is durable.

https://docs.slack.dev/authentication/verifying-requests-from-slack
"""

from __future__ import annotations

import asyncio
import json
import time
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Mapping
from typing import Any
from urllib.parse import parse_qsl

import structlog
from slack_sdk.signature import SignatureVerifier
from starlette.requests import ClientDisconnect, Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Route

log = structlog.get_logger(__name__)

Hear = Callable[[dict[str, Any]], Awaitable[bool]]

LONGEST = 512 * 1024  # bytes of a body; Slack's own are far smaller
_FRESH = 300  # seconds that a signature is good for
_SEEN_FOR = 2.0 * _FRESH  # by a clock that nobody turns back
_SEEN = 20_000
_QUIET = 60.0  # seconds between two lines on forgeries
_PATIENCE = 10.0  # seconds for a body to arrive


class SlackWebhook:
    """One block's address, `/hooks/<block>`."""

    def __init__(self, name: str, secret: str, hear: Hear) -> None:
        """Hand what Slack signed with *secret* to *hear*, which says whether it is durable."""
        self._name = name
        self._verifier = SignatureVerifier(secret)
        self._hear = hear
        self._forged = 0
        self._told_at = -_QUIET
        self._seen: OrderedDict[str, float] = OrderedDict()  # signatures that had their effect

    def route(self) -> Route:
        """Return the route to mount."""
        return Route(f"/hooks/{self._name}", self._answer, methods=["POST"], name=f"{self._name} hook")

    async def _answer(self, request: Request) -> Response:
        at = request.headers.get("X-Slack-Request-Timestamp", "")
        signature = request.headers.get("X-Slack-Signature", "")
        if not _is_fresh(at) or not signature.isascii():
            return self._refused("stale or unsigned")
        try:
            raw = await _read(request)
        except (TimeoutError, ClientDisconnect):
            return PlainTextResponse("", 408)
        if raw is None:
            return PlainTextResponse("", 413)
        if not self._is_signed(raw, at, signature):
            return self._refused("wrong signature")
        if self._was_seen(signature):
            return PlainTextResponse("")  # the very same request again: its effect was had
        return await self._take(raw, request.headers.get("Content-Type", ""), signature)

    async def _take(self, raw: bytes, kind: str, signature: str) -> Response:
        body = _body(raw, kind)
        if body is None:
            log.warning("slack.unreadable", channel=self._name, reason="a signed body that is no JSON and no form")
            return PlainTextResponse("", 400)
        if body.get("type") == "url_verification":
            return PlainTextResponse(str(body.get("challenge") or ""))
        if not await self._hear(body):
            return PlainTextResponse("", 503)  # without X-Slack-No-Retry: Slack shall bring it again
        self._note(signature)
        return PlainTextResponse("")

    def _is_signed(self, raw: bytes, at: str, signature: str) -> bool:
        try:
            return self._verifier.is_valid(raw, at, signature)
        except ValueError:  # a body that is no UTF-8
            return False

    def _refused(self, reason: str) -> Response:
        self._forged += 1
        if time.monotonic() - self._told_at >= _QUIET:  # anybody can fill a log that says each one
            self._told_at = time.monotonic()
            log.warning("slack.forged", channel=self._name, reason=reason, times=self._forged)
        return PlainTextResponse("", 401)

    def _was_seen(self, signature: str) -> bool:
        now = time.monotonic()
        while self._seen and next(iter(self._seen.values())) < now:
            self._seen.popitem(last=False)
        return signature in self._seen

    def _note(self, signature: str) -> None:
        self._seen[signature] = time.monotonic() + _SEEN_FOR
        while len(self._seen) > _SEEN:
            self._seen.popitem(last=False)


def _is_fresh(at: str) -> bool:
    return at.isascii() and at.isdigit() and len(at) <= 12 and abs(time.time() - int(at)) <= _FRESH


async def _read(request: Request) -> bytes | None:
    """Return the body, None when it is longer than Slack's ever are."""
    length = request.headers.get("Content-Length", "0")
    if not length.isdigit() or int(length) > LONGEST:
        return None
    data = bytearray()
    async with asyncio.timeout(_PATIENCE):
        async for piece in request.stream():
            data += piece
            if len(data) > LONGEST:
                return None
    return bytes(data)


def _body(raw: bytes, kind: str) -> dict[str, Any] | None:
    """Return what *raw* holds: an event as JSON, a slash command as a form, a click as JSON in a form."""
    try:
        if not kind.startswith("application/x-www-form-urlencoded"):
            return _object(json.loads(raw))
        form: Mapping[str, str] = dict(parse_qsl(raw.decode(), keep_blank_values=True))
        return _object(json.loads(form["payload"])) if "payload" in form else dict(form)
    except (ValueError, RecursionError):
        return None


def _object(found: object) -> dict[str, Any] | None:
    return found if isinstance(found, dict) else None
