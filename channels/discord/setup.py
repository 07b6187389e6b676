"""Questions and checks of `parlour init` and `parlour doctor`. The library is not imported here."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from gateway.ports.setup import Finding, SetupQuestion, fail, ok, warn

if TYPE_CHECKING:
    import aiohttp

TITLE = "Discord"
PORTAL = "https://discord.com/developers/applications"
STEPS = (
    f"Open {PORTAL}, select New Application, and name it.",
    "Under Bot, select Reset Token and copy the token. On the same page, switch Message Content Intent on and save.",
    "Add the bot to your server with the link that the check below prints.",
    "In Discord: Settings, Advanced, switch Developer Mode on; right-click your own name, Copy User ID.",
)

# docs.discord.com/developers/topics/permissions: all permissions that the bot uses, by Discord's names.
PERMISSIONS: Mapping[str, int] = {
    "Add Reactions": 1 << 6,
    "View Channels": 1 << 10,
    "Send Messages": 1 << 11,
    "Attach Files": 1 << 15,
    "Read Message History": 1 << 16,
    "Create Public Threads": 1 << 35,
    "Send Messages in Threads": 1 << 38,
}
_CONTENT_INTENT = 1 << 18 | 1 << 19  # flags of the application: approved, or on by the switch
_TIMEOUT = 12.0  # seconds for all calls
_FEW_LEFT = 50  # of a day's 1,000 sessions


def questions() -> Sequence[SetupQuestion]:
    """Return the questions of `parlour init`, in order."""
    return (
        SetupQuestion(
            setting="token",
            text="The bot's token",
            help=f"{PORTAL}, your application, Bot, Reset Token",
            is_secret=True,
        ),
        SetupQuestion(
            setting="allow_from",
            text="Who may write: user ids, guild:ID, role:ID or chat:ID, separated by commas",
            help="Switch Developer Mode on (Settings, Advanced), then right-click a name, a server or a role: Copy ID",
        ),
    )


def invite_url(application: str) -> str:
    """Return the link that adds the bot to a guild with exactly the permissions it uses."""
    return (
        f"https://discord.com/oauth2/authorize?client_id={application}"
        f"&scope=bot+applications.commands&permissions={sum(PERMISSIONS.values())}"
    )


def is_discord(api_url: str) -> bool:
    """Return True if the address is Discord's own."""
    return (urlsplit(api_url).hostname or "").removeprefix("www.") in ("discord.com", "discordapp.com")


def not_discord(api_url: str) -> str:
    """Return the error text for another server at the configured address."""
    return f"the server at {api_url} is not Discord; correct `api_url`, or remove it"


async def verify(settings: Any, *, proxy: str = "") -> Sequence[Finding]:
    """Return the findings of real calls. Never raises for an answer of Discord."""
    import aiohttp

    from gateway.net.connector import connector

    if settings.token is None:
        return [fail(f"no token is set; {STEPS[1]}")]
    headers = {"Authorization": f"Bot {settings.token.get_secret_value()}", "User-Agent": "DiscordBot (parlour, 0)"}
    try:
        async with (
            asyncio.timeout(_TIMEOUT),
            aiohttp.ClientSession(connector=connector(proxy), headers=headers) as session,
        ):
            return await _SetupCheck(session, settings.api_url.rstrip("/"), settings.shards).run()
    except (aiohttp.ClientError, OSError, TimeoutError) as error:
        text = f"Discord cannot be reached at {settings.api_url} ({type(error).__name__})"
        return [fail(f"{text}; check the network, or set PARLOUR_PROXY")]
    except (KeyError, TypeError, ValueError, AttributeError):
        return [fail(not_discord(settings.api_url))]


class _SetupCallFailed(Exception):
    """An unsuccessful response; its text is the status."""

    def __init__(self, status: int, *, is_from_discord: bool) -> None:
        super().__init__(str(status))
        self.is_from_discord = is_from_discord


