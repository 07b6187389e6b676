"""How events arrive: by Socket Mode, or by HTTP. An event is acknowledged once its payload is durable."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Awaitable, Callable, Mapping
from datetime import timedelta
from random import SystemRandom
from typing import Any
from urllib.parse import parse_qsl

import aiohttp
import structlog
from cachetools import TTLCache
from slack_bolt.adapter.socket_mode.aiohttp import AsyncSocketModeHandler
from slack_bolt.app.async_app import AsyncApp
from slack_bolt.authorization import AuthorizeResult
from slack_bolt.response import BoltResponse
from slack_sdk.errors import SlackApiError
from slack_sdk.signature import SignatureVerifier
from slack_sdk.socket_mode.aiohttp import SocketModeClient
from slack_sdk.web.async_client import AsyncWebClient
from starlette.requests import ClientDisconnect, Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Route

from channels.kit.bodies import read_body
from channels.slack.api import SlackRefusal, SlackTokenRejected, map_api_error
from gateway.errors import LoginRefused, ParlourError, RetryLater, UserError
from gateway.net.connector import connector

log = structlog.get_logger(__name__)

Receive = Callable[[dict[str, Any]], Awaitable[bool]]
PING = timedelta(seconds=10)
_AWAY = 3  # ping intervals of silence after which Slack may have stopped redelivering
_STALLED = 6  # ping intervals of silence after which the connection is restarted
_CROWDED = (1.0, 5.0)  # seconds to wait if there are too many connections; all of them are notified at once
_dice = SystemRandom()


class SocketModeRefused(UserError):
    """Slack refuses the connection; the text contains the remedy."""


class _SocketModeClient(SocketModeClient):
    """The library's client, except that a refusal closes it instead of being retried for ever."""

    def __init__(
        self, app_token: str, web_client: AsyncWebClient, on_return: Callable[[], None], ping: float, proxy: str
    ) -> None:
        super().__init__(
            app_token=app_token, web_client=web_client, ping_interval=ping, on_message_listeners=[self._on_message]
        )
        if proxy:
            self.proxy = None  # the session has ours, and the library would add the environment's
            self.aiohttp_client_session.detach()
            self.aiohttp_client_session = aiohttp.ClientSession(connector=connector(proxy))
        self._on_return = on_return
        self.crowded = _CROWDED
        self.refused: ParlourError | None = None
        self.ended = asyncio.Event()
        self._greeted_by: object = None
        self.message_at = 0.0  # by the monotonic clock
        self.greeted = asyncio.Event()

    async def issue_new_wss_url(self) -> str:
        """Request an address; a refusal that only the operator can fix closes the client."""
        try:
            return await super().issue_new_wss_url()
        except SlackApiError as error:
            failure = map_api_error(error)
            if isinstance(failure, SlackRefusal | SlackTokenRejected):
                self.end(LoginRefused(f"Slack rejects the app-level token: {failure.code}; it needs connections:write"))
            raise

    async def run_message_listeners(self, message: dict[str, Any], raw_message: str) -> None:
        """Handle one frame; reconnect at once after a disconnect, but later if there are too many connections."""
        if message.get("type") == "disconnect":
            reason = str(message.get("reason") or "")
            log.info("slack.disconnect", reason=reason)
            if reason == "link_disabled":
                self.end(SocketModeRefused("Socket Mode is off; switch it on in the app's settings"))
                return
            if reason == "too_many_websockets":
                await asyncio.sleep(_dice.uniform(*self.crowded))
        await super().run_message_listeners(message, raw_message)

    async def _on_message(self, message: aiohttp.WSMessage) -> None:  # noqa: ARG002 - the library's signature
        # The first message of a connection is its hello. Slack does not tell whether a long silence dropped events.
        is_new = self.current_session is not self._greeted_by
        was_away = not self.greeted.is_set() or time.monotonic() - self.message_at > _AWAY * self.ping_interval
        self._greeted_by = self.current_session
        self.message_at = time.monotonic()
        self.greeted.set()
        if is_new and was_away:
            self._on_return()

    def end(self, reason: ParlourError) -> None:
        """Close the client for good."""
        self.refused, self.closed = reason, True
        self.ended.set()

    def is_greeted(self) -> bool:
        """Return True if the current connection sent its hello and is open; aiohttp closes one without a pong in time.

        The library's `last_ping_pong_time` does not help: it is set when a ping is sent, answered or not.
        """
        session = self.current_session
        return not self.closed and session is not None and not session.closed and self._greeted_by is session


