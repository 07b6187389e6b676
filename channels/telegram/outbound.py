"""Delivery of message parts to Telegram: messages, edits, drafts, files, typing."""

from __future__ import annotations

import math
import re
import secrets
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass, field, replace
from datetime import timedelta
from functools import partial
from http import HTTPStatus
from typing import TYPE_CHECKING, Any, TypeVar
from urllib.parse import quote

import aiohttp
import structlog
from telegram import Bot, LinkPreviewOptions, Message, ReplyParameters
from telegram.constants import ChatAction
from telegram.error import BadRequest, ChatMigrated, InvalidToken, RetryAfter, TelegramError

from channels.kit.background import BackgroundTasks, RepeatedActivity, loop_time
from channels.kit.bodies import build_receipt, load_file
from channels.telegram.api import AiohttpRequest, describe_error, entities_of, is_unchanged, map_send_errors
from channels.telegram.chats import TelegramChats
from channels.telegram.content import FILE_SCHEME
from channels.telegram.interactions import TelegramButtons, TelegramReactions, keyboard
from channels.telegram.rate_limits import Decoration, TelegramRateLimits
from channels.telegram.render import OutgoingText, build_outgoing
from gateway.errors import FileUnavailable, OutcomeUnknown, RetryLater, SendRefused
from gateway.events import Attachment, DeliveryReceipt, MessagePart, OutboundKind, SessionKey
from gateway.i18n import translate
from gateway.ports.channel import ChatActivity
from gateway.text import LengthUnit, sanitize, split, width

if TYPE_CHECKING:
    from gateway.store.attachment_store import AttachmentStore


log = structlog.get_logger(__name__)

T = TypeVar("T")

TYPING_INTERVAL = 4.0  # seconds; typing fades after 5, a draft after 30
_DRAFT = "draft:"  # prefix of a draft's id in place of a message id
_NO_PREVIEW = LinkPreviewOptions(is_disabled=True)


