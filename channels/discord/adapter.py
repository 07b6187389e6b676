"""Discord's channel: wires receiving and sending of one bot."""

from __future__ import annotations

import asyncio
import base64
import hashlib
from collections.abc import AsyncGenerator, Callable, Coroutine, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from functools import partial
from typing import Any

import discord

from channels.discord import render
from channels.discord.api import DiscordApi, DiscordRefusal, map_send_errors
from channels.discord.chats import DiscordHistory, DiscordMembers, DiscordReplyThreads
from channels.discord.gateway_client import DiscordGatewayClient
from channels.discord.gateway_connection import DiscordGateway, login_error
from channels.discord.inbound import DiscordInbound, InboundLimits
from channels.discord.interactions import DiscordCommands, DiscordInteractions, DiscordReactions
from channels.discord.outbound import DiscordFiles, DiscordOutbound
from channels.discord.shards import BotShard, IdentifyLimit, carry_notes, list_shards
from channels.kit.background import RepeatedActivity
from channels.kit.bodies import build_receipt
from channels.kit.chat_facts import FollowedThreads
from gateway.channel import ChannelContext
from gateway.errors import RetryLater, StoreUnavailable, UserError
from gateway.events import (
    Attachment,
    DeliveryReceipt,
    InboundMessage,
    MessagePart,
    OutboundMessage,
    Sender,
    SessionKey,
)
from gateway.ports.channel import ChannelCapabilities, ChatActivity, PlatformEvent, ReplyPolicy, channel_wide_key

_FATAL_PAUSE = 900.0  # seconds after a refused token or intent: each attempt costs one of the day's 1,000 IDENTIFYs
_LOGIN_WAIT = timedelta(seconds=2)
_FOLLOWED_THREADS = 5_000
_PREVIEW_INTERVAL = timedelta(seconds=1.2)
_TYPING_INTERVAL = 8.0  # seconds; Discord shows it for ten


@dataclass(frozen=True, slots=True, kw_only=True)
class DiscordShard:
    """The receiver of one shard's events. Implements `ChannelShard`."""

    shard: BotShard
    connection: str
    inbound: DiscordInbound
    gateway: DiscordGateway
    run: Callable[[], Coroutine[Any, Any, None]]
    run_sender: Callable[[], Coroutine[Any, Any, None]]

    def is_ready(self) -> bool:
        """Return True if a frame arrived within two heartbeat intervals."""
        return self.gateway.is_ready()