class _SocketModeHandler(AsyncSocketModeHandler):
    """bolt's handler over this client."""

    def __init__(self, app: AsyncApp, client: _SocketModeClient) -> None:
        self.app = app
        self.app_token = client.app_token
        self.client = client
        client.socket_mode_request_listeners.append(self.handle)  # type: ignore[arg-type]  # as bolt itself does


class SlackSocketMode:
    """One connection to Slack's events. *receive* returns True for a payload that can be acknowledged."""

    def __init__(
        self,
        app_token: str,
        web_client: AsyncWebClient,
        receive: Receive,
        *,
        on_return: Callable[[], None],
        ping: timedelta = PING,
        proxy: str = "",
    ) -> None:
        """Connect with *app_token*; *on_return* is called after the first connection and after each long silence."""
        self._ping = ping.total_seconds()
        self._client = _SocketModeClient(app_token, web_client, on_return, self._ping, proxy)
        self._handler = _SocketModeHandler(_app(receive), self._client)

    def is_connected(self) -> bool:
        """Return True if Slack sent its hello and answers pings within one and a half intervals."""
        return self._client.is_greeted()

    async def run(self) -> None:
        """Receive until cancelled; raise if Slack refuses the connection or stays silent."""
        try:
            async with asyncio.timeout(_STALLED * self._ping):
                await self._handler.connect_async()  # type: ignore[no-untyped-call]  # bolt's
                await self._wait_hello()
            await self._watch()
        except TimeoutError as error:
            raise RetryLater(timedelta(seconds=self._ping), "Slack does not answer") from error
        finally:
            await self._handler.close_async()  # type: ignore[no-untyped-call]  # bolt's

    async def _wait_hello(self) -> None:
        waits = [asyncio.ensure_future(event.wait()) for event in (self._client.greeted, self._client.ended)]
        try:
            await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for wait in waits:
                wait.cancel()
        self._raise_refusal()

    async def _watch(self) -> None:
        alive_at = time.monotonic()
        while True:
            try:
                async with asyncio.timeout(self._ping):
                    await self._client.ended.wait()
            except TimeoutError:
                pass
            self._raise_refusal()
            if self.is_connected():
                alive_at = time.monotonic()
            elif time.monotonic() - alive_at > _STALLED * self._ping:
                raise RetryLater(timedelta(seconds=self._ping), "Slack gives no sign of life")

    def _raise_refusal(self) -> None:
        if self._client.refused is not None:
            raise self._client.refused


def _app(receive: Receive) -> AsyncApp:
    async def before_ack(body: dict[str, Any]) -> BoltResponse:
        # Awaited before the ack; any other status is not an ack, and Slack redelivers. next() is never
        # called: an event without a listener would answer 404 and be redelivered for ever.
        return BoltResponse(status=200 if await receive(body) else 503)

    async def authorize() -> AuthorizeResult:
        raise AssertionError("no event reaches bolt's own authorization")

    return AsyncApp(
        name="parlour",
        client=AsyncWebClient(),  # never used
        authorize=authorize,
        before_authorize=before_ack,
        ignoring_self_events_enabled=False,
        raise_error_for_unhandled_request=False,
    )


# -- webhook ---------------------------------------------------------------------------------------
# A request is answered with 200 once its event is durable, and refused without Slack's signature, as in
# docs.slack.dev/authentication/verifying-requests-from-slack.

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
