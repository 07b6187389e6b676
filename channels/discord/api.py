"""Discord's REST API: one login, kept while connections to the gateway come and go, and errors mapped to SendFailed.

A message carries its nonce, so that the library's own retries after a 5xx cannot double it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import timedelta
from functools import partial
from io import BytesIO
from typing import Any

import aiohttp
import discord
from discord.http import MultipartParameters, Route, handle_message_parameters

from channels.discord import MOST_SHARDS
from channels.discord.gateway_client import LONGEST_WINDOW, DiscordGatewayClient
from gateway.errors import FormatRefused, OutcomeUnknown, PlaceGone, RetryLater, SendFailed, SendRefused

_PAGE = 100  # messages of one request, Discord's most
_FOR_ONE = 1 << 6 | 1 << 2  # ephemeral, without embeds


# docs.discord.com/developers/topics/opcodes-and-status-codes, JSON error codes
_CANNOT_REPLY = 160002  # without the right to read the history
_INVALID_BODY = 50035
# Unknown channel or guild, no access or permission, no text channel, an archived thread, a locked one.
_PLACE_GONE = frozenset({10003, 10004, 50001, 50008, 50013, 50024, 50083, 160005})
_TOO_LARGE = 40005
_TOKEN_OF_INTERACTION = 50027  # invalid webhook token: its fifteen minutes are over
_UNREACHABLE_FOR = timedelta(seconds=5)
_TOKEN_REFUSED_FOR = timedelta(minutes=5)
_BANNED_FOR = timedelta(minutes=1)  # a 429 of Cloudflare's, which may name no time


class DiscordRefusal(SendRefused):
    """Discord refuses the call for good: the HTTP status and its JSON error code."""

    def __init__(self, reason: str, code: int, status: int = 0) -> None:
        super().__init__(reason)
        self.code = code
        self.status = status


class DiscordPlaceGone(DiscordRefusal, PlaceGone):
    """Discord takes no message of the bot in the channel or thread."""


@contextmanager
def map_send_errors() -> Iterator[None]:
    """Raise the errors of a call to Discord as SendFailed; other exceptions pass through."""
    try:
        yield
    except SendFailed:
        raise
    except discord.RateLimited as error:
        raise RetryLater(_bounded(error.retry_after), "rate limited by Discord") from error
    except discord.HTTPException as error:
        raise describe_refusal(error) from error
    except aiohttp.ClientConnectorError as error:
        raise RetryLater(_UNREACHABLE_FOR, "no connection to Discord") from error
    except (OSError, aiohttp.ClientError, TimeoutError) as error:
        raise OutcomeUnknown(f"the connection broke: {type(error).__name__}") from error
    except RuntimeError as error:
        if "closed" not in str(error):
            raise
        raise RetryLater(_UNREACHABLE_FOR, "our connection is closed") from error


def describe_refusal(error: discord.HTTPException) -> SendFailed:
    """Return an error response as delivery expects it, with its code but without its text."""
    reason = f"Discord answered {error.status}, code {error.code}"
    if error.status == 429:
        return RetryLater(_retry_after(error), reason)
    if error.status >= 500:
        return OutcomeUnknown(reason)
    if error.status == 401 and error.code != _TOKEN_OF_INTERACTION:
        return RetryLater(_TOKEN_REFUSED_FOR, reason)
    if error.code == _INVALID_BODY:
        return FormatRefused(reason)
    if error.code == _TOO_LARGE or error.status == 413:
        return DiscordRefusal("the file is larger than Discord allows there", _TOO_LARGE)
    kind = DiscordPlaceGone if error.code in _PLACE_GONE else DiscordRefusal
    return kind(reason, error.code, error.status)


def _bounded(seconds: float) -> timedelta:
    return timedelta(seconds=min(seconds, LONGEST_WINDOW.total_seconds()))


def _retry_after(error: discord.HTTPException) -> timedelta:
    try:
        return _bounded(max(float(error.response.headers["Retry-After"]), 1.0))
    except (KeyError, ValueError):
        return _BANNED_FOR


class DiscordApi:
    """A logged-in client that never connects to the gateway. Methods raise SendFailed."""

    def __init__(self, *, api_url: str, gateway_url: str, proxy: str = "") -> None:
        self._make = partial(DiscordGatewayClient, api_url=api_url, gateway_url=gateway_url, proxy=proxy)
        self._client = self._make()
        self._direct: dict[str, str] = {}  # user -> direct chat

    async def login(self, token: str) -> None:
        """Log in; raises discord.LoginFailure for a bad token, discord.HTTPException and OSError otherwise."""
        try:
            await self._client.login(token)
        except BaseException:
            failed, self._client = self._client, self._make()
            await failed.close()
            raise

    async def close(self) -> None:
        """Release the connections."""
        await self._client.close()

    @property
    def me(self) -> str:
        """The bot's user id, "" before the login."""
        user = self._client.user
        return str(user.id) if user else ""

    # Sending.

    async def post(
        self,
        chat: str,
        text: str,
        *,
        nonce: str,
        reply_to: str = "",
        file: tuple[str, bytes, str] | None = None,
        components: Sequence[Mapping[str, Any]] = (),
        calls: str = "",
    ) -> str:
        """Post *text* and *file* (name, bytes, description) once per *nonce* and return the message's id.

        *components* are shown below a text without a file. The mention of the user *calls* notifies; no other does.
        """
        extras: dict[str, Any] = {}
        if reply_to:
            # The message may have been deleted: then the answer is no reply.
            extras["message_reference"] = discord.MessageReference(
                message_id=int(reply_to), channel_id=int(chat), fail_if_not_exists=False
            ).to_message_reference_dict()
        if file is not None:
            extras["file"] = discord.File(BytesIO(file[1]), filename=file[0], description=file[2] or None)
        try:
            # The library's own method would parse the whole response; only the id is needed.
            with (
                handle_message_parameters(
                    text or None,
                    nonce=nonce,
                    flags=discord.MessageFlags(suppress_embeds=True),
                    allowed_mentions=_allowed_mentions(calls),
                    mention_author=False,
                    **extras,
                ) as params,
                map_send_errors(),
            ):
                _add_components(params, components)
                message = await self._client.http.send_message(int(chat), params=params)
        except DiscordRefusal as error:
            if not (reply_to and error.code == _CANNOT_REPLY):
                raise
            return await self.post(chat, text, nonce=nonce, file=file, components=components, calls=calls)
        return str(message["id"])

    async def edit(self, chat: str, message_id: str, text: str, components: Sequence[Mapping[str, Any]] = ()) -> None:
        """Replace a message of the bot."""
        with (
            handle_message_parameters(text, allowed_mentions=discord.AllowedMentions.none()) as params,
            map_send_errors(),
        ):
            _add_components(params, components)
            await self._client.http.edit_message(int(chat), int(message_id), params=params)

    async def direct(self, user: str) -> str:
        """Return the id of the direct chat with *user*; open it if necessary."""
        if user not in self._direct:
            with map_send_errors():
                self._direct[user] = str((await self._client.http.start_private_message(int(user)))["id"])
        return self._direct[user]

    async def typing(self, chat: str) -> None:
        """Show typing for ten seconds."""
        with map_send_errors():
            await self._client.http.send_typing(int(chat))

    async def react(self, chat: str, message_id: str, emoji: str, *, on: bool) -> None:
        """Add or remove the bot's reaction."""
        http = self._client.http
        call = http.add_reaction if on else http.remove_own_reaction
        with map_send_errors():
            await call(int(chat), int(message_id), emoji)

    async def start_thread(self, chat: str, message_id: str, name: str) -> None:
        """Start a thread from a message; it has the message's id."""
        with map_send_errors():
            await self._client.http.start_thread_with_message(
                int(chat), int(message_id), name=name, auto_archive_duration=1440
            )

    # Native commands, authorized by the token in the address.

    async def put_commands(self, guild: str, commands: Sequence[dict[str, Any]]) -> None:
        """Replace the commands of a guild; "" means the global ones."""
        app, payload = int(self._client.application_id or self.me), list(commands)
        with map_send_errors():
            if guild:
                await self._client.http.bulk_upsert_guild_commands(app, int(guild), payload)
            else:
                await self._client.http.bulk_upsert_global_commands(app, payload)

    async def respond(self, interaction: str, token: str, answer: Mapping[str, Any]) -> None:
        """Send the initial response of an interaction."""
        path = "/interactions/{interaction}/{webhook_token}/callback"
        route = Route("POST", path, interaction=int(interaction), webhook_token=token)
        with map_send_errors():
            await self._client.http.request(route, json=answer)

    async def edit_original(self, token: str, text: str, components: Sequence[Mapping[str, Any]] = ()) -> str:
        """Replace "is thinking", or the response that replaced it, by *text*; return the message's id."""
        below = {"components": list(components)} if components else {}
        return await self._answer("PATCH", "/messages/@original", token, {"content": text, **below})

    async def redraw_original(self, token: str, components: Sequence[Mapping[str, Any]]) -> None:
        """Replace the components of the message whose button was pressed."""
        await self._answer("PATCH", "/messages/@original", token, {"components": list(components)})

    async def follow_up(self, token: str, text: str) -> str:
        """Send another message to the user of the command alone."""
        return await self._answer("POST", "", token, {"content": text, "flags": _FOR_ONE})

    async def delete_original(self, token: str) -> None:
        """Remove "is thinking"."""
        with map_send_errors():
            await self._client.http.request(self._webhook("DELETE", "/messages/@original", token))

    async def _answer(self, method: str, where: str, token: str, body: Mapping[str, Any]) -> str:
        with map_send_errors():
            message = await self._client.http.request(
                self._webhook(method, where, token), json={**body, "allowed_mentions": {"parse": []}}
            )
        return str(message["id"])

    def _webhook(self, method: str, where: str, token: str) -> Route:
        path = "/webhooks/{webhook_id}/{webhook_token}" + where
        return Route(method, path, webhook_id=int(self._client.application_id or self.me), webhook_token=token)

    # Reading.

    async def history(
        self, chat: str, *, after: int = 0, before: int = 0, limit: int = _PAGE
    ) -> Sequence[Mapping[str, Any]]:
        """Return messages, oldest first: the next ones *after* an id, or the newest (*before* an id)."""
        with map_send_errors():
            page = await self._client.http.logs_from(int(chat), limit, before=before or None, after=after or None)
        return sorted(page, key=lambda message: int(message["id"]))

    async def message(self, chat: str, message_id: str) -> Mapping[str, Any]:
        """Return one message."""
        with map_send_errors():
            return await self._client.http.get_message(int(chat), int(message_id))

    async def recommended_shards(self) -> tuple[int, int]:
        """Return the number of shards that Discord recommends, and of those that may begin a session at once."""
        try:
            with map_send_errors():
                shards, _, limit = await self._client.http.get_bot_gateway()
            found = int(shards), int(limit["max_concurrency"])
        except (discord.GatewayNotFound, KeyError, TypeError, ValueError) as error:
            raise OutcomeUnknown("Discord does not say how many shards it recommends") from error
        if not (1 <= found[0] <= MOST_SHARDS and found[1] >= 1):
            raise OutcomeUnknown(
                f"Discord recommends {found[0]} shards, {found[1]} at once; at most {MOST_SHARDS} are run"
            )
        return found

    async def channel(self, chat: str) -> Mapping[str, Any]:
        """Return a channel object."""
        with map_send_errors():
            return await self._client.http.get_channel(int(chat))

    async def member(self, guild: str, user: str) -> Mapping[str, Any]:
        """Return a member object."""
        with map_send_errors():
            return await self._client.http.get_member(int(guild), int(user))

    async def guild(self, guild: str) -> Mapping[str, Any]:
        """Return a guild object with its channels, active threads and our member, as the gateway announces it."""
        http, number = self._client.http, int(guild)
        with map_send_errors():
            found = await http.get_guild(number, with_counts=False)
            channels = await http.get_all_guild_channels(number)
            threads = await http.get_active_threads(number)
            member = await http.get_member(number, int(self.me))
        return {**found, "channels": channels, "threads": threads.get("threads") or [], "members": [member]}

    async def read_guild(self, guild: str) -> DiscordGatewayClient:
        """Return a client that knows *guild* as if it were connected: for a process without a gateway connection."""
        found = await self.guild(guild)
        try:
            self._client.add_guild(found)
        except (KeyError, TypeError, ValueError, AttributeError) as error:  # the library expects fields in all of them
            raise OutcomeUnknown(f"the server cannot be read: {type(error).__name__}") from error
        return self._client


def _allowed_mentions(user: str) -> discord.AllowedMentions:
    users = [discord.Object(int(user))] if user.isdecimal() else False
    return discord.AllowedMentions(everyone=False, roles=False, users=users, replied_user=False)


def _add_components(params: MultipartParameters, components: Sequence[Mapping[str, Any]]) -> None:
    """Add raw *components* to a message; the library would demand objects that wait for presses."""
    if components and params.payload is not None:
        params.payload["components"] = list(components)
