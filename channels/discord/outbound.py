"""Delivery of message parts to Discord: posts with the part's id as nonce, edits, files, responses, typing."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Mapping
from contextlib import aclosing
from datetime import datetime, timedelta
from functools import partial
from typing import TYPE_CHECKING, Any

import aiohttp
import structlog
from yarl import URL

from channels.discord.api import DiscordApi, DiscordRefusal
from channels.discord.chats import DiscordReplyThreads
from channels.discord.interactions import DiscordInteractions, DiscordReactions
from channels.discord.parse import DiscordFileRef, moment_of, snapshots
from channels.discord.render import matches_part, message_content, render_buttons
from channels.kit.background import utc_now
from channels.kit.bodies import read_file
from gateway.errors import FileUnavailable, OutcomeUnknown, SendFailed, SendRefused
from gateway.events import Attachment, MessagePart, OutboundKind, SessionKey
from gateway.i18n import translate
from gateway.net.connector import connector
from gateway.text import sanitize

if TYPE_CHECKING:
    from gateway.store.attachment_store import AttachmentStore


log = structlog.get_logger(__name__)

_DESCRIPTION = 1_024  # characters of a picture's description


class DiscordOutbound:
    """Sends the parts of one channel. Methods raise SendFailed, and FileUnavailable if a file's bytes are lost."""

    def __init__(
        self,
        api: DiscordApi,
        threads: DiscordReplyThreads,
        interactions: DiscordInteractions,
        reactions: DiscordReactions,
        blobs: AttachmentStore,
        *,
        language: Callable[[SessionKey], str],
        file_limit: Callable[[str], int],
    ) -> None:
        self._api = api
        self._threads = threads
        self._interactions = interactions
        self._reactions = reactions
        self._blobs = blobs
        self._language = language
        self._file_limit = file_limit

    async def send(self, part: MessagePart, *, may_be_duplicate: bool) -> str:
        """Post *part* under its id as nonce and return the message's id."""
        text = message_content(part, may_be_duplicate=may_be_duplicate, language=self._language)
        # An answer to a command or press replies to no message.
        is_response = part.file is None and not part.reply_to
        if is_response and (message_id := await self._interactions.send(part, text)):
            self._interactions.presses.settle(part)
            return message_id
        file = await self._file(part)
        if part.visible_to:
            message_id = await self._send_privately(part, text, file)
            self._interactions.presses.settle(part)
            return message_id
        chat = await self._threads.chat_of(part.key)
        message_id = await self._post(part, chat, text, file)
        self._settle(part)
        return message_id

    async def edit(self, message_id: str, part: MessagePart) -> None:
        """Replace the message *message_id*."""
        chat = await self._chat(part)
        await self._api.edit(chat, message_id, message_content(part), render_buttons(part.choices))
        self._settle(part)

    async def find(self, part: MessagePart) -> str:
        """Return the id of the message that is *part*, or "" if it was not sent."""
        if not part.reply_to and await self._interactions.is_pending(part):
            return ""  # sending it again has no effect
        size = len(await read_file(part, self._blobs)) if part.file is not None else 0
        return await find_sent_part(self._api, await self._chat(part), part, utc_now(), size=size)

    async def _chat(self, part: MessagePart) -> str:
        return await (self._api.direct(part.visible_to) if part.visible_to else self._threads.chat_of(part.key))

    async def _post(self, part: MessagePart, chat: str, text: str, file: tuple[str, bytes, str] | None) -> str:
        limit = self._file_limit(chat)
        if file is not None and len(file[1]) > limit:
            raise SendRefused(f"the file is larger than the {limit >> 20} MiB that Discord takes there")
        is_first = part.id.endswith(".1") and part.reply_to.isdigit()
        # The message that started a thread is shown above it anyway.
        reply_to = part.reply_to if is_first and part.reply_to != chat else ""
        below = render_buttons(part.choices)
        return await self._api.post(
            chat, text, nonce=part.id, reply_to=reply_to, file=file, components=below, calls=part.calls
        )

    async def _send_privately(self, part: MessagePart, text: str, file: tuple[str, bytes, str] | None) -> str:
        """Send a part that one user may see as a direct message; if they accept none, post a line with a hint."""
        try:
            return await self._api.post(await self._api.direct(part.visible_to), text, nonce=part.id, file=file)
        except DiscordRefusal:
            if file is not None:
                raise
            # One line for all parts of the message: they share the key.
            line, _, _ = part.id.rpartition(".")
            chat = await self._threads.chat_of(part.key)
            reply_to = "" if part.reply_to == chat else part.reply_to
            words = translate("discord.write_privately", self._language(part.key))
            return await self._api.post(chat, words, nonce=f"{line}.0p", reply_to=reply_to)

    def _settle(self, part: MessagePart) -> None:
        """Remove "is thinking" once a part of the answer is delivered."""
        if part.kind is OutboundKind.PREVIEW:
            return
        self._interactions.presses.settle(part)
        if not part.reply_to:
            self._reactions.tasks.start(partial(self._interactions.clear, part), "interaction")

    async def _file(self, part: MessagePart) -> tuple[str, bytes, str] | None:
        """Return the name, bytes and description of a part that is a file."""
        if part.file is None:
            return None
        words = sanitize(part.file.caption)[:_DESCRIPTION] if part.file.kind == "image" else ""
        return (part.file.name or "file", await read_file(part, self._blobs), words)


# -- sent lookup -----------------------------------------------------------------------------------
# Looks up parts of an uncertain delivery in the chat.
#
# Discord forgets a nonce after minutes and stores none, so the texts are compared.

