"""Slack's Web API: one attempt per call, and every failure is a SendFailed."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from contextlib import AbstractAsyncContextManager
from datetime import timedelta
from typing import Any
from urllib.parse import urlsplit

import aiohttp
from slack_sdk.errors import SlackApiError
from slack_sdk.web.async_client import AsyncWebClient
from slack_sdk.web.async_slack_response import AsyncSlackResponse

from gateway.errors import FormatRefused, OutcomeUnknown, PlaceGone, RetryLater, SendRefused
from gateway.net.connector import connector

_TIMEOUT = 30.0  # seconds for a whole call
_UPLOAD = aiohttp.ClientTimeout(total=50)  # within what delivery gives one call
_UNREACHABLE = timedelta(seconds=2)
_ASKED = timedelta(seconds=30)  # where Slack names no time
_TOKEN = timedelta(minutes=1)

# `ok: false`, and yet it may have been done.
_DOUBTFUL = frozenset({"fatal_error", "internal_error", "service_unavailable", "request_timeout", "team_added_to_org"})
_BUSY = frozenset({"ratelimited", "rate_limited", "message_limit_exceeded"})
_FORMAT = frozenset({"invalid_blocks", "invalid_blocks_format", "invalid_attachments"})
# docs.slack.dev/reference/methods/chat.postMessage, errors about the conversation
_PLACE_GONE = frozenset(
    {
        *("thread_not_found", "cannot_reply_to_message", "channel_not_found", "is_archived", "not_in_channel"),
        *("user_not_in_channel", "restricted_action", "restricted_action_read_only_channel"),
        *("restricted_action_thread_locked", "restricted_action_thread_only_channel"),
        *("restricted_action_non_threadable_channel", "team_access_not_granted", "access_denied"),
    }
)
_TOKENS = frozenset(
    {"invalid_auth", "not_authed", "account_inactive", "token_revoked", "token_expired", "not_allowed_token_type"}
)


class SlackRefusal(SendRefused):
    """Slack refuses the call for good. *code* is Slack's error code, *needed* the missing scope."""

    def __init__(self, code: str, needed: str = "") -> None:
        super().__init__(f"{code}, needs {needed}" if needed else code)
        self.code = code
        self.needed = needed


class SlackPlaceGone(SlackRefusal, PlaceGone):
    """Slack takes no message of the app in the channel or thread."""


class SlackTokenRejected(RetryLater):
    """Slack rejects a token. Nothing was done, so the call is retried until the token is corrected."""

    def __init__(self, code: str) -> None:
        super().__init__(_TOKEN, f"Slack rejects the token: {code}")
        self.code = code


class ForeignAnswer(OutcomeUnknown):
    """An answer that Slack does not give: neither a JSON object with an error code nor a server error."""


def is_slack(base_url: str) -> bool:
    """Return True if the address is Slack's own."""
    host = urlsplit(base_url).hostname or ""
    return host == "slack.com" or host.endswith(".slack.com")


def not_slack(base_url: str, reason: str) -> str:
    """Return the error text for another server at the configured address."""
    return f"the server at {base_url} is not Slack ({reason}); correct `base_url`, or remove it"


