"""Telegram's channel: wires receiving and sending of one bot."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Sequence
from datetime import datetime, timedelta
from functools import partial

import structlog
from starlette.requests import Request
from starlette.responses import Response
from telegram import User

from channels.telegram.api import ApiRetrier, RetryDelays, make_bot, make_requests
from channels.telegram.chats import TelegramChats, TelegramHistory, TelegramMembers
from channels.telegram.inbound import TelegramInbound, TelegramPoller, TelegramWebhook, TokenLock
from channels.telegram.interactions import TelegramButtons, TelegramReactions, commands, set_command_menu
from channels.telegram.outbound import TYPING_INTERVAL, UPLOAD_LIMIT, TelegramFiles, TelegramOutbound
from channels.telegram.parse import TelegramBotIdentity
from channels.telegram.rate_limits import TelegramRateLimits
from channels.telegram.render import LIMIT, MAX_PARTS, render
from channels.telegram.setup import PRIVACY_CLICKS
from gateway.channel import ChannelContext
from gateway.events import (
    Attachment,
    DeliveryReceipt,
    InboundMessage,
    MessagePart,
    OutboundMessage,
    Sender,
    SessionKey,
)
from gateway.ports.channel import ChannelCapabilities, ChatActivity, PlatformEvent, channel_wide_key

log = structlog.get_logger(__name__)

_PREVIEW_INTERVAL = timedelta(seconds=1.2)
_BUTTON_LIMIT = 20  # Telegram takes a hundred, more than people read


class TelegramChannel:
    """One bot. Implements `Channel`; `Supports…` of files, history, replay, senders, send turns and one connection."""

    capabilities = ChannelCapabilities(
        text_limit=LIMIT,
        unit="utf16",
        edits=True,
        rings=True,
        preview_every=_PREVIEW_INTERVAL,
        shows_activity=True,
        file_limit=UPLOAD_LIMIT,
        max_parts=MAX_PARTS,
        choices=_BUTTON_LIMIT,
        mentions=True,
    )

    def __init__(
        self, context: ChannelContext, *, waits: RetryDelays | None = None, typing: float = TYPING_INTERVAL
    ) -> None:
        """Build the channel; *waits* and *typing* (seconds between two typing calls) are shorter in tests."""
        self.name = context.name
        self._context = context
        self._waits = waits = waits or RetryDelays()
        settings = context.settings
        token = settings.token.get_secret_value()
        calls, polling = make_requests(context.proxy)
        self._bot = bot = make_bot(token, settings.base_url, settings.file_url, calls, polling)
        # A worker that shares the database claims the bot, also from one that hangs and would keep the lock.
        self._lock = None if context.is_shared else TokenLock(token, settings.base_url)
        self._account = token.partition(":")[0]
        self._retrier = ApiRetrier(self.name, waits, base_url=settings.base_url)
        self._limits = limits = TelegramRateLimits()
        chats = TelegramChats(context.state)
        self._members = TelegramMembers(bot, chats)
        self._reactions = TelegramReactions(context, bot, chats, limits)
        self._files = TelegramFiles(bot, calls, context.blobs)
        self._history = TelegramHistory()
        buttons = TelegramButtons(context, bot, chats, self._reactions, limits, wait=waits.press)
        self._inbound = TelegramInbound(
            context,
            chats=chats,
            members=self._members,
            reactions=self._reactions,
            buttons=buttons,
            history=self._history,
        )
        self._outbound = TelegramOutbound(
            self.name,
            bot,
            chats=chats,
            limits=limits,
            reactions=self._reactions,
            buttons=buttons,
            files=self._files,
            language=context.language,
            typing=typing,
        )
        receive = self._inbound.receive
        self._transport: TelegramPoller | TelegramWebhook
        if settings.mode == "webhook":
            secret = settings.webhook_secret.get_secret_value()
            self._transport = TelegramWebhook(
                self.name, bot, receive, self._retrier, waits=waits, url=settings.webhook_url, secret=secret
            )
        else:
            self._transport = TelegramPoller(
                self.name,
                f"{bot.base_url}/getUpdates",
                polling,
                receive,
                self._retrier,
                waits=waits,
                is_cautious=lambda: context.intake.is_cautious,
            )

    # -- receiving -----------------------------------------------------------------------------

    async def run(self) -> None:
        """Receive until cancelled; raise SettingsError if Telegram rejects the token."""
        if self._lock is not None:
            await self._lock.wait(self.name, self._waits.conflict)
        try:
            self._identify(await self._retrier.call_with_retry(self._bot.get_me))
            self._reactions.acks.start()
            await self._transport.run()
        finally:
            if self._lock is not None:
                self._lock.release()

    @property
    def connection(self) -> str:
        """Return the bot that only one process may poll; "" with a webhook. See `SupportsOneConnection`."""
        return "" if self.has_webhook else self._account

    async def run_sender(self) -> None:
        """Send without receiving, until cancelled: no call needs a login. See `SupportsOneConnection`."""
        await asyncio.Event().wait()

    def is_ready(self) -> bool:
        """Return True if the last good poll, or the webhook's last good status, is recent."""
        return self._transport.is_receiving()

    @property
    def has_webhook(self) -> bool:
        """Return True if Telegram calls this channel instead of being polled."""
        return isinstance(self._transport, TelegramWebhook)

    async def hook(self, request: Request) -> Response:
        """Answer a call of the webhook."""
        if not isinstance(self._transport, TelegramWebhook):
            return Response(status_code=404)
        return await self._transport.answer(request)

    async def replay(self, event: PlatformEvent) -> None:
        """Take in an update that was quarantined; see `SupportsReplay`."""
        await self._inbound.replay(event)

    def _identify(self, user: User) -> None:
        inbound = self._inbound
        inbound.bot = TelegramBotIdentity(id=str(user.id), username=str(user.username), commands=frozenset(commands()))
        inbound.reads_all = bool(user.can_read_all_group_messages)
        if any(map(inbound.misses_messages, self._context.all_reply_policies())):
            log.warning(
                "telegram.privacy_mode",
                channel=self.name,
                mend=f"group_policy is open, but Telegram hides what does not mention the bot; {PRIVACY_CLICKS}",
            )
        log.info("telegram.connected", channel=self.name, bot=inbound.bot.username, reads_all=inbound.reads_all)
        language = self._context.language(channel_wide_key(self.name))
        self._reactions.tasks.start(partial(set_command_menu, self._bot, language), "menu")

    async def sender(self, message: InboundMessage) -> Sender:
        """Return the sender of *message* with their current rights; see `SupportsSenderLookup`."""
        return await self._members.sender(message)

    async def messages_before(
        self, message: InboundMessage, *, since: datetime | None, limit: int
    ) -> Sequence[InboundMessage]:
        """Return the messages of the chat before *message*, since the start of this process; see `SupportsHistory`."""
        return self._history.messages_before(message, since=since, limit=limit)

    def fetch(self, attachment: Attachment) -> AsyncGenerator[bytes, None]:
        """Yield a file that came with a message; see `SupportsFiles`."""
        return self._files.fetch(attachment)

    # -- sending -------------------------------------------------------------------------------

    def is_watched(self, key: SessionKey) -> bool:  # noqa: ARG002 - the port's signature
        """Return True: Telegram does not report readers."""
        return True

    def render(self, message: OutboundMessage, *, least: int = 0) -> Sequence[MessagePart]:
        """Split and format *message*."""
        return render(message, self._context.language, least=least)

    async def wait_turn(self, key: SessionKey) -> bool:
        """Return when a message to *key* may be sent; see `SupportsSendTurns`."""
        return await self._limits.wait_turn(key)

    def try_turn(self, key: SessionKey) -> bool:
        """Take the turn of a message to *key* if it is now; see `SupportsSendTurns`."""
        return self._limits.try_turn(key)

    async def send(self, part: MessagePart, *, may_be_duplicate: bool = False) -> DeliveryReceipt:
        """Send one part."""
        return await self._outbound.send(part, may_be_duplicate=may_be_duplicate)

    async def edit(self, message_id: str, part: MessagePart) -> DeliveryReceipt:
        """Replace the text of a message."""
        return await self._outbound.edit(message_id, part)

    async def find(self, part: MessagePart) -> DeliveryReceipt | None:
        """Return None for a draft; raise OutcomeUnknown for a message, since bots cannot read chats."""
        return await self._outbound.find(part)

    async def show(self, activity: ChatActivity) -> None:
        """Show or stop typing and status."""
        await self._outbound.activity.show(activity)

    def remove_reactions(self, key: SessionKey) -> None:
        """Remove the reactions of the messages of *key* that have ended; see `SupportsReactions`."""
        self._reactions.acks.settle(key)

    async def close(self) -> None:
        """Cancel what is in flight and close the connections."""
        await self._reactions.acks.close()
        await self._members.admins.close()
        await self._transport.close()
        await self._bot.request.shutdown()
