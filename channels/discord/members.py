"""What an event does not say and Discord is asked for: where a chat is, and who somebody is there."""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from channels.discord import codec
from channels.discord.api import DiscordApi
from channels.discord.codec import DiscordChat, GuildProfile
from channels.discord.gateway_client import DiscordGatewayClient
from gateway.errors import OutcomeUnknown, SendRefused

_KNOWN_FOR = 300.0  # seconds that a looked-up member counts (PEOPLE.md)
_PATIENCE = 3.0  # seconds for a look-up of a member
_MOST_KNOWN = 5_000  # places, members


@dataclass(frozen=True, slots=True, kw_only=True)
class _GuildMember:
    """Somebody in a guild. What their roles allow is the guild's to say, at the moment it is asked."""

    at: datetime  # when it was so
    roles: tuple[str, ...] = ()
    nick: str = ""
    is_gone: bool = False


class DiscordMembers:
    """Places for as long as the process lives, members for five minutes. What cannot be known grants nothing."""

    def __init__(self, rest: DiscordApi, now: Callable[[], datetime]) -> None:
        self._rest = rest
        self._now = now
        self.patience = _PATIENCE
        self._places: OrderedDict[str, DiscordChat] = OrderedDict()
        self._members: OrderedDict[tuple[str, str], tuple[float, _GuildMember]] = OrderedDict()

    async def place(self, chat: str, payload: Mapping[str, Any], client: DiscordGatewayClient) -> DiscordChat:
        """Return where *chat* is, in which *payload* was said."""
        place = self._places.get(chat)
        if place is None:
            place = client.place(chat) or await self._fetch_place(chat, payload)
            self._places[chat] = place
            while len(self._places) > _MOST_KNOWN:
                self._places.popitem(last=False)
        return place

    async def _fetch_place(self, chat: str, payload: Mapping[str, Any]) -> DiscordChat:
        try:
            return codec.place_of(await self._rest.channel(chat))
        except SendRefused:
            # The channel is gone, or closed to us. The least that can be said is said.
            guild = str(payload.get("guild_id") or "")
            return DiscordChat(id=chat, guild=guild, is_direct=not guild)

    async def profile(
        self, place: DiscordChat, payload: Mapping[str, Any], client: DiscordGatewayClient
    ) -> GuildProfile | None:
        """Return what the guild knows of the sender; looked up where the event does not say, as in history.

        Raises SendFailed when Discord cannot be asked now.
        """
        author = payload["author"]
        if author.get("bot") or "webhook_id" in payload:
            return None
        user, member, chat = str(author["id"]), payload.get("member"), place.parent or place.id
        if member is not None:
            self.note(place.guild, user, member, codec.moment_of(payload["id"]))
            return _profile(_known(member, self._now()), place.guild, chat, user, client)
        return await self.member(place.guild, chat, user, client)

    def note(self, guild: str, user: str, member: Mapping[str, Any], at: datetime) -> None:
        """Keep what an event of the moment *at* says of a member: whoever asks later need not ask Discord."""
        age = max((self._now() - at).total_seconds(), 0.0)
        before = self._members.get((guild, user))
        if before is None or at >= before[1].at:  # a session that is resumed brings what is older, too
            self._keep(guild, user, asyncio.get_running_loop().time() - age, _known(member, at))

    async def member(self, guild: str, chat: str, user: str, client: DiscordGatewayClient | None) -> GuildProfile:
        """Return what a guild knows of somebody, not older than five minutes, and what they decide in *chat* now.

        Who is no member any more is a stranger unless named. Raises SendFailed.
        """
        now = asyncio.get_running_loop().time()
        kept = self._members.get((guild, user))
        if kept is not None and now - kept[0] < _KNOWN_FOR:
            return _profile(kept[1], guild, chat, user, client)
        known = await self._fetch_member(guild, user)
        self._keep(guild, user, now, known)
        return _profile(known, guild, chat, user, client)

    async def _fetch_member(self, guild: str, user: str) -> _GuildMember:
        try:
            async with asyncio.timeout(self.patience):
                return _known(await self._rest.member(guild, user), self._now())
        except SendRefused:  # nothing of what roles once allowed holds
            return _GuildMember(is_gone=True, at=self._now())
        except TimeoutError:
            raise OutcomeUnknown(f"no answer about a member in {self.patience} seconds") from None

    def _keep(self, guild: str, user: str, at: float, known: _GuildMember) -> None:
        self._members[guild, user] = (at, known)
        self._members.move_to_end((guild, user))
        while len(self._members) > _MOST_KNOWN:
            self._members.popitem(last=False)


def _known(member: Mapping[str, Any], at: datetime) -> _GuildMember:
    roles = tuple(str(role) for role in member.get("roles") or ())
    return _GuildMember(roles=roles, nick=str(member.get("nick") or ""), at=at)


def _profile(
    known: _GuildMember, guild: str, chat: str, user: str, client: DiscordGatewayClient | None
) -> GuildProfile:
    decides = client is not None and not known.is_gone and client.may_decide(guild, chat, user, known.roles)
    return GuildProfile(roles=known.roles, name=known.nick, is_admin=decides, is_gone=known.is_gone)
