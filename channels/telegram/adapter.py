"""Telegram's I/O: what is heard goes to the gateway, what the gateway delivers goes out."""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any, TypeVar

import structlog
from telegram import LinkPreviewOptions, ReplyParameters, User
from telegram.constants import ChatAction
from telegram.error import ChatMigrated, InvalidToken, TelegramError

from channels.telegram.activity import TYPING_EVERY, Activities
from channels.telegram.codec import LIMIT, MAX_PARTS, Account, Outgoing, event_id, is_arrival, outgoing, parse, render
from channels.telegram.gestures import Gestures
from channels.telegram.groups import Groups
from channels.telegram.menu import commands, put_menu
from channels.telegram.pace import Pace
from channels.telegram.polling import Poller, Waits
from channels.telegram.wire import entities_of, is_unchanged, make_bot, make_poll_request, send_failure
from gateway.errors import OutcomeUnknown, RetryLater, SendRefused
from gateway.events import OutboundKind, OutboundMessage, Part, Receipt, SessionKey
from gateway.ports import Activity, Capabilities, ChannelContext, PlatformEvent, Verdict
from gateway.words import say

log = structlog.get_logger(__name__)

T = TypeVar("T")

_DRAFT = "draft:"  # what stands before a draft's id where a message's id would be
_NO_PREVIEW = LinkPreviewOptions(is_disabled=True)
_PREVIEW_EVERY = timedelta(seconds=1.2)