_PAGES = 5  # of a hundred messages
# Without the right to read the history Discord shows an empty chat, but the chat of an answer contains the question.
_NO_MESSAGES = "the chat shows nothing"
_RECENT = timedelta(hours=1)  # an older message with the same text may be another one


async def find_sent_part(api: DiscordApi, chat: str, part: MessagePart, now: datetime, *, size: int = 0) -> str:
    """Return the id of the message that is *part*, or ""; raise OutcomeUnknown if the chat does not show it.

    *size* is the number of bytes of its file.
    """
    if part.reply_to.isdigit() and not part.visible_to:
        return await _find_after(api, chat, part, int(part.reply_to), size)
    page = await api.history(chat)
    if not page and not part.visible_to:
        raise OutcomeUnknown(_NO_MESSAGES)
    same = [message for message in page if _matches(message, part, api.me, size)]
    if not same:
        if len(page) < 100 or now - moment_of(page[0]["id"]) > _RECENT:
            return ""
        raise OutcomeUnknown("too much was said since")
    newest = str(same[-1]["id"])
    if now - moment_of(newest) > _RECENT:
        raise OutcomeUnknown("the same words stand there, but from long ago")
    return newest


async def _find_after(api: DiscordApi, chat: str, part: MessagePart, after: int, size: int) -> str:
    for _ in range(_PAGES):
        page = await api.history(chat, after=after)
        for message in page:
            if _matches(message, part, api.me, size):
                return str(message["id"])
        if not page and not await api.history(chat, limit=1):
            raise OutcomeUnknown(_NO_MESSAGES)
        if len(page) < 100:
            return ""
        after = int(page[-1]["id"])
    raise OutcomeUnknown("too much was said since")


def _matches(message: Mapping[str, Any], part: MessagePart, bot: str, size: int) -> bool:
    if str((message.get("author") or {}).get("id")) != bot:
        return False
    if message.get("nonce") is not None:
        return str(message["nonce"]) == part.id
    if part.file is not None:
        # A caption may be empty, and Discord changes file names, so the size is compared.
        sizes = [int(each.get("size") or 0) for each in message.get("attachments") or ()]
        return sizes == [size]
    return matches_part(str(message.get("content") or ""), part)


# -- files -----------------------------------------------------------------------------------------
# Downloads of attachments, from Discord's own hosts only; an expired address is renewed once.

_HOSTS = frozenset({"cdn.discordapp.com", "media.discordapp.net"})
_CHUNK = 64 * 1024
_SILENCE_LIMIT = 20.0  # seconds without a byte
_EXPIRED = frozenset({403, 404, 410})  # statuses of an expired address
_GONE = "it is gone from Discord"
_BROKE_OFF = "the download broke off"


class _UrlExpired(Exception):
    """The signed address has expired; the message has a new one."""


class DiscordFiles:
    """The files of one channel. Requests carry no token; addresses are secrets and never logged."""

    def __init__(self, api: DiscordApi, *, api_url: str, proxy: str) -> None:
        self._api = api
        self._proxy = proxy
        address = URL(api_url)
        # A test server, or one that replaces Discord, serves files where its API is.
        self._own = None if address.host == "discord.com" else (address.scheme, address.authority)
        self._session: aiohttp.ClientSession | None = None

    async def fetch(self, attachment: Attachment) -> AsyncGenerator[bytes, None]:
        """Yield the file in chunks; see `SupportsFiles`."""
        try:
            address = DiscordFileRef.read(attachment.url)
        except ValueError:
            raise FileUnavailable("its address is none of Discord's") from None
        for is_second in (False, True):
            url = await self._renew(address) if is_second else address.url
            try:
                async with aclosing(self._stream(url)) as pieces:
                    async for piece in pieces:
                        yield piece
            except _UrlExpired:
                continue
            return
        raise FileUnavailable(_GONE)

    async def close(self) -> None:
        """Release the connections."""
        if self._session is not None:
            await self._session.close()

    def _is_allowed(self, url: URL) -> bool:
        if (url.scheme, url.authority) == self._own:
            return True
        return url.scheme == "https" and url.host in _HOSTS and url.port == 443 and not (url.user or url.password)

    async def _stream(self, address: str) -> AsyncGenerator[bytes, None]:
        try:
            url = URL(address, encoded=True)  # the signature covers the exact address
        except ValueError:
            raise FileUnavailable("its address is none of Discord's") from None
        if not self._is_allowed(url):
            raise FileUnavailable("its address is none of Discord's")
        if self._session is None:
            timeout = aiohttp.ClientTimeout(total=None, sock_connect=_SILENCE_LIMIT, sock_read=_SILENCE_LIMIT)
            self._session = aiohttp.ClientSession(connector=connector(self._proxy), timeout=timeout)
        try:
            async with self._session.get(url, allow_redirects=False) as response:
                if response.status in _EXPIRED:
                    raise _UrlExpired
                if response.status != 200:
                    raise FileUnavailable("Discord does not hand it out")
                async for piece in response.content.iter_chunked(_CHUNK):
                    yield piece
        except (aiohttp.ClientError, OSError, TimeoutError) as error:
            log.info("discord.download_failed", error=type(error).__name__)
            raise FileUnavailable(_BROKE_OFF) from error

    async def _renew(self, address: DiscordFileRef) -> str:
        """Return the current address in the message."""
        try:
            message = await self._api.message(address.chat, address.message)
        except SendFailed as error:
            raise FileUnavailable(_GONE) from error
        forwarded = [each for part in snapshots(message) for each in part.get("attachments") or ()]
        for each in (*(message.get("attachments") or ()), *forwarded):
            if str(each.get("id")) == address.attachment:
                return str(each.get("url") or "")
        raise FileUnavailable(_GONE)