class TelegramOutbound:
    """Sends the parts of one bot."""

    def __init__(
        self,
        name: str,
        bot: Bot,
        *,
        chats: TelegramChats,
        limits: TelegramRateLimits,
        reactions: TelegramReactions,
        buttons: TelegramButtons,
        files: TelegramFiles,
        language: Callable[[SessionKey], str],
        typing: float = TYPING_INTERVAL,
    ) -> None:
        """Send through *bot*; *language* returns a chat's, *typing* is the seconds between two typing calls."""
        self._language = language
        self._name = name
        self._bot = bot
        self._chats = chats
        self._limits = limits
        self._buttons = buttons
        self._files = files
        self.activity = TelegramActivity(
            reactions.tasks, send_typing=self._send_typing, send_draft=self._send_draft, interval=typing
        )

    # -- the port ------------------------------------------------------------------------------

    async def send(self, part: MessagePart, *, may_be_duplicate: bool = False) -> DeliveryReceipt:
        """Send one part; a preview in a private chat is a draft unless it must stay."""
        if _is_draft(part):
            return await self._show_draft(part, None)
        if part.visible_to and not _is_direct(part.key):
            return await self._send_privately(part, may_be_duplicate=may_be_duplicate)
        return await self._post(part, part.key, may_be_duplicate=may_be_duplicate)

    async def edit(self, message_id: str, part: MessagePart) -> DeliveryReceipt:
        """Replace the text of a message or draft."""
        if part.file is not None:
            raise SendRefused("a file cannot take the place of a text")
        if message_id.startswith(_DRAFT):
            if not _is_draft(part):
                raise SendRefused("a draft cannot become a message")
            return await self._show_draft(part, int(message_id.removeprefix(_DRAFT)))
        if not (is_preview := _is_preview(part)):
            self._acquire(part.key)
        elif not self._limits.try_acquire_preview(part.key.parent.chat):
            # The next edit contains the whole text, and the last one is never dropped.
            return build_receipt(part, message_id)
        words = build_outgoing(part)
        try:
            await self._call(
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
                is_counted=is_preview,
            )
        except _UnchangedError:
            log.debug("telegram.unchanged", channel=self._name, part=part.id)
        return build_receipt(part, message_id)

    async def find(self, part: MessagePart) -> DeliveryReceipt | None:
        """Return None for a draft, which fades; raise OutcomeUnknown for a message, since bots cannot read chats."""
        if _is_draft(part):
            return None
        raise OutcomeUnknown("Telegram cannot be asked")

    # -- calls ---------------------------------------------------------------------------------

    async def _post(self, part: MessagePart, key: SessionKey, *, may_be_duplicate: bool) -> DeliveryReceipt:
        call = (
            await self._file_call(part, part.file, key, may_be_duplicate)
            if part.file
            else self._text_call(part, key, may_be_duplicate)
        )
        self._acquire(key)
        sent = await self._call(part, key, call)
        self._buttons.presses.settle(part)
        return DeliveryReceipt(part=part.id, message_id=str(sent.message_id), at=sent.date)

    def _text_call(
        self, part: MessagePart, key: SessionKey, may_be_duplicate: bool
    ) -> Callable[[int], Awaitable[Message]]:
        words = build_outgoing(part, may_be_duplicate=may_be_duplicate, language=self._language)
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
        self, part: MessagePart, file: Attachment, key: SessionKey, may_be_duplicate: bool
    ) -> Callable[[int], Awaitable[Message]]:
        data = await self._files.load(part)
        thread, reply = _topic(key), _reply(part, key)
        mark = translate("delivery.may_repeat", self._language(part.key)) if may_be_duplicate else ""
        return lambda chat: self._files.post(
            FileDestination(chat=chat, thread=thread, reply=reply), file, data, mark=mark
        )

    async def _send_privately(self, part: MessagePart, *, may_be_duplicate: bool) -> DeliveryReceipt:
        """Send a part that one user may see to their private chat; if Telegram refuses, post one line with a hint.

        A short answer to a press comes with the button itself.
        """
        if part.file is None and (alert := await self._buttons.send_alert(part, part.plain)):
            self._buttons.presses.settle(part)
            return build_receipt(part, alert)
        try:
            return await self._post(part, SessionKey(self._name, part.visible_to), may_be_duplicate=may_be_duplicate)
        except SendRefused:
            if not part.id.endswith(".1"):
                raise
        line = replace(part, payload="", plain=translate("telegram.write_first", self._language(part.key)))
        return await self._post(line, part.key, may_be_duplicate=may_be_duplicate)

    async def _show_draft(self, part: MessagePart, draft_id: int | None) -> DeliveryReceipt:
        with map_send_errors(is_formatted=bool(part.payload)):
            try:
                shown_id = await self.activity.show_draft(part.key, draft_id, build_outgoing(part))
            except InvalidToken:  # a self-hosted server that does not know drafts: no reason to wait
                raise SendRefused("this server has no drafts") from None
        return build_receipt(part, f"{_DRAFT}{shown_id}")

    async def _send_draft(self, key: SessionKey, draft_id: int, words: OutgoingText) -> bool:
        """Show a draft; return False if answers need the calls: the next draft contains the whole text."""
        if self._limits.calls.try_acquire(reserve=Decoration.PREVIEW):
            return False
        await self._bot.send_message_draft(
            int(key.parent.chat),
            draft_id,
            words.text,
            message_thread_id=_topic(key),
            entities=entities_of(words.entities),
        )
        return True

    async def _send_typing(self, key: SessionKey) -> None:
        if self._limits.calls.try_acquire(reserve=Decoration.TYPING):
            return
        chat = await self._chats.resolve_chat(key)
        await self._bot.send_chat_action(chat, ChatAction.TYPING, message_thread_id=_topic(key))

    def _acquire(self, key: SessionKey) -> None:
        if seconds := self._limits.chats.of(key.parent.chat).try_acquire():
            raise RetryLater(timedelta(seconds=seconds), "our own rate limit")

    async def _call(
        self, part: MessagePart, key: SessionKey, call: Callable[[int], Awaitable[T]], *, is_counted: bool = False
    ) -> T:
        """Make a call that delivers *part* to the current chat of *key*; raise SendFailed."""
        chat = await self._chats.resolve_chat(key)
        if not is_counted:
            await self._limits.acquire(part.key)
        with map_send_errors(is_formatted=bool(part.payload)):
            try:
                try:
                    return await call(chat)
                except ChatMigrated as moved:
                    await self._chats.save_migration(chat, moved.new_chat_id)
                    return await call(moved.new_chat_id)
            except BadRequest as error:
                if is_unchanged(error):
                    raise _UnchangedError from None
                raise


class _UnchangedError(Exception):
    """The message reads like that already."""


def _is_direct(key: SessionKey) -> bool:
    """Return True if *key* is a private chat: ids of users are positive, those of groups negative."""
    return not key.chat.startswith("-")


def _is_preview(part: MessagePart) -> bool:
    """Return True if *part* is the turn's preview itself, not a line that replaces it."""
    return part.kind is OutboundKind.PREVIEW and part.id.split(".")[1:2] == ["0"]


def _is_draft(part: MessagePart) -> bool:
    """Return True if *part* is shown as a draft, which fades; a placed part (delivery.once: strict) must stay."""
    return _is_preview(part) and _is_direct(part.key) and not part.is_placed


