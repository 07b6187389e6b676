"""What goes out: posts under their part's id, edits, files, and answers to native commands in their place."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime
from functools import partial

from channels.discord import codec
from channels.discord.activity import DiscordActivity
from channels.discord.api import DiscordApi
from channels.discord.errors import DiscordRefusal
from channels.discord.interactions import DiscordInteractions
from channels.discord.reply_threads import DiscordReplyThreads
from channels.discord.sent_lookup import find_sent_part
from channels.kit.reactions import AckReactions
from gateway.errors import FileUnavailable, SendRefused
from gateway.events import MessagePart, OutboundKind, SessionKey
from gateway.i18n import translate
from gateway.ports import BlobStore


class DiscordOutbound:
    """Of one channel. Every method raises SendFailed, and FileUnavailable where a file's bytes are lost."""

    def __init__(
        self,
        rest: DiscordApi,
        threads: DiscordReplyThreads,
        interactions: DiscordInteractions,
        signs: DiscordActivity,
        reactions: AckReactions,
        blobs: BlobStore,
        *,
        language: Callable[[SessionKey], str],
        file_limit: Callable[[str], int],
        now: Callable[[], datetime],
    ) -> None:
        self._rest = rest
        self._threads = threads
        self._interactions = interactions
        self._signs = signs
        self._reactions = reactions
        self._blobs = blobs
        self._language = language
        self._file_limit = file_limit
        self._now = now

    async def send(self, part: MessagePart, *, marked: bool) -> str:
        """Post *part* under its id as nonce and return the message's id."""
        text = codec.message_content(part, marked=marked, language=self._language(part.key))
        if part.file is None and not part.reply_to and (placed := await self._interactions.put(part, text)):
            self._signs.begin(partial(self._interactions.clear, part), "interaction")
            return placed
        file = await self._file(part)
        if part.visible_to:
            message_id = await self._whisper(part, text, file)
            self._reactions.settle(part.key)
            return message_id
        chat = await self._threads.chat(part.key)
        message_id = await self._post(part, chat, text, file)
        self._settle(part)
        return message_id

    async def edit(self, message_id: str, part: MessagePart) -> None:
        """Replace what stands under *message_id*."""
        chat = await self._chat(part)
        await self._rest.edit(chat, message_id, codec.message_content(part), codec.render_buttons(part.choices))
        self._settle(part)

    async def find(self, part: MessagePart) -> str:
        """Look for *part* among what we said after the message it answers; "" = it is not there."""
        if not part.reply_to and self._interactions.is_here(part):
            return ""  # putting it there again changes nothing
        size = len(await self._bytes(part)) if part.file is not None else 0
        return await find_sent_part(self._rest, await self._chat(part), part, self._now(), size=size)

    async def _chat(self, part: MessagePart) -> str:
        return await (self._rest.direct(part.visible_to) if part.visible_to else self._threads.chat(part.key))

    async def _post(self, part: MessagePart, chat: str, text: str, file: tuple[str, bytes] | None) -> str:
        limit = self._file_limit(chat)
        if file is not None and len(file[1]) > limit:
            raise SendRefused(f"the file is larger than the {limit >> 20} MiB that Discord takes there")
        is_first = part.id.endswith(".1") and part.reply_to.isdigit()
        # A thread's own start stands above it anyway.
        reply_to = part.reply_to if is_first and part.reply_to != chat else ""
        below = codec.render_buttons(part.choices)
        return await self._rest.post(chat, text, nonce=part.id, reply_to=reply_to, file=file, components=below)

    async def _whisper(self, part: MessagePart, text: str, file: tuple[str, bytes] | None) -> str:
        """Send what one person alone may see: as a direct message; where they take none, one line says so."""
        try:
            return await self._rest.post(await self._rest.direct(part.visible_to), text, nonce=part.id, file=file)
        except DiscordRefusal:
            if file is not None:
                raise
            # One line for all parts of the message: they share the key.
            line, _, _ = part.id.rpartition(".")
            chat = await self._threads.chat(part.key)
            reply_to = "" if part.reply_to == chat else part.reply_to
            words = translate("discord.write_privately", self._language(part.key))
            return await self._rest.post(chat, words, nonce=f"{line}.0p", reply_to=reply_to)

    def _settle(self, part: MessagePart) -> None:
        """Take the signs of waiting away, once something of the answer stands."""
        if part.kind is OutboundKind.PREVIEW:
            return
        self._reactions.settle(part.key)
        if not part.reply_to:
            self._signs.begin(partial(self._interactions.clear, part), "interaction")

    async def _file(self, part: MessagePart) -> tuple[str, bytes] | None:
        return None if part.file is None else (part.file.name or "file", await self._bytes(part))

    async def _bytes(self, part: MessagePart) -> bytes:
        if part.file is None or not part.file.blob:
            return part.plain.encode()
        data = await self._blobs.get(part.file.blob)
        if data is None:
            raise FileUnavailable("it is lost")
        return data