class _SetupCheck:
    def __init__(self, session: aiohttp.ClientSession, base: str, shards: int) -> None:
        self._session = session
        self._shards = shards
        self._base = base

    async def run(self) -> list[Finding]:
        try:
            bot = await self._get("/users/@me")
        except _SetupCallFailed as error:
            is_other = not error.is_from_discord and not is_discord(self._base)
            return [fail(not_discord(self._base) if is_other else _explain(str(error)))]
        findings = [ok(f"the token belongs to {bot['username']}")]
        try:
            application = await self._get("/applications/@me")
            findings.append(_intent(int(application.get("flags") or 0)))
            if application.get("interactions_endpoint_url"):
                findings.append(_ELSEWHERE)
            gateway = await self._get("/gateway/bot")
            findings.append(_sessions(gateway["session_start_limit"]))
            findings += _shards(int(gateway["shards"]), self._shards)
            findings.append(_guilds(await self._get("/users/@me/guilds?limit=200"), str(application["id"])))
        except _SetupCallFailed as error:
            findings.append(warn(f"Discord answered HTTP {error}; try again in a minute"))
        return findings

    async def _get(self, path: str) -> Any:
        async with self._session.get(f"{self._base}{path}", allow_redirects=False) as response:
            if response.status != 200:
                raise _SetupCallFailed(response.status, is_from_discord=_is_error_body(await response.text()))
            return await response.json(content_type=None)


_ELSEWHERE = warn(
    "commands and buttons are sent to another server; clear the field Interactions Endpoint URL:"
    f" {PORTAL}, your application, General Information, Save Changes"
)


def _is_error_body(body: str) -> bool:
    """Return True if *body* is an error of Discord: JSON with a message and a code."""
    with suppress(ValueError):
        found = json.loads(body)
        return isinstance(found, dict) and {"message", "code"} <= found.keys()
    return False


def _explain(status: str) -> str:
    if status == "401":
        return f"Discord rejects the token; create a new one ({PORTAL}, your bot, Bot, Reset Token) and set `token`"
    if status == "429":
        return "Discord's rate limit was reached; check again in a few minutes"
    return f"Discord answered HTTP {status}; if that continues, see https://discordstatus.com"


def _intent(flags: int) -> Finding:
    if flags & _CONTENT_INTENT:
        return ok("Message Content Intent is on")
    text = (
        f"Message Content Intent is off, so Discord would close the connection; switch it on: {PORTAL},"
        " your application, Bot, Privileged Gateway Intents, Save Changes"
    )
    return fail(text)


def _sessions(limit: Mapping[str, Any]) -> Finding:
    left, minutes = int(limit["remaining"]), int(limit["reset_after"]) // 60_000
    if left > _FEW_LEFT:
        return ok(f"{left} of {limit['total']} sessions are left today")
    text = f"only {left} of {limit['total']} sessions are left for {minutes} minutes; find out why the bot reconnects"
    return warn(text) if left else fail(text)


def _shards(recommended: int, configured: int) -> list[Finding]:
    """Return nothing for the one shard that nearly every bot has."""
    if configured and configured < recommended:
        text = f"Discord recommends {recommended} shards, and {configured} is set; set `shards` to auto"
        return [warn(f"{text}, for it refuses bots with more than 2,500 servers on a shard")]
    total = configured or recommended
    return [ok(f"Discord is connected over shards 0 to {total - 1}")] if total > 1 else []


def _guilds(guilds: Sequence[Mapping[str, Any]], application: str) -> Finding:
    link = invite_url(application)
    if not guilds:
        return warn(f"the bot is in no server; add it to yours with this link: {link}")
    names = ", ".join(str(guild["name"]) for guild in guilds[:5])
    more = f" and {len(guilds) - 5} more" if len(guilds) > 5 else ""
    return ok(f"the bot is in {names}{more}; add it to another server: {link}")
