"""Telegram's I/O: what is heard goes to the gateway, what the gateway delivers goes out."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator, Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import structlog
from starlette.requests import Request
from starlette.responses import Response
from telegram import User

from channels.telegram.activity import TYPING_EVERY
from channels.telegram.api import make_bot, make_poll_request
from channels.telegram.buttons import TelegramButtons
from channels.telegram.chats import TelegramChats
from channels.telegram.codec import (
    LIMIT,
    MAX_PARTS,
    TelegramBotIdentity,
    event_id,
    is_bot_added,
    origin_of,
    parse_membership,
    parse_migration,
    parse_update,
    render,
    rights_changed,
)
from channels.telegram.commands import commands, set_command_menu
from channels.telegram.files import LARGEST_OUT, TelegramFiles
from channels.telegram.history import TelegramHistory
from channels.telegram.members import TelegramMembers
from channels.telegram.outbound import TelegramOutbound
from channels.telegram.polling import TelegramPoller
from channels.telegram.rate_limit import TelegramRateLimits
from channels.telegram.reactions import TelegramReactions
from channels.telegram.retry import ApiRetrier, RetryDelays
from channels.telegram.setup import PRIVACY_CLICKS
from channels.telegram.token_lock import TokenLock
from channels.telegram.webhook import TelegramWebhook
from gateway.events import (
    Attachment,
    ChatKind,
    DeliveryReceipt,
    InboundKind,
    InboundMessage,
    MessagePart,
    OutboundMessage,
    Sender,
    SessionKey,
)
from gateway.i18n import translate
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

_PREVIEW_EVERY = timedelta(seconds=1.2)
MOST_BUTTONS = 20  # Telegram takes a hundred; nobody reads them
_NOT_ADDRESSED = "not-addressed"  # of admission's reasons: an admitted person who spoke to others


class TelegramChannel:
    """One bot. Implements `gateway.ports.Channel`, `SupportsFiles`, `SupportsHistory` and `SupportsSenderLookup`."""

    capabilities = ChannelCapabilities(
        text_limit=LIMIT,
        unit="utf16",
        edits=True,
        rings=True,
        preview_every=_PREVIEW_EVERY,
        shows_activity=True,
        file_limit=LARGEST_OUT,
        max_parts=MAX_PARTS,
        choices=MOST_BUTTONS,
    )

    def __init__(
        self, context: ChannelContext, *, waits: RetryDelays | None = None, typing: float = TYPING_EVERY
    ) -> None:
        """Build it from a block's settings; *waits* and *typing* (seconds) are for tests that cannot wait."""
        self.name = context.name
        self._manners, self._manners_anywhere = context.reply_policy, context.manners_anywhere
        settings = context.settings
        self._intake = context.intake
        self._language = context.language
        self._waits = waits or RetryDelays()
        token = settings.token.get_secret_value()
        polling = make_poll_request(context.proxy)
        self._bot = make_bot(token, settings.base_url, settings.file_url, polling, proxy=context.proxy)
        self._alone = TokenLock(token, settings.base_url)
        self._patience = ApiRetrier(self.name, self._waits, base_url=settings.base_url)
        if settings.mode == "webhook":
            self._hook: TelegramWebhook | None = TelegramWebhook(
                self.name,
                self._bot,
                self._take,
                self._patience,
                waits=self._waits,
                url=settings.webhook_url,
                secret=settings.webhook_secret.get_secret_value(),
            )
            self._ears: TelegramPoller | TelegramWebhook = self._hook
        else:
            self._hook = None
            self._ears = TelegramPoller(
                self.name,
                f"{self._bot.base_url}/getUpdates",
                polling,
                self._take,
                self._patience,
                waits=self._waits,
                is_cautious=lambda: self._intake.is_cautious,
            )
        pace = TelegramRateLimits()
        self._groups = TelegramChats(context.state)
        self._admins = TelegramMembers(self._bot)
        self._gestures = TelegramReactions(context, self._bot, self._groups, pace)
        self._files = TelegramFiles(self._bot, context.blobs, proxy=context.proxy)
        self._presses = TelegramButtons(self._bot, self._groups, self._gestures, pace, turns=self._waits.press)
        self._speaker = TelegramOutbound(
            self.name,
            self._bot,
            groups=self._groups,
            pace=pace,
            gestures=self._gestures,
            presses=self._presses,
            files=self._files,
            language=self._language,
            typing=typing,
        )
        self._overheard = TelegramHistory()
        self._me = TelegramBotIdentity(id="", username="")
        self._reads_all = False

    # -- hearing -------------------------------------------------------------------------------

    async def run(self) -> None:
        """Hear until cancelled; raise SettingsError when Telegram refuses the token."""
        await self._be_alone()
        try:
            await self._introduce(await self._patience.call_with_retry(self._bot.get_me))
            self._gestures.reactions.start()
            await self._ears.run()
        finally:
            self._alone.release()

    def is_ready(self) -> bool:
        """Say whether the last good poll, or the last good word of the webhook, is not long ago."""
        return self._ears.is_receiving()

    @property
    def is_called(self) -> bool:
        """Say whether Telegram is to call us, instead of being asked."""
        return self._hook is not None

    async def hook(self, request: Request) -> Response:
        """Answer a call of the webhook."""
        return Response(status_code=404) if self._hook is None else await self._hook.answer(request)

    async def _be_alone(self) -> None:
        """Return when no other process of this machine uses this bot; who does is said once."""
        is_told = False
        while not await asyncio.to_thread(self._alone.acquire):
            if not is_told:
                is_told = True
                log.error(
                    "telegram.token_in_use",
                    channel=self.name,
                    process=self._alone.holder(),
                    mend="another Parlour on this machine uses this bot's token; stop it, or give this one a bot of"
                    " its own with @BotFather. It is tried again by itself",
                )
            await asyncio.sleep(self._waits.conflict)

    async def _introduce(self, me: User) -> None:
        self._me = TelegramBotIdentity(id=str(me.id), username=str(me.username), commands=frozenset(commands()))
        self._reads_all = bool(me.can_read_all_group_messages)
        if any(map(self._misses_words, self._manners_anywhere())):
            log.warning(
                "telegram.privacy_mode",
                channel=self.name,
                mend=f"group_policy is open, but Telegram hides what does not mention the bot; {PRIVACY_CLICKS}",
            )
        log.info("telegram.connected", channel=self.name, bot=self._me.username, reads_all=self._reads_all)
        self._gestures.spawn(set_command_menu(self._bot, self._language(channel_wide_key(self.name))), "menu")

    def _misses_words(self, manners: ReplyPolicy) -> bool:
        return manners.group_policy == "open" and not self._reads_all

    async def _take(self, update: Mapping[str, Any]) -> None:
        """Hand one update over; returns when Telegram may be told. What it raises lets the update come again."""
        event = PlatformEvent(channel=self.name, id=event_id(update), raw=json.dumps(update), origin=origin_of(update))
        await self._intake.handle(event, lambda: self._hear(update))

    async def replay(self, event: PlatformEvent) -> None:
        """Take in an update that the quarantine kept; see `gateway.ports.SupportsReplay`."""
        await self._hear(json.loads(event.raw))

    async def _hear(self, update: Mapping[str, Any]) -> None:
        await self._note_place(update)
        heard = parse_update(update, channel=self.name, me=self._me, now=datetime.now(UTC))
        if heard is None:
            return
        heard = self._groups.with_album(heard)
        accepted = await self._intake.receive(heard)
        self._listen(heard, accepted)
        if heard.kind is InboundKind.BUTTON:
            self._pressed(update, heard, accepted)
            return
        # Only now: nothing is shown before admission.
        if accepted.verdict is IntakeVerdict.ACCEPTED:
            self._gestures.acknowledge(heard)
            if is_bot_added(heard) and self._misses_words(self._manners(heard.key.chat)):
                self._gestures.tell(heard.key, translate("telegram.privacy", self._language(heard.key)))
        if accepted.line:
            self._gestures.tell(heard.key, accepted.line)

    async def _note_place(self, update: Mapping[str, Any]) -> None:
        """Tell the house where we were added; note where a group moved, and forget who the admins are."""
        changed = rights_changed(update)
        if changed is not None:
            self._admins.forget(changed)
        if (ids := parse_migration(update)) is not None:
            await self._groups.has_moved(*ids)
        place = parse_membership(update, channel=self.name, me=self._me)
        if place is not None:
            await self._intake.membership_changed(place)

    async def sender(self, message: InboundMessage) -> Sender:
        """Return who sent *message*, and whether they are an admin of the group; see `SupportsSenderLookup`.

        Who speaks as the group itself has no id, and is not heard in the first place.
        """
        if message.chat_kind is not ChatKind.GROUP or not message.sender.id:
            return message.sender
        admins = await self._admins.admins_of(await self._groups.resolve_chat(message.key))
        return replace(message.sender, is_admin=message.sender.id in admins)

    def _pressed(self, update: Mapping[str, Any], heard: InboundMessage, accepted: IntakeResult) -> None:
        if accepted.verdict is not IntakeVerdict.REJECTED:
            self._presses.hold_press(update, heard)
        elif accepted.line:
            self._presses.refuse_press(update, accepted.line)

    def _listen(self, heard: InboundMessage, accepted: IntakeResult) -> None:
        """Keep in mind what admitted people say to each other; what is said to us has a place of its own."""
        if heard.chat_kind is not ChatKind.GROUP or heard.kind is not InboundKind.MESSAGE:
            return
        if accepted.verdict is IntakeVerdict.REJECTED and accepted.reason == _NOT_ADDRESSED:
            self._overheard.note(heard)
        else:
            self._overheard.forget(heard)

    async def messages_before(
        self, message: InboundMessage, *, since: datetime | None, limit: int
    ) -> Sequence[InboundMessage]:
        """Return what was heard in the place of *message* before it, since the start of this process."""
        return self._overheard.messages_before(message, since=since, limit=limit)

    def fetch(self, attachment: Attachment) -> AsyncGenerator[bytes, None]:
        """Yield a file that came with a message."""
        return self._files.fetch(attachment)

    # -- speaking ------------------------------------------------------------------------------

    def is_watched(self, key: SessionKey) -> bool:  # noqa: ARG002 - the port's signature
        """Telegram does not say who looks; a stream is always worth showing."""
        return True

    def render(self, message: OutboundMessage, *, least: int = 0) -> Sequence[MessagePart]:
        """Cut and format *message*."""
        return render(message, self._language(message.key), least=least)

    async def send(self, part: MessagePart, *, marked: bool = False) -> DeliveryReceipt:
        """Send one part."""
        return await self._speaker.send(part, marked=marked)

    async def edit(self, message_id: str, part: MessagePart) -> DeliveryReceipt:
        """Replace a message's text."""
        return await self._speaker.edit(message_id, part)

    async def find(self, part: MessagePart) -> DeliveryReceipt | None:
        """Say that a draft is gone; of messages Telegram tells a bot nothing."""
        return await self._speaker.find(part)

    async def show(self, activity: ChatActivity) -> None:
        """Show or end typing and status."""
        await self._speaker.show(activity)

    async def close(self) -> None:
        """End what is under way, and the connections."""
        await self._speaker.close()
        await self._gestures.close()
        await self._admins.close()
        await self._files.close()
        await self._ears.close()
        await self._bot.request.shutdown()
