"""Socket Mode by bolt: an envelope is acknowledged when what it holds is durable, and not before."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from datetime import timedelta
from random import SystemRandom
from typing import Any

import aiohttp
import structlog
from slack_bolt.adapter.socket_mode.aiohttp import AsyncSocketModeHandler
from slack_bolt.app.async_app import AsyncApp
from slack_bolt.authorization import AuthorizeResult
from slack_bolt.response import BoltResponse
from slack_sdk.errors import SlackApiError
from slack_sdk.socket_mode.aiohttp import SocketModeClient
from slack_sdk.web.async_client import AsyncWebClient

from channels.slack.api import SlackRefusal, SlackTokenRejected, map_api_error
from gateway.errors import LoginRefused, ParlourError, RetryLater, UserError
from gateway.net.aiohttp_proxy import connector

log = structlog.get_logger(__name__)

Hear = Callable[[dict[str, Any]], Awaitable[bool]]
PING = timedelta(seconds=10)
_AWAY = 3  # intervals without a word until Slack may have given events up; it delivers again for minutes
_DEAF = 6  # intervals without a sign of life until we begin anew
_CROWDED = (1.0, 5.0)  # seconds to wait when too many connections stand; all of them are told at once
_dice = SystemRandom()


class SocketModeRefused(UserError):
    """Slack will not let us listen; the text says what to mend."""


class _SocketModeClient(SocketModeClient):
    """The library's client, but a refusal ends it instead of being asked again for ever."""

    def __init__(
        self, app_token: str, web_client: AsyncWebClient, returned: Callable[[], None], ping: float, proxy: str
    ) -> None:
        super().__init__(
            app_token=app_token, web_client=web_client, ping_interval=ping, on_message_listeners=[self._on_message]
        )
        if proxy:
            self.proxy = None  # the session has ours, and the library would add the environment's
            self.aiohttp_client_session.detach()
            self.aiohttp_client_session = aiohttp.ClientSession(connector=connector(proxy))
        self._returned = returned
        self.crowded = _CROWDED
        self.refused: ParlourError | None = None
        self.ended = asyncio.Event()
        self._greeted_by: object = None
        self.told_at = 0.0  # by the monotonic clock
        self.greeted = asyncio.Event()

    async def issue_new_wss_url(self) -> str:
        """Ask for an address; a refusal that only a person can mend closes the client."""
        try:
            return await super().issue_new_wss_url()
        except SlackApiError as error:
            found = map_api_error(error)
            if isinstance(found, SlackRefusal | SlackTokenRejected):
                self.end(LoginRefused(f"Slack refuses the app-level token: {found.code}; it needs connections:write"))
            raise

    async def run_message_listeners(self, message: dict[str, Any], raw_message: str) -> None:
        """Handle one frame; a disconnect is followed at once, unless the crowd would be made worse."""
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
        # The first word of a connection is its hello. Whether events were given up in a long silence nobody tells.
        is_new = self.current_session is not self._greeted_by
        was_away = not self.greeted.is_set() or time.monotonic() - self.told_at > _AWAY * self.ping_interval
        self._greeted_by = self.current_session
        self.told_at = time.monotonic()
        self.greeted.set()
        if is_new and was_away:
            self._returned()

    def end(self, why: ParlourError) -> None:
        """Close for good."""
        self.refused, self.closed = why, True
        self.ended.set()

    def is_heard(self) -> bool:
        """Say whether the connection of now greeted us and lives; aiohttp closes one that answers no ping in time.

        The library's own `last_ping_pong_time` says nothing: it is set when a ping is sent, answered or not.
        """
        session = self.current_session
        return not self.closed and session is not None and not session.closed and self._greeted_by is session


class _SocketModeHandler(AsyncSocketModeHandler):
    """bolt's handler over our client."""

    def __init__(self, app: AsyncApp, client: _SocketModeClient) -> None:
        self.app = app
        self.app_token = client.app_token
        self.client = client
        client.socket_mode_request_listeners.append(self.handle)  # type: ignore[arg-type]  # as bolt itself does


class SlackSocketMode:
    """One connection to Slack's events. *hear* says of each payload whether it may be acknowledged."""

    def __init__(
        self,
        app_token: str,
        web_client: AsyncWebClient,
        hear: Hear,
        *,
        returned: Callable[[], None],
        ping: timedelta = PING,
        proxy: str = "",
    ) -> None:
        """Listen with *app_token*; *returned* is called when a connection stands, the first and each later one."""
        self._ping = ping.total_seconds()
        self._client = _SocketModeClient(app_token, web_client, returned, self._ping, proxy)
        self._handler = _SocketModeHandler(_app(hear), self._client)

    def is_heard(self) -> bool:
        """Say whether Slack gives signs of life: a greeting, then a pong within one and a half intervals."""
        return self._client.is_heard()

    async def run(self) -> None:
        """Listen until cancelled; raise when Slack refuses us, or when the connection stays dead."""
        try:
            async with asyncio.timeout(_DEAF * self._ping):
                await self._handler.connect_async()  # type: ignore[no-untyped-call]  # bolt's
                await self._greeting()
            await self._watch()
        except TimeoutError as error:
            raise RetryLater(timedelta(seconds=self._ping), "Slack does not answer") from error
        finally:
            await self._handler.close_async()  # type: ignore[no-untyped-call]  # bolt's

    async def _greeting(self) -> None:
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
            if self.is_heard():
                alive_at = time.monotonic()
            elif time.monotonic() - alive_at > _DEAF * self._ping:
                raise RetryLater(timedelta(seconds=self._ping), "deaf: Slack gives no sign of life")

    def _raise_refusal(self) -> None:
        if self._client.refused is not None:
            raise self._client.refused


def _app(hear: Hear) -> AsyncApp:
    async def before_ack(body: dict[str, Any]) -> BoltResponse:
        # Awaited before the ack; anything but 200 is no ack, and Slack delivers again. next() is never
        # called: what no listener takes would be a 404, and so come again for ever.
        return BoltResponse(status=200 if await hear(body) else 503)

    async def nobody() -> AuthorizeResult:
        raise AssertionError("nothing goes past the row")

    return AsyncApp(
        name="parlour",
        client=AsyncWebClient(),  # never used: nothing goes past the row
        authorize=nobody,
        before_authorize=before_ack,
        ignoring_self_events_enabled=False,
        raise_error_for_unhandled_request=False,
    )
