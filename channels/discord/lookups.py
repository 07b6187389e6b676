"""What an event does not say and Discord is asked for: where a chat is, and who somebody is there."""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Mapping
from typing import Any

from channels.discord import codec
from channels.discord.client import GatewayClient
from channels.discord.codec import Place, Profile
from channels.discord.rest import Rest
from gateway.errors import SendRefused

_KNOWN_FOR = 300.0  # seconds that a looked-up member counts (PEOPLE.md)
_MOST_KNOWN = 5_000  # places, members


class Lookups:
    """Places for as long as the process lives, members for five minutes. What cannot be known grants nothing."""

    def __init__(self, rest: Rest) -> None:
        self._rest = rest
        self._places: OrderedDict[str, Place] = OrderedDict()
        self._members: OrderedDict[tuple[str, str], tuple[float, Profile]] = OrderedDict()

    async def place(self, chat: str, payload: Mapping[str, Any], client: GatewayClient) -> Place:
        """Return where *chat* is, in which *payload* was said."""
        place = self._places.get(chat)
        if place is None:
            place = client.place(chat) or await self._fetch_place(chat, payload)
            self._places[chat] = place
            while len(self._places) > _MOST_KNOWN:
                self._places.popitem(last=False)
        return place

    async def _fetch_place(self, chat: str, payload: Mapping[str, Any]) -> Place:
        try:
            return codec.place_of(await self._rest.channel(chat))
        except SendRefused:
            # The channel is gone, or closed to us. The least that can be said is said.
            guild = str(payload.get("guild_id") or "")
            return Place(id=chat, guild=guild, is_direct=not guild)

    async def profile(self, guild: str, payload: Mapping[str, Any], client: GatewayClient) -> Profile | None:
        """Return what the guild knows of the sender; looked up where the event does not say, as in history.

        Raises SendFailed when Discord cannot be asked now.
        """
        author = payload["author"]
        if author.get("bot") or "webhook_id" in payload:
            return None
        user, member = str(author["id"]), payload.get("member")
        if member is not None:
            return client.profile(guild, user, _roles(member), str(member.get("nick") or ""))
        return await self.member(guild, user, client)

    async def member(self, guild: str, user: str, client: GatewayClient | None) -> Profile:
        """Return what a guild knows of somebody, not older than five minutes. Raises SendFailed."""
        now = asyncio.get_running_loop().time()
        at, known = self._members.get((guild, user), (now - _KNOWN_FOR, Profile()))
        if now - at < _KNOWN_FOR:
            return known
        try:
            member = await self._rest.member(guild, user)
        except SendRefused:  # no member any more: nothing of what roles once allowed holds
            known = Profile()
        else:
            roles, nick = _roles(member), str(member.get("nick") or "")
            known = client.profile(guild, user, roles, nick) if client else Profile(roles=roles, name=nick)
        self._members[guild, user] = (now, known)
        self._members.move_to_end((guild, user))
        while len(self._members) > _MOST_KNOWN:
            self._members.popitem(last=False)
        return known


def _roles(member: Mapping[str, Any]) -> tuple[str, ...]:
    return tuple(str(role) for role in member.get("roles") or ())
