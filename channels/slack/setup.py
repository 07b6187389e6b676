"""Checks of a Slack channel's settings by real calls; each finding names the setting to change."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import aclosing
from typing import Any

import aiohttp
from slack_sdk.web.async_slack_response import AsyncSlackResponse

from channels.slack import SlackSettings, missing
from channels.slack.api import ForeignAnswer, SlackApi, SlackRefusal, SlackTokenRejected, is_slack, not_slack, scopes_of
from gateway.errors import SendFailed
from gateway.net.connector import connector
from gateway.ports.setup import Finding, fail, ok, warn

_TIMEOUT = 14.0  # seconds for everything
_HELLO_TIMEOUT = 5.0
_APP = re.compile(r"xapp-\d+-(A[A-Z0-9]+)-")


async def verify(settings: Any, environment: Mapping[str, str]) -> Sequence[Finding]:
    """Return the findings of real calls; see `SupportsSetup`."""
    collected: list[Finding] = []
    token = settings.bot_token.get_secret_value() if settings.bot_token else ""
    api = SlackApi(token, settings.base_url, proxy=environment.get("PARLOUR_PROXY", ""))
    try:
        async with asyncio.timeout(_TIMEOUT), aclosing(_findings(api, settings, environment)) as findings:
            async for finding in findings:
                collected += [finding]  # one by one: findings before the timeout count
    except TimeoutError:
        collected.append(
            fail(f"Slack did not answer in time at {settings.base_url}; check the network, or set PARLOUR_PROXY")
        )
    finally:
        await api.close()
    return collected


async def _findings(
    api: SlackApi, settings: SlackSettings, environment: Mapping[str, str]
) -> AsyncGenerator[Finding, None]:
    try:
        account = await api.post("auth.test")
    except SendFailed as error:
        yield _bot_refused(error, settings.base_url)
        return
    yield ok(f"the bot is @{account.get('user')} in the workspace {account.get('team')} ({account['team_id']})")
    for finding in _scopes(account):
        yield finding
    for entry in getattr(settings, "allow_from", ()):
        if entry.startswith("team:") and entry != f"team:{account['team_id']}":
            yield warn(
                f"allow_from names {entry}, but the bot token belongs to another workspace, {account['team_id']}"
            )
    if settings.by_http:
        yield _by_http(environment)
        return
    async for finding in _socket(api, settings, account):
        yield finding


def _scopes(account: AsyncSlackResponse) -> Sequence[Finding]:
    granted = scopes_of(account)
    if not granted:
        return [warn("Slack did not report the scopes of the token")]
    lacks = missing(granted)
    mend = "add it under OAuth & Permissions, Scopes, Bot Token Scopes, and reinstall the app"
    return [
        (fail if scope.is_needed else warn)(f"without the scope {scope.name}, {scope.lost}; {mend}") for scope in lacks
    ] or [ok("the bot token has all scopes that Parlour uses")]


def _by_http(environment: Mapping[str, str]) -> Finding:
    public = environment.get("PARLOUR_WEB__PUBLIC_URL", "").rstrip("/")
    where = f"{public or 'https://<your web.public_url>'}/hooks/<the block's name>"
    return ok(
        f"events arrive over HTTP: set the request URL under Event Subscriptions, Slash Commands and Interactivity to"
        f" {where}, and switch Socket Mode off; Slack checks there whether it reaches the URL"
    )


async def _socket(api: SlackApi, settings: SlackSettings, account: AsyncSlackResponse) -> AsyncGenerator[Finding, None]:
    token = settings.app_token.get_secret_value() if settings.app_token else ""
    other = await _other_app(api, token, account)
    if other:
        yield other
    app = SlackApi(token, settings.base_url, proxy=api.proxy)
    try:
        answer = await app.post("apps.connections.open")
        yield await _check_connection(str(answer["url"]), api.proxy)
    except SlackRefusal as error:
        yield fail(
            f"Slack refuses to connect with the app-level token ({error.code}): it needs the scope connections:write"
            " (Basic Information, App-Level Tokens), and Socket Mode must be on (Socket Mode, Enable)"
        )
    except SlackTokenRejected as error:
        yield fail(
            f"Slack rejects the app-level token ({error.code}): generate one under Basic Information, App-Level"
            " Tokens, with the scope connections:write"
        )
    except SendFailed as error:
        yield fail(f"Slack could not be asked to open a connection: {error}")
    finally:
        await app.close()


async def _other_app(api: SlackApi, token: str, account: AsyncSlackResponse) -> Finding | None:
    """Return an error if the app-level token belongs to another app than the bot token."""
    named = _APP.match(token)
    if not named or not account.get("bot_id"):
        return None
    try:
        bot = await api.get("bots.info", bot=str(account["bot_id"]))
    except SendFailed:
        return None  # unknown without users:read
    own = str((bot.get("bot") or {}).get("app_id") or "")
    if not own or own == named[1]:
        return None
    return fail(
        f"the tokens belong to two apps: the app-level token to {named[1]}, the bot token to {own}; copy both"
        " from the same app"
    )


async def _check_connection(url: str, proxy: str) -> Finding:
    """Connect for a moment. An event in that time is not acknowledged, so Slack redelivers it."""
    try:
        async with (
            asyncio.timeout(_HELLO_TIMEOUT),
            aiohttp.ClientSession(connector=connector(proxy)) as session,
            session.ws_connect(url) as socket,
        ):
            hello = json.loads(await socket.receive_str())
    except (TimeoutError, aiohttp.ClientError, OSError, ValueError, TypeError) as error:
        return fail(f"Socket Mode cannot connect ({type(error).__name__}); check that no proxy blocks wss://")
    if hello.get("type") == "hello":
        return ok("Socket Mode is on and connects")
    if hello.get("reason") == "link_disabled":
        return fail("Socket Mode is off; switch it on in the app's settings: Socket Mode, Enable Socket Mode")
    return warn(f"Slack closes the Socket Mode connection at once: {hello.get('reason') or hello.get('type')}")


def _bot_refused(error: SendFailed, base_url: str) -> Finding:
    if isinstance(error, SlackTokenRejected):
        return fail(f"Slack rejects the bot token ({error.code}): copy it from Install App, Bot User OAuth Token")
    if isinstance(error, SlackRefusal | ForeignAnswer) and not is_slack(base_url):
        return fail(not_slack(base_url, str(error)))
    return fail(f"Slack cannot be reached at {base_url}: {error}")
