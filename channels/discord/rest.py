"""Discord's REST as the channel uses it: one login, kept while connections to the gateway come and go.

Every method raises SendFailed and nothing else of Discord's; what was sent carries its nonce, so that the
library's own repeats after a 5xx cannot double it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

import discord

from channels.discord.client import GatewayClient
from channels.discord.errors import sending

_PAGE = 100  # messages of one request, Discord's most


class Rest:
    """A logged-in client that never connects."""

    def __init__(self, *, api_url: str, gateway_url: str, proxy: str | None = None) -> None:
        self._make = partial(GatewayClient, api_url=api_url, gateway_url=gateway_url, proxy=proxy)
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

    async def post(self, chat: str, text: str, *, nonce: str, reply_to: str = "") -> str:
        """Post *text* once per *nonce* and return the message's id."""
        answering: dict[str, Any] = {}
        if reply_to:
            # What it answers may be deleted meanwhile: then it stands alone.
            answering["reference"] = discord.MessageReference(
                message_id=int(reply_to), channel_id=int(chat), fail_if_not_exists=False
            )
        with sending():
            message = await self._client.get_partial_messageable(int(chat)).send(
                text, nonce=nonce, mention_author=False, suppress_embeds=True, **answering
            )
        return str(message.id)

    async def edit(self, chat: str, message_id: str, text: str) -> None:
        """Replace a message of ours."""
        message = self._client.get_partial_messageable(int(chat)).get_partial_message(int(message_id))
        with sending():
            await message.edit(content=text)

    async def direct(self, user: str) -> str:
        """Return the id of our direct chat with somebody, opening it if need be."""
        if user not in self._direct:
            with sending():
                self._direct[user] = str((await self._client.http.start_private_message(int(user)))["id"])
        return self._direct[user]

    async def typing(self, chat: str) -> None:
        """Show typing for ten seconds."""
        with sending():
            await self._client.http.send_typing(int(chat))

    async def react(self, chat: str, message_id: str, emoji: str, *, on: bool) -> None:
        """Add or take away our reaction."""
        http = self._client.http
        call = http.add_reaction if on else http.remove_own_reaction
        with sending():
            await call(int(chat), int(message_id), emoji)

    # Reading.

    async def history(
        self, chat: str, *, after: int = 0, before: int = 0, limit: int = _PAGE
    ) -> Sequence[Mapping[str, Any]]:
        """Return messages, the oldest first: those next *after* an id, or the newest there are (*before* an id)."""
        with sending():
            page = await self._client.http.logs_from(int(chat), limit, before=before or None, after=after or None)
        return sorted(page, key=lambda message: int(message["id"]))

    async def channel(self, chat: str) -> Mapping[str, Any]:
        """Return a channel object."""
        with sending():
            return await self._client.http.get_channel(int(chat))

    async def member(self, guild: str, user: str) -> Mapping[str, Any]:
        """Return a member object."""
        with sending():
            return await self._client.http.get_member(int(guild), int(user))