class TelegramChannel:
    """One bot. Implements `gateway.ports.Channel`."""

    capabilities = Capabilities(
        text_limit=LIMIT,
        unit="utf16",
        edits=True,
        rings=True,
        preview_every=_PREVIEW_EVERY,
        shows_activity=True,
        max_parts=MAX_PARTS,
    )

    def __init__(self, context: ChannelContext, *, waits: Waits | None = None, typing: float = TYPING_EVERY) -> None:
        """Build it from a block's settings; *waits* and *typing* (seconds) are for tests that cannot wait."""
        self.name = context.name
        self._settings = context.settings
        self._intake = context.intake
        waiting = make_poll_request()
        self._bot = make_bot(
            self._settings.token.get_secret_value(), self._settings.base_url, self._settings.file_url, waiting
        )
        self._poller = Poller(
            self.name,
            f"{self._bot.base_url}/getUpdates",
            waiting,
            self._take,
            waits or Waits(),
            is_cautious=lambda: self._intake.is_cautious,
        )
        self._pace = Pace()
        self._groups = Groups(self._bot, context.state)
        self._activities = Activities(typing=self._type, draft=self._put_draft, every=typing)
        self._gestures = Gestures(self._bot, self._groups, self._pace, self._settings.reaction)
        self._me = Account(id="", username="")
        self._reads_all = False

    # -- hearing -------------------------------------------------------------------------------

    async def run(self) -> None:
        """Hear until cancelled; raise SettingsMistake when Telegram refuses the token."""
        await self._introduce(await self._poller.patiently(self._bot.get_me))
        await self._poller.run()

    def is_ready(self) -> bool:
        """Say whether the last good poll is not long ago."""
        return self._poller.is_hearing()

    async def _introduce(self, me: User) -> None:
        self._me = Account(id=str(me.id), username=str(me.username), commands=frozenset(commands()))
        self._reads_all = bool(me.can_read_all_group_messages)
        if self._misses_words:
            log.warning(
                "telegram.privacy_mode",
                channel=self.name,
                mend="group_policy is open, but Telegram hides what does not mention the bot; in @BotFather: /mybots,"
                " the bot, Bot Settings, Group Privacy, Turn off; then remove it from its groups and add it again",
            )
        log.info("telegram.connected", channel=self.name, bot=self._me.username, reads_all=self._reads_all)
        self._gestures.spawn(put_menu(self._bot), "menu")

    @property
    def _misses_words(self) -> bool:
        return self._settings.group_policy == "open" and not self._reads_all

    async def _take(self, update: Mapping[str, Any]) -> None:
        """Hand one update over; returns when Telegram may be told. What it raises lets the update come again."""
        event = PlatformEvent(channel=self.name, id=event_id(update), raw=json.dumps(update))
        await self._intake.handle(event, lambda: self._hear(update))

    async def _hear(self, update: Mapping[str, Any]) -> None:
        heard = parse(update, channel=self.name, me=self._me, now=datetime.now(UTC))
        if heard is None:
            return
        heard = await self._groups.with_facts(heard)
        accepted = await self._intake.receive(heard)
        # Only now: nothing is shown before admission.
        if accepted.verdict is Verdict.ACCEPTED:
            self._gestures.taken(heard)
            if self._misses_words and is_arrival(heard):
                self._gestures.tell(heard.key, say("telegram.privacy"))
        if accepted.line:
            self._gestures.tell(heard.key, accepted.line)

    # -- speaking ------------------------------------------------------------------------------

    def is_watched(self, key: SessionKey) -> bool:  # noqa: ARG002 - the port's signature
        """Telegram does not say who looks; a stream is always worth showing."""
        return True

    def render(self, message: OutboundMessage) -> Sequence[Part]:
        """Cut and format *message*."""
        return render(message)

    async def send(self, part: Part, *, marked: bool = False) -> Receipt:
        """Send one part; a preview in a private chat is a draft."""
        if _is_preview(part) and _is_direct(part.key):
            return await self._draft(part, None)
        if part.visible_to and not _is_direct(part.key):
            return await self._send_privately(part, marked=marked)
        return await self._post(part, part.key, marked=marked)

    async def edit(self, message_id: str, part: Part) -> Receipt:
        """Replace a message's text; a draft can only be drafted again."""
        if message_id.startswith(_DRAFT):
            if not _is_preview(part):
                raise SendRefused("a draft is no message")
            return await self._draft(part, int(message_id.removeprefix(_DRAFT)))
        if not _is_preview(part):
            self._keep_pace(part.key)
        elif not self._pace.take_spare(part.key.parent.chat):
            # The next edit says everything, and the last one is never left out.
            return _receipt(part, message_id)
        words = outgoing(part)
        try:
            await self._ask(
                part,
                part.key,
                lambda chat: self._bot.edit_message_text(
                    words.text,
                    chat_id=chat,
                    message_id=int(message_id),
                    entities=entities_of(words.entities),
                    link_preview_options=_NO_PREVIEW,
                ),
            )
        except _UnchangedError:
            log.debug("telegram.unchanged", channel=self.name, part=part.id)
        self._gestures.answered(part)
        return _receipt(part, message_id)

    async def find(self, part: Part) -> Receipt | None:
        """Say that a draft is gone; of messages Telegram tells a bot nothing."""
        if _is_preview(part) and _is_direct(part.key):
            return None
        raise OutcomeUnknown("Telegram cannot be asked")

    async def show(self, activity: Activity) -> None:
        """Show typing, and what is being done as a draft; or end both."""
        if not activity.on:
            await self._activities.end(activity.key)
            return
        self._activities.begin(activity.key)
        if activity.text and _is_direct(activity.key):
            await self._activities.status(activity.key, Outgoing(activity.text))

    async def close(self) -> None:
        """End what is under way, and the connections."""
        await self._activities.close()
        await self._gestures.close()
        await self._poller.close()
        await self._bot.request.shutdown()

    async def _post(self, part: Part, key: SessionKey, *, marked: bool) -> Receipt:
        self._keep_pace(key)
        words = outgoing(part, marked=marked)
        sent = await self._ask(
            part,
            key,
            lambda chat: self._bot.send_message(
                chat,
                words.text,
                entities=entities_of(words.entities),
                message_thread_id=_topic(key),
                link_preview_options=_NO_PREVIEW,
                reply_parameters=_reply(part, key),
            ),
        )
        self._gestures.answered(part)
        return Receipt(part=part.id, message_id=str(sent.message_id), at=sent.date)

    async def _send_privately(self, part: Part, *, marked: bool) -> Receipt:
        """Send what one person may see into their own chat; where Telegram refuses, say in one line what to do."""
        try:
            return await self._post(part, SessionKey(self.name, part.visible_to), marked=marked)
        except SendRefused:
            if not part.id.endswith(".1"):
                raise
        line = replace(part, payload="", plain=say("telegram.write_first"))
        return await self._post(line, part.key, marked=marked)

    async def _draft(self, part: Part, draft_id: int | None) -> Receipt:
        try:
            ident = await self._activities.draft(part.key, draft_id, outgoing(part))
        except TelegramError as error:
            if isinstance(error, InvalidToken):  # a server of one's own that does not know drafts: no reason to wait
                raise SendRefused("this server has no drafts") from None
            raise send_failure(error, is_formatted=bool(part.payload)) from None
        return _receipt(part, f"{_DRAFT}{ident}")

    async def _put_draft(self, key: SessionKey, draft_id: int, words: Outgoing) -> None:
        await self._pace.turn()
        await self._bot.send_message_draft(
            int(key.parent.chat),
            draft_id,
            words.text,
            message_thread_id=_topic(key),
            entities=entities_of(words.entities),
        )

    async def _type(self, key: SessionKey) -> None:
        await self._pace.turn()
        chat = await self._groups.destination(key)
        await self._bot.send_chat_action(chat, ChatAction.TYPING, message_thread_id=_topic(key))

    def _keep_pace(self, key: SessionKey) -> None:
        seconds = self._pace.take(key.parent.chat)
        if seconds:
            raise RetryLater(timedelta(seconds=seconds), "our own pace")

    async def _ask(self, part: Part, key: SessionKey, call: Callable[[int], Awaitable[T]]) -> T:
        """Make a call that delivers *part*, in the chat where *key* is now; raise SendFailed."""
        chat = await self._groups.destination(key)
        await self._pace.turn()
        try:
            try:
                return await call(chat)
            except ChatMigrated as moved:
                await self._groups.has_moved(chat, moved.new_chat_id)
                return await call(moved.new_chat_id)
        except TelegramError as error:
            if is_unchanged(error):
                raise _UnchangedError from None
            raise send_failure(error, is_formatted=bool(part.payload)) from None


class _UnchangedError(Exception):
    """The message reads like that already."""


def _is_direct(key: SessionKey) -> bool:
    """Say whether *key* is a private chat: people's ids are positive, groups' are negative."""
    return not key.chat.startswith("-")


def _is_preview(part: Part) -> bool:
    """Say whether *part* is the turn's preview itself, not a line that takes its place."""
    return part.kind is OutboundKind.PREVIEW and part.id.split(".")[1:2] == ["0"]


def _topic(key: SessionKey) -> int | None:
    return int(key.thread) if key.thread else None


def _reply(part: Part, key: SessionKey) -> ReplyParameters | None:
    """In a group an answer names its question; in a private chat that would only repeat it."""
    if not part.reply_to.isdecimal() or _is_direct(key):
        return None
    return ReplyParameters(int(part.reply_to), allow_sending_without_reply=True)


def _receipt(part: Part, message_id: str) -> Receipt:
    return Receipt(part=part.id, message_id=message_id, at=datetime.now(UTC))
