"""Messages before a mention, read when the turn runs, with the senders' profiles that admission needs."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from datetime import datetime
from typing import Any

import structlog

from channels.discord import codec
from channels.discord.api import DiscordApi
from channels.discord.codec import DiscordBotIdentity, DiscordChat, GuildProfile
from channels.discord.gateway_client import DiscordGatewayClient
from channels.discord.members import DiscordMembers
from gateway.errors import SendFailed, SendRefused
from gateway.events import ChatKind, InboundMessage

log = structlog.get_logger(__name__)

_LIMIT = 100  # messages of one request
_CONCURRENT = 8  # look-ups of members


class DiscordHistory:
    """Reads the history of one channel's chats."""

    def __init__(
        self,
        name: str,
        api: DiscordApi,
        members: DiscordMembers,
        *,
        client: Callable[[str], Awaitable[DiscordGatewayClient]],
    ) -> None:
        """*client* returns a client that knows a guild; it raises SendFailed."""
        self._name = name
        self._api = api
        self._members = members
        self._client = client
        self._logged: set[str] = set()  # chats without the right to read the history

    async def messages_before(
        self, message: InboundMessage, *, since: datetime | None, limit: int
    ) -> Sequence[InboundMessage]:
        """Return the messages before *message*; see `SupportsHistory`."""
        if message.chat_kind is ChatKind.DIRECT or not message.message_id:
            return ()
        client = await self._client(message.guild)
        starts_thread = message.key.thread == message.message_id  # its thread is empty yet
        chat = message.key.parent.chat if starts_thread else message.key.thread or message.key.chat
        if self.is_closed(client, chat):
            return ()
        payloads = await self._payloads(message, chat, "" if starts_thread else message.key.thread, min(limit, _LIMIT))
        bot = client.bot_member(message.guild)
        profiles = await self._profiles(
            codec.place_beside(message), [each for each in payloads if not codec.is_ours(each, bot)], client
        )
        messages = (self._parse(message, payload, bot, profiles) for payload in payloads)
        return [each for each in messages if each is not None and (since is None or each.sent_at > since)]

    def is_closed(self, client: DiscordGatewayClient, chat: str) -> bool:
        """Return True if the bot may not read the history of *chat*: Discord would return nothing."""
        if client.may(chat, "read_message_history"):
            return False
        if chat not in self._logged:
            self._logged.add(chat)
            log.warning("discord.no_history", channel=self._name, chat=chat, mend="allow Read Message History")
        return True

    async def _payloads(self, message: InboundMessage, chat: str, thread: str, limit: int) -> list[Mapping[str, Any]]:
        try:
            page = await self._api.history(chat, before=int(message.message_id), limit=limit)
        except SendRefused as error:
            log.info("discord.chat_closed", channel=self._name, chat=chat, reason=str(error))
            return []
        if not thread or any(str(each["id"]) == thread for each in page):
            return list(page)
        start = await self._start(message.key.parent.chat, thread)
        return [start, *page] if start else list(page)

    async def _start(self, parent: str, thread: str) -> Mapping[str, Any] | None:
        """Return the message a thread was started from: in its parent or, for a forum post, in itself."""
        for chat in (parent, thread):
            try:
                return await self._api.message(chat, thread)
            except SendRefused:
                continue
        return None

    async def _profiles(
        self, place: DiscordChat, payloads: Sequence[Mapping[str, Any]], client: DiscordGatewayClient
    ) -> Mapping[str, GuildProfile | None]:
        slots = asyncio.Semaphore(_CONCURRENT)

        async def look_up(payload: Mapping[str, Any]) -> GuildProfile | None:
            async with slots:
                try:
                    return await self._members.profile(place, payload, client)
                except SendFailed:  # without an answer: no roles, and perhaps not a member
                    return GuildProfile(is_gone=True)

        authors = {str(payload["author"]["id"]): payload for payload in payloads}
        found = await asyncio.gather(*(look_up(payload) for payload in authors.values()))
        return dict(zip(authors, found, strict=True))

    def _parse(
        self,
        message: InboundMessage,
        payload: Mapping[str, Any],
        bot: DiscordBotIdentity,
        profiles: Mapping[str, GuildProfile | None],
    ) -> InboundMessage | None:
        try:
            place = codec.place_beside(message)
            return codec.parse_message(
                message.key.channel,
                payload,
                place,
                bot,
                profiles.get(str(payload["author"]["id"])),
                starts_thread=str(payload["id"]) == message.key.thread,
            )
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            log.info("discord.unreadable", channel=self._name, error=type(error).__name__)
            return None