def _topic(key: SessionKey) -> int | None:
    return int(key.thread) if key.thread else None


def _reply(part: MessagePart, key: SessionKey) -> ReplyParameters | None:
    """Return the reply parameters of an answer in a group; private answers follow their question anyway."""
    if not part.reply_to.isdecimal() or _is_direct(key):
        return None
    return ReplyParameters(int(part.reply_to), allow_sending_without_reply=True)


_DRAFT_INTERVAL = 20.0


@dataclass(slots=True)
class _ActiveChat:
    draft_id: int = field(default_factory=lambda: secrets.randbelow(2**31 - 1) + 1)
    draft: OutgoingText | None = None
    drafted_at: float = -math.inf  # when a draft was last shown


class TelegramActivity:
    """The chats in which a turn runs."""

    def __init__(
        self,
        tasks: BackgroundTasks,
        *,
        send_typing: Callable[[SessionKey], Awaitable[object]],
        send_draft: Callable[[SessionKey, int, OutgoingText], Awaitable[bool]],
        interval: float = TYPING_INTERVAL,
    ) -> None:
        """Repeat typing every *interval* seconds. *send_typing* and *send_draft* may raise TelegramError.

        *send_draft* returns False for a draft that it dropped.
        """
        self._send_typing = send_typing
        self._send_draft = send_draft
        self._repeated = RepeatedActivity(tasks, interval)
        self._chats: dict[SessionKey, _ActiveChat] = {}

    async def show(self, activity: ChatActivity) -> None:
        """Show typing and, in private chats before the answer begins, the status as a draft; or stop both.

        No call is in flight when it returns from stopping.
        """
        key = activity.key
        if not activity.on:
            self._chats.pop(key, None)
            await self._repeated.stop(key)
            return
        chat = self._chats.setdefault(key, _ActiveChat())
        self._repeated.start(key, partial(self._repeat, key, chat))
        if activity.text and _is_direct(key) and chat.draft is None:
            with suppress(TelegramError):
                await self._send_draft(key, chat.draft_id, OutgoingText(activity.text))

    def is_active(self, key: SessionKey) -> bool:
        """Return True while something is shown in *key*."""
        return key in self._chats

    async def show_draft(self, key: SessionKey, draft_id: int | None, text: OutgoingText) -> int:
        """Show the answer so far, repeat it while the turn runs, and return its draft id. Raises TelegramError."""
        chat = self._chats.get(key, _ActiveChat())
        chat.draft_id = draft_id or chat.draft_id
        is_shown = await self._send_draft(key, chat.draft_id, text)
        chat.draft, chat.drafted_at = text, loop_time() if is_shown else -math.inf
        return chat.draft_id

    async def _repeat(self, key: SessionKey, chat: _ActiveChat) -> None:
        with map_send_errors():
            await self._send_typing(key)
            is_fading = loop_time() - chat.drafted_at > _DRAFT_INTERVAL
            if chat.draft is not None and is_fading and await self._send_draft(key, chat.draft_id, chat.draft):
                chat.drafted_at = loop_time()


# -- files -----------------------------------------------------------------------------------------
# Downloads when a turn asks for them, and uploads as photos, voice messages or documents. The address of a file has the
# token: it is built here, followed to Telegram only, and never logged. core.telegram.org/bots/api has the limits
# (getFile, sendPhoto, sendVoice, sendDocument).

UPLOAD_LIMIT = 50_000_000  # bytes of a document
_DOWNLOAD_LIMIT = 20_000_000
_PHOTO_LIMIT = 10_000_000
_PHOTOS = ("image/jpeg", "image/png", "image/webp")
_VOICES = ("audio/ogg", "audio/mpeg", "audio/mp4")
_SOUNDS = ("voice", "audio")  # their caption is what they say, and stands above them already
_CAPTION = 1024  # UTF-16 units (constants.MessageLimit)
_CHUNK = 64 * 1024
_ATTEMPTS = 2  # of a call that is safe to retry
_PATH = re.compile(r"[A-Za-z0-9_.][A-Za-z0-9_./-]*\Z")

TOO_LARGE = "larger than 20 MB, the most that Telegram hands to bots"
GONE = "Telegram does not have it any more"
NOT_NOW = "Telegram does not hand it over at the moment"
ON_ITS_DISK = "the Bot API server keeps files on its own disk; it has to run without --local"


@dataclass(frozen=True, slots=True, kw_only=True)
class FileDestination:
    """The chat that a file is sent to."""

    chat: int
    thread: int | None
    reply: ReplyParameters | None


