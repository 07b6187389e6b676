"""What the gateway delivers, brought into Telegram's chats: messages, edits, drafts, files, typing."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import TypeVar

import structlog
from telegram import Bot, LinkPreviewOptions, Message, ReplyParameters
from telegram.constants import ChatAction
from telegram.error import ChatMigrated, InvalidToken, TelegramError

from channels.telegram.activity import TYPING_EVERY, TelegramActivity
from channels.telegram.api import entities_of, is_unchanged, send_failure
from channels.telegram.buttons import TelegramButtons, keyboard
from channels.telegram.chats import TelegramChats
from channels.telegram.codec import OutgoingText, build_outgoing
from channels.telegram.files import FileDestination, TelegramFiles
from channels.telegram.rate_limit import TelegramRateLimits
from channels.telegram.reactions import TelegramReactions
from gateway.errors import OutcomeUnknown, RetryLater, SendRefused
from gateway.events import Attachment, DeliveryReceipt, MessagePart, OutboundKind, SessionKey
from gateway.i18n import translate
from gateway.ports import ChatActivity

log = structlog.get_logger(__name__)

T = TypeVar("T")

_DRAFT = "draft:"  # what stands before a draft's id where a message's id would be
_NO_PREVIEW = LinkPreviewOptions(is_disabled=True)


class TelegramOutbound:
    """The speaking half of one bot."""

    def __init__(
        self,
        name: str,
        bot: Bot,
        *,
        groups: TelegramChats,
        pace: TelegramRateLimits,
        gestures: TelegramReactions,
        presses: TelegramButtons,
        files: TelegramFiles,
        language: Callable[[SessionKey], str],
        typing: float = TYPING_EVERY,
    ) -> None:
        """Speak through *bot*; *language* is a chat's, *typing* is kept up every so many seconds."""
        self._language = language
        self._name = name
        self._bot = bot
        self._groups = groups
        self._pace = pace
        self._gestures = gestures
        self._presses = presses
        self._files = files
        self._activities = TelegramActivity(typing=self._type, draft=self._put_draft, every=typing)

    # -- the port ------------------------------------------------------------------------------

    async def send(self, part: MessagePart, *, marked: bool = False) -> DeliveryReceipt:
        """Send one part; a preview in a private chat is a draft, unless it has to be a message that stays."""
        if _is_draft(part):
            return await self._draft(part, None)
        if part.visible_to and not _is_direct(part.key):
            return await self._send_privately(part, marked=marked)
        return await self._post(part, part.key, marked=marked)

    async def edit(self, message_id: str, part: MessagePart) -> DeliveryReceipt:
        """Replace a message's text; a draft can only be drafted again."""
        if part.file is not None:
            raise SendRefused("a file cannot take the place of a text")
        if message_id.startswith(_DRAFT):
            if not _is_draft(part):
                raise SendRefused("a draft is no message")
            return await self._draft(part, int(message_id.removeprefix(_DRAFT)))
        if not _is_preview(part):
            self._keep_pace(part.key)
        elif not self._pace.take_spare(part.key.parent.chat):
            # The next edit says everything, and the last one is never left out.
            return _receipt(part, message_id)
        words = build_outgoing(part)
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
                    reply_markup=keyboard(part.choices),
                ),
            )
        except _UnchangedError:
            log.debug("telegram.unchanged", channel=self._name, part=part.id)
        self._gestures.answered(part)
        return _receipt(part, message_id)

    async def find(self, part: MessagePart) -> DeliveryReceipt | None:
        """Say that a draft is gone; of messages Telegram tells a bot nothing."""
        if _is_draft(part):
            return None
        raise OutcomeUnknown("Telegram cannot be asked")

    async def show(self, activity: ChatActivity) -> None:
        """Show typing, and what is being done as a draft; or end both."""
        if not activity.on:
            await self._activities.end(activity.key)
            return
        self._activities.begin(activity.key)
        if activity.text and _is_direct(activity.key):
            await self._activities.status(activity.key, OutgoingText(activity.text))

    def is_live(self, key: SessionKey) -> bool:
        """Say whether typing is shown in *key*."""
        return self._activities.is_live(key)

    async def close(self) -> None:
        """End what is shown."""
        await self._activities.close()

    # -- calls ---------------------------------------------------------------------------------

    async def _post(self, part: MessagePart, key: SessionKey, *, marked: bool) -> DeliveryReceipt:
        call = await self._file_call(part, part.file, key, marked) if part.file else self._text_call(part, key, marked)
        self._keep_pace(key)
        sent = await self._ask(part, key, call)
        self._gestures.answered(part)
        self._presses.answered(part)
        return DeliveryReceipt(part=part.id, message_id=str(sent.message_id), at=sent.date)

    def _text_call(self, part: MessagePart, key: SessionKey, marked: bool) -> Callable[[int], Awaitable[Message]]:
        words = build_outgoing(part, marked=marked, language=self._language(part.key))
        return lambda chat: self._bot.send_message(
            chat,
            words.text,
            entities=entities_of(words.entities),
            message_thread_id=_topic(key),
            link_preview_options=_NO_PREVIEW,
            reply_parameters=_reply(part, key),
            disable_notification=part.is_placed or None,
            reply_markup=keyboard(part.choices),
        )

    async def _file_call(
        self, part: MessagePart, file: Attachment, key: SessionKey, marked: bool
    ) -> Callable[[int], Awaitable[Message]]:
        data = await self._files.load(part, file)
        thread, reply = _topic(key), _reply(part, key)
        mark = translate("delivery.may_repeat", self._language(part.key)) if marked else ""
        return lambda chat: self._files.post(
            FileDestination(chat=chat, thread=thread, reply=reply), file, data, mark=mark
        )

    async def _send_privately(self, part: MessagePart, *, marked: bool) -> DeliveryReceipt:
        """Send what one person may see into their own chat; where Telegram refuses, say in one line what to do.

        What answers a press comes with the button itself, where there is room for it.
        """
        if part.file is None and (told := await self._presses.tell(part, part.plain)):
            self._presses.answered(part)
            return _receipt(part, told)
        try:
            return await self._post(part, SessionKey(self._name, part.visible_to), marked=marked)
        except SendRefused:
            if not part.id.endswith(".1"):
                raise
        line = replace(part, payload="", plain=translate("telegram.write_first", self._language(part.key)))
        return await self._post(line, part.key, marked=marked)

    async def _draft(self, part: MessagePart, draft_id: int | None) -> DeliveryReceipt:
        try:
            ident = await self._activities.draft(part.key, draft_id, build_outgoing(part))
        except TelegramError as error:
            if isinstance(error, InvalidToken):  # a server of one's own that does not know drafts: no reason to wait
                raise SendRefused("this server has no drafts") from None
            raise send_failure(error, is_formatted=bool(part.payload)) from None
        return _receipt(part, f"{_DRAFT}{ident}")

    async def _put_draft(self, key: SessionKey, draft_id: int, words: OutgoingText) -> None:
        await self._pace.wait_turn()
        await self._bot.send_message_draft(
            int(key.parent.chat),
            draft_id,
            words.text,
            message_thread_id=_topic(key),
            entities=entities_of(words.entities),
        )

    async def _type(self, key: SessionKey) -> None:
        await self._pace.wait_turn()
        chat = await self._groups.resolve_chat(key)
        await self._bot.send_chat_action(chat, ChatAction.TYPING, message_thread_id=_topic(key))

    def _keep_pace(self, key: SessionKey) -> None:
        seconds = self._pace.try_acquire(key.parent.chat)
        if seconds:
            raise RetryLater(timedelta(seconds=seconds), "our own pace")

    async def _ask(self, part: MessagePart, key: SessionKey, call: Callable[[int], Awaitable[T]]) -> T:
        """Make a call that delivers *part*, in the chat where *key* is now; raise SendFailed."""
        chat = await self._groups.resolve_chat(key)
        await self._pace.wait_turn()
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


def _is_preview(part: MessagePart) -> bool:
    """Say whether *part* is the turn's preview itself, not a line that takes its place."""
    return part.kind is OutboundKind.PREVIEW and part.id.split(".")[1:2] == ["0"]


def _is_draft(part: MessagePart) -> bool:
    """Say whether *part* is shown as a draft: it fades, and what is placed (delivery.once: strict) has to stay."""
    return _is_preview(part) and _is_direct(part.key) and not part.is_placed


def _topic(key: SessionKey) -> int | None:
    return int(key.thread) if key.thread else None


def _reply(part: MessagePart, key: SessionKey) -> ReplyParameters | None:
    """In a group an answer names its question; in a private chat that would only repeat it."""
    if not part.reply_to.isdecimal() or _is_direct(key):
        return None
    return ReplyParameters(int(part.reply_to), allow_sending_without_reply=True)


def _receipt(part: MessagePart, message_id: str) -> DeliveryReceipt:
    return DeliveryReceipt(part=part.id, message_id=message_id, at=datetime.now(UTC))
