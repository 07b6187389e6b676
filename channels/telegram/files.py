"""Files of a bot: downloads when a turn asks for them, and uploads as photos or documents.

The address of a file contains the token: it is built here, followed to Telegram only, and never logged.
Figures: core.telegram.org/bots/api#getfile, #sendphoto, #senddocument.
"""

from __future__ import annotations

import re
from collections.abc import AsyncGenerator
from dataclasses import dataclass
from http import HTTPStatus
from urllib.parse import quote

import aiohttp
import structlog
from telegram import Bot, Message, ReplyParameters
from telegram.error import BadRequest, InvalidToken, RetryAfter, TelegramError

from channels.kit.parts import load_file
from channels.telegram.api import describe_error
from channels.telegram.codec import FILE_SCHEME
from channels.telegram.http_request import AiohttpRequest
from gateway.errors import FileUnavailable
from gateway.events import Attachment, MessagePart
from gateway.ports import BlobStore
from gateway.text import LengthUnit, sanitize, split, width

log = structlog.get_logger(__name__)

UPLOAD_LIMIT = 50_000_000  # bytes of a document
_DOWNLOAD_LIMIT = 20_000_000
_PHOTO_LIMIT = 10_000_000
_PHOTOS = ("image/jpeg", "image/png", "image/webp")
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

    def __init__(self, bot: Bot, request: AiohttpRequest, blobs: BlobStore) -> None:
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
        """Send *data* as a photo if Telegram shows it as one, else as a document, with *mark* below.

        Raises TelegramError.
        """
        caption = _caption(file.caption, mark)
        name = sanitize(file.name).replace("/", "_").strip() or "file"
        if file.media_type in _PHOTOS and len(data) <= _PHOTO_LIMIT:
            try:
                return await self._bot.send_photo(
                    destination.chat,
                    data,
                    caption=caption,
                    filename=name,
                    message_thread_id=destination.thread,
                    reply_parameters=destination.reply,
                )
            except BadRequest as error:
                if not _is_no_photo(error):
                    raise
                log.info("telegram.photo_as_document", reason=describe_error(error))
        return await self._bot.send_document(
            destination.chat,
            data,
            caption=caption,
            filename=name,
            disable_content_type_detection=False,
            message_thread_id=destination.thread,
            reply_parameters=destination.reply,
        )


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
