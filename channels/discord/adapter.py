"""Discord's channel: connections that are kept, and answers that are sent."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Any

import discord
import structlog

from channels.discord import codec
from channels.discord.activity import DiscordActivity
from channels.discord.api import DiscordApi
from channels.discord.commands import DiscordCommands, try_to_register
from channels.discord.errors import DiscordRefusal, map_send_errors
from channels.discord.files import DiscordFiles
from channels.discord.followed_threads import DiscordFollowedThreads
from channels.discord.gateway_client import DiscordGatewayClient
from channels.discord.gateway_connection import DiscordGateway, not_let_in
from channels.discord.guilds import DiscordGuilds
from channels.discord.history import DiscordHistory
from channels.discord.inbound import DiscordInbound, DiscordState
from channels.discord.interactions import DiscordInteractions
from channels.discord.members import DiscordMembers
from channels.discord.outbound import DiscordOutbound
from channels.discord.read_cursors import DiscordReadCursors
from channels.discord.reply_threads import DiscordReplyThreads
from channels.kit.reactions import AckReaction, AckReactions
from gateway.errors import RetryLater, UserError
from gateway.events import (
    Attachment,
    DeliveryReceipt,
    InboundKind,
    InboundMessage,
    MessagePart,
    OutboundMessage,
    Sender,
    SessionKey,
)
from gateway.ports import (
    ChannelCapabilities,
    ChannelContext,
    ChatActivity,
    IntakeResult,
    IntakeVerdict,
    PlatformEvent,
    ReplyPolicy,
    channel_wide_key,
)

log = structlog.get_logger(__name__)

CAPABILITIES = ChannelCapabilities(
    text_limit=codec.LIMIT,
    max_parts=codec.MOST_PARTS,
    edits=True,
    finds=True,
    send_key=True,
    send_key_for=timedelta(minutes=2),  # the nonce is remembered for "a few minutes"
    rings=True,
    preview_every=timedelta(seconds=1.2),
    shows_activity=True,
    file_limit=codec.FILE_LIMIT,
    choices=codec.MOST_BUTTONS,
)

_FATAL_PAUSE = 900.0  # after a refused token or intent: each try costs one of the day's 1,000 IDENTIFYs
_NOT_YET = timedelta(seconds=2)
_GUILD_PATIENCE = 5.0  # seconds after a start in which a server tells of itself
_LOOK_EVERY = 0.1
_FRESH = timedelta(minutes=10)  # a reaction on what is older would only startle


class DiscordChannel:
    """The Channel port over Discord's gateway and REST."""

    capabilities = CAPABILITIES

    def __init__(
        self,
        context: ChannelContext,
        *,
        now: Callable[[], datetime] = lambda: datetime.now(UTC),
        identify_pause: float = 5.0,
    ) -> None:
        self.name = context.name
        self._settings = context.settings
        self._language = context.language
        self._now = now
        addresses: dict[str, Any] = {
            "api_url": context.settings.api_url,
            "gateway_url": context.settings.gateway_url,
            "proxy": context.proxy,
        }
        self._rest = DiscordApi(**addresses)
        self._signs = DiscordActivity(self._rest, name=self.name)
        self._reactions = AckReactions(context, self._react)
        self._downloads = DiscordFiles(self._rest, api_url=context.settings.api_url, proxy=context.proxy)
        notes = self._notes(context)
        self._interactions = notes.interactions
        self._lookups = lookups = DiscordMembers(self._rest, now)
        self._history = DiscordHistory(self.name, self._rest, lookups, client=lambda: self._inbound.client)
        self._inbound = DiscordInbound(
            self.name,
            context.intake,
            self._rest,
            notes,
            lookups=lookups,
            history=self._history,
            now=now,
            answered=self._answered,
        )
        self._outbox = DiscordOutbound(
            self._rest,
            notes.threads,
            notes.interactions,
            self._signs,
            self._reactions,
            context.blobs,
            language=context.language,
            file_limit=self._file_limit,
            now=now,
        )
        self._threads = notes.threads
        self._commands = DiscordCommands(
            self.name,
            context.state,
            self._rest,
            where=context.settings.commands,
            language=context.language(channel_wide_key(self.name)),
        )
        make = partial(DiscordGatewayClient, **addresses, identify_pause=identify_pause)
        self._connection = DiscordGateway(
            self.name, self._inbound, notes.marks, make=make, now=now, on_ready=self._on_ready
        )
        self._was_refused = False
        self._logged_in = asyncio.Event()

    def _notes(self, context: ChannelContext) -> DiscordState:
        state = context.state

        def manners(message: InboundMessage) -> ReplyPolicy:
            return context.reply_policy(message.key.chat, message.guild)

        return DiscordState(
            marks=DiscordReadCursors(state, self._now),
            follows=DiscordFollowedThreads(state, is_on=lambda message: manners(message).follow_threads),
            threads=DiscordReplyThreads(
                state,
                self._rest,
                name=self.name,
                is_on=lambda message: manners(message).reply_in == "thread",
                anywhere=any(each.reply_in == "thread" for each in context.manners_anywhere()),
                exists=self._is_known_thread,
                language=context.language,
            ),
            interactions=DiscordInteractions(self.name, state, self._rest, self._now),
            guilds=DiscordGuilds(self.name, state, context.intake),
        )

    def _is_known_thread(self, chat: str) -> bool:
        client = self._inbound.client
        return client is not None and client.place(chat) is not None

    def _file_limit(self, chat: str) -> int:
        client = self._inbound.client
        return client.file_limit(chat) if client else codec.FILE_LIMIT

    def _on_ready(self, guilds: Sequence[str]) -> None:
        self._signs.begin(partial(try_to_register, self._commands, guilds), "commands")

    # Receiving.

    async def run(self) -> None:
        """Receive until cancelled. Raises when Discord refuses us, or cannot be reached from the start."""
        if self._was_refused:
            await asyncio.sleep(_FATAL_PAUSE)
        try:
            if not self._rest.me:
                await self._interactions.open()
                await self._login()
                self._logged_in.set()
            self._reactions.start()
            await self._connection.run(self._token)
        except UserError:
            self._was_refused = True
            raise

    async def _login(self) -> None:
        """Log in; raises UserError for a wrong token or address, and SendFailed."""
        try:
            with map_send_errors():
                await self._rest.login(self._token)
        except (discord.LoginFailure, DiscordRefusal, TypeError, KeyError, ValueError, AttributeError) as error:
            raise not_let_in(self.name, self._settings.api_url, error) from None

    @property
    def _token(self) -> str:
        token: str = self._settings.token.get_secret_value()
        return token

    def _answered(self, chat: str, message: InboundMessage, accepted: IntakeResult) -> None:
        """Show the sender what became of their message."""
        if accepted.line:
            post = partial(self._rest.post, chat, accepted.line, nonce=f"line{message.message_id}")
            self._signs.begin(partial(post, reply_to=message.message_id), "line")
        is_new = message.kind is InboundKind.MESSAGE and not message.revision
        shows_it = bool(self._settings.reaction) and accepted.verdict is IntakeVerdict.ACCEPTED and is_new
        if shows_it and self._now() - message.sent_at < _FRESH:
            self._reactions.add(message.key, chat, message.message_id)

    async def _react(self, reaction: AckReaction, is_on: bool) -> None:
        emoji: str = self._settings.reaction
        await self._rest.react(reaction.chat, reaction.message_id, emoji, on=is_on)

    # The port.

    async def replay(self, event: PlatformEvent) -> None:
        """Take in a message that the quarantine kept; see `gateway.ports.SupportsReplay`."""
        await self._inbound.replay(event)

    def is_ready(self) -> bool:
        """Say whether Discord was heard within twice its heartbeat."""
        return self._connection.is_ready()

    def is_watched(self, key: SessionKey) -> bool:  # noqa: ARG002 - the port's signature
        """Every chat may have readers: Discord does not say."""
        return True

    def render(self, message: OutboundMessage, *, least: int = 0) -> Sequence[MessagePart]:
        """Cut and write *message* in Discord's Markdown."""
        return codec.render(message, self._language(message.key), least=least)

    async def send(self, part: MessagePart, *, marked: bool = False) -> DeliveryReceipt:
        """Post *part* under its id as nonce; the library's own repeats find the message that stands."""
        await self._be_logged_in()
        return self._receipt(part, await self._outbox.send(part, marked=marked))

    async def edit(self, message_id: str, part: MessagePart) -> DeliveryReceipt:
        """Replace what stands under *message_id*."""
        await self._be_logged_in()
        await self._outbox.edit(message_id, part)
        return self._receipt(part, message_id)

    async def find(self, part: MessagePart) -> DeliveryReceipt | None:
        """Look for *part* among what we said after the message it answers."""
        await self._be_logged_in()
        found = await self._outbox.find(part)
        return self._receipt(part, found) if found else None

    def _receipt(self, part: MessagePart, message_id: str) -> DeliveryReceipt:
        return DeliveryReceipt(part=part.id, message_id=message_id, at=self._now())

    def fetch(self, attachment: Attachment) -> AsyncGenerator[bytes, None]:
        """Yield a file of a message; see `gateway.ports.SupportsFiles`."""
        return self._downloads.fetch(attachment)

    async def messages_before(
        self, message: InboundMessage, *, since: datetime | None, limit: int
    ) -> Sequence[InboundMessage]:
        """Return what was said before *message*; see `gateway.ports.SupportsHistory`."""
        await self._be_logged_in()
        return await self._history.messages_before(message, since=since, limit=limit)

    async def sender(self, message: InboundMessage) -> Sender:
        """Return who sent *message*, with the roles and rights of now; see `gateway.ports.SupportsSenderLookup`."""
        if not message.guild:
            return message.sender
        await self._logged_in.wait()
        if message.kind in (InboundKind.COMMAND, InboundKind.BUTTON):
            await self._know_rights(message.guild)
        user, chat = message.sender.id, message.key.parent.chat
        known = await self._lookups.member(message.guild, chat, user, self._inbound.client)
        return replace(message.sender, roles=known.roles, is_admin=known.is_admin, is_guest=known.is_gone)

    async def _know_rights(self, guild: str) -> None:
        """Return when Discord has told us the rights that a server's roles have; raise RetryLater if it does not."""
        try:
            async with asyncio.timeout(_GUILD_PATIENCE):
                while self._inbound.client is None or self._inbound.client.get_guild(int(guild)) is None:  # noqa: ASYNC110 - the library does not tell
                    await asyncio.sleep(_LOOK_EVERY)
        except TimeoutError:
            raise RetryLater(_NOT_YET, "the server's roles are not known") from None

    async def show(self, activity: ChatActivity) -> None:
        """Type as long as the work lasts; Discord has no room for a status text."""
        if self._rest.me:
            self._signs.typing(activity.key.chat, partial(self._threads.chat, activity.key), on=activity.on)

    async def close(self) -> None:
        """End typing and release the connections."""
        await self._signs.close()
        await self._reactions.close()
        await self._downloads.close()
        await self._rest.close()

    async def _be_logged_in(self) -> None:
        with suppress(TimeoutError):
            async with asyncio.timeout(_NOT_YET.total_seconds()):
                await self._logged_in.wait()
            return
        raise RetryLater(_NOT_YET, "not logged in yet")