class TelegramFiles:
    """The files of one bot."""

    def __init__(self, bot: Bot, request: AiohttpRequest, blobs: AttachmentStore) -> None:
        self._bot = bot
        self._request = request
        self._blobs = blobs

    # -- in ------------------------------------------------------------------------------------

    async def fetch(self, attachment: Attachment) -> AsyncGenerator[bytes, None]:
        """Yield the file in chunks; raise FileUnavailable with a text for the sender."""
        file_id = attachment.url.removeprefix(FILE_SCHEME)
        if not file_id or file_id == attachment.url:
            raise FileUnavailable("it is no file of Telegram")
        if attachment.size > _DOWNLOAD_LIMIT:
            raise FileUnavailable(TOO_LARGE)
        address = await self._address(file_id)
        try:
            async with self._request.download(address) as response:
                if response.status == HTTPStatus.NOT_FOUND:
                    raise FileUnavailable(GONE)
                if response.status != HTTPStatus.OK:
                    log.warning("telegram.file_refused", status=response.status)
                    raise FileUnavailable(NOT_NOW)
                async for piece in response.content.iter_chunked(_CHUNK):
                    yield piece
        except (aiohttp.ClientError, TimeoutError) as error:
            log.warning("telegram.file_broke_off", reason=type(error).__name__)
            raise FileUnavailable(NOT_NOW) from None

    async def _address(self, file_id: str) -> str:
        """Return the current address of the file, which is valid for at least an hour."""
        for left in reversed(range(_ATTEMPTS)):
            try:
                file = await self._bot.get_file(file_id)
            except BadRequest as error:
                raise FileUnavailable(TOO_LARGE if "too big" in error.message.lower() else GONE) from None
            except (InvalidToken, RetryAfter) as error:
                log.warning("telegram.file_refused", reason=describe_error(error))
                raise FileUnavailable(NOT_NOW) from None
            except TelegramError as error:
                log.warning("telegram.file_unanswered", reason=describe_error(error))
                if not left:
                    raise FileUnavailable(NOT_NOW) from None
            else:
                return self._check(file.file_path or "")
        raise AssertionError  # the last try returns or raises

    def _check(self, address: str) -> str:
        """Return *address* if it leads to the server's files; raise FileUnavailable otherwise."""
        begin = f"{self._bot.base_file_url}/"
        path = address.removeprefix(begin)
        if path.startswith("/"):
            raise FileUnavailable(ON_ITS_DISK)
        if not address.startswith(begin) or not _PATH.match(path) or ".." in path:
            raise FileUnavailable(GONE)
        return begin + quote(path)

    # -- out -----------------------------------------------------------------------------------

    async def load(self, part: MessagePart) -> bytes:
        """Return the bytes of a part that is a file; raises as `load_file`."""
        return await load_file(part, self._blobs, limit=UPLOAD_LIMIT)

    async def post(self, destination: FileDestination, file: Attachment, data: bytes, *, mark: str) -> Message:
        """Send *data* as a photo or a voice message if Telegram shows it as one, else as a document, with *mark* below.

        Raises TelegramError.
        """
        caption = _caption("" if file.kind in _SOUNDS else file.caption, mark)
        name = sanitize(file.name).replace("/", "_").strip() or "file"
        options: dict[str, Any] = {
            "caption": caption,
            "filename": name,
            "message_thread_id": destination.thread,
            "reply_parameters": destination.reply,
        }
        try:
            if file.media_type in _PHOTOS and len(data) <= _PHOTO_LIMIT:
                return await self._bot.send_photo(destination.chat, data, **options)
            if file.kind == "voice" and file.media_type in _VOICES:
                return await self._bot.send_voice(destination.chat, data, **options)
        except BadRequest as error:
            # A picture of another size than photos have, or a person who takes no voice messages.
            if not _is_no_photo(error) and "voice" not in error.message.lower():
                raise
            log.info("telegram.file_as_document", kind=file.kind, reason=describe_error(error))
        return await self._bot.send_document(destination.chat, data, disable_content_type_detection=False, **options)


def _is_no_photo(error: BadRequest) -> bool:
    """Return True if Telegram refused a photo for its size, its ratio or its format."""
    text = error.message.lower()
    return "photo_" in text or "image_process" in text or ("photo" in text and "too big" in text)


def _caption(text: str, mark: str) -> str | None:
    """Return the caption within Telegram's limit; *mark* says that the file may repeat another."""
    limit = _CAPTION - (width(f"\n\n{mark}", LengthUnit.UTF16) if mark else 0)
    text = sanitize(text).strip()
    if width(text, LengthUnit.UTF16) > limit:
        text = split(text, limit=limit - 1, unit=LengthUnit.UTF16)[0] + "…"
    return "\n\n".join(each for each in (text, mark) if each) or None