class DiscordChannel:
    """One bot. Implements `Channel` and the `Supports…` of files, history, replay, senders and shards."""

    capabilities = ChannelCapabilities(
        text_limit=render.LIMIT,
        max_parts=render.MOST_PARTS,
        edits=True,
        finds=True,
        send_key=True,
        send_key_for=timedelta(minutes=2),  # Discord remembers a nonce for "a few minutes"
        rings=True,
        preview_every=_PREVIEW_INTERVAL,
        shows_activity=True,
        file_limit=render.FILE_LIMIT,
        choices=render.MOST_BUTTONS,
        mentions=True,
    )

    def __init__(self, context: ChannelContext, *, identify_pause: float = 5.0) -> None:
        self.name = context.name
        self._settings = context.settings
        self._context = context
        self._language = context.language
        addresses: dict[str, Any] = {
            "api_url": context.settings.api_url,
            "gateway_url": context.settings.gateway_url,
            "proxy": context.proxy,
        }
        self._api = api = DiscordApi(**addresses)
        self._reactions = DiscordReactions(context, api)
        self._files = DiscordFiles(api, api_url=context.settings.api_url, proxy=context.proxy)
        self._threads = self._build_threads(context)
        self._followed = FollowedThreads(context.state, size=_FOLLOWED_THREADS, is_shared=context.is_shared)
        self._limits = InboundLimits()
        self._interactions = DiscordInteractions(context, api, self._reactions)
        self._typing = RepeatedActivity(self._reactions.tasks, _TYPING_INTERVAL)
        self._members = DiscordMembers(api)
        self._history = DiscordHistory(self.name, api, self._members, client=self._client_of)
        self._outbound = DiscordOutbound(
            api,
            self._threads,
            self._interactions,
            self._reactions,
            context.blobs,
            language=context.language,
            file_limit=self._file_limit,
        )
        self._commands = DiscordCommands(
            self.name,
            context.state,
            api,
            where=context.settings.commands,
            language=context.language(channel_wide_key(self.name)),
        )
        self._make = partial(DiscordGatewayClient, **addresses)
        self._bot = _bot_of(self._token)
        self._identify_limit = IdentifyLimit(identify_pause, context.connections, f"{self.name}:{self._bot}")
        self._shards: Sequence[DiscordShard] = ()
        self._refused_until = 0.0  # by the loop's clock
        self._login = asyncio.Lock()
        self._logged_in = asyncio.Event()

    def _build_threads(self, context: ChannelContext) -> DiscordReplyThreads:
        def policy(message: InboundMessage) -> ReplyPolicy:
            return context.reply_policy(message.key.chat, message.guild)

        return DiscordReplyThreads(
            context.state,
            self._api,
            name=self.name,
            is_on=lambda message: policy(message).reply_in == "thread",
            anywhere=any(each.reply_in == "thread" for each in context.all_reply_policies()),
            exists=lambda chat: self._client_with(chat) is not None,
            language=context.language,
        )

    def _build_shard(self, shard: BotShard) -> DiscordShard:
        context = self._context
        inbound = DiscordInbound(
            context,
            self._api,
            shard,
            limits=self._limits,
            members=self._members,
            history=self._history,
            threads=self._threads,
            followed=self._followed,
            reactions=self._reactions,
            interactions=self._interactions,
        )
        gateway = DiscordGateway(
            self.name,
            inbound,
            context.state,
            shard=shard,
            identify_limit=self._identify_limit,
            make=self._make,
            on_ready=partial(self._on_ready, shard),
        )
        return DiscordShard(
            shard=shard,
            connection=f"{self._bot}/{shard.number}",
            inbound=inbound,
            gateway=gateway,
            run=partial(self._run, gateway),
            run_sender=self.run_sender,
        )

    def _client_with(self, chat: str) -> DiscordGatewayClient | None:
        """Return the connected client that has the channel or thread *chat*."""
        clients = (each.inbound.client for each in self._shards)
        return next((each for each in clients if each is not None and each.chat(chat) is not None), None)

    def _client_for(self, guild: str) -> DiscordGatewayClient | None:
        """Return the client of the shard of *guild*, if it is connected here."""
        return next((each.inbound.client for each in self._shards if each.shard.has(guild)), None)

    def _file_limit(self, chat: str) -> int:
        client = self._client_with(chat)
        return client.file_limit(chat) if client else render.FILE_LIMIT

    def _on_ready(self, shard: BotShard, guilds: Sequence[str]) -> None:
        self._reactions.tasks.start(partial(self._commands.register, guilds, shard), "commands")

    # -- receiving -----------------------------------------------------------------------------

    async def run(self) -> None:
        """Receive over every shard until cancelled; raise if Discord refuses the bot, or cannot be reached at first."""
        runs = [asyncio.create_task(shard.run(), name=f"{self.name} shard") for shard in await self.shards()]
        try:
            ended, _ = await asyncio.wait(runs, return_when=asyncio.FIRST_COMPLETED)
            await ended.pop()
        finally:
            for run in runs:
                run.cancel()
            await asyncio.gather(*runs, return_exceptions=True)

    async def shards(self) -> Sequence[DiscordShard]:
        """Return the bot's shards, which stay the same until a restart. Raises as `run`. See `SupportsShards`."""
        total = self._settings.shards
        if not self._shards:
            if total != 1:
                await self._begin()
                recommended, self._identify_limit.max_concurrency = await self._api.recommended_shards()
                total = total or recommended
            await carry_notes(self._context.state, total)
            self._shards = [self._build_shard(shard) for shard in list_shards(total)]
        return self._shards

    async def _run(self, gateway: DiscordGateway) -> None:
        await self._begin()
        self._reactions.acks.start()
        try:
            await gateway.run(self._token)
        except UserError:
            self._note_refusal()
            raise

    async def run_sender(self) -> None:
        """Send without a gateway connection, until cancelled; raise as `run`. See `ChannelShard`."""
        await self._begin()
        await asyncio.Event().wait()

    async def _begin(self) -> None:
        """Log in unless that is done, after a refusal of the bot not at once."""
        await asyncio.sleep(max(self._refused_until - asyncio.get_running_loop().time(), 0.0))
        async with self._login:
            if self._api.me:
                return
            try:
                await self._log_in()
            except UserError:
                self._note_refusal()
                raise
            self._logged_in.set()

    def _note_refusal(self) -> None:
        self._refused_until = asyncio.get_running_loop().time() + _FATAL_PAUSE

    async def _log_in(self) -> None:
        """Log in; raise UserError for a wrong token or address, or SendFailed."""
        try:
            with map_send_errors():
                await self._api.login(self._token)
        except (discord.LoginFailure, DiscordRefusal, TypeError, KeyError, ValueError, AttributeError) as error:
            raise login_error(self.name, self._settings.api_url, error) from None

    @property
    def _token(self) -> str:
        token: str = self._settings.token.get_secret_value()
        return token

    async def replay(self, event: PlatformEvent) -> None:
        """Take in a message that was quarantined; see `SupportsReplay`."""
        guild = event.origin.guild if event.origin else ""
        inbound = next((each.inbound for each in self._shards if each.shard.has(guild)), None)
        if inbound is None:
            raise StoreUnavailable("not connected yet")
        await inbound.replay(event)

    def is_ready(self) -> bool:
        """Return True if every shard that this process connects is connected, and there is one."""
        running = [each for each in self._shards if each.inbound.client is not None]
        return bool(running) and all(each.is_ready() for each in running)

    def is_watched(self, key: SessionKey) -> bool:  # noqa: ARG002 - the port's signature
        """Return True: Discord does not report readers."""
        return True

    # -- files, history, senders ---------------------------------------------------------------

    def fetch(self, attachment: Attachment) -> AsyncGenerator[bytes, None]:
        """Yield a file that came with a message; see `SupportsFiles`."""
        return self._files.fetch(attachment)

    async def messages_before(
        self, message: InboundMessage, *, since: datetime | None, limit: int
    ) -> Sequence[InboundMessage]:
        """Return the messages before *message*; see `SupportsHistory`."""
        await self._wait_login()
        return await self._history.messages_before(message, since=since, limit=limit)

    async def sender(self, message: InboundMessage) -> Sender:
        """Return the sender of *message* with their current roles and rights; see `SupportsSenderLookup`."""
        if not message.guild:
            return message.sender
        await self._logged_in.wait()
        client = await self._client_of(message.guild)
        user, chat = message.sender.id, message.key.parent.chat
        profile = await self._members.member(message.guild, chat, user, client)
        return replace(message.sender, roles=profile.roles, is_admin=profile.is_admin, is_guest=profile.is_gone)

    async def _client_of(self, guild: str) -> DiscordGatewayClient:
        """Return the connected client of *guild*; without a connection here, one that has read the guild over REST.

        Raises SendFailed.
        """
        client = self._client_for(guild)
        if client is None:
            return await self._members.guilds.get(guild)
        await client.load_guild(guild, self._api.guild)
        return client

    # -- sending -------------------------------------------------------------------------------

    def render(self, message: OutboundMessage, *, least: int = 0) -> Sequence[MessagePart]:
        """Split and format *message*."""
        return render.render(message, self._language, least=least)

    async def send(self, part: MessagePart, *, may_be_duplicate: bool = False) -> DeliveryReceipt:
        """Post *part* with its id as nonce: the library's own retries return the message that was posted."""
        await self._wait_login()
        return build_receipt(part, await self._outbound.send(part, may_be_duplicate=may_be_duplicate))

    async def edit(self, message_id: str, part: MessagePart) -> DeliveryReceipt:
        """Replace the message *message_id*."""
        await self._wait_login()
        await self._outbound.edit(message_id, part)
        return build_receipt(part, message_id)

    async def find(self, part: MessagePart) -> DeliveryReceipt | None:
        """Look the part up among the bot's messages after the question."""
        await self._wait_login()
        message_id = await self._outbound.find(part)
        return build_receipt(part, message_id) if message_id else None

    async def show(self, activity: ChatActivity) -> None:
        """Show or stop typing; Discord has no status texts."""
        if activity.on and self._api.me:
            self._typing.start(activity.key, partial(self._show_typing, activity.key))
        elif not activity.on:
            await self._typing.stop(activity.key)

    async def _show_typing(self, key: SessionKey) -> None:
        await self._api.typing(await self._threads.chat_of(key))

    def remove_reactions(self, key: SessionKey) -> None:
        """Remove the reactions of the messages of *key* that have ended; see `SupportsReactions`."""
        self._reactions.acks.settle(key)

    async def close(self) -> None:
        """Cancel what is in flight and close the connections."""
        await self._reactions.acks.close()
        await self._members.members.close()
        await self._members.guilds.close()
        await self._files.close()
        await self._api.close()

    async def _wait_login(self) -> None:
        with suppress(TimeoutError):
            async with asyncio.timeout(_LOGIN_WAIT.total_seconds()):
                await self._logged_in.wait()
            return
        raise RetryLater(_LOGIN_WAIT, "not logged in yet")


def _bot_of(token: str) -> str:
    """Return the id of the bot, which the first part of its token encodes, or a hash of another token."""
    first = token.partition(".")[0]
    with suppress(ValueError):
        bot = base64.urlsafe_b64decode(first + "=" * (-len(first) % 4)).decode("ascii")
        if bot.isdecimal():
            return bot
    return hashlib.sha256(token.encode()).hexdigest()[:16]