class SlackApi:
    """Calls with one bot token. Connects at the first call, through *proxy* if set, until `close`."""

    def __init__(self, token: str, base_url: str, *, proxy: str = "") -> None:
        self._token = token
        self._base_url = base_url
        self.proxy = proxy
        self._session: aiohttp.ClientSession | None = None
        self._client: AsyncWebClient | None = None
        self.refused = asyncio.Event()  # set while the last call was refused for its token

    @property
    def client(self) -> AsyncWebClient:
        """The library's client: no retries, one pool of connections."""
        if self._client is None:
            self._client = AsyncWebClient(
                token=self._token, base_url=self._base_url, session=self._pool(), retry_handlers=[]
            )
            if self.proxy:
                self._client.proxy = None  # the session has it, and the library would add the environment's
        return self._client

    def _pool(self) -> aiohttp.ClientSession:
        if self._session is None:
            timeout = aiohttp.ClientTimeout(total=_TIMEOUT)
            self._session = aiohttp.ClientSession(connector=connector(self.proxy), timeout=timeout)
        return self._session

    async def post(self, method: str, **body: Any) -> AsyncSlackResponse:
        """Call *method* with a JSON body; raise SendFailed."""
        return await self._call(method, {"json": body})

    async def get(self, method: str, **query: Any) -> AsyncSlackResponse:
        """Call a reading *method*; raise SendFailed."""
        return await self._call(method, {"http_verb": "GET", "params": query})

    async def ask(self, method: str, **query: Any) -> AsyncSlackResponse:
        """Call a *method* that does not accept JSON; raise SendFailed."""
        return await self._call(method, {"params": query})

    def open(self, url: str, *, timeout: aiohttp.ClientTimeout) -> AbstractAsyncContextManager[aiohttp.ClientResponse]:
        """Request a file with the token; the caller checks redirects."""
        headers = {"Authorization": f"Bearer {self._token}", "Accept-Encoding": "identity"}
        return self._pool().get(url, headers=headers, timeout=timeout, allow_redirects=False)

    async def upload(self, url: str, data: bytes) -> None:
        """Transfer bytes to an upload address of Slack's; raise SendFailed. They are not visible yet."""
        try:
            async with self._pool().post(url, data=data, timeout=_UPLOAD, allow_redirects=False) as response:
                if response.status != 200:
                    raise OutcomeUnknown(f"upload: HTTP {response.status}")
        except (TimeoutError, aiohttp.ClientError, OSError) as error:
            raise OutcomeUnknown(f"upload: {type(error).__name__}") from error

    async def respond(self, url: str, **body: Any) -> None:
        """Send *body* to the response address of a press or a slash command; raise SendFailed."""
        if not _is_response_url(url, self._base_url):
            raise SlackRefusal("a response address that is not Slack's")
        try:
            async with self._pool().post(url, json=body, allow_redirects=False) as response:
                if response.status != 200:
                    raise SlackRefusal(f"HTTP {response.status}")
        except (TimeoutError, aiohttp.ClientError, OSError) as error:
            raise OutcomeUnknown(type(error).__name__) from error

    async def _call(self, method: str, arguments: Mapping[str, Any]) -> AsyncSlackResponse:
        try:
            answer = await self.client.api_call(method, **arguments)
        except SlackApiError as error:
            failure = map_api_error(error)
            if isinstance(failure, SlackTokenRejected):
                self.refused.set()
            raise failure from error
        except aiohttp.ClientConnectorError as error:  # the request never left
            raise RetryLater(_UNREACHABLE, type(error).__name__) from error
        except (TimeoutError, aiohttp.ClientError, OSError) as error:
            raise OutcomeUnknown(type(error).__name__) from error
        self.refused.clear()
        return answer

    async def close(self) -> None:
        """Close the connections."""
        if self._session is not None:
            await self._session.close()
        self._session = self._client = None


def _is_response_url(url: str, base_url: str) -> bool:
    """Return True if *url* leads to Slack's host for responses, or to that of its API."""
    address, base = urlsplit(url), urlsplit(base_url)
    is_api = (address.scheme, address.netloc) == (base.scheme, base.netloc)
    return is_api or (address.scheme, address.netloc) == ("https", "hooks.slack.com")


def map_api_error(error: SlackApiError) -> Exception:
    """Return *error* as delivery expects it."""
    response = error.response
    status = getattr(response, "status_code", getattr(response, "status", 0))
    if not isinstance(response, AsyncSlackResponse) or not isinstance(response.data, dict):
        return (OutcomeUnknown if status >= 500 else ForeignAnswer)("Slack's answer cannot be read")
    code = str(response.data.get("error") or "")
    if response.status_code == 429 or code in _BUSY:
        return RetryLater(_retry_after(response), code or "ratelimited")
    if response.status_code >= 500 or code in _DOUBTFUL:
        return OutcomeUnknown(code or f"HTTP {response.status_code}")
    if not code:
        return ForeignAnswer(f"HTTP {response.status_code}")
    if code in _TOKENS:
        return SlackTokenRejected(code)
    if code in _FORMAT:
        return FormatRefused(code)
    if code in _PLACE_GONE:
        return SlackPlaceGone(code)
    return SlackRefusal(code, str(response.data.get("needed") or ""))


def _retry_after(response: AsyncSlackResponse) -> timedelta:
    headers = {str(name).lower(): str(value) for name, value in response.headers.items()}
    try:
        return timedelta(seconds=max(float(headers["retry-after"]), 0.0))
    except (KeyError, ValueError):
        return _ASKED


def scopes_of(response: AsyncSlackResponse) -> frozenset[str]:
    """Return the scopes of the token."""
    headers = {str(name).lower(): str(value) for name, value in response.headers.items()}
    return frozenset(scope.strip() for scope in headers.get("x-oauth-scopes", "").split(",") if scope.strip())
