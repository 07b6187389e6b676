"""Facts about chats: members with their rights, the messages before a mention, and the threads of answers."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import TYPE_CHECKING, Any

import structlog
from cachetools import FIFOCache

from channels.discord.api import DiscordApi, DiscordRefusal
from channels.discord.gateway_client import DiscordGatewayClient
from channels.discord.parse import (
    DiscordBotIdentity,
    DiscordChat,
    GuildProfile,
    is_ours,
    moment_of,
    parse_message,
    place_beside,
    place_of,
)
from channels.kit.background import utc_now
from channels.kit.chat_facts import LookupCache
from gateway.errors import SendFailed, SendRefused
from gateway.events import ChatKind, InboundKind, InboundMessage, SessionKey
from gateway.i18n import command_names, translate

if TYPE_CHECKING:
    from gateway.store.records import SqlChannelState


log = structlog.get_logger(__name__)

# -- members ---------------------------------------------------------------------------------------
# Where a chat is, and the roles and rights of a member, which an event does not carry.

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
            return place_of(await self._api.channel(chat))
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
            self.record(place.guild, user, member, moment_of(payload["id"]))
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


# -- history ---------------------------------------------------------------------------------------
# Messages before a mention, read when the turn runs, with the senders' profiles that admission needs.

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
            place_beside(message), [each for each in payloads if not is_ours(each, bot)], client
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
            place = place_beside(message)
            return parse_message(
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


# -- reply threads ---------------------------------------------------------------------------------
# `reply_in: thread`: a mention in a channel starts a thread, which has the message's id.
#
# The session key is `<channel>/<message id>` from the start, so a redelivered message has the same key. Without the
# right to create threads the answer is posted in the channel.

_THREADS = 5_000  # threads whose chat is cached
_START_LIMIT = 20_000  # notes of messages that started a thread; edits and deletions of older ones go to the chat
_PREFIX = "begun/"
_NAME_LIMIT = 100  # characters (docs.discord.com/developers/resources/channel, start thread)
_FORBIDDEN = 403


class DiscordReplyThreads:
    """The threads that the bot started, and the chats to which the answers of each session go."""

    def __init__(
        self,
        state: SqlChannelState,
        api: DiscordApi,
        *,
        name: str,
        is_on: Callable[[InboundMessage], bool],
        anywhere: bool,
        exists: Callable[[str], bool],
        language: Callable[[SessionKey], str],
    ) -> None:
        """Start threads for messages for which *is_on* is true; *exists* returns True if Discord announced a chat.

        *anywhere* is True if any chat has `reply_in: thread`: a message part does not name its guild, so that then each
        unknown thread may have to be started. A thread without text is named in the chat's *language*.
        """
        self._state = state
        self._api = api
        self._name = name
        self._is_on = is_on
        self._anywhere = anywhere
        self._exists = exists
        self._language = language
        self._chats: FIFOCache[str, str] = FIFOCache(_THREADS)  # thread -> the chat of its messages
        self._started: dict[str, None] | None = None  # messages that started a thread, the oldest first; None = unread
        self._logged: set[str] = set()  # channels without the right to create threads

    async def with_thread(self, message: InboundMessage, place: DiscordChat) -> InboundMessage:
        """Return *message* with the key of the thread that it starts or started."""
        if not place.has_threads or not self._is_on(message):
            return message
        is_command = message.command.startswith(("/", "!")) or message.command.lower() in command_names()
        starts = message.kind is InboundKind.MESSAGE and message.is_addressed and not is_command
        if not starts and not await self._has_started(message.message_id):
            return message
        return replace(message, key=SessionKey(message.key.channel, f"{message.key.chat}/{message.message_id}"))

    async def start(self, message: InboundMessage) -> None:
        """Store that *message*, which was accepted, started its thread, and start it; else sending the answer does."""
        thread = message.key.thread
        if not thread or thread != message.message_id or not self._is_on(message):
            return
        if not await self._has_started(thread):
            await self._save_start(thread)
        try:
            await self.chat_of(message.key, name=message.text)
        except SendFailed as error:
            log.info("discord.thread_later", thread=thread, reason=str(error))

    async def chat_of(self, key: SessionKey, *, name: str = "") -> str:
        """Return the Discord channel of a session's messages; start the thread if necessary. Raises SendFailed."""
        thread = key.thread
        if not thread or not self._anywhere:
            return thread or key.chat
        if thread not in self._chats:
            self._chats[thread] = thread if self._exists(thread) else await self._start(key, name)
        return self._chats[thread]

    async def _start(self, key: SessionKey, text: str) -> str:
        parent, message = key.parent.chat, key.thread
        name = " ".join(text.removeprefix("@").split())[:_NAME_LIMIT] or translate(
            "discord.thread", self._language(key)
        )
        try:
            await self._api.start_thread(parent, message, name)
        except DiscordRefusal as error:
            if error.status == _FORBIDDEN:
                self._log_once(parent)
                return parent
        except SendRefused as error:
            log.debug("discord.thread_stands", channel=self._name, thread=message, reason=str(error))
        # It exists, or it was not started from a message of that channel, like a forum post.
        return message

    def _log_once(self, parent: str) -> None:
        if parent not in self._logged:
            self._logged.add(parent)
            log.warning("discord.no_threads", channel=self._name, chat=parent, mend="allow Create Public Threads")

    async def _has_started(self, message: str) -> bool:
        return message in await self._load_started()

    async def _load_started(self) -> dict[str, None]:
        if self._started is None:
            ids = [name.removeprefix(_PREFIX) for name in await self._state.all(_PREFIX)]
            if self._started is None:  # another message may have read them meanwhile
                self._started = dict.fromkeys(sorted(ids, key=int))
        return self._started

    async def _save_start(self, message: str) -> None:
        """Note that *message* started a thread; the oldest notes beyond the limit are removed."""
        started = await self._load_started()
        await self._state.save(f"{_PREFIX}{message}", "1")
        started[message] = None
        while len(started) > _START_LIMIT:
            oldest = next(iter(started))
            del started[oldest]
            await self._state.save(f"{_PREFIX}{oldest}", None)
