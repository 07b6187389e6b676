"""Discord's REST as the channel uses it: one login, kept while connections to the gateway come and go.

Every method raises SendFailed and nothing else of Discord's; what was sent carries its nonce, so that the
library's own repeats after a 5xx cannot double it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from io import BytesIO
from typing import Any

import discord
from discord.http import MultipartParameters, Route, handle_message_parameters

from channels.discord.errors import CANNOT_REPLY, DiscordRefusal, map_send_errors
from channels.discord.gateway_client import DiscordGatewayClient

_PAGE = 100  # messages of one request, Discord's most
_FOR_ONE = 1 << 6 | 1 << 2  # ephemeral, without embeds


class DiscordApi:
    """A logged-in client that never connects."""

    def __init__(self, *, api_url: str, gateway_url: str, proxy: str = "") -> None:
        self._make = partial(DiscordGatewayClient, api_url=api_url, gateway_url=gateway_url, proxy=proxy)
        self._client = self._make()
        self._direct: dict[str, str] = {}  # a person's direct chat with us

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
        """Our user id."""
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
        file: tuple[str, bytes] | None = None,
        components: Sequence[Mapping[str, Any]] = (),
    ) -> str:
        """Post *text* and the *file* (name, bytes) once per *nonce* and return the message's id.

        *components* stand below a text without a file.
        """
        try:
            return await self._post(chat, text, nonce, reply_to, file, components)
        except DiscordRefusal as error:
            if not (reply_to and error.code == CANNOT_REPLY):
                raise
        return await self._post(chat, text, nonce, "", file, components)

    async def _post(
        self,
        chat: str,
        text: str,
        nonce: str,
        reply_to: str,
        file: tuple[str, bytes] | None,
        components: Sequence[Mapping[str, Any]],
    ) -> str:
        extras: dict[str, Any] = {}
        if reply_to:
            # What it answers may be deleted meanwhile: then it stands alone.
            extras["message_reference"] = discord.MessageReference(
                message_id=int(reply_to), channel_id=int(chat), fail_if_not_exists=False
            ).to_message_reference_dict()
        if file is not None:
            extras["file"] = discord.File(BytesIO(file[1]), filename=file[0])
        # The library would read the whole answer; all we want of it is the id.
        with (
            handle_message_parameters(
                text or None,
                nonce=nonce,
                flags=discord.MessageFlags(suppress_embeds=True),
                allowed_mentions=discord.AllowedMentions.none(),
                mention_author=False,
                **extras,
            ) as params,
            map_send_errors(),
        ):
            _put_below(params, components)
            message = await self._client.http.send_message(int(chat), params=params)
        return str(message["id"])

    async def edit(self, chat: str, message_id: str, text: str, components: Sequence[Mapping[str, Any]] = ()) -> None:
        """Replace a message of ours."""
        with (
            handle_message_parameters(text, allowed_mentions=discord.AllowedMentions.none()) as params,
            map_send_errors(),
        ):
            _put_below(params, components)
            await self._client.http.edit_message(int(chat), int(message_id), params=params)

    async def direct(self, user: str) -> str:
        """Return the id of our direct chat with somebody, opening it if need be."""
        if user not in self._direct:
            with map_send_errors():
                self._direct[user] = str((await self._client.http.start_private_message(int(user)))["id"])
        return self._direct[user]

    async def typing(self, chat: str) -> None:
        """Show typing for ten seconds."""
        with map_send_errors():
            await self._client.http.send_typing(int(chat))

    async def react(self, chat: str, message_id: str, emoji: str, *, on: bool) -> None:
        """Add or take away our reaction."""
        http = self._client.http
        call = http.add_reaction if on else http.remove_own_reaction
        with map_send_errors():
            await call(int(chat), int(message_id), emoji)

    async def start_thread(self, chat: str, message_id: str, name: str) -> None:
        """Begin a thread from a message; it has the message's id."""
        with map_send_errors():
            await self._client.http.start_thread_with_message(
                int(chat), int(message_id), name=name, auto_archive_duration=1440
            )

    # Native commands. The token in the address is what allows these.

    async def put_commands(self, guild: str, commands: Sequence[dict[str, Any]]) -> None:
        """Have *commands*, and no others, in a guild; "" = everywhere."""
        app, payload = int(self._client.application_id or self.me), list(commands)
        with map_send_errors():
            if guild:
                await self._client.http.bulk_upsert_guild_commands(app, int(guild), payload)
            else:
                await self._client.http.bulk_upsert_global_commands(app, payload)

    async def respond(self, interaction: str, token: str, answer: Mapping[str, Any]) -> None:
        """Give an interaction its first answer."""
        path = "/interactions/{interaction}/{webhook_token}/callback"
        route = Route("POST", path, interaction=int(interaction), webhook_token=token)
        with map_send_errors():
            await self._client.http.request(route, json=answer)

    async def edit_original(self, token: str, text: str, components: Sequence[Mapping[str, Any]] = ()) -> str:
        """Put *text* where "is thinking" stands, or what took its place; return the message's id."""
        below = {"components": list(components)} if components else {}
        return await self._answer("PATCH", "/messages/@original", token, {"content": text, **below})

    async def redraw_original(self, token: str, components: Sequence[Mapping[str, Any]]) -> None:
        """Leave *components* alone below the message whose button was pressed."""
        await self._answer("PATCH", "/messages/@original", token, {"components": list(components)})

    async def follow_up(self, token: str, text: str) -> str:
        """Say more to the one who used the command, and to nobody else."""
        return await self._answer("POST", "", token, {"content": text, "flags": _FOR_ONE})

    async def delete_original(self, token: str) -> None:
        """Take "is thinking" away."""
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
        """Return messages, the oldest first: those next *after* an id, or the newest there are (*before* an id)."""
        with map_send_errors():
            page = await self._client.http.logs_from(int(chat), limit, before=before or None, after=after or None)
        return sorted(page, key=lambda message: int(message["id"]))

    async def message(self, chat: str, message_id: str) -> Mapping[str, Any]:
        """Return one message."""
        with map_send_errors():
            return await self._client.http.get_message(int(chat), int(message_id))

    async def channel(self, chat: str) -> Mapping[str, Any]:
        """Return a channel object."""
        with map_send_errors():
            return await self._client.http.get_channel(int(chat))

    async def member(self, guild: str, user: str) -> Mapping[str, Any]:
        """Return a member object."""
        with map_send_errors():
            return await self._client.http.get_member(int(guild), int(user))


def _put_below(params: MultipartParameters, components: Sequence[Mapping[str, Any]]) -> None:
    """Add buttons as they are to what is sent; the library would want objects that wait for presses."""
    if components and params.payload is not None:
        params.payload["components"] = list(components)
