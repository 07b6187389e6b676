"""Slack's events by HTTP: signed as Slack signs them, brought again as Slack brings them again, and forged."""

from __future__ import annotations

import hashlib
import hmac
import json
import time
from collections.abc import Mapping
from typing import Any
from urllib.parse import urlencode

import aiohttp

SIGNING_SECRET = "0123456789abcdef0123456789abcdef"


def sign(body: bytes, *, at: int | None = None, secret: str = SIGNING_SECRET) -> dict[str, str]:
    """Return the two headers that prove *body*."""
    stamp = str(int(time.time()) if at is None else at)
    digest = hmac.new(secret.encode(), b"v0:" + stamp.encode() + b":" + body, hashlib.sha256).hexdigest()
    return {"X-Slack-Request-Timestamp": stamp, "X-Slack-Signature": f"v0={digest}"}


def encode(kind: str, payload: Mapping[str, Any]) -> tuple[bytes, str]:
    """Return a payload as Slack sends it, and its type: JSON, a form, or JSON in a form."""
    if kind == "events_api":
        return json.dumps(payload).encode(), "application/json"
    form = {"payload": json.dumps(payload)} if kind == "interactive" else payload
    return urlencode(form).encode(), "application/x-www-form-urlencoded"


async def post(
    url: str, body: bytes, kind: str = "application/json", headers: Mapping[str, str] | None = None
) -> tuple[int, str, Mapping[str, str]]:
    """Send *body* (signed, unless *headers* say otherwise); return status, text and headers of the answer."""
    sent = {"Content-Type": kind, **(sign(body) if headers is None else headers)}
    async with aiohttp.ClientSession() as session, session.post(url, data=body, headers=sent) as response:
        return response.status, await response.text(), dict(response.headers)


async def push(url: str, kind: str, payload: Mapping[str, Any], attempt: int) -> bool:
    """Bring an event; return whether Slack would take it for delivered, or shall not try again."""
    body, content = encode(kind, payload)
    headers = sign(body)
    if attempt:
        headers |= {"X-Slack-Retry-Num": str(attempt), "X-Slack-Retry-Reason": "http_error"}
    try:
        status, _, answer = await post(url, body, content, headers)
    except aiohttp.ClientError:
        return False
    return status == 200 or "X-Slack-No-Retry" in answer
