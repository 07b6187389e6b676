"""Files of a bot: fetched when a turn asks for them, and sent as photos or documents.

The address of a file holds the token: it is put together here, followed to Telegram and nowhere else, and never
logged. Figures: core.telegram.org/bots/api#getfile, #sendphoto, #senddocument.
"""

from __future__ import annotations

import re
from collections.abc import AsyncGenerator
from dataclasses import dataclass
from urllib.parse import quote

import httpx
import structlog
from telegram import Bot, Message, ReplyParameters
from telegram.error import BadRequest, InvalidToken, RetryAfter, TelegramError

from channels.telegram.api import describe_error, httpx_options
from channels.telegram.codec import FILE_SCHEME
from gateway.errors import FileUnavailable, SendRefused
from gateway.events import Attachment, MessagePart
from gateway.ports import BlobStore
from gateway.text import LengthUnit, sanitize, split, width

log = structlog.get_logger(__name__)

LARGEST_OUT = 50_000_000  # bytes of a document
_LARGEST_IN = 20_000_000  # bytes that Telegram hands to bots
_LARGEST_PHOTO = 10_000_000
_PHOTOS = ("image/jpeg", "image/png", "image/webp")
_CAPTION = 1024  # UTF-16 units (constants.MessageLimit)
_PIECE = 64 * 1024
_SECONDS = 20.0  # of silence in a download
_TRIES = 2  # of what can be asked again without harm
_PATH = re.compile(r"[A-Za-z0-9_.][A-Za-z0-9_./-]*\Z")

TOO_LARGE = "larger than 20 MB, the most that Telegram hands to bots"
GONE = "Telegram does not have it any more"
NOT_NOW = "Telegram does not hand it over at the moment"
ON_ITS_DISK = "the Bot API server keeps files on its own disk; it has to run without --local"


@dataclass(frozen=True, slots=True, kw_only=True)
class FileDestination:
    """Where a file goes, and how."""

    chat: int
    thread: int | None
    reply: ReplyParameters | None


class TelegramFiles:
    """The files of one bot, in and out."""

    def __init__(self, bot: Bot, blobs: BlobStore, *, proxy: str = "") -> None:
        self._bot = bot
        self._blobs = blobs
        self._proxy = proxy
        self._client: httpx.AsyncClient | None = None

    async def close(self) -> None:
        """Release the connections."""
        if self._client is not None:
            await self._client.aclose()

    # -- in ------------------------------------------------------------------------------------

    async def fetch(self, attachment: Attachment) -> AsyncGenerator[bytes, None]:
        """Yield the file in pieces; raise FileUnavailable in words for a person."""
        ident = attachment.url.removeprefix(FILE_SCHEME)
        if not ident or ident == attachment.url:
            raise FileUnavailable("it is no file of Telegram")
        if attachment.size > _LARGEST_IN:
            raise FileUnavailable(TOO_LARGE)
        address = await self._address(ident)
        try:
            async with self._connection().stream("GET", address) as response:
                if response.status_code == httpx.codes.NOT_FOUND:
                    raise FileUnavailable(GONE)
                if response.status_code != httpx.codes.OK:
                    log.warning("telegram.file_refused", status=response.status_code)
                    raise FileUnavailable(NOT_NOW)
                async for piece in response.aiter_bytes(_PIECE):
                    yield piece
        except httpx.HTTPError as error:
            log.warning("telegram.file_broke_off", reason=type(error).__name__)
            raise FileUnavailable(NOT_NOW) from None

    async def _address(self, ident: str) -> str:
        """Return where the file lies now; good for an hour at least, but asked anew each time."""
        for left in reversed(range(_TRIES)):
            try:
                found = await self._bot.get_file(ident)
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
                return self._checked(found.file_path or "")
        raise AssertionError  # the last try returns or raises

    def _checked(self, address: str) -> str:
        """Return *address*, as the library put it together, when it leads into the server's files and nowhere else."""
        begin = f"{self._bot.base_file_url}/"
        path = address.removeprefix(begin)
        if path.startswith("/"):
            raise FileUnavailable(ON_ITS_DISK)
        if not address.startswith(begin) or not _PATH.match(path) or ".." in path:
            raise FileUnavailable(GONE)
        return begin + quote(path)

    def _connection(self) -> httpx.AsyncClient:
        if self._client is None:
            self._client = httpx.AsyncClient(timeout=_SECONDS, follow_redirects=False, **httpx_options(self._proxy))
        return self._client

    # -- out -----------------------------------------------------------------------------------

    async def load(self, part: MessagePart, file: Attachment) -> bytes:
        """Return the bytes of a part that is a file; raise FileUnavailable when they are lost."""
        data = await self._blobs.get(file.blob) if file.blob else part.plain.encode("utf-8", "replace")
        if data is None:
            raise FileUnavailable("its bytes are lost")
        if len(data) > LARGEST_OUT:
            raise SendRefused("larger than 50 MB")
        if not data:
            raise SendRefused("Telegram takes no empty files")
        return data

    async def post(self, place: FileDestination, file: Attachment, data: bytes, *, mark: str) -> Message:
        """Send *data*, a photo where Telegram shows it as one, else a document; *mark* below. Raises TelegramError."""
        caption = _caption(file.caption, mark)
        name = sanitize(file.name).replace("/", "_").strip() or "file"
        if file.media_type in _PHOTOS and len(data) <= _LARGEST_PHOTO:
            try:
                return await self._bot.send_photo(
                    place.chat,
                    data,
                    caption=caption,
                    filename=name,
                    message_thread_id=place.thread,
                    reply_parameters=place.reply,
                )
            except BadRequest as error:
                if not _is_no_photo(error):
                    raise
                log.info("telegram.photo_as_document", reason=describe_error(error))
        return await self._bot.send_document(
            place.chat,
            data,
            caption=caption,
            filename=name,
            disable_content_type_detection=False,
            message_thread_id=place.thread,
            reply_parameters=place.reply,
        )


def _is_no_photo(error: BadRequest) -> bool:
    """Say whether Telegram took the file for no photo: sides, ratio, or what it cannot decode."""
    text = error.message.lower()
    return "photo_" in text or "image_process" in text or ("photo" in text and "too big" in text)


def _caption(text: str, mark: str) -> str | None:
    """Return the caption, cut to what Telegram takes; a *mark* says that the file may repeat another."""
    room = _CAPTION - (width(f"\n\n{mark}", LengthUnit.UTF16) if mark else 0)
    text = sanitize(text).strip()
    if width(text, LengthUnit.UTF16) > room:
        text = split(text, limit=room - 1, unit=LengthUnit.UTF16)[0] + "…"
    return "\n\n".join(each for each in (text, mark) if each) or None
