"""Facts that an event does not carry: where a chat is, and the roles and rights of a member."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from cachetools import FIFOCache

from channels.discord import codec
from channels.discord.api import DiscordApi
from channels.discord.codec import DiscordChat, GuildProfile
from channels.discord.gateway_client import DiscordGatewayClient
from channels.kit.background import utc_now
from channels.kit.lookups import LookupCache
from gateway.errors import SendRefused

_TIMEOUT = 3.0  # seconds for the look-up of a member
_SIZE = 5_000  # chats, members
_GUILDS = 200


@dataclass(frozen=True, slots=True, kw_only=True)
class _GuildMember:
    """A member at one moment. The guild decides what their roles allow, at the time of the question."""

    at: datetime
    roles: tuple[str, ...] = ()
    nick: str = ""
    is_gone: bool = False


class DiscordMembers:
    """Chats for the life of the process, members for five minutes. A failed look-up grants nothing."""

    def __init__(self, api: DiscordApi) -> None:
        self._api = api
        self._chats: FIFOCache[str, DiscordChat] = FIFOCache(_SIZE)
        self.members: LookupCache[tuple[str, str], _GuildMember] = LookupCache(  # by guild and user
            "discord member", self._fetch_member, size=_SIZE, timeout=_TIMEOUT
        )
        self.guilds: LookupCache[str, DiscordGatewayClient] = LookupCache(  # read while this one is not connected
            "discord guild", api.read_guild, size=_GUILDS, timeout=_TIMEOUT
        )

    async def chat(self, chat: str, payload: Mapping[str, Any], client: DiscordGatewayClient) -> DiscordChat:
        """Return the facts about *chat*, in which *payload* was sent. Raises SendFailed."""
        if chat not in self._chats:
            self._chats[chat] = client.chat(chat) or await self._fetch_chat(chat, payload)
        return self._chats[chat]

    async def _fetch_chat(self, chat: str, payload: Mapping[str, Any]) -> DiscordChat:
        try:
            return codec.place_of(await self._api.channel(chat))
        except SendRefused:  # the channel is deleted or closed to the bot: only what the event says is known
            guild = str(payload.get("guild_id") or "")
            return DiscordChat(id=chat, guild=guild, is_direct=not guild)

    async def profile(
        self, place: DiscordChat, payload: Mapping[str, Any], client: DiscordGatewayClient
    ) -> GuildProfile | None:
        """Return the sender's profile in the guild, from the event if it carries one; None for a bot.

        Raises SendFailed.
        """
        author = payload["author"]
        if author.get("bot") or "webhook_id" in payload:
            return None
        user, member, chat = str(author["id"]), payload.get("member"), place.parent or place.id
        if member is not None:
            self.record(place.guild, user, member, codec.moment_of(payload["id"]))
            return _profile(_parse_member(member, utc_now()), place.guild, chat, user, client)
        return await self.member(place.guild, chat, user, client)

    def record(self, guild: str, user: str, member: Mapping[str, Any], at: datetime) -> None:
        """Keep the member object of an event that happened *at* that time, which saves a look-up."""
        before = self.members.peek((guild, user))
        if before is None or at >= before.at:  # a resumed session delivers older events too
            age = max((utc_now() - at).total_seconds(), 0.0)
            self.members.put((guild, user), _parse_member(member, at), age=age)

    async def member(self, guild: str, chat: str, user: str, client: DiscordGatewayClient) -> GuildProfile:
        """Return a member's profile, at most five minutes old, with their current rights in *chat*.

        A user who left the guild is an unknown sender unless an entry names them. Raises SendFailed.
        """
        return _profile(await self.members.get((guild, user)), guild, chat, user, client)

    async def _fetch_member(self, key: tuple[str, str]) -> _GuildMember:
        try:
            return _parse_member(await self._api.member(*key), utc_now())
        except SendRefused:  # the roles of a former member grant nothing
            return _GuildMember(is_gone=True, at=utc_now())


def _parse_member(member: Mapping[str, Any], at: datetime) -> _GuildMember:
    roles = tuple(str(role) for role in member.get("roles") or ())
    return _GuildMember(roles=roles, nick=str(member.get("nick") or ""), at=at)


def _profile(member: _GuildMember, guild: str, chat: str, user: str, client: DiscordGatewayClient) -> GuildProfile:
    is_admin = not member.is_gone and client.may_decide(guild, chat, user, member.roles)
    return GuildProfile(roles=member.roles, name=member.nick, is_admin=is_admin, is_gone=member.is_gone)
